"""Training as an iterator of reports; the learners can be evaluated at any of them."""

import shoal

config = shoal.preset("CartPole-v1", steps=50_000, learners=16, reports=5)
for report in shoal.train(config):
    training = report.metrics["return_mean"]  # one number per learner
    greedy = [row.return_mean for row in shoal.evaluate(report, episodes=20)]
    print(f"step {report.step:>6,}  training {training.mean():5.1f}  greedy {sum(greedy) / len(greedy):5.1f}")
