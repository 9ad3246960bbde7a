"""Continuous, bounded actions: between -1 and 1 for a learner, between their own bounds for environments."""

from math import prod

import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.errors import ShoalError
from shoal.types import Box, EnvSpec


def bounded_space(spec: EnvSpec, algorithm: str) -> Box:
    """The space of an environment's actions; raises where they are not continuous and bounded."""
    space = spec.action
    if not isinstance(space, Box) or not np.all(np.isfinite([*np.ravel(space.low), *np.ravel(space.high)])):
        raise ShoalError(
            f"{algorithm} needs continuous actions between bounds, which {spec.name} does not have"
        )
    return space


def find_free(space: Box) -> np.ndarray:
    """Which numbers of an action are free, that is have bounds that differ, (A,) bool."""
    low, high = (np.broadcast_to(bound, space.shape).ravel() for bound in (space.low, space.high))
    return high > low


def zero_fixed(space: Box, action: Array) -> Array:
    """Actions in [-1, 1], with 0 for every number that is not free, (..., A).

    A critic learns nothing about these numbers, so they must not reach the actor's gradient.
    """
    free = find_free(space)
    if np.all(free):
        return action
    return jnp.where(jnp.broadcast_to(free, action.shape), action, 0.0)


def to_bounds(space: Box, action: Array) -> Array:
    """Actions in [-1, 1] in the environment's bounds and shape."""
    shaped = action.reshape(*action.shape[:-1], *space.shape)
    low, high = (jnp.broadcast_to(jnp.float32(bound), shaped.shape) for bound in (space.low, space.high))
    return low + (shaped + 1) / 2 * (high - low)


def from_bounds(space: Box, action: Array) -> Array:
    """The inverse of `to_bounds`, flat, (..., A)."""
    low, high = (jnp.broadcast_to(jnp.float32(bound), action.shape) for bound in (space.low, space.high))
    scaled = 2 * (action - low) / jnp.where(high > low, high - low, 1.0) - 1
    flat = scaled.reshape(*action.shape[: action.ndim - len(space.shape)], prod(space.shape))
    return zero_fixed(space, flat)


def correlate_noise(theta: float, before: Array, noise: Array) -> Array:
    """x <- (1 - theta) x + sqrt(1 - (1 - theta)^2) noise (Ornstein-Uhlenbeck); the deviation stays 1."""
    keep = 1 - theta
    return keep * before + (1 - keep**2) ** 0.5 * noise
