"""Teams: several agents in one world, through the learner of one.

Agents that play by one policy are rows of it, as environments are: n agents in each of E worlds make a
learner with E n environments. So a team is no algorithm of its own. What is added here is who plays by which
policy, what an agent's critic sees of the others, which agents are alive, and who learns when.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.distributed.mesh import DATA
from shoal.errors import ShoalError
from shoal.learners.observations import named
from shoal.learners.wrappers.team_config import TeamConfig, mapping
from shoal.learners.wrappers.team_views import ALIVE, leading, sight, sight_space
from shoal.ops import trees
from shoal.types import EnvSpec, Learner, LearnerState, Rollout, Tree

LearnerMaker = Callable[[EnvSpec, int], Learner]
"""(what an agent sees, how many rows) -> the learner of a policy."""


class Role(NamedTuple):
    """One policy: who plays by it, and how it learns."""

    name: str
    agents: tuple[int, ...]
    learner: Learner
    learns: bool


class Setup(NamedTuple):
    """What is fixed when a team is made: the static argument of every function below."""

    config: TeamConfig
    spec: EnvSpec
    roles: tuple[Role, ...]
    shards: int


class TeamMemory(NamedTuple):
    """What stays with the team."""

    players: Tree  # each policy's own memory
    num_updates: Array  # () int32, so far
    past: Tree = ()  # (K, ...) earlier parameters and statistics of each policy
    rival: Array | tuple[()] = ()  # () int32: which of them plays now; -1 for nobody


def team(make: LearnerMaker, config: TeamConfig, spec: EnvSpec, num_envs: int, shards: int = 1) -> Learner:
    """The learner of all agents of an environment, out of the learner of one.

    Several policies are kept side by side, by their names, in every field of the state but the hypers, which
    they share.
    """
    seen, found = (
        EnvSpec(spec.name, spec.backend, sight_space(config, spec), spec.action),
        mapping(config, spec),
    )
    roles = tuple(
        Role(name, agents, make(seen, num_envs * len(agents)), number not in config.freeze)
        for number, (name, agents) in enumerate(found.items())
    )
    setup = Setup(config, spec, roles, shards)
    check(setup, num_envs)
    functions = {f.__name__: partial(f, setup) for f in (init, draw, act, update, for_evaluation, on_restart)}
    by_env = TeamMemory(joined(setup, [role.learner.by_env for role in roles]), False, False, False)
    judging = {
        f.__name__: partial(f, setup)
        for f in (policy_terms, distance, value)
        if all(getattr(role.learner, f.__name__) for role in roles)
    }
    grouped = all(role.learner.grouped for role in roles)
    return Learner(**functions, **judging, by_env=by_env, grouped=grouped)


def check(setup: Setup, num_envs: int) -> None:
    """Raise where settings and environment do not fit."""
    teams = len(set(setup.spec.teams))
    if setup.config.past_selves and teams < 2:
        raise ShoalError(f"team.past_selves play against a team, but {setup.spec.name} has only one")
    if setup.config.past_selves and num_envs // setup.shards % (2 * teams):
        raise ShoalError(f"with team.past_selves, num_envs must be a multiple of {2 * teams} on each device")
    if setup.config.freeze_every and len(setup.roles) < 2:
        raise ShoalError(
            "team.freeze_every lets policies learn in turn, but there is only one: see team.policies"
        )
    if not any(role.learns for role in setup.roles):
        raise ShoalError("all policies are frozen: nothing would be learned")


def init(setup: Setup, key: Array) -> LearnerState:
    """Policies that have seen nothing."""
    keys = [jax.random.fold_in(key, number) for number in range(len(setup.roles))]
    states = [role.learner.init(key) for role, key in zip(setup.roles, keys, strict=True)]
    past, rival = (), ()
    if count := setup.config.past_selves:
        repeat = lambda x: jnp.broadcast_to(x, (count, *x.shape))
        past = joined(setup, [jax.tree.map(repeat, (state.params, state.statistics)) for state in states])
        rival = jnp.int32(0)
    state = together(setup, states)
    return state._replace(private=TeamMemory(state.private, jnp.int32(0), past, rival))


def draw(setup: Setup, key: Array, shape: tuple[int, int]) -> Tree:
    """The noise of a rollout's actions, (T, E, n, ...) for each policy's n agents."""
    num_steps, num_envs = shape

    def of_role(number: int, role: Role) -> Tree:
        noise = role.learner.draw(jax.random.fold_in(key, number), (num_steps, num_envs * len(role.agents)))
        return jax.tree.map(lambda x: x.reshape(*shape, len(role.agents), *x.shape[2:]), noise)

    return joined(setup, [of_role(number, role) for number, role in enumerate(setup.roles)])


def act(
    setup: Setup, state: LearnerState, obs: Tree, noise: Tree, episode_starts: Array
) -> tuple[Tree, TeamMemory]:
    """Actions of all agents, (E, A, ...), each by its policy; in some worlds a past self plays a team."""
    seen, num_envs = sight(setup.config, setup.spec, obs), episode_starts.shape[0]
    actions, memories = [], []
    for role in setup.roles:
        rows = partial(rows_of, setup, role, axis=0)
        own_noise = trees.merge_axes(part_of(setup, noise, role))
        given = (rows(seen), own_noise, jnp.repeat(episode_starts, len(role.agents)))
        action, private = role.learner.act(of_role(setup, state, role), *given)
        if setup.config.past_selves:
            former = role.learner.act(past_self(setup, state, role), *given)
            theirs = rows(rivals(setup, num_envs) & (state.private.rival >= 0))
            action = trees.where_rows(theirs, former[0], action)
            private = replaced(role.learner.by_env, theirs, former[1], private)
        actions.append(trees.split_axis(action, num_envs))
        memories.append(private)
    return in_order(setup, actions, axis=1), state.private._replace(players=joined(setup, memories))


def replaced(by_env: Tree, rows: Array, other: Tree, private: Tree) -> Tree:
    """The memory, some of its rows taken from another where it has environments as rows.

    What acting left as it was is the same in both, and need not have these rows.
    """
    row = lambda old, new: new if old is new else trees.where_rows(rows, old, new)
    choose = lambda split, old, new: jax.tree.map(row, old, new) if split else new
    return jax.tree.map(choose, by_env, other, private)


def update(
    setup: Setup, key: Array, state: LearnerState, rollout: Rollout
) -> tuple[LearnerState, dict[str, Array]]:
    """Every policy learns from what its agents saw, unless it is not its turn."""
    rows = spread_out(setup, rollout)
    valid = rows.valid
    if setup.config.past_selves:  # nobody learns from what a past self did
        valid = valid & ~rivals(setup, valid.shape[1])[None]
    rows = rows._replace(valid=valid)
    states, metrics = [], []
    for number, role in enumerate(setup.roles):
        before = of_role(setup, state, role)
        last_obs = rows_of(setup, role, rows.last_obs, axis=0)
        own = rows_of(setup, role, rows._replace(last_obs=()), axis=1)._replace(last_obs=last_obs)
        after, told = role.learner.update(jax.random.fold_in(key, number), before, own)
        if not role.learns:
            after = before._replace(private=after.private)
        elif setup.config.freeze_every:
            turn = state.private.num_updates // setup.config.freeze_every % len(setup.roles) == number
            model = trees.where(turn, after._replace(private=()), before._replace(private=()))
            after = model._replace(private=after.private)
        states.append(after)
        metrics.append(told)
    after = together(setup, states)
    private = remember(setup, key, state.private._replace(players=after.private), states)
    return after._replace(private=private), summary(setup, metrics)


def remember(setup: Setup, key: Array, private: TeamMemory, states: list[LearnerState]) -> TeamMemory:
    """Count the update; keep a version of each policy when it is time; say who of them plays next."""
    count = private.num_updates + 1
    if not (size := setup.config.past_selves):
        return private._replace(num_updates=count)
    kept = count // setup.config.snapshot_every
    due = count % setup.config.snapshot_every == 0
    place = jnp.where(due, (kept - 1) % size, size)  # beyond the end is nowhere
    put = lambda past, now: past.at[place].set(now, mode="drop")
    now = joined(setup, [(state.params, state.statistics) for state in states])
    past = jax.tree.map(put, private.past, now)
    rival = jax.random.randint(jax.random.fold_in(key, len(setup.roles)), (), 0, jnp.clip(kept, 1, size))
    return private._replace(num_updates=count, past=past, rival=rival)


def summary(setup: Setup, metrics: list[dict[str, Array]]) -> dict[str, Array]:
    """The policies' metrics: their mean, and each policy's by its name where there are several."""
    if len(metrics) == 1:
        return metrics[0]
    mean = jax.tree.map(lambda *x: sum(x) / jnp.float32(len(x)), *metrics)
    each = {
        f"{role.name}/{name}": x
        for role, one in zip(setup.roles, metrics, strict=True)
        for name, x in one.items()
    }
    return mean | each


def for_evaluation(setup: Setup, state: LearnerState, num_envs: int) -> LearnerState:
    """The team in other worlds than it trains in, without its past selves."""
    states = [
        role.learner.for_evaluation(of_role(setup, state, role), num_envs * len(role.agents))
        for role in setup.roles
    ]
    nobody = jnp.int32(-1) if setup.config.past_selves else ()
    players = joined(setup, [one.private for one in states])
    return state._replace(private=state.private._replace(players=players, rival=nobody))


def on_restart(setup: Setup, state: LearnerState) -> LearnerState:
    """The team about to begin new episodes."""
    states = [role.learner.on_restart(of_role(setup, state, role)) for role in setup.roles]
    players = joined(setup, [one.private for one in states])
    return state._replace(private=state.private._replace(players=players))


def distance(setup: Setup, state: LearnerState, other: LearnerState, obs: Tree) -> Array:
    """How far two teams' policies are apart where their agents see obs, (..., A)."""
    ask = lambda learner, mine, theirs, seen: learner.distance(mine, theirs, seen)
    return each_asked(setup, ask, (state, other), obs)


