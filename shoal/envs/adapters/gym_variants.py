"""Augmentation of observations by a method of a Gymnasium environment.

    env.augment_observation(obs) -> (K, ...)    the first variant is obs itself

Observations are a Box, or a Dict of them. The method is called outside episodes, with observations of any
earlier step. So its result must depend on its argument alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium.spaces as gs
import jax
import numpy as np

from shoal.errors import ShoalError
from shoal.types import Box, ObservationSpace, Tree


class Variants(NamedTuple):
    """How an environment varies its observations."""

    copies: int
    apply: Callable[[Tree], Tree]  # (B, ...) -> (B, K, ...), in NumPy


def find_variants(
    env: Any, space: gs.Space, observation: ObservationSpace, first: Callable[[], Any], name: str
) -> Variants | None:
    """The variants of `env`'s observations, checked on a first one; None where it has no such method."""
    if not (hasattr(env, "augment_observation") and _same_shapes(space, observation)):
        return None
    obs = first()
    copies = len(jax.tree.leaves(env.augment_observation(obs))[0])

    def variants(obs: Tree) -> Tree:
        batch = env.augment_observation(obs)
        expected = jax.tree.map(lambda box: (copies, *box.shape), observation)
        found = jax.tree.map(np.shape, batch)
        if found != expected:
            raise ShoalError(f"{name}: augment_observation must always return {expected}, not {found}")
        return jax.tree.map(lambda x, box: np.asarray(x, box.dtype), batch, observation)

    for varied, own in zip(jax.tree.leaves(variants(obs)), jax.tree.leaves(obs), strict=True):
        if not np.allclose(varied[0], own):
            raise ShoalError(f"{name}: augment_observation must return the observation itself first")

    def apply(batch: Tree) -> Tree:
        size = len(jax.tree.leaves(batch)[0])
        made = [variants(jax.tree.map(lambda x: x[i], batch)) for i in range(size)]  # noqa: B023
        return jax.tree.map(lambda *parts: np.stack(parts), *made)

    return Variants(copies, apply)


def _same_shapes(space: gs.Space, observation: ObservationSpace) -> bool:
    """Whether observations keep their shapes."""
    if isinstance(observation, Box):
        return isinstance(space, gs.Box) and space.shape == observation.shape
    if not isinstance(space, gs.Dict) or space.spaces.keys() != observation.keys():
        return False
    return all(_same_shapes(part, observation[key]) for key, part in space.spaces.items())
