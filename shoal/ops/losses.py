"""Losses, one number per sample; the caller takes the mean."""

from collections.abc import Callable
from typing import TypeAlias

import jax.numpy as jnp
import optax
from jax import Array

from shoal.ops.statistics import weighted_mean
from shoal.types import Tree

Error: TypeAlias = Callable[[Array, Array], Array]
"""error(value, target) -> one number per sample."""


def clipped_surrogate(ratio: Array, advantage: Array, clip: Array | float) -> Array:
    """-min(r A, clip(r, 1 - c, 1 + c) A)   (Schulman et al. 2017, equation 7).

    >>> import jax.numpy as jnp
    >>> clipped_surrogate(jnp.array([1.5, 1.5]), jnp.array([2.0, -2.0]), 0.25).tolist()
    [-2.5, 3.0]
    """
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


def surrogate(ratio: Array, advantage: Array) -> Array:
    """-r A, the policy gradient without clipping."""
    return -ratio * advantage


def squared_error(value: Array, target: Array) -> Array:
    """(V - target)^2 / 2."""
    return 0.5 * (value - target) ** 2


def huber_error(value: Array, target: Array, delta: float) -> Array:
    """e^2 / 2 for an error e = |V - target| up to delta, delta (e - delta / 2) beyond (Huber 1964).

    >>> import jax.numpy as jnp
    >>> huber_error(jnp.array([1.0, 5.0]), jnp.array([0.0, 0.0]), 2.0).tolist()
    [0.5, 8.0]
    """
    error = jnp.abs(value - target)
    within = jnp.minimum(error, delta)
    return within * (error - 0.5 * within)


def clipped_error(error: Error, value: Array, old_value: Array, target: Array, clip: Array | float) -> Array:
    """max(error(V), error(V clipped to [V_old - c, V_old + c])).

    >>> import jax.numpy as jnp
    >>> clipped_error(squared_error, jnp.array(3.0), jnp.array(1.0), jnp.array(4.0), 0.5).item()
    3.125
    """
    near = old_value + jnp.clip(value - old_value, -clip, clip)
    return jnp.maximum(error(value, target), error(near, target))


def approximate_kl(log_ratio: Array) -> Array:
    """(r - 1) - log r, an unbiased, nonnegative estimate of KL(old || new) (Schulman 2020)."""
    return jnp.expm1(log_ratio) - log_ratio


def explained_variance(value: Array, target: Array, weight: Array, axes: tuple[str, ...] = ()) -> Array:
    """1 - Var(target - V) / Var(target); NaN where the target does not vary."""
    spread = lambda x: weighted_mean((x - weighted_mean(x, weight, axes)) ** 2, weight, axes)
    varies = spread(target) > 0
    return jnp.where(varies, 1 - spread(target - value) / jnp.where(varies, spread(target), 1.0), jnp.nan)


def loss_shares(terms: dict[str, Array]) -> dict[str, Array]:
    """The total loss, and each term's share in the sum of the absolute values."""
    size = sum(jnp.abs(term) for term in terms.values()) + 1e-12
    parts = {name.replace("loss/", "loss_share/"): jnp.abs(term) / size for name, term in terms.items()}
    return parts | {"loss/total": jnp.asarray(sum(terms.values()))}


def proximal(params: Tree, anchor: Tree) -> Array:
    """||theta - anchor||^2 (FedProx, Li et al. 2020)."""
    return optax.tree.norm(optax.tree.sub(params, anchor), squared=True)


def adapt_kl_coef(kl_coef: Array, kl: Array, goal: Array) -> Array:
    """Double the penalty's coefficient where kl > 1.5 goal, halve it where kl < goal / 1.5.

    >>> [adapt_kl_coef(1.0, kl, 0.01).item() for kl in (0.1, 0.01, 0.001)]
    [2.0, 1.0, 0.5]
    """
    factor = jnp.where(kl > 1.5 * goal, 2.0, jnp.where(kl < goal / 1.5, 0.5, 1.0))
    return jnp.clip(kl_coef * factor, 1e-4, 1e4)


def mirror_descent_coef(coef: float, updates: Array, num_updates: int | Array) -> Array:
    """coef / (1 - u / U) after u of U updates (mirror descent policy optimisation, Tomar et al. 2020).

    Later it keeps the value of the last update.

    >>> [mirror_descent_coef(1.0, jnp.int32(u), 4).item() for u in (0, 2, 3, 4)]
    [1.0, 2.0, 4.0, 4.0]
    """
    remaining = 1.0 - jnp.minimum(updates, num_updates - 1) / num_updates
    return coef / jnp.maximum(remaining, 1 / num_updates)
