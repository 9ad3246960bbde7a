"""Variants of observations that a Gymnasium environment offers, by a method of its own.

    env.augment_observation(obs) -> (K, ...)    the first row is obs itself

Observations are a Box, or a Dict of them. The method is asked outside any episode and of any observation ever
seen, so it should look at nothing but its argument.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium.spaces as gs
import jax
import numpy as np

from shoal.errors import ShoalError
from shoal.types import Box, ObservationSpace, Tree


class Variants(NamedTuple):
    """What an environment offers."""

    copies: int
    rows: Callable[[Tree], Tree]  # (B, ...) -> (B, K, ...), in NumPy


def offered(env: Any, space: gs.Space, observation: ObservationSpace, obs: Any, name: str) -> Variants | None:
    """The variants of `env`'s observations, tried on one; None where there are none. `name` is for errors."""
    if not (hasattr(env, "augment_observation") and _same_shapes(space, observation)):
        return None
    copies = len(jax.tree.leaves(env.augment_observation(obs))[0])

    def variants(row: Tree) -> Tree:
        batch = env.augment_observation(row)
        expected = jax.tree.map(lambda box: (copies, *box.shape), observation)
        found = jax.tree.map(np.shape, batch)
        if found != expected:
            raise ShoalError(f"{name}: augment_observation must always return rows {expected}, not {found}")
        return jax.tree.map(lambda x, box: np.asarray(x, box.dtype), batch, observation)

    for first, own in zip(jax.tree.leaves(variants(obs)), jax.tree.leaves(obs), strict=True):
        if not np.allclose(first[0], own):
            raise ShoalError(f"{name}: the first row of augment_observation must be the observation itself")

    def rows(batch: Tree) -> Tree:
        num_rows = len(jax.tree.leaves(batch)[0])
        made = [variants(jax.tree.map(lambda x: x[i], batch)) for i in range(num_rows)]  # noqa: B023
        return jax.tree.map(lambda *parts: np.stack(parts), *made)

    return Variants(copies, rows)


def _same_shapes(space: gs.Space, observation: ObservationSpace) -> bool:
    """Whether observations go through the door as they are."""
    if isinstance(observation, Box):
        return isinstance(space, gs.Box) and space.shape == observation.shape
    if not isinstance(space, gs.Dict) or space.spaces.keys() != observation.keys():
        return False
    return all(_same_shapes(part, observation[key]) for key, part in space.spaces.items())
