"""Teams: several agents in one environment, with learners of a single agent.

The agents that follow one policy count as environments: for n agents in each of E environments the learner
has E n environments. So teams need no algorithm of their own. This file adds which policy each agent follows,
what its critic sees of the others, which agents are alive, and which policies learn when.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.distributed.mesh import DATA
from shoal.errors import ShoalError
from shoal.learners.observations import named
from shoal.learners.team_config import TeamConfig, mapping
from shoal.learners.wrappers.team_roles import (
    Role,
    TeamPrivate,
    TeamSetup,
    join_agents,
    join_parts,
    join_states,
    merge_agents,
    past_state,
    role_state,
    take_agents,
    take_part,
)
from shoal.learners.wrappers.team_views import ALIVE, agent_axis, agent_space, observe_agents
from shoal.ops import trees
from shoal.types import EnvSpec, Learner, LearnerState, Rollout, Tree

LearnerMaker = Callable[[EnvSpec, int], Learner]
"""(the spec of one agent, the number of environments) -> the learner of a policy."""


def make_team(
    make: LearnerMaker, config: TeamConfig, spec: EnvSpec, num_envs: int, shards: int = 1
) -> Learner:
    """The learner of all agents of an environment, made of one learner for each policy.

    With several policies, every field of the state is a dictionary by their names, except the hypers, which
    they share.
    """
    agent_spec = EnvSpec(spec.name, spec.backend, agent_space(config, spec), spec.action)
    roles = tuple(
        Role(name, agents, make(agent_spec, num_envs * len(agents)), number not in config.freeze)
        for number, (name, agents) in enumerate(mapping(config, spec).items())
    )
    setup = TeamSetup(config, spec, roles, shards)
    check(setup, num_envs)
    learners = [role.learner for role in roles]
    return Learner(
        init=partial(init, setup),
        draw=partial(draw, setup),
        act=partial(act, setup),
        update=partial(update, setup),
        policy_terms=partial(policy_terms, setup) if all(one.policy_terms for one in learners) else None,
        distance=partial(distance, setup) if all(one.distance for one in learners) else None,
        value=partial(value, setup) if all(one.value for one in learners) else None,
        for_evaluation=partial(for_evaluation, setup),
        on_restart=partial(on_restart, setup),
        grouped=all(one.grouped for one in learners),
        by_env=TeamPrivate(join_parts(setup, [one.by_env for one in learners]), False, False, False),
    )


def check(setup: TeamSetup, num_envs: int) -> None:
    """Raise where settings and environment do not fit."""
    teams = len(set(setup.spec.teams))
    if setup.config.past_selves and teams < 2:
        raise ShoalError(f"team.past_selves needs two teams or more; {setup.spec.name} has only one")
    if setup.config.past_selves and num_envs // setup.shards % (2 * teams):
        raise ShoalError(f"with team.past_selves, num_envs must be a multiple of {2 * teams} on each device")
    if setup.config.freeze_every and len(setup.roles) < 2:
        raise ShoalError("team.freeze_every needs two policies or more; there is only one: see team.policies")
    if not any(role.learns for role in setup.roles):
        raise ShoalError("team.freeze: all policies are frozen, so nothing would be learned")


def init(setup: TeamSetup, key: Array) -> LearnerState:
    """New policies, each with its past selves."""
    keys = [jax.random.fold_in(key, number) for number in range(len(setup.roles))]
    states = [role.learner.init(key) for role, key in zip(setup.roles, keys, strict=True)]
    past, rival = (), ()
    if count := setup.config.past_selves:
        repeat = lambda x: jnp.broadcast_to(x, (count, *x.shape))
        past = join_parts(setup, [jax.tree.map(repeat, (state.params, state.statistics)) for state in states])
        rival = jnp.int32(0)
    state = join_states(setup, states)
    return state._replace(private=TeamPrivate(state.private, jnp.int32(0), past, rival))


def draw(setup: TeamSetup, key: Array, shape: tuple[int, int]) -> Tree:
    """The noise of a rollout's actions, (T, E, n, ...) for each policy's n agents."""
    num_steps, num_envs = shape

    def draw_role(number: int, role: Role) -> Tree:
        noise = role.learner.draw(jax.random.fold_in(key, number), (num_steps, num_envs * len(role.agents)))
        return jax.tree.map(lambda x: x.reshape(*shape, len(role.agents), *x.shape[2:]), noise)

    return join_parts(setup, [draw_role(number, role) for number, role in enumerate(setup.roles)])


def act(
    setup: TeamSetup, state: LearnerState, obs: Tree, noise: Tree, episode_starts: Array
) -> tuple[Tree, TeamPrivate]:
    """Actions of all agents, (E, A, ...); in some environments a past self controls a team."""
    seen, num_envs = observe_agents(setup.config, setup.spec, obs), episode_starts.shape[0]
    actions, privates = [], []
    for role in setup.roles:
        merge = partial(merge_agents, setup, role, axis=0)
        own_noise = trees.merge_axes(take_part(setup, noise, role))
        inputs = (merge(seen), own_noise, jnp.repeat(episode_starts, len(role.agents)))
        action, private = role.learner.act(role_state(setup, state, role), *inputs)
        if setup.config.past_selves:
            former = role.learner.act(past_state(setup, state, role), *inputs)
            theirs = merge(past_self_mask(setup, num_envs) & (state.private.rival >= 0))
            action = trees.where_rows(theirs, former[0], action)
            private = replace_by_env(role.learner.by_env, theirs, former[1], private)
        actions.append(trees.split_axis(action, num_envs))
        privates.append(private)
    return join_agents(setup, actions, axis=1), state.private._replace(players=join_parts(setup, privates))


def replace_by_env(by_env: Tree, where: Array, other: Tree, private: Tree) -> Tree:
    """The private state with another one's parts in the environments that `where` marks.

    A part that is the same object in both is kept: acting did not change it, and it may have another shape.
    """
    replace = lambda old, new: new if old is new else trees.where_rows(where, old, new)
    choose = lambda split, old, new: jax.tree.map(replace, old, new) if split else new
    return jax.tree.map(choose, by_env, other, private)


def update(
    setup: TeamSetup, key: Array, state: LearnerState, rollout: Rollout
) -> tuple[LearnerState, dict[str, Array]]:
    """Every policy that is not frozen learns from the samples of its agents."""
    samples = per_agent_rollout(setup, rollout)
    if setup.config.past_selves:  # no policy learns from a past self's actions
        own = ~past_self_mask(setup, samples.valid.shape[1])[None]
        samples = samples._replace(valid=samples.valid & own)
    states, metrics = [], []
    for number, role in enumerate(setup.roles):
        before = role_state(setup, state, role)
        last_obs = merge_agents(setup, role, samples.last_obs, axis=0)
        own = merge_agents(setup, role, samples._replace(last_obs=()), axis=1)._replace(last_obs=last_obs)
        after, role_metrics = role.learner.update(jax.random.fold_in(key, number), before, own)
        if not role.learns:
            after = before._replace(private=after.private)
        elif setup.config.freeze_every:
            turn = state.private.num_updates // setup.config.freeze_every % len(setup.roles) == number
            model = trees.where(turn, after._replace(private=()), before._replace(private=()))
            after = model._replace(private=after.private)
        states.append(after)
        metrics.append(role_metrics)
    after = join_states(setup, states)
    private = update_past(setup, key, state.private._replace(players=after.private), states)
    return after._replace(private=private), merge_metrics(setup, metrics)


def update_past(
    setup: TeamSetup, key: Array, private: TeamPrivate, states: list[LearnerState]
) -> TeamPrivate:
    """The private state after an update: the count, the versions kept, and the one that plays next."""
    count = private.num_updates + 1
    if not (size := setup.config.past_selves):
        return private._replace(num_updates=count)
    kept = count // setup.config.snapshot_every
    due = count % setup.config.snapshot_every == 0
    index = jnp.where(due, (kept - 1) % size, size)  # beyond the end nothing is written
    put = lambda past, now: past.at[index].set(now, mode="drop")
    now = join_parts(setup, [(state.params, state.statistics) for state in states])
    past = jax.tree.map(put, private.past, now)
    rival = jax.random.randint(jax.random.fold_in(key, len(setup.roles)), (), 0, jnp.clip(kept, 1, size))
    return private._replace(num_updates=count, past=past, rival=rival)


def merge_metrics(setup: TeamSetup, metrics: list[dict[str, Array]]) -> dict[str, Array]:
    """The mean of the policies' metrics; with several policies also each one's, by its name."""
    if len(metrics) == 1:
        return metrics[0]
    mean = jax.tree.map(lambda *x: sum(x) / jnp.float32(len(x)), *metrics)
    each = {
        f"{role.name}/{name}": x
        for role, one in zip(setup.roles, metrics, strict=True)
        for name, x in one.items()
    }
    return mean | each


def for_evaluation(setup: TeamSetup, state: LearnerState, num_envs: int) -> LearnerState:
    """The policies for `num_envs` other environments; past selves do not play."""
    states = [
        role.learner.for_evaluation(role_state(setup, state, role), num_envs * len(role.agents))
        for role in setup.roles
    ]
    no_rival = jnp.int32(-1) if setup.config.past_selves else ()
    players = join_parts(setup, [one.private for one in states])
    return state._replace(private=state.private._replace(players=players, rival=no_rival))


def on_restart(setup: TeamSetup, state: LearnerState) -> LearnerState:
    """The policies before new episodes."""
    states = [role.learner.on_restart(role_state(setup, state, role)) for role in setup.roles]
    players = join_parts(setup, [one.private for one in states])
    return state._replace(private=state.private._replace(players=players))


def distance(setup: TeamSetup, state: LearnerState, other: LearnerState, obs: Tree) -> Array:
    """The distance between two teams' policies at each agent's observation, (..., A)."""
    call = lambda learner, mine, theirs, seen: learner.distance(mine, theirs, seen)
    return call_roles(setup, call, (state, other), obs)


def policy_terms(setup: TeamSetup, state: LearnerState, obs: Tree) -> Tree:
    """The policy at each agent's observation, in terms that add up over peers."""
    return call_roles(setup, lambda learner, state, seen: learner.policy_terms(state, seen), (state,), obs)


