"""Gymnasium's spaces as ours, and the conversion of observations and actions between the two.

Observations, a leaf of the space at a time:

| Gymnasium            | here                                                                      |
|----------------------|---------------------------------------------------------------------------|
| Box of uint8         | uint8; three axes are an image, whose channels are moved last: (H, W, C)  |
| Box of another dtype | float32                                                                   |
| Discrete(n)          | a one-hot box (n,)                                                        |
| MultiDiscrete        | the one-hot boxes of its parts, end to end                                |
| MultiBinary          | a box of zeros and ones                                                   |
| Dict, Tuple          | named boxes, nested names joined, `"a/b"`; a tuple's are `"0"`, `"1"`...  |

A scalar becomes a vector of one. A part called `action_mask` says which actions are allowed.

Actions: Discrete, MultiDiscrete and MultiBinary count from zero here, whatever their `start`; a Box of whole
numbers is a MultiDiscrete; a Box of reals is clipped to its bounds after the cast to the environment's own
dtype. Where the mask is of combinations of choices, as in Jumanji's Tetris (a rotation and a column), a
combination is one choice among all of them.
"""

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium.spaces as gs
import numpy as np

from shoal.errors import ShoalError
from shoal.ops.masks import ACTION_MASK
from shoal.types import ActionSpace, Box, Discrete, MultiBinary, MultiDiscrete, ObservationSpace

Convert = Callable[[Any], Any]
"""Takes NumPy's arrays and JAX's, so it works in callbacks and in compiled code."""

_MAX_CHOICES = 2**16
"""The widest integer box that is taken for a set of choices."""


def adapt(
    observation_space: gs.Space, action_space: gs.Space, name: str
) -> tuple[ObservationSpace, Convert, ActionSpace, Convert]:
    """Our spaces of an environment and the conversions; `name` is for errors."""
    observation, observe = adapt_observation(observation_space, name)
    action, act = adapt_action(action_space, name)
    mask = observation.get(ACTION_MASK) if isinstance(observation, dict) else None
    # Two choices of two are (2, 2) side by side as well as combined; nothing else is both.
    if mask and isinstance(action, MultiDiscrete) and mask.shape == action.nums != (2, 2):
        action, act = _combined(action, act)
    return observation, observe, action, act


def add_mask(space: gs.Space, actions: gs.Discrete) -> gs.Dict:
    """The space of observations that come with a mask of `actions`."""
    return gs.Dict({"obs": space, ACTION_MASK: gs.MultiBinary(int(actions.n))})


def adapt_observation(space: gs.Space, name: str) -> tuple[ObservationSpace, Convert]:
    """Our space, and the function from a batch of raw observations (N, ...) to ours; `name` is for errors."""
    if not isinstance(space, (gs.Dict, gs.Tuple)):
        return _observation_leaf(space, name)
    parts = {"/".join(path): (path, *_observation_leaf(leaf, name)) for path, leaf in _leaves(space)}

    def convert(raw):
        return {key: leaf_convert(_follow(raw, path)) for key, (path, _, leaf_convert) in parts.items()}

    return {key: box for key, (_, box, _) in parts.items()}, convert


def adapt_action(space: gs.Space, name: str) -> tuple[ActionSpace, Convert]:
    """Our space, and the function from a batch of our actions (N, ...) to the environment's own."""
    match space:
        case gs.Discrete():
            return Discrete(int(space.n)), _shift(space.start, space.dtype, ())
        case gs.MultiDiscrete():
            return MultiDiscrete(_whole(space.nvec)), _shift(space.start, space.dtype, space.shape)
        case gs.MultiBinary():
            return MultiBinary(int(np.prod(space.shape))), _shift(0, space.dtype, space.shape)
        case gs.Box() if np.issubdtype(space.dtype, np.integer):
            return _integer_box(space, name)
        case gs.Box():
            low, high = bounds(space)

            def clip(action):
                return (
                    action.astype(space.dtype).reshape(len(action), *space.shape).clip(low[None], high[None])
                )

            return _real_box(_shape(space), low, high), clip
    raise ShoalError(
        f"{name}: cannot act in {brief(space)}; Discrete, MultiDiscrete, MultiBinary and Box work"
    )


