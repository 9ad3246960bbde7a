"""Sixteen learners who evolve their learning rates, against sixteen who keep the ones they drew."""

import shoal

settings = {"steps": 50_000, "learners": 16, "evolve": ("learning_rate", "ent_coef")}
random_search = shoal.preset("CartPole-v1", **settings)
population = shoal.preset("CartPole-v1", **settings, exchange="truncation", local_updates=10)

for name, config in {"random search": random_search, "population": population}.items():
    *_, report = shoal.train(config)  # the last
    returns, rates = report.metrics["return_mean"], report.metrics["hypers/learning_rate"]
    best = returns.argmax()
    print(f"{name:>13}: best {returns[best]:.0f} (rate {rates[best]:.2g}), mean {returns.mean():.0f}")
