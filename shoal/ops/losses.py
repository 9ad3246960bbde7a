"""Losses, one number per sample; whoever calls them takes the mean."""

import jax.numpy as jnp
from jax import Array

from shoal.ops.statistics import weighted_mean


def clipped_surrogate(ratio: Array, advantage: Array, clip: Array | float) -> Array:
    """-min(r A, clip(r, 1 - c, 1 + c) A)   (Schulman et al. 2017, equation 7).

    >>> import jax.numpy as jnp
    >>> clipped_surrogate(jnp.array([1.5, 1.5]), jnp.array([2.0, -2.0]), 0.25).tolist()
    [-2.5, 3.0]
    """
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


def surrogate(ratio: Array, advantage: Array) -> Array:
    """-r A, the policy gradient with nothing to hold it back."""
    return -ratio * advantage


def squared_error(value: Array, target: Array) -> Array:
    """(V - target)^2 / 2."""
    return 0.5 * (value - target) ** 2


def clipped_squared_error(value: Array, old_value: Array, target: Array, clip: Array | float) -> Array:
    """The larger of the errors of V and of V held within +-clip of the value before the update.

    >>> import jax.numpy as jnp
    >>> clipped_squared_error(jnp.array(3.0), jnp.array(1.0), jnp.array(4.0), 0.5).item()
    3.125
    """
    near = old_value + jnp.clip(value - old_value, -clip, clip)
    return jnp.maximum(squared_error(value, target), squared_error(near, target))


def approximate_kl(log_ratio: Array) -> Array:
    """(r - 1) - log r, an unbiased and never negative estimate of KL(old || new) (Schulman 2020)."""
    return jnp.expm1(log_ratio) - log_ratio


def explained_variance(value: Array, target: Array, weight: Array, across: tuple[str, ...] = ()) -> Array:
    """1 - Var(target - V) / Var(target); NaN where the target does not vary."""
    spread = lambda x: weighted_mean((x - weighted_mean(x, weight, across)) ** 2, weight, across)
    varies = spread(target) > 0
    return jnp.where(varies, 1 - spread(target - value) / jnp.where(varies, spread(target), 1.0), jnp.nan)