def bounds(space: gs.Box) -> tuple[np.ndarray, np.ndarray]:
    """The box's bounds; EnvPool writes "none" as the smallest and the largest positive number."""
    low, high = np.array(space.low), np.array(space.high)
    if not np.issubdtype(space.dtype, np.floating):
        return low, high
    limits = np.finfo(str(space.dtype))
    endless = (low == limits.tiny) & (high == limits.max)
    low = np.where(endless | (low == limits.min), -np.inf, low).astype(space.dtype)
    return low, np.where(high == limits.max, np.inf, high).astype(space.dtype)


def _observation_leaf(space: gs.Space, name: str) -> tuple[Box, Convert]:
    match space:
        case gs.Discrete():
            return _one_hot(np.array([space.n]), np.array([space.start]))
        case gs.MultiDiscrete():
            return _one_hot(space.nvec.reshape(-1), np.asarray(space.start).reshape(-1))
        case gs.MultiBinary():
            shape = _shape(space)
            return Box(shape, 0.0, 1.0), lambda raw: raw.astype(np.float32).reshape(len(raw), *shape)
        case gs.Box() if space.dtype == np.uint8:
            return _bytes(space)
        case gs.Box():
            shape, (low, high) = _shape(space), bounds(space)
            convert = lambda raw: raw.astype(np.float32).reshape(len(raw), *shape)
            return _real_box(shape, low, high), convert
    raise ShoalError(
        f"{name}: cannot observe {brief(space)}; Box, Discrete, MultiDiscrete, MultiBinary, Dict work"
    )


def _real_box(shape: tuple[int, ...], low: np.ndarray, high: np.ndarray) -> Box:
    return Box(shape, low.astype(np.float32).reshape(shape), high.astype(np.float32).reshape(shape))


def _one_hot(nums: np.ndarray, start: np.ndarray) -> tuple[Box, Convert]:
    part = np.repeat(np.arange(len(nums)), nums)  # which of the choices this number belongs to
    value = np.concatenate([first + np.arange(num) for num, first in zip(nums, start, strict=True)])

    def convert(raw):
        return (raw.reshape(len(raw), len(nums))[:, part] == value[None]).astype(np.float32)

    return Box((len(part),), 0.0, 1.0), convert


def _bytes(space: gs.Box) -> tuple[Box, Convert]:
    shape = _shape(space)
    whole = lambda raw: raw.reshape(len(raw), *shape).astype(np.uint8, copy=False)
    if len(shape) == 3 and shape[0] < shape[2]:
        channels, height, width = shape
        channels_last = lambda raw: whole(raw).transpose(0, 2, 3, 1)
        return Box((height, width, channels), 0, 255, "uint8"), channels_last
    return Box(shape, 0, 255, "uint8"), whole


def _integer_box(space: gs.Box, name: str) -> tuple[MultiDiscrete, Convert]:
    nums = space.high.astype(np.int64) - space.low.astype(np.int64) + 1
    if nums.min() < 1 or nums.max() > _MAX_CHOICES:
        raise ShoalError(f"{name}: cannot act in {brief(space)}; whole numbers need close bounds")
    return MultiDiscrete(_whole(nums)), _shift(space.low, space.dtype, space.shape)


def _combined(space: MultiDiscrete, act: Convert) -> tuple[Discrete, Convert]:
    """Several choices as one among their combinations, the last one changing fastest."""
    nums = np.array(space.nums, np.int32)
    strides = np.append(np.cumprod(nums[:0:-1])[::-1], 1).astype(np.int32)
    return Discrete(int(nums.prod())), lambda action: act(action[:, None] // strides[None] % nums[None])


def _shift(start: Any, dtype: Any, shape: tuple[int, ...]) -> Convert:
    start = np.asarray(start).astype(dtype)
    return lambda action: action.astype(dtype).reshape(len(action), *shape) + start[None]


def _leaves(space: gs.Space, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], gs.Space]]:
    match space:
        case gs.Dict():
            parts = space.spaces.items()
        case gs.Tuple():
            parts = ((str(i), part) for i, part in enumerate(space.spaces))
        case _:
            yield path, space
            return
    for key, part in parts:
        yield from _leaves(part, (*path, key))


def _follow(raw: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        raw = raw[int(key)] if isinstance(raw, tuple) else raw[key]
    return raw


def _shape(space: gs.Space) -> tuple[int, ...]:
    return tuple(int(size) for size in space.shape or (1,))


def _whole(nums: np.ndarray) -> tuple[int, ...]:
    return tuple(int(num) for num in nums.reshape(-1))


def brief(space: gs.Space) -> str:
    """The space on one line, cut where its bounds run long."""
    text = " ".join(str(space).split())
    return text if len(text) <= 100 else f"{text[:97]}..."
