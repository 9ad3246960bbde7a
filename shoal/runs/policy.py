"""A trained learner as a function: NumPy observations in, NumPy actions out."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import ShoalError
from shoal.spaces import ActionSpace, Box, ObservationSpace


class Actor(NamedTuple):
    """What acts in B rows at once.

    begin(rows, obs) -> state                       before the first step of new episodes
    act(step, state, obs, starts) -> action, state  `starts` (B,) says where an episode begins
    """

    begin: Callable[[int, Any], Any]
    act: Callable[[int, Any, Any, np.ndarray], tuple[np.ndarray, Any]]
    has_state: bool


class Policy:
    """Acts like one learner of a run, in an environment of your own.

    `policy(observation)` takes one observation, or a batch of them with a leading axis, and returns one
    action or a batch. Observations have the shapes of `policy.observation`, a box or named boxes (a mask of
    actions is the part `action_mask`); actions belong to `policy.action`, real ones are clipped to its
    bounds. With several agents an observation is that of all agents, (A, ...), or (B, A, ...) for a batch,
    and so is an action.

    A policy with memory or with stacked frames keeps a state for each environment of a batch until `reset()`;
    `reset(ended)` resets only those where `ended` is true.

    >>> import numpy as np, shoal
    >>> policy = shoal.load("runs/demo").policy()
    >>> policy(np.zeros(4)).shape, policy(np.zeros((7, 4))).shape
    ((), (7,))
    """

    def __init__(
        self,
        name: str,
        observation: ObservationSpace,
        action: ActionSpace,
        actor: Actor,
        agents: int | None = None,
    ):
        """`name` is the environment's; the spaces are those of one agent, without stacked frames."""
        self.observation, self.action = observation, action
        self._name, self._actor = name, actor
        self._agent_axis = () if agents is None else (agents,)
        self.reset()

    def reset(self, ended: np.ndarray | None = None) -> None:
        """Start new episodes: in the whole batch, or where `ended` (B,) is true."""
        if ended is None:
            self._batch, self._step = None, 0
            return
        ended = np.atleast_1d(np.asarray(ended, bool))
        if self._batch is None or ended.shape != (self._batch,):
            raise ShoalError(f"reset takes {self._batch} flags, as many as the last batch, not {ended.shape}")
        self._starts = self._starts | ended

    def __call__(self, observation: Any) -> Any:
        """The action for an observation, or the actions for a batch."""
        obs, size, is_batch = self._read(observation)
        if size != self._batch:
            self._begin(size, obs)
        action, self._state = self._actor.act(self._step, self._state, obs, self._starts)
        self._step, self._starts = self._step + 1, np.zeros(size, bool)
        return action if is_batch else action[0]

    def _begin(self, size: int, obs: Any) -> None:
        """Prepare for a batch of another size; a policy that keeps state must be reset before."""
        if self._batch is not None and self._actor.has_state:
            raise ShoalError(
                f"this policy keeps the state of {self._batch} environments, not {size}; call reset() first"
            )
        self._state = self._actor.begin(size, obs)
        self._batch, self._starts = size, np.ones(size, bool)

    def _read(self, observation: Any) -> tuple[Any, int, bool]:
        """The observation as a batch of the right dtypes, its rows, and whether it was a batch."""
        space, agents = self.observation, self._agent_axis
        if isinstance(space, dict):
            if missing := space.keys() - (observation if isinstance(observation, dict) else {}):
                parts = f"{', '.join(space)}; add {', '.join(sorted(missing))}"
                raise ShoalError(f"an observation of {self._name} has the parts {parts}")
            parts = {name: (box, observation[name]) for name, box in space.items()}
        else:
            parts = {"": (space, observation)}
        arrays, batched = {}, set()
        for name, (box, given) in parts.items():
            array, shape = np.asarray(given, box.dtype), (*agents, *box.shape)
            if array.shape != shape and array.shape[1:] != shape:
                part = f" part {name}" * bool(name)
                raise ShoalError(
                    f"an observation of {self._name}{part} is {shape}, or (B, ...) a batch of them, not "
                    f"{array.shape}"
                )
            batched.add(array.shape != shape)
            arrays[name] = array if array.shape != shape else array[None]
        if len(batched) > 1:
            raise ShoalError(
                "some parts of the observation are a batch and others are not; batch all or none"
            )
        size = len(next(iter(arrays.values())))
        return arrays if isinstance(space, dict) else arrays[""], size, batched.pop()


def clip_action(space: ActionSpace, action: Any) -> np.ndarray:
    """Actions as the environment takes them: real ones clipped to their box.

    >>> clip_action(Box((1,), -2.0, 2.0), np.array([[3.0], [1.0]])).tolist()
    [[2.0], [1.0]]
    """
    action = np.asarray(action)
    if not isinstance(space, Box):
        return action
    low, high = (np.asarray(bound, space.dtype) for bound in (space.low, space.high))
    return np.clip(action, low, high)
