"""Use a trained policy in a loop of your own: NumPy observations in, NumPy actions out."""

import gymnasium

import shoal

run = shoal.run("CartPole-v1", steps=50_000, learners=4, folder="runs/policy")
policy = run.policy()  # the best learner's; run.policy(3) or run.policy("mean") is another

env = gymnasium.make("CartPole-v1")
for episode in range(3):
    observation, _ = env.reset(seed=episode)
    policy.reset()
    total, over = 0.0, False
    while not over:
        observation, reward, terminated, truncated, _ = env.step(policy(observation))
        total, over = total + float(reward), terminated or truncated
    print(f"episode {episode}: return {total:.0f}")
