"""One learner on CartPole: training is a loop over reports."""

import shoal

config = shoal.preset("CartPole-v1", steps=50_000, seed=1)
for report in shoal.train(config):
    print(f"step {report.step:>7,}  return {report.metrics['return_mean'][0]:6.1f}")
