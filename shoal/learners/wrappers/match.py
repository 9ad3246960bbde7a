"""Matches: two trained learners play against each other, or one against chance."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.errors import ShoalError
from shoal.ops.distributions import distribution_for
from shoal.ops.masks import restrict
from shoal.types import EnvSpec, Learner, LearnerState, Rollout, Tree


def make_match(first: Learner, second: Learner, spec: EnvSpec) -> Learner:
    """A learner that only acts: `first` controls the first team, `second` all others.

    Its state is `join(first_state, second_state)`.
    """
    if len(set(spec.teams)) < 2:
        raise ShoalError(f"{spec.name} has one team: there is no opponent")
    sides = (first, second)
    mine = np.array(spec.teams) == 0

    def init(key: Array) -> LearnerState:
        return join(first.init(key), second.init(key))

    def draw(key: Array, shape: tuple[int, int]) -> Tree:
        return tuple(side.draw(key, shape) for side in sides)

    def act(state: LearnerState, obs: Tree, noise: Tree, episode_starts: Array) -> tuple[Tree, Tree]:
        acted = [side.act(split(state, i), obs, noise[i], episode_starts) for i, side in enumerate(sides)]
        choose = lambda a, b: jnp.where(mine.reshape(1, -1, *[1] * (a.ndim - 2)), a, b)
        (action, private), (other, other_private) = acted
        return jax.tree.map(choose, action, other), (private, other_private)

    def for_evaluation(state: LearnerState, num_envs: int) -> LearnerState:
        return join(*(side.for_evaluation(split(state, i), num_envs) for i, side in enumerate(sides)))

    return Learner(init=init, draw=draw, act=act, update=_refuse, for_evaluation=for_evaluation)


def random_player(spec: EnvSpec) -> Learner:
    """A learner that only acts, at random among what its environment allows; its state is empty."""
    distribution = distribution_for(spec.action)

    def init(key: Array) -> LearnerState:
        return LearnerState(*[()] * len(LearnerState._fields))

    def draw(key: Array, shape: tuple[int, int]) -> Tree:
        return distribution.draw(key, (*shape, *spec.agent_axis))

    def act(state: LearnerState, obs: Tree, noise: Tree, episode_starts: Array) -> tuple[Tree, Tree]:
        indifferent = jnp.zeros((*episode_starts.shape, *spec.agent_axis, distribution.num_outputs))
        return distribution.sample(restrict(spec.action, obs, indifferent), noise), state.private

    return Learner(init=init, draw=draw, act=act, update=_refuse)


def join(first: LearnerState, second: LearnerState) -> LearnerState:
    """Two states as one, whose fields are pairs."""
    return LearnerState(*zip(first, second, strict=True))


def split(state: LearnerState, index: int) -> LearnerState:
    """One of the two states: the inverse of `join`."""
    return LearnerState(*(field[index] for field in state))


def _refuse(key: Array, state: LearnerState, rollout: Rollout) -> tuple[LearnerState, dict[str, Array]]:
    raise ShoalError("the learners of a match do not learn")