def policy_terms(setup: Setup, state: LearnerState, obs: Tree) -> Tree:
    """What its policy says of what each agent sees."""
    return each_asked(setup, lambda learner, state, seen: learner.policy_terms(state, seen), (state,), obs)


def value(setup: Setup, state: LearnerState, obs: Tree) -> Array:
    """What its critic expects for each agent, (..., A)."""
    return each_asked(setup, lambda learner, state, seen: learner.value(state, seen), (state,), obs)


def each_asked(setup: Setup, ask: Callable[..., Tree], states: tuple[LearnerState, ...], obs: Tree) -> Tree:
    """Each policy's answer on what its agents see, (..., A, ...); the states may be without memory."""
    seen, axis = sight(setup.config, setup.spec, obs), leading(setup.spec, obs)
    bare = [one._replace(private=TeamMemory((), ()), opt_state=(), anchor=()) for one in states]

    def answer(role: Role) -> Tree:
        own = [of_role(setup, one, role) for one in bare]
        return ask(role.learner, *own, agents_of(setup, role, seen, axis))

    return in_order(setup, [answer(role) for role in setup.roles], axis)


def in_order(setup: Setup, each: list[Tree], axis: int) -> Tree:
    """Each policy's agents put together along an axis, in the order of the agents."""
    if len(each) == 1:
        return each[0]
    places = np.argsort([agent for role in setup.roles for agent in role.agents])
    return jax.tree.map(lambda *x: jnp.take(jnp.concatenate(x, axis), places, axis), *each)


