"""Comparisons of two groups of scores: how probable it is that one is better."""

from typing import NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """A number and the ends of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


class Group(NamedTuple):
    """The scores of learners that are treated alike."""

    scores: np.ndarray  # (n,)
    units: np.ndarray  # (n,) learners of one unit depend on each other


def improvement(a: Group, b: Group, resamples: int = 1000, seed: int = 0) -> Estimate:
    """P(A > B) + P(A = B) / 2 for a score of each group: the share of pairs that `a` wins.

    NaN loses against every number. Each group is resampled on its own, unit by unit. Agarwal et al., "Deep RL
    at the edge of the statistical precipice", 2021; the statistic of Mann and Whitney 1947.

    >>> alone = lambda *scores: Group(np.array(scores), np.arange(len(scores)))
    >>> improvement(alone(1.0, 3.0), alone(2.0, 2.0)).value
    0.5
    >>> improvement(alone(3.0, 4.0), alone(1.0, 2.0))
    Estimate(value=1.0, low=1.0, high=1.0)
    """
    first, second = (np.where(np.isnan(group.scores), -np.inf, group.scores) for group in (a, b))
    wins = (first[:, None] > second) + 0.5 * (first[:, None] == second)  # (n, m)
    random = np.random.default_rng(seed)
    weights = [resampled(random, group.units, resamples) for group in (a, b)]  # (B, n), (B, m)
    low, high = np.quantile(np.sum(weights[0] @ wins * weights[1], axis=1), (0.025, 0.975))
    return Estimate(float(wins.mean()), float(low), float(high))


def resampled(random: np.random.Generator, units: np.ndarray, resamples: int) -> np.ndarray:
    """The weight of each score in each resample of the units, (resamples, n); the weights of one sum to 1."""
    unit = np.unique(units, return_inverse=True)[1]
    number = int(unit.max()) + 1
    drawn = random.multinomial(number, np.full(number, 1 / number), resamples)[:, unit]
    return drawn / drawn.sum(axis=1, keepdims=True)
