"""Observations of Python environments as batches, compared with the spaces they should be in."""

from itertools import zip_longest
from typing import Any

import gymnasium.spaces as gs
import numpy as np

from shoal.envs.spaces import brief
from shoal.errors import ShoalError


def batch_observations(observations: list[Any], space: gs.Space, name: str) -> Any:
    """Observations as a batch; raises where one is not what the space says."""
    try:
        batch = stack_observations(observations)
    except (ValueError, KeyError, TypeError):
        batch = None
    if not fits(space, batch):
        wrong = next((text for obs in observations if (text := misfit(space, obs))), "observations differ")
        raise ShoalError(f"{name}: {wrong}")
    return batch


def stack_observations(observations: list[Any]) -> Any:
    """Observations as a batch: the same structure, arrays stacked."""
    match observations[0]:
        case dict():
            return {key: stack_observations([obs[key] for obs in observations]) for key in observations[0]}
        case tuple():
            return tuple(stack_observations(list(parts)) for parts in zip(*observations, strict=True))
    return np.stack(observations)


def fits(space: gs.Space, batch: Any) -> bool:
    """Whether a batch of observations has the structure, the shapes and the kinds of numbers of the space."""
    match space:
        case gs.Dict():
            return isinstance(batch, dict) and all(
                key in batch and fits(part, batch[key]) for key, part in space.spaces.items()
            )
        case gs.Tuple():
            same = isinstance(batch, tuple) and len(batch) == len(space.spaces)
            return same and all(fits(part, each) for part, each in zip(space.spaces, batch, strict=True))
    return isinstance(batch, np.ndarray) and _is_like(space, batch.shape[1:], batch.dtype)


def misfit(space: gs.Space, observation: Any, part: str = "") -> str | None:
    """What is wrong with one observation, in words, or None: its structure, a shape, a kind of number."""
    match space:
        case gs.Dict() if isinstance(observation, dict):
            parts = [(key, each, observation.get(key)) for key, each in space.spaces.items()]
        case gs.Tuple() if isinstance(observation, tuple):
            parts = [(i, *pair) for i, pair in enumerate(zip_longest(space.spaces, observation))]
        case gs.Dict() | gs.Tuple():
            return f"observation{part} is {_kind(observation)}, but observation_space says {brief(space)}"
        case None:
            return f"observation{part} is not in observation_space"
        case _:
            return _leaf_misfit(space, observation, part)
    wrong = (misfit(each, value, f"{part}[{key!r}]") for key, each, value in parts)
    return next((text for text in wrong if text), None)


def _leaf_misfit(space: gs.Space, observation: Any, part: str) -> str | None:
    try:
        array = np.asarray(observation)
    except ValueError:  # lists of different lengths
        array = np.asarray(None)
    if _is_like(space, array.shape, array.dtype):
        return None
    found = _kind(observation) if array.dtype.kind not in "iubf" else f"{array.dtype} of shape {array.shape}"
    return f"observation{part} is {found}, but observation_space says {space.dtype} of shape {space.shape}"


def _is_like(space: gs.Space, shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether an array has a space's shape, but for axes of length 1, and numbers that can become its."""
    expected = space.shape or ()
    if shape != expected and [n for n in shape if n != 1] != [n for n in expected if n != 1]:
        return False
    return dtype.kind in ("iub" if isinstance(space, gs.Box) and space.dtype == np.uint8 else "iubf")


def _kind(value: Any) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"
