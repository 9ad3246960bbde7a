"""Action masks: which choices an environment allows at each observation.

The part `action_mask` of a named observation has one entry per choice, 0 where it is forbidden. For
MultiDiscrete actions the entries of all parts are concatenated; for MultiBinary a switch with entry 0 stays
off. Where all entries of a part are 0, as at an episode's end, every choice is allowed.
"""

from math import prod

import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.errors import ShoalError
from shoal.types import ActionSpace, Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Tree

ACTION_MASK = "action_mask"
"""The part of an observation that holds the mask."""

FORBIDDEN = -1e9
"""The logit, or value, of a forbidden choice: its probability is 0, and no later result is infinite."""


def without_mask(parts: Tree) -> Tree:
    """Named observations, or their spaces, without the mask; an observation without names unchanged.

    >>> without_mask({"obs": 1, "action_mask": 2})
    {'obs': 1}
    """
    return {name: x for name, x in parts.items() if name != ACTION_MASK} if isinstance(parts, dict) else parts


def allowed(space: ActionSpace, obs: Tree, shape: tuple[int, ...]) -> Array | None:
    """Which choices are allowed, bool in the shape (..., num_outputs) of a policy's outputs; None if all are.

    >>> allowed(Discrete(3), {"action_mask": jnp.array([[1, 0, 1], [0, 0, 0]])}, (2, 3)).tolist()
    [[True, False, True], [True, True, True]]
    """
    if not isinstance(obs, dict) or ACTION_MASK not in obs:
        return None
    mask = (obs[ACTION_MASK] != 0).reshape(shape)
    if isinstance(space, MultiBinary):
        return mask
    cuts = [int(cut) for cut in np.cumsum(_nums(space))[:-1]]
    return jnp.concatenate([part | ~part.any(-1, keepdims=True) for part in jnp.split(mask, cuts, -1)], -1)


def restrict(space: ActionSpace, obs: Tree, outputs: Array) -> Array:
    """A policy's logits, or the values of actions, with `FORBIDDEN` for forbidden choices."""
    mask = allowed(space, obs, outputs.shape)
    return outputs if mask is None else jnp.where(mask, outputs, FORBIDDEN)


def check(spec: EnvSpec) -> None:
    """Raise where an environment's mask does not fit its actions."""
    if not isinstance(spec.observation, dict) or ACTION_MASK not in spec.observation:
        return
    if isinstance(spec.action, Box):
        raise ShoalError(
            f"{spec.name}: an action_mask is for discrete actions, not for continuous ones; "
            "rename that part of the observation"
        )
    entries, choices = prod(spec.observation[ACTION_MASK].shape), sum(_nums(spec.action))
    if entries != choices:
        raise ShoalError(
            f"{spec.name}: its action_mask has {entries} entries, its actions {choices} choices; "
            "each choice needs one entry"
        )
    if not without_mask(spec.observation):
        raise ShoalError(f"{spec.name}: the observation has no part besides action_mask; add one")


def _nums(space: ActionSpace) -> tuple[int, ...]:
    """How many choices each part of an action has."""
    match space:
        case Discrete(num):
            return (num,)
        case MultiDiscrete(nums):
            return nums
        case MultiBinary(num):
            return (num,)
        case Box():
            return ()
