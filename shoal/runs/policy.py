"""A trained learner as a function: NumPy observations in, NumPy actions out."""

from functools import partial
from typing import Any

import jax
import numpy as np

from shoal.envs.frame_stack import append, fill
from shoal.errors import ShoalError
from shoal.ops import trees
from shoal.training.evaluate import set_sampling
from shoal.types import ActionSpace, Box, EnvSpec, Learner, LearnerState, Tree


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
        spec: EnvSpec,
        learner: Learner,
        state: LearnerState,
        *,
        num_frames: int = 1,
        sampled: bool = False,
        seed: int = 0,
    ):
        """`spec` is the environment's without stacked frames; `state` is one learner's, without L."""
        self.observation, self.action = spec.observation, spec.action
        self._spec, self._learner, self._state = spec, set_sampling(learner, sampled), state
        self._num_frames, self._key = num_frames, jax.random.key(seed)
        self._is_stateful = learner.policy_terms is None or num_frames > 1
        self._act = jax.jit(partial(_act, self._learner, num_frames))
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
        obs, is_batch = self._read(observation)
        size = jax.tree.leaves(obs)[0].shape[0]
        if size != self._batch:
            self._begin(size, obs)
        key = jax.random.fold_in(self._key, self._step)
        action, self._private, self._frames = self._act(
            key, self._state._replace(private=self._private), self._frames, obs, self._starts
        )
        self._step, self._starts = self._step + 1, np.zeros(size, bool)
        action = clip_action(self.action, action)
        return action if is_batch else action[0]

    def _begin(self, size: int, obs: Tree) -> None:
        """Prepare for a batch of another size; a policy that keeps state must be reset before."""
        if self._batch is not None and self._is_stateful:
            raise ShoalError(
                f"this policy keeps the state of {self._batch} environments, not {size}; call reset() first"
            )
        ready = self._learner.for_evaluation(self._state, size)
        self._private, self._batch, self._starts = ready.private, size, np.ones(size, bool)
        self._frames = fill(obs, self._num_frames) if self._num_frames > 1 else ()

    def _read(self, observation: Any) -> tuple[Tree, bool]:
        """The observation as a batch of the right dtypes, and whether it was a batch."""
        space, agents = self.observation, self._spec.agent_axis
        if isinstance(space, dict):
            if missing := space.keys() - (observation if isinstance(observation, dict) else {}):
                parts = f"{', '.join(space)}; add {', '.join(sorted(missing))}"
                raise ShoalError(f"an observation of {self._spec.name} has the parts {parts}")
            parts = {name: (box, observation[name]) for name, box in space.items()}
        else:
            parts = {"": (space, observation)}
        arrays, batched = {}, set()
        for name, (box, given) in parts.items():
            array, shape = np.asarray(given, box.dtype), (*agents, *box.shape)
            if array.shape != shape and array.shape[1:] != shape:
                part = f" part {name}" * bool(name)
                raise ShoalError(
                    f"an observation of {self._spec.name}{part} is {shape}, or (B, ...) a batch of them, not "
                    f"{array.shape}"
                )
            batched.add(array.shape != shape)
            arrays[name] = array if array.shape != shape else array[None]
        if len(batched) > 1:
            raise ShoalError(
                "some parts of the observation are a batch and others are not; batch all or none"
            )
        return arrays if isinstance(space, dict) else arrays[""], batched.pop()


def _act(
    learner: Learner,
    num_frames: int,
    key: jax.Array,
    state: LearnerState,
    frames: Tree,
    obs: Tree,
    episode_starts: jax.Array,
) -> tuple[Tree, Tree, Tree]:
    """Actions (B, ...), the learner's private state, and the stacked frames."""
    if num_frames > 1:
        obs = frames = append(frames, obs, episode_starts, num_frames)
    noise = trees.take(learner.draw(key, (1, episode_starts.shape[0])), 0)
    action, private = learner.act(state, obs, noise, episode_starts)
    return action, private, frames


def clip_action(space: ActionSpace, action: Tree) -> np.ndarray:
    """Actions as the environment takes them: real ones clipped to their box.

    >>> clip_action(Box((1,), -2.0, 2.0), np.array([[3.0], [1.0]])).tolist()
    [[2.0], [1.0]]
    """
    action = np.asarray(action)
    if not isinstance(space, Box):
        return action
    low, high = (np.asarray(bound, space.dtype) for bound in (space.low, space.high))
    return np.clip(action, low, high)
