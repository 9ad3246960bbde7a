"""The lineage of a population, and its hyperparameters over time."""

import numpy as np

from shoal.runs.lineage import Lineage, ancestors
from shoal.runs.plots.figure import PALE, PALETTE, short_numbers
from shoal.runs.plots.words import axis_in_words, words

MANY_LEARNERS = 32
"""Of more learners only the best one's number is shown."""
BEND = 0.4
"""The part of the time between two selections in which a line moves to its place."""


def plot_lineage(figure, lineage: Lineage, best: int, end: int, title: str) -> None:
    """The tree of copies on top, hyperparameters over time below; the best learner's ancestors in colour.

    Every learner is a line from left to right. A line that ends was replaced; where a line branches, a
    learner was copied. Relatives are side by side, so that no two lines cross.
    """
    num_events, num_learners = lineage.parent.shape
    steps = np.append(lineage.steps, max(end, int(lineage.steps[-1]) + 1))
    heights = [2.2] + [1.0] * len(lineage.hypers)
    tree, *paths = figure.subplots(1 + len(lineage.hypers), 1, sharex=True, height_ratios=heights)
    remains = survivors(lineage)
    line = np.zeros(remains.shape, bool)
    line[np.arange(num_events), ancestors(lineage, best)] = True
    _plot_branches(tree, lineage, steps, places := side_by_side(lineage), BEND, remains, line)
    numbers = range(num_learners) if num_learners <= MANY_LEARNERS else [best]
    tree.yaxis.tick_right()
    tree.set_yticks(places[-1][list(numbers)], list(map(str, numbers)))
    tree.grid(visible=False)
    tree.set(ylabel="learners", ylim=(num_learners - 0.5, -0.5))
    tree.spines["left"].set_visible(False)
    tree.tick_params(right=False, labelbottom=False)
    tree.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    for axes, (name, values) in zip(paths, lineage.hypers.items(), strict=True):
        _plot_branches(axes, lineage, steps, values, 0, remains, line)
        axes.set(ylabel=words(name))
        if values.min() > 0 and values.max() > 10 * values.min():
            _scale_by_decades(axes)
        short_numbers(axes.yaxis)
    paths[-1].set(xlabel=axis_in_words("steps", True), xlim=(0, steps[-1]))
    short_numbers(paths[-1].xaxis)
    figure.suptitle(title)


def side_by_side(lineage: Lineage) -> np.ndarray:
    """The place of each learner from each event on, (G, L): first its number, then beside its parent.

    >>> two = Lineage(np.array([0, 8]), np.array([[0, 1, 2], [0, 2, 2]]), np.zeros((2, 3)), {})
    >>> side_by_side(two).tolist()  # learner 2 was copied to 1, and comes before its copy
    [[0, 1, 2], [0, 2, 1]]
    """
    numbers = np.arange(lineage.parent.shape[1])
    places = np.tile(numbers, (len(lineage.parent), 1))
    for event, parent in enumerate(lineage.parent[1:], start=1):
        order = np.lexsort((numbers, parent != numbers, places[event - 1, parent]))
        places[event, order] = numbers
    return places


def survivors(lineage: Lineage) -> np.ndarray:
    """Whether each learner, from each event on, is an ancestor of one that is there at the end, (G, L).

    >>> two = Lineage(np.array([0, 8]), np.array([[0, 1, 2], [0, 2, 2]]), np.zeros((2, 3)), {})
    >>> survivors(two).tolist()
    [[True, False, True], [True, True, True]]
    """
    remains = np.ones(lineage.parent.shape, bool)
    for event in reversed(range(1, len(remains))):
        remains[event - 1] = False
        remains[event - 1, lineage.parent[event, remains[event]]] = True
    return remains


def _plot_branches(
    axes,
    lineage: Lineage,
    steps: np.ndarray,
    y: np.ndarray,
    bend: float,
    remains: np.ndarray,
    line: np.ndarray,
) -> None:
    """Every learner's y (G, L) as a line that begins at its parent's; those that end are below the others."""
    from matplotlib.collections import LineCollection

    before = np.vstack([y[:1], np.take_along_axis(y[:-1], lineage.parent[1:], axis=1)])
    x = np.stack([steps[:-1], steps[:-1] + bend * np.diff(steps), steps[1:]], axis=1)  # (G, 3)
    corners = np.stack([before, y, y], axis=2)  # (G, L, 3)
    branches = np.stack([np.broadcast_to(x[:, None], corners.shape), corners], axis=3)  # (G, L, 3, 2)
    width = np.clip(24 / y.shape[1], 0.5, 1.4)
    for chosen, color, wide, label in (
        (~remains, PALE, width, "no descendants at the end"),
        (remains & ~line, PALETTE[0], width, "descendants at the end"),
        (line, PALETTE[1], 2.6, "ancestors of the best"),
    ):
        style = {"colors": color, "linewidths": wide, "label": label, "capstyle": "round"}
        axes.add_collection(LineCollection(list(branches[chosen]), **style))
    axes.autoscale_view()


def _scale_by_decades(axes) -> None:
    """A logarithmic axis, with ticks at 1, 2 and 5 where a power of ten alone is too few."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,), numticks=6))
    axes.yaxis.set_minor_locator(NullLocator())
