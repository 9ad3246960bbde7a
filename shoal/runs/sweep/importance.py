"""Importance: how much of the scores' variance each setting explains on its own."""

from collections.abc import Mapping, Sequence

import numpy as np

from shoal.exchanges.exploration import Prior
from shoal.runs.sweep.axes import Axis
from shoal.runs.sweep.table import Row, written

BINS = 8
"""The most parts that a continuous axis is divided into."""


def importance(rows: Sequence[Row], axes: Mapping[str, Axis]) -> dict[str, float]:
    """epsilon^2 of each axis over the trials' ranks; {} where all trials are equally good.

    Ranks, because a few settings that fail completely would otherwise hide what matters among the others.
    Trials that stopped early are ranked below those that went on.
    """
    reached = [(*row.reached, row.mean) for row in rows]
    ranks = np.array([float(sum(other < one for other in reached)) for one in reached])
    if np.ptp(ranks) == 0:
        return {}
    return {
        name: explained(levels([row.values[name] for row in rows], axis), ranks)
        for name, axis in axes.items()
    }


def levels(values: Sequence[object], axis: Axis) -> np.ndarray:
    """The values of an axis as numbers of levels: of a continuous axis parts with equally many trials."""
    if isinstance(axis, Prior) and axis.kind != "choice":
        numbers = np.array(values, float)
        parts = max(2, min(BINS, len(numbers) // 4))
        order = np.argsort(np.argsort(numbers))
        return order * parts // len(numbers)
    return np.unique([written(value) for value in values], return_inverse=True)[1]


def explained(level: np.ndarray, scores: np.ndarray) -> float:
    """epsilon^2 = (SS_between - (k - 1) MS_within) / SS_total of k levels, at least 0.

    The main effect of a functional analysis of variance from the means of the levels, without the share that
    k means of noise would explain (Kelley 1935).

    >>> explained(np.array([0, 0, 1, 1]), np.array([1.0, 1.0, 3.0, 3.0]))
    1.0
    >>> explained(np.array([0, 1, 0, 1]), np.array([1.0, 1.0, 3.0, 3.0]))
    0.0
    """
    number, groups = len(np.unique(level)), [scores[level == one] for one in np.unique(level)]
    total = np.sum((scores - scores.mean()) ** 2)
    within = sum(np.sum((group - group.mean()) ** 2) for group in groups)
    if total == 0 or number < 2:
        return 0.0
    free = len(scores) - number
    noise = (number - 1) * within / free if free > 0 else 0.0
    return float(max(0.0, (total - within - noise) / total))
