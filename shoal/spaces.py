"""The spaces of observations and actions."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np


@dataclass(frozen=True)
class Box:
    """Real vectors, or images, between two bounds (scalars, or arrays of the box's shape).

    >>> import shoal
    >>> shoal.Box((2,), low=-1.0, high=1.0).shape
    (2,)
    """

    shape: tuple[int, ...]
    low: Any = -np.inf
    high: Any = np.inf
    dtype: str = "float32"


@dataclass(frozen=True)
class Discrete:
    """One of `num` choices, counted from zero.

    >>> import shoal
    >>> shoal.make("CartPole-v1").spec.action == shoal.Discrete(2)
    True
    """

    num: int


@dataclass(frozen=True)
class MultiDiscrete:
    """Several independent choices, the i-th among `nums[i]`.

    >>> import shoal
    >>> len(shoal.MultiDiscrete((3, 2)).nums)
    2
    """

    nums: tuple[int, ...]


@dataclass(frozen=True)
class MultiBinary:
    """`num` independent switches.

    >>> import shoal
    >>> shoal.MultiBinary(4).num
    4
    """

    num: int


ActionSpace: TypeAlias = Box | Discrete | MultiDiscrete | MultiBinary
ObservationSpace: TypeAlias = Box | dict[str, Box]
"""A box, or named boxes. Discrete observations are one-hot boxes."""
