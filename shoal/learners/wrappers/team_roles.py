"""The policies of a team: which agents follow each, and their states joined into one."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.learners.team_config import TeamConfig
from shoal.ops import trees
from shoal.types import EnvSpec, Learner, LearnerState, Tree


class Role(NamedTuple):
    """One policy: the agents that follow it, and whether it learns."""

    name: str
    agents: tuple[int, ...]
    learner: Learner
    learns: bool


class TeamSetup(NamedTuple):
    """What is fixed when a team is made: the first argument of its functions."""

    config: TeamConfig
    spec: EnvSpec
    roles: tuple[Role, ...]
    shards: int


class TeamPrivate(NamedTuple):
    """The private state of a team."""

    players: Tree  # each policy's private state
    num_updates: Array  # () int32, so far
    past: Tree = ()  # (K, ...) earlier parameters and statistics of each policy
    rival: Array | tuple[()] = ()  # () int32: which of them plays now; -1 for none


def join_agents(setup: TeamSetup, each: list[Tree], axis: int) -> Tree:
    """The policies' results joined along an axis, in the order of the agents."""
    if len(each) == 1:
        return each[0]
    order = np.argsort([agent for role in setup.roles for agent in role.agents])
    return jax.tree.map(lambda *x: jnp.take(jnp.concatenate(x, axis), order, axis), *each)


def role_state(setup: TeamSetup, state: LearnerState, role: Role) -> LearnerState:
    """One policy's state."""
    part = partial(take_part, setup, role=role)
    return LearnerState(
        params=part(state.params),
        statistics=part(state.statistics),
        opt_state=part(state.opt_state),
        hypers=state.hypers,
        private=part(state.private.players),
        anchor=part(state.anchor),
    )


def past_state(setup: TeamSetup, state: LearnerState, role: Role) -> LearnerState:
    """One policy's state, with the earlier version that plays now."""
    params, statistics = trees.take(take_part(setup, state.private.past, role), state.private.rival)
    return role_state(setup, state, role)._replace(params=params, statistics=statistics)


def join_states(setup: TeamSetup, states: list[LearnerState]) -> LearnerState:
    """The policies' states as one; the hypers are shared."""
    join = partial(join_parts, setup)
    return LearnerState(
        params=join([one.params for one in states]),
        statistics=join([one.statistics for one in states]),
        opt_state=join([one.opt_state for one in states]),
        hypers=states[0].hypers,
        private=join([one.private for one in states]),
        anchor=join([one.anchor for one in states]),
    )


def join_parts(setup: TeamSetup, each: list[Tree]) -> Tree:
    """Each policy's part by its name; with a single policy its part; () where all are empty."""
    if len(each) == 1:
        return each[0]
    if all(isinstance(part, tuple) and not part for part in each):
        return ()
    return {role.name: part for role, part in zip(setup.roles, each, strict=True)}


def take_part(setup: TeamSetup, whole: Tree, role: Role) -> Tree:
    """One policy's part: the inverse of `join_parts`."""
    if len(setup.roles) == 1 or not isinstance(whole, dict):
        return whole
    return whole[role.name]


def take_agents(setup: TeamSetup, role: Role, tree: Tree, axis: int) -> Tree:
    """One policy's agents, along the axis of agents."""
    if len(setup.roles) == 1:
        return tree
    return jax.tree.map(lambda x: jnp.take(x, np.array(role.agents), axis), tree)


def merge_agents(setup: TeamSetup, role: Role, tree: Tree, axis: int) -> Tree:
    """(..., E, A, ...) -> (..., E n, ...): a policy's n agents as environments; `axis` is that of E."""
    merge = lambda x: x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
    return jax.tree.map(merge, take_agents(setup, role, tree, axis + 1))
