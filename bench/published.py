"""Scores that others have published, by environment: to be put beside ours in docs/results/index.md."""

PAF = {  # ppo_and_friends' README: single runs, steps not told; CartPole is -v0, the others -v2 and -v3
    "CartPole-v1": 200.0,
    "Pendulum-v1": -241.6,
    "Acrobot-v1": -82.0,
    "MountainCar-v0": -105.1,
    "MountainCarContinuous-v0": 92.0,
    "LunarLander-v3": 259.4,
    "LunarLanderContinuous-v3": 281.7,
    "BipedalWalker-v3": 319.0,
    "BipedalWalkerHardcore-v3": 313.0,
    "InvertedPendulum-v4": 1000.0,
    "InvertedDoublePendulum-v4": 9318.5,
    "Ant-v4": 6298.3,
    "Walker2d-v4": 3530.0,
    "Hopper-v4": 3211.0,
    "Swimmer-v4": 131.3,
    "HalfCheetah-v4": 4157.9,
    "Humanoid-v4": 6330.9,
}
PPO = {  # rl-baselines3-zoo's benchmark.md and CleanRL's documentation, PPO
    "CartPole-v1": "500.0 (zoo, 100k)",
    "Acrobot-v1": "-73.5 +- 18.2 (zoo, 1M)",
    "MountainCar-v0": "-110.4 +- 19.5 (zoo, 1M)",
    "MountainCarContinuous-v0": "88.3 +- 2.6 (zoo, 20k)",
    "Pendulum-v1": "-172.2 +- 104.2 (zoo, 100k)",
    "LunarLander-v3": "242.1 +- 31.8 (zoo, -v2, 1M)",
    "LunarLanderContinuous-v3": "270.9 +- 32.1 (zoo, -v2, 1M)",
    "BipedalWalker-v3": "287.9 +- 2.4 (zoo, 5M)",
    "BipedalWalkerHardcore-v3": "122.4 +- 117.6 (zoo, 100M)",
    "InvertedPendulum-v4": "963.1 +- 22.2 (CleanRL, 1M)",
    "InvertedDoublePendulum-v4": "5626 (CleanRL, 8M)",
    "Ant-v4": "1327 +- 452 (zoo, -v3, 1M); 1824 +- 906 (CleanRL, 8M)",
    "HalfCheetah-v4": "5819 +- 664 (zoo, -v3, 1M); 1443 +- 46 (CleanRL, 1M)",
    "Hopper-v4": "2410 +- 10 (zoo, -v3, 1M); 2383 +- 272 (CleanRL, 1M)",
    "Walker2d-v4": "3479 +- 822 (zoo, -v3, 1M); 2288 +- 572 (CleanRL, 1M)",
    "Swimmer-v4": "281.6 +- 9.7 (zoo, -v3, 1M); 124.9 +- 22 (CleanRL, 8M)",
    "Humanoid-v4": "716 +- 49 (CleanRL, 1M); 583 +- 28 (CleanRL, 8M)",
    "HumanoidStandup-v4": "109326 +- 16162 (CleanRL, 8M)",
    "Breakout-v5": "398.0 +- 33.3 (zoo, 10M); 414.7 +- 28.1 (CleanRL, 10M)",
}
TD3 = {
    "Pendulum-v1": "-151.9 (zoo, 20k)",
    "MountainCarContinuous-v0": "93.5 (zoo, 300k)",
    "LunarLanderContinuous-v3": "207.5 (zoo, -v2, 300k)",
    "BipedalWalker-v3": "306.0 (zoo, 1M)",
    "HalfCheetah-v4": "9656 (zoo, -v3, 1M); 9583 (CleanRL, 1M)",
    "Hopper-v4": "3606 (zoo, -v3, 1M); 3135 (CleanRL, 1M)",
    "Walker2d-v4": "4718 (zoo, -v3, 1M); 4058 (CleanRL, 1M)",
    "Ant-v4": "5813 (zoo, -v3, 1M)",
}
SAC = {
    "Pendulum-v1": "-157.0 (zoo, 20k)",
    "MountainCarContinuous-v0": "94.5 (zoo, 50k)",
}
PUBLISHED = {"ppo": PPO, "td3": TD3, "sac": SAC}
