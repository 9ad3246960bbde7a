"""The spaces of several agents as one: observations and actions padded to the largest agent's."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium.spaces as gs
import numpy as np

from shoal.envs.spaces import Convert, adapt_action, adapt_observation
from shoal.errors import ShoalError
from shoal.ops.masks import ACTION_MASK
from shoal.types import ActionSpace, Box, Discrete


class AgentAdapter(NamedTuple):
    """Converts between the arrays of A agents and ours."""

    observation: Box
    action: ActionSpace
    observe: Callable[[Sequence[Any]], np.ndarray]
    """Raw observations, a batch (N, ...) for each agent, as (N, A, ...)."""
    act: Callable[[np.ndarray], list[tuple]]
    """Our actions (N, A, ...) as the agents' own, a tuple for each environment."""
    choices: np.ndarray
    """Which of the n choices each agent has, (A, n); n is 0 where actions are not discrete."""

    @property
    def unequal(self) -> bool:
        """Whether some agents have fewer choices than others."""
        return not self.choices.all()


def adapt_agents(observations: Sequence[gs.Space], actions: Sequence[gs.Space], name: str) -> AgentAdapter:
    """The adapter of agents with these spaces; `name` is for errors."""
    observation, observe = _observations([_box(space, name) for space in observations], name)
    action, act, choices = _actions([adapt_action(space, name) for space in actions], name)
    return AgentAdapter(observation, action, observe, act, choices)


def num_agents(observation: gs.Space, action: gs.Space) -> int | None:
    """The number of agents, where both spaces are tuples with a space for each; None elsewhere."""
    if not (isinstance(observation, gs.Tuple) and isinstance(action, gs.Tuple)):
        return None
    return len(action) if len(action) == len(observation) else None


def has_mask(space: gs.Space) -> bool:
    """Whether an agent's observations have a mask among their parts."""
    return isinstance(space, gs.Dict) and ACTION_MASK in space.spaces


def without_mask(space: gs.Space) -> gs.Space:
    """The space of an agent's observations without the mask."""
    if not (isinstance(space, gs.Dict) and has_mask(space)):
        return space
    parts = {key: part for key, part in space.spaces.items() if key != ACTION_MASK}
    return next(iter(parts.values())) if len(parts) == 1 else gs.Dict(parts)


def zeros(space: gs.Space) -> Any:
    """An observation of zeros."""
    match space:
        case gs.Dict():
            return {key: zeros(part) for key, part in space.spaces.items()}
        case gs.Tuple():
            return tuple(zeros(part) for part in space.spaces)
    return np.zeros(space.shape or (), space.dtype)


def _box(space: gs.Space, name: str) -> tuple[Box, Convert]:
    """One agent's observation as one box: the parts of a dictionary concatenated."""
    boxes, convert = adapt_observation(space, name)
    if isinstance(boxes, Box):
        return boxes, convert
    size = sum(int(np.prod(box.shape)) for box in boxes.values())
    return Box((size,)), lambda raw: np.concatenate([_flat(part) for part in convert(raw).values()], axis=1)


def _flat(batch: np.ndarray) -> np.ndarray:
    return batch.reshape(len(batch), -1).astype(np.float32)


def _observations(parts: list[tuple[Box, Convert]], name: str) -> tuple[Box, Callable]:
    boxes, converts = zip(*parts, strict=True)
    if len({(box.shape, box.dtype) for box in boxes}) == 1:
        return boxes[0], lambda raw: _stack([each(part) for each, part in zip(converts, raw, strict=True)])
    if any(len(box.shape) > 2 for box in boxes):
        shapes = sorted({box.shape for box in boxes})
        raise ShoalError(f"{name}: its agents see images of the shapes {shapes}; make them the same")
    size = max(int(np.prod(box.shape)) for box in boxes)

    def observe(raw: Sequence[Any]) -> np.ndarray:
        parts = [_flat(each(part)) for each, part in zip(converts, raw, strict=True)]
        return _stack([np.pad(part, ((0, 0), (0, size - part.shape[1]))) for part in parts])

    return Box((size,)), observe


def _stack(parts: list[np.ndarray]) -> np.ndarray:
    """(N, ...) of each agent -> (N, A, ...)."""
    return np.stack(parts, axis=1)


def _actions(
    parts: list[tuple[ActionSpace, Convert]], name: str
) -> tuple[ActionSpace, Callable[[np.ndarray], list[tuple]], np.ndarray]:
    spaces, converts = zip(*parts, strict=True)

    def act(actions: np.ndarray) -> list[tuple]:
        return list(zip(*(each(actions[:, i]) for i, each in enumerate(converts)), strict=True))

    if all(isinstance(space, Discrete) for space in spaces):
        nums = np.array([space.num for space in spaces])
        choices = np.arange(nums.max())[None] < nums[:, None]
        return Discrete(int(nums.max())), lambda actions: act(np.minimum(actions, nums - 1)), choices
    no_choices = np.ones((len(spaces), 0), bool)
    if all(isinstance(space, Box) and space.shape == spaces[0].shape for space in spaces):
        low = np.min([space.low for space in spaces], axis=0)
        high = np.max([space.high for space in spaces], axis=0)
        return Box(spaces[0].shape, low, high), act, no_choices
    if all(space == spaces[0] for space in spaces):
        return spaces[0], act, no_choices
    raise ShoalError(f"{name}: its agents act in {spaces[0]} and in other kinds of spaces; give all the same")
