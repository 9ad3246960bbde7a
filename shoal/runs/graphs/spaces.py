"""Spaces in JSON files, and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.spaces import ActionSpace, Box, Discrete, MultiBinary, MultiDiscrete, ObservationSpace


def describe_parts(space: ObservationSpace) -> dict[str, Any]:
    """The spaces of observations by name; a single one is called obs."""
    boxes = space if isinstance(space, dict) else {"obs": space}
    return {name: describe_space(box) for name, box in boxes.items()}


def describe_space(space: ActionSpace) -> dict[str, Any]:
    """A space; bounds are null where there are none.

    >>> describe_space(Box((2,), 0.0, np.inf))
    {'kind': 'Box', 'shape': [2], 'dtype': 'float32', 'low': 0.0, 'high': None}
    """
    match space:
        case Discrete(num) | MultiBinary(num):
            return {"kind": type(space).__name__, "num": num}
        case MultiDiscrete(nums):
            return {"kind": "MultiDiscrete", "nums": list(nums)}
        case Box(shape, low, high, dtype):
            bounds = {"low": describe_bound(low), "high": describe_bound(high)}
            return {"kind": "Box", "shape": list(shape), "dtype": dtype} | bounds


def describe_bound(bound: Any) -> Any:
    """A bound as a number, or nested lists of them; one number where all are equal."""
    array = np.asarray(bound, float)
    if array.size and np.all(array == array.flat[0]):
        return float(array.flat[0]) if np.isfinite(array.flat[0]) else None
    values = array.astype(object)
    values[~np.isfinite(array)] = None
    return values.tolist()


def read_space(saved: Mapping[str, Any]) -> Any:
    """The inverse of `describe_space`.

    >>> read_space(describe_space(Box((2,), 0.0, np.inf)))
    Box(shape=(2,), low=0.0, high=inf, dtype='float32')
    """
    match saved["kind"]:
        case "Discrete":
            return Discrete(saved["num"])
        case "MultiBinary":
            return MultiBinary(saved["num"])
        case "MultiDiscrete":
            return MultiDiscrete(tuple(saved["nums"]))
    low, high = read_bound(saved["low"], -np.inf), read_bound(saved["high"], np.inf)
    return Box(tuple(saved["shape"]), low, high, saved["dtype"])


def read_bound(saved: Any, none: float) -> Any:
    """A bound as `describe_bound` gives it; `none` where there is none."""
    if not isinstance(saved, list):
        return none if saved is None else saved
    array = np.array(saved, object)
    array[array == None] = none  # noqa: E711  entry by entry
    return array.astype(np.float32)
