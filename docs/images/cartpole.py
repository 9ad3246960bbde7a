"""The picture at the top of the README: `python docs/images/cartpole.py` trains eight learners."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import shoal
from shoal.ops import trees
from shoal.training.episode import episode

config = shoal.preset("CartPole-v1", learners=8)
steps, returns, report = [], [], None
for report in shoal.train(config):
    steps.append(report.step)
    returns.append(report.metrics["return_mean"])
returns = np.array(returns)

recipe = shoal.make("CartPole-v1")
learner = shoal.ppo(config.algo, recipe.spec)
best = trees.take(report.state.cohort, np.array([int(returns[-1].argmax())]))
frame = list(episode(recipe, learner, best, max_steps=60, pictures=True))[-1].picture

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), width_ratios=[1.25, 1])
left.plot(steps, returns, color="#0072B2", linewidth=0.8, alpha=0.5)
left.plot(steps, returns.mean(1), color="#0072B2", linewidth=2.5)
left.set(xlabel="environment steps per learner", ylabel="episode return", ylim=(0, 520))
left.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:.0f}k")
left.grid(color="#e5e5e5")
left.spines[["top", "right"]].set_visible(False)
right.imshow(frame)
right.axis("off")
figure.tight_layout()
figure.savefig(Path(__file__).with_suffix(".png"), dpi=130)
