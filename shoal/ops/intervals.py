"""Averages over learners and how sure of them one can be: trimmed means and their bootstrap intervals."""

from typing import NamedTuple

import numpy as np

TRIM = {"mean": 0.0, "iqm": 0.25}
"""The share of the values that a statistic leaves out at either end; `iqm` is the interquartile mean."""


class Interval(NamedTuple):
    """The two ends of an interval, for R rows of values."""

    low: np.ndarray  # (R,)
    high: np.ndarray  # (R,)


def trimmed_mean(values: np.ndarray, trim: float = 0.0) -> np.ndarray:
    """Each row's mean of what is left when the floor(trim n) smallest and largest of its n values are not.

    values (R, n). Those that are not finite do not count; a row without any other is NaN.

    >>> trimmed_mean(np.array([[8.0, 1.0, 2.0, 3.0]]), TRIM["iqm"]).tolist()
    [2.5]
    """
    return _trimmed_means(values, np.ones((1, values.shape[1])), trim)[0]


def middle(values: np.ndarray, share: float) -> Interval:
    """Between which two numbers the middle `share` of each row's finite values lies; values (R, n).

    >>> [end.tolist() for end in middle(np.array([[4.0, 0.0, 3.0, 1.0, 2.0]]), 0.5)]
    [[1.0], [3.0]]
    """
    ends = np.full((2, len(values)), np.nan)
    for row, numbers in enumerate(values):
        if len(known := numbers[np.isfinite(numbers)]):
            ends[:, row] = np.quantile(known, ((1 - share) / 2, (1 + share) / 2))
    return Interval(*ends)


def bootstrap_interval(
    values: np.ndarray,
    trim: float = 0.0,
    units: np.ndarray | None = None,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """The middle `level` of the trimmed means of resamples of each row.

    values (R, n). A resample draws as many columns as there are, with replacement, and is the same for all
    rows. Columns of one unit, units (n,), are drawn together: values that are not independent of each other.
    No end is ever beyond the smallest or the largest value of its row.
    Percentile bootstrap: Efron, "Bootstrap methods: another look at the jackknife", 1979. With the
    interquartile mean as in Agarwal et al., "Deep RL at the edge of the statistical precipice", 2021.
    """
    own = np.arange(values.shape[1])
    unit = own if units is None else np.unique(units, return_inverse=True)[1]
    num_units = int(unit.max()) + 1
    drawn = np.random.default_rng(seed).multinomial(num_units, np.full(num_units, 1 / num_units), resamples)
    means = _trimmed_means(values, drawn[:, unit].astype(float), trim)  # (resamples, R)
    return middle(means.T, level)


def _trimmed_means(values: np.ndarray, counts: np.ndarray, trim: float) -> np.ndarray:
    """(B, R): the trimmed mean of each row of values (R, n), of which column j occurs counts[b, j] times."""
    known = np.where(np.isfinite(values), values, np.nan)
    means = np.full((len(counts), len(values)), np.nan)
    for row, order in enumerate(np.argsort(known, axis=1)):  # NaN comes last
        ascending = known[row, order]
        num_known = np.isfinite(ascending).sum()
        if not num_known:
            continue
        last = np.cumsum(counts[:, order[:num_known]], axis=1)  # how many values up to this one
        cut = np.floor(trim * last[:, -1:])
        weights = np.diff(np.clip(last, cut, last[:, -1:] - cut), axis=1, prepend=cut)
        total, mean = weights.sum(axis=1), weights @ ascending[:num_known]
        np.divide(mean, total, out=means[:, row], where=total > 0)  # a resample may lack all that are known
        np.clip(means[:, row], ascending[0], ascending[num_known - 1], out=means[:, row])  # after rounding
    return means
