"""Eight learners on CartPole-v1, their curves and one of them playing: `python docs/images/cartpole.py`."""

from pathlib import Path

import numpy as np

import shoal
from shoal.ops import trees
from shoal.runs.plots.curves import Curve
from shoal.runs.plots.figure import write_figure
from shoal.runs.plots.panels import CurveOptions, describe, horizontal, plot_curve
from shoal.training.episode import episode

config = shoal.preset("CartPole-v1", learners=8)
steps, returns, report = [], [], None
for report in shoal.train(config):
    steps.append([report.step] * config.learners)
    returns.append(report.metrics["return_mean"])
curve = Curve(np.array(steps), np.array(returns), np.arange(config.learners))

recipe = shoal.make("CartPole-v1")
learner = shoal.ppo(config.algo, recipe.spec)
best = trees.take(report.state.cohort, np.array([int(returns[-1].argmax())]))
frame = list(episode(recipe, learner, best, max_steps=60, pictures=True))[-1].picture


def draw(figure) -> None:
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    options = CurveOptions()
    line = plot_curve(left, curve, options, axis := horizontal([curve], options))
    left.legend([line], [describe([curve], options)], loc="lower right")
    left.set(xlabel=axis.label, ylabel="episode return", ylim=(0, 520))
    right.imshow(frame)
    right.axis("off")


write_figure(Path(__file__).with_suffix(".png"), draw, (10.0, 3.6))
