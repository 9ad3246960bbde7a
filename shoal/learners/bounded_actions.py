"""Continuous actions between bounds: from -1 to 1 for a learner, between the environment's own outside."""

from math import prod

import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.errors import ShoalError
from shoal.types import Box, EnvSpec


def bounds_of(spec: EnvSpec, algorithm: str) -> Box:
    """An environment's actions, which must be continuous and bounded."""
    space = spec.action
    if not isinstance(space, Box) or not np.all(np.isfinite([*np.ravel(space.low), *np.ravel(space.high)])):
        raise ShoalError(
            f"{algorithm} needs continuous actions between bounds, which {spec.name} does not have"
        )
    return space


def leaves_a_choice(space: Box) -> np.ndarray:
    """Which of an action's numbers have bounds that differ, (A,) bool."""
    low, high = (np.broadcast_to(bound, space.shape).ravel() for bound in (space.low, space.high))
    return high > low


def in_play(space: Box, action: Array) -> Array:
    """Actions of [-1, 1] with 0 in place of those whose bounds leave no choice, (..., A).

    A critic learns nothing about those, and must not guide the actor by them.
    """
    free = leaves_a_choice(space)
    if np.all(free):
        return action
    return jnp.where(jnp.broadcast_to(free, action.shape), action, 0.0)


def to_bounds(space: Box, action: Array) -> Array:
    """From [-1, 1] to the environment's own bounds and shape."""
    shaped = action.reshape(*action.shape[:-1], *space.shape)
    low, high = (jnp.broadcast_to(jnp.float32(bound), shaped.shape) for bound in (space.low, space.high))
    return low + (shaped + 1) / 2 * (high - low)


def from_bounds(space: Box, action: Array) -> Array:
    """The way back, flat."""
    low, high = (jnp.broadcast_to(jnp.float32(bound), action.shape) for bound in (space.low, space.high))
    scaled = 2 * (action - low) / jnp.where(high > low, high - low, 1.0) - 1
    flat = scaled.reshape(*action.shape[: action.ndim - len(space.shape)], prod(space.shape))
    return in_play(space, flat)


def correlated(theta: float, before: Array, noise: Array) -> Array:
    """x <- (1 - theta) x + sqrt(1 - (1 - theta)^2) noise (Ornstein-Uhlenbeck); the deviation stays 1."""
    keep = 1 - theta
    return keep * before + (1 - keep**2) ** 0.5 * noise
