"""Merging: running statistics of several learners, combined as the statistics of all their data."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from shoal.exchanges.products import times
from shoal.exchanges.robust import median
from shoal.ops import trees
from shoal.ops.statistics import Running, pool, variance
from shoal.types import Tree


def is_running(tree: Tree) -> bool:
    """Whether this part of a tree is running statistics."""
    return isinstance(tree, Running)


def pool_statistics(statistics: Running, weight: Array) -> Running:
    """The weighted mean and variance of all data; the count is the weighted mean of the learners' counts.

    The count is not the sum, so that repeated merging counts no sample twice.
    """
    share = weight / jnp.maximum(jnp.sum(weight), 1e-8)
    m2 = trees.align(share, statistics.m2) * statistics.m2
    return pool(statistics._replace(count=statistics.count * share, m2=m2))


def median_statistics(statistics: Running, weight: Array) -> Running:
    """The coordinate-wise medians of counts, means and variances, which a few attackers cannot move far."""
    middle = lambda x: median()(x.reshape(x.shape[0], -1), weight).reshape(x.shape[1:])
    count = middle(statistics.count)
    return Running(count, middle(statistics.mean), middle(jax.vmap(variance)(statistics)) * count)


def mix_statistics(operator: Callable[[Tree], Tree], statistics: Running) -> Running:
    """Statistics of the mixed data: counts, sums and sums of squares mix linearly.

    n' = W n,  mean' = W (n mean) / n',  M2' = W (M2 + n mean^2) - n' mean'^2

    Means are measured from a centre common to all learners. So each device computes all of it; statistics are
    small.
    """
    flat = lambda x: x.reshape(x.shape[0], -1)
    count, mean, m2 = flat(statistics.count), flat(statistics.mean), flat(statistics.m2)
    centre = _midrange(count, mean)
    offset = mean - centre[None]
    sums = (count, times(count, offset), m2 + times(count, offset**2))
    total, sum_, squares = operator(sums)
    moved = sum_ / jnp.maximum(total, 1e-8)
    squares = squares + times(-total, moved**2)
    shaped = lambda x, like: x.reshape(like.shape)
    return Running(
        shaped(total, statistics.count),
        shaped(centre[None] + moved, statistics.mean),
        shaped(jnp.maximum(squares, 0.0), statistics.m2),
    )


def _midrange(count: Array, mean: Array) -> Array:
    """Halfway between the smallest and the largest mean; it does not depend on the learners' order."""
    known = (count > 0) & jnp.isfinite(mean)
    low = jnp.min(jnp.where(known, mean, jnp.inf), 0)
    high = jnp.max(jnp.where(known, mean, -jnp.inf), 0)
    return jnp.where(low <= high, (low + high) / 2, 0.0)
