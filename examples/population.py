"""Sixteen learners who evolve their own learning rates, against sixteen who keep the ones they drew."""

import numpy as np

import shoal

settings = {"steps": 50_000, "learners": 16, "evolve": ("learning_rate", "ent_coef")}
random_search = shoal.preset("CartPole-v1", **settings)
population = shoal.preset("CartPole-v1", **settings, exchange="truncation", local_updates=10)

for name, config in {"random search": random_search, "population": population}.items():
    for report in shoal.train(config):
        returns, rates = report.metrics["return_mean"], report.metrics["hypers/learning_rate"]
    best = int(np.argmax(returns))
    print(
        f"{name:>14}: best {returns[best]:.0f} at learning rate {rates[best]:.2g}, mean {returns.mean():.0f}"
    )
