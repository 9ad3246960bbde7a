"""Sixteen learners at once, then how well each plays without exploring."""

import shoal

config = shoal.preset("CartPole-v1", steps=50_000, learners=16)
report = None
for report in shoal.train(config):
    returns = report.metrics["return_mean"]
    print(f"step {report.step:>7,}  mean {returns.mean():6.1f}  worst {returns.min():6.1f}")

recipe = shoal.make(config.env)
learner = shoal.ppo(config.algo, recipe.spec, config.num_iterations)
returns, lengths = shoal.evaluate(recipe, learner, report.state.cohort, episodes=20)
print("greedy:", returns.mean(axis=1).round(1))
