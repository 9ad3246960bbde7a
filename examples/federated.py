"""Eight learners in eight different worlds, alone and federated, then in worlds nobody has seen."""

import shoal

settings = {"steps": 50_000, "learners": 8, "env_spread": 1.0}
alone = shoal.preset("CartPole-v1", **settings)
federated = shoal.preset("CartPole-v1", **settings, exchange="average", local_updates=4)

for name, config in {"alone": alone, "federated": federated}.items():
    *_, report = shoal.train(config)  # the last
    rows = [row for row in shoal.evaluate(report, episodes=50) if row.learner != "mean"]
    for world in ("own", "unseen"):
        returns = [row.return_mean for row in rows if row.world == world]
        print(f"{name:>10} in worlds that are {world:>6}: return {sum(returns) / len(returns):.0f}")