def of_role(setup: Setup, state: LearnerState, role: Role) -> LearnerState:
    """One policy's own state."""
    own = partial(part_of, setup, role=role)
    return LearnerState(
        params=own(state.params),
        statistics=own(state.statistics),
        opt_state=own(state.opt_state),
        hypers=state.hypers,
        private=own(state.private.players),
        anchor=own(state.anchor),
    )


def past_self(setup: Setup, state: LearnerState, role: Role) -> LearnerState:
    """The earlier version of a policy that plays now."""
    params, statistics = trees.take(part_of(setup, state.private.past, role), state.private.rival)
    return of_role(setup, state, role)._replace(params=params, statistics=statistics)


def together(setup: Setup, states: list[LearnerState]) -> LearnerState:
    """The policies' states as one, whose memory is that of the players."""
    fields = {name: joined(setup, [getattr(one, name) for one in states]) for name in LearnerState._fields}
    return LearnerState(**fields)._replace(hypers=states[0].hypers)


def joined(setup: Setup, each: list[Tree]) -> Tree:
    """Each policy's part by its name; the one policy's as it is. Where all are empty, so is the whole."""
    if len(each) == 1:
        return each[0]
    if all(isinstance(part, tuple) and not part for part in each):
        return ()
    return {role.name: part for role, part in zip(setup.roles, each, strict=True)}


def part_of(setup: Setup, whole: Tree, role: Role) -> Tree:
    """One policy's part of what was `joined`."""
    if len(setup.roles) == 1 or not isinstance(whole, dict):
        return whole
    return whole[role.name]


def agents_of(setup: Setup, role: Role, tree: Tree, axis: int) -> Tree:
    """One policy's agents, along the axis of agents."""
    if len(setup.roles) == 1:
        return tree
    return jax.tree.map(lambda x: jnp.take(x, np.array(role.agents), axis), tree)


def rows_of(setup: Setup, role: Role, tree: Tree, axis: int) -> Tree:
    """(..., E, A, ...) -> (..., E n, ...): one policy's agents as rows, the environments being `axis`."""
    merge = lambda x: x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
    return jax.tree.map(merge, agents_of(setup, role, tree, axis + 1))


def spread_out(setup: Setup, rollout: Rollout) -> Rollout:
    """A rollout whose every field is per agent, (T, E, A, ...), and in which the dead do not count.

    An agent that dies while the world goes on has come to its end: what it could still have earned is 0.
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
        obs=sight(setup.config, setup.spec, rollout.obs),
        action=rollout.action,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        last_obs=sight(setup.config, setup.spec, rollout.last_obs),
        peer_targets=peer_targets,
        episode_starts=per_agent(rollout.episode_starts),
    )


def rivals(setup: Setup, num_envs: int) -> Array:
    """Which agents a past self plays for, (E, A): in every second pair of worlds one team, then the other."""
    teams = np.array(setup.spec.teams)
    first = jax.lax.axis_index(DATA) * num_envs if setup.shards > 1 else 0
    turn = (first + jnp.arange(num_envs)) % (2 * len(set(setup.spec.teams)))
    return turn[:, None] - len(set(setup.spec.teams)) == teams[None]
