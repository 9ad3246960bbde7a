"""The lineage of a population, and its hyperparameters over time."""

import numpy as np

from shoal.runs.lineage import Lineage, ancestors
from shoal.runs.plots.figure import LINK, PALETTE, count_axis, steps_label


def plot_lineage(figure, lineage: Lineage, best: int, end: int) -> None:
    """The copies on top, hyperparameters over time below; the best learner's ancestors in colour."""
    num_learners, line = lineage.parent.shape[1], ancestors(lineage, best)
    steps = np.append(lineage.steps, max(end, int(lineage.steps[-1]) + 1))
    heights = [1.6] + [1.0] * len(lineage.hypers)
    tree, *paths = figure.subplots(1 + len(lineage.hypers), 1, sharex=True, height_ratios=heights)
    tree.hlines(np.arange(num_learners), 0, steps[-1], color=LINK, linewidth=0.6, alpha=0.5)
    for step, parents in zip(lineage.steps, lineage.parent, strict=True):
        copied = np.flatnonzero(parents != np.arange(num_learners))
        tree.vlines(np.full(len(copied), step), copied, parents[copied], color=LINK, linewidth=0.6)
        tree.plot(np.full(len(copied), step), copied, "o", color=LINK, markersize=2.5)
    tree.step(steps, np.append(line, line[-1]), where="post", color=PALETTE[0], linewidth=2.2)
    tree.set(title="copies of learners; the ancestors of the best one in colour", ylabel="learner")
    tree.locator_params(axis="y", integer=True)
    for axes, (name, values) in zip(paths, lineage.hypers.items(), strict=True):
        whole = np.vstack([values, values[-1:]])
        axes.step(steps, whole, where="post", color=LINK, linewidth=0.6, alpha=0.5)
        own = values[np.arange(len(line)), line]
        axes.step(steps, np.append(own, own[-1]), where="post", color=PALETTE[0], linewidth=2.2)
        axes.set(ylabel=name.replace("_", " "))
        if values.min() > 0 and values.max() > 10 * values.min():
            axes.set_yscale("log")
    paths[-1].set_xlabel(steps_label(num_learners))
    count_axis(paths[-1].xaxis)