def value(setup: TeamSetup, state: LearnerState, obs: Tree) -> Array:
    """The value of each agent's observation, (..., A)."""
    return call_roles(setup, lambda learner, state, seen: learner.value(state, seen), (state,), obs)


def call_roles(
    setup: TeamSetup, call: Callable[..., Tree], states: tuple[LearnerState, ...], obs: Tree
) -> Tree:
    """A function of each policy's learner at its agents' observations, (..., A, ...).

    The states may come without their private parts.
    """
    seen, axis = observe_agents(setup.config, setup.spec, obs), agent_axis(setup.spec, obs)
    bare = [one._replace(private=TeamPrivate((), ()), opt_state=(), anchor=()) for one in states]

    def call_role(role: Role) -> Tree:
        own = [role_state(setup, one, role) for one in bare]
        return call(role.learner, *own, take_agents(setup, role, seen, axis))

    return join_agents(setup, [call_role(role) for role in setup.roles], axis)


def per_agent_rollout(setup: TeamSetup, rollout: Rollout) -> Rollout:
    """The rollout with every field per agent, (T, E, A, ...); the samples of dead agents are not valid.

    Where an agent dies before the episode ends, the episode is terminated for it.
    """
    shape = rollout.reward.shape
    per_agent = lambda x: jnp.broadcast_to(x[..., None], shape)
    terminated, truncated, valid = map(per_agent, (rollout.terminated, rollout.truncated, rollout.valid))
    if ALIVE in named(setup.spec.observation):
        alive, last = rollout.obs[ALIVE] > 0, rollout.last_obs[ALIVE] > 0
        later = jnp.concatenate([alive[1:], last[None]])
        valid = valid & alive
        terminated = terminated | (valid & ~later)
    reward = rollout.reward
    if setup.config.team_reward:
        sides = np.array(setup.spec.teams or [0] * shape[-1])
        reward = reward @ jnp.asarray(sides[:, None] == sides[None], jnp.float32)
    peer_targets = tuple(one._replace(weight=per_agent(one.weight)) for one in rollout.peer_targets)
    return Rollout(
        obs=observe_agents(setup.config, setup.spec, rollout.obs),
        action=rollout.action,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        last_obs=observe_agents(setup.config, setup.spec, rollout.last_obs),
        peer_targets=peer_targets,
        episode_starts=per_agent(rollout.episode_starts),
    )


def past_self_mask(setup: TeamSetup, num_envs: int) -> Array:
    """Which agents a past self controls, (E, A).

    With n teams: of every 2 n environments, the first n have none, and each of the others one team.
    """
    teams = np.array(setup.spec.teams)
    first = jax.lax.axis_index(DATA) * num_envs if setup.shards > 1 else 0
    turn = (first + jnp.arange(num_envs)) % (2 * len(set(setup.spec.teams)))
    return turn[:, None] - len(set(setup.spec.teams)) == teams[None]
