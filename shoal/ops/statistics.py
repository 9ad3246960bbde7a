"""Running moments (count, mean, squared deviations) that merge exactly, however the data is divided."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from shoal.distributed.mesh import psum
from shoal.ops import trees


class Running(NamedTuple):
    """`count` samples with mean `mean` and sum of squared deviations `m2`."""

    count: Array  # ()
    mean: Array  # (...)
    m2: Array  # (...)


def empty(shape: tuple[int, ...] = ()) -> Running:
    """The moments of no samples."""
    return Running(jnp.zeros(()), jnp.zeros(shape), jnp.zeros(shape))


def summarise(x: Array, weight: Array, axes: tuple[str, ...] = ()) -> Running:
    """The moments of `x` over the leading axes that it shares with `weight` (1 counts, 0 does not).

    Data that is divided over mapped `axes` counts together, without samples that are not finite.
    """
    weight = weight.astype(jnp.float32)
    leading = tuple(range(weight.ndim))
    x = x.astype(jnp.float32)
    if axes:
        usable = jnp.isfinite(x).reshape(*weight.shape, -1).all(-1)
        x, weight = trees.where_rows(usable, (x, weight), (jnp.zeros_like(x), jnp.zeros_like(weight)))
    w = trees.align(weight, x)
    count, total = psum((jnp.sum(weight), jnp.sum(w * x, leading)), axes)
    mean = total / jnp.maximum(count, 1.0)
    m2 = jnp.sum(w * (x - jnp.broadcast_to(mean, x.shape)) ** 2, leading)
    return Running(count, mean, psum(m2, axes))


def merge(a: Running, b: Running) -> Running:
    """The moments of both samples together (Chan et al. 1979).

    n = n_a + n_b,  d = mean_b - mean_a
    mean = mean_a + d n_b / n,  M2 = M2_a + M2_b + d^2 n_a n_b / n

    >>> import numpy as np, jax.numpy as jnp
    >>> x, one = jnp.array([0.0, 2.0, 10.0]), jnp.ones(3)
    >>> both = merge(summarise(x[:1], one[:1]), summarise(x[1:], one[1:]))
    >>> bool(jnp.allclose(both.m2, summarise(x, one).m2))
    True
    """
    count = a.count + b.count
    share = b.count / jnp.maximum(count, 1.0)
    delta = b.mean - a.mean
    return Running(count, a.mean + delta * share, a.m2 + b.m2 + delta**2 * a.count * share)


def pool(stacked: Running) -> Running:
    """Moments with a leading axis, merged along it."""
    share = stacked.count / jnp.maximum(jnp.sum(stacked.count), 1e-8)
    weight = lambda w, x: w.reshape(w.shape + (1,) * (x.ndim - 1))
    mean = jnp.sum(weight(share, stacked.mean) * stacked.mean, 0)
    between = weight(stacked.count, stacked.mean) * (stacked.mean - mean[None]) ** 2
    return Running(jnp.sum(stacked.count), mean, jnp.sum(stacked.m2 + between, 0))


def variance(s: Running) -> Array:
    """The population variance; 1 before the second sample."""
    return jnp.where(s.count > 1, s.m2 / jnp.maximum(s.count, 1.0), jnp.ones_like(s.m2))


def standardise(x: Array, s: Running, clip: float | Array, eps: float = 1e-8) -> Array:
    """(x - mean) / sqrt(variance + eps), clipped to [-clip, clip]."""
    mean, deviation = jnp.broadcast_arrays(s.mean, jnp.sqrt(variance(s) + eps), x)[:2]
    return jnp.clip((x - mean) / deviation, -clip, clip)


def weighted_mean(x: Array, weight: Array, axes: tuple[str, ...] = ()) -> Array:
    """sum(w x) / sum(w), and 0 where nothing has weight; summed over mapped `axes`, if any."""
    total, count = psum((jnp.sum(x * weight), jnp.sum(weight)), axes)
    return total / jnp.maximum(count, 1e-8)
