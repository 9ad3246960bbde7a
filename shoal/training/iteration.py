"""An iteration: every learner collects a rollout, learns from it, then the learners exchange."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shoal.distributed.mesh import (
    BY_DEVICE_ROW,
    BY_ENV,
    BY_LEARNER,
    BY_STEP,
    DATA,
    REPLICATED,
    on_each_device,
    psum,
)
from shoal.exchanges.population import draw_hypers
from shoal.exchanges.soundness import is_sound
from shoal.ops import trees
from shoal.training.config import TrainConfig
from shoal.training.parts import worlds_of
from shoal.training.recovery import abandon_broken, undo_lost_updates
from shoal.training.rollout import EnvStates, Episodes, collect, reset_envs, restart_envs
from shoal.training.scores import current_scores
from shoal.types import (
    Env,
    EnvRecipe,
    EnvSpec,
    Exchange,
    ExchangeState,
    Learner,
    LearnerState,
    Rollout,
    Tree,
)

HYPERS = 3
"""Folded into a learner's key for its hyperparameters."""
RESETS = 2
"""Folded into a rollout's key for its new episodes."""


class TrainState(NamedTuple):
    """The whole state of a run: saved and restored, it continues the same run."""

    cohort: LearnerState  # leading L
    envs: EnvStates
    exchange: ExchangeState
    keys: Array  # (L,) one per learner
    key: Array  # () for random numbers of the whole cohort
    iteration: Array  # () int32
    horizon: Array  # () int32, the updates that annealing takes: a setting, so it is not saved


class Start(NamedTuple):
    """What a run starts from, as data: runs of all seeds, worlds and lengths are one program."""

    seed: Array  # () as `jax.random.key` takes it
    members: Array  # (L,) the learners' numbers
    worlds: Tree  # (L,) per leaf
    horizon: Array  # () int32


class Progress(NamedTuple):
    """What the compiled program returns beside the state."""

    metrics: dict[str, Array]  # (L,) each, of the last iteration
    valid_steps: Array  # (L,) int32, of all the iterations
    bad_rewards: Array  # (L,) bool: not finite in any of them, while the learner's loss was
    bad_observations: Array  # (L,) bool, the same of observations
    lost: Array  # (L,) bool: a loss was not finite in any of them, or an update was undone


class Parts(NamedTuple):
    """What an iteration is built from: the static argument of every function below."""

    config: TrainConfig
    recipe: EnvRecipe
    env: Env
    learner: Learner
    exchange: Exchange
    mesh: Mesh
    group: int  # learners that a device updates at a time
    learner_for: Callable[[Array], Learner]  # the learner whose annealing takes that many updates

    @property
    def shards(self) -> int:
        """Devices that share each learner's environments."""
        return self.mesh.shape[DATA]


# How a run's state is divided over the devices.


def cohort_spec(parts: Parts) -> LearnerState:
    """Learners over `learners`; what belongs to their environments also over `data`."""
    private = jax.tree.map(lambda by_env: BY_ENV if by_env else BY_LEARNER, parts.learner.by_env)
    return LearnerState(*[BY_LEARNER] * 6)._replace(private=private)


ENVS_SPEC = EnvStates(BY_DEVICE_ROW, BY_ENV, Episodes(BY_ENV, BY_ENV, BY_LEARNER, BY_LEARNER, BY_LEARNER))
EXCHANGE_SPEC = ExchangeState(BY_LEARNER, REPLICATED)
ROLLOUT_SPEC = Rollout(*[BY_STEP] * 6, last_obs=BY_ENV, peer_targets=BY_STEP, episode_starts=BY_STEP)


def state_spec(parts: Parts) -> TrainState:
    """How each array of a run's state is divided."""
    return TrainState(cohort_spec(parts), ENVS_SPEC, EXCHANGE_SPEC, BY_LEARNER, *[REPLICATED] * 3)


def shardings(mesh: Mesh, specs: Tree) -> Tree:
    """Partition specs as shardings on a mesh."""
    is_spec = lambda x: isinstance(x, PartitionSpec)
    return jax.tree.map(partial(NamedSharding, mesh), specs, is_leaf=is_spec)


# The program: the first state, and an iteration in three stages.


def start_of(config: TrainConfig, spec: EnvSpec) -> Start:
    """What the settings say of a run's start."""
    return Start(
        seed=np.int64(config.seed),
        members=np.array(config.members, np.int32),
        worlds=jax.tree.map(np.asarray, worlds_of(config, spec)),
        horizon=np.int32(config.num_annealed),
    )


def init_state(parts: Parts, start: Start) -> TrainState:
    """New learners in new episodes of their worlds."""
    config = parts.config
    key_cohort, key_members = jax.random.split(jax.random.key(start.seed))
    member_keys = jax.vmap(jax.random.fold_in, (None, 0))(key_members, start.members)
    specs = (BY_LEARNER, BY_LEARNER), (cohort_spec(parts), ENVS_SPEC, BY_LEARNER)
    cohort, envs, keys = on_each_device(parts.mesh, partial(init_learners, parts), *specs)(
        member_keys, start.worlds
    )
    if config.priors:
        key_hypers = jax.vmap(jax.random.fold_in, (0, None))(member_keys, HYPERS)
        cohort = cohort._replace(hypers=draw_hypers(config.priors, key_hypers, cohort.hypers))
    exchange, models = parts.exchange.init(cohort._replace(private=()))
    cohort = models._replace(private=cohort.private)
    return TrainState(cohort, envs, exchange, keys, key_cohort, jnp.int32(0), start.horizon)


def advance(parts: Parts, state: TrainState, count: Array) -> tuple[TrainState, Progress]:
    """Train for `count` iterations; `count` is data, so one program serves a run of any length."""
    layout = shardings(parts.mesh, (state_spec(parts), BY_LEARNER))
    once = jax.jit(partial(iterate, parts), inline=True)  # traced once, for its shapes and for the loop

    def body(_, carry):
        state, before = carry
        state, progress = once(state)
        progress = joined(before, progress)
        # Progress is gathered from the processes after the loop, not at every iteration.
        return jax.lax.with_sharding_constraint((state, progress), layout)

    _, shapes = jax.eval_shape(once, state)
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.fori_loop(0, count, body, (state, zero))


def joined(before: Progress, now: Progress) -> Progress:
    """The progress of several iterations. What a lost learner does to its environment is not counted."""
    sound = jnp.isfinite(before.metrics["loss/total"])
    return Progress(
        metrics=now.metrics,
        valid_steps=before.valid_steps + now.valid_steps,
        bad_rewards=before.bad_rewards | now.bad_rewards & sound,
        bad_observations=before.bad_observations | now.bad_observations & sound,
        lost=before.lost | now.lost,
    )


def iterate(parts: Parts, state: TrainState) -> tuple[TrainState, Progress]:
    """One iteration: every learner collects a rollout and learns from it, then they exchange."""
    state, rollout = collect_stage(parts, state)
    state, progress = update_stage(parts, state, rollout)
    return exchange_stage(parts, state, progress)


def collect_stage(parts: Parts, state: TrainState) -> tuple[TrainState, Rollout]:
    """A rollout of every learner."""
    cohort = cohort_spec(parts)
    in_specs = (REPLICATED, REPLICATED, BY_LEARNER, cohort, ENVS_SPEC, EXCHANGE_SPEC)
    run = on_each_device(
        parts.mesh, partial(collect_rollouts, parts), in_specs, (cohort, ENVS_SPEC, ROLLOUT_SPEC)
    )
    clocks = (state.iteration, state.horizon)
    cohort, envs, rollout = run(*clocks, state.keys, state.cohort, state.envs, state.exchange)
    return state._replace(cohort=cohort, envs=envs), rollout


def update_stage(parts: Parts, state: TrainState, rollout: Rollout) -> tuple[TrainState, Progress]:
    """Every learner learns from its rollout."""
    cohort = cohort_spec(parts)
    in_specs = (REPLICATED, REPLICATED, BY_LEARNER, cohort, ROLLOUT_SPEC)
    run = on_each_device(parts.mesh, partial(update_learners, parts), in_specs, (cohort, BY_LEARNER))
    cohort, progress = run(state.iteration, state.horizon, state.keys, state.cohort, rollout)
    return state._replace(cohort=cohort), progress


def exchange_stage(parts: Parts, state: TrainState, progress: Progress) -> tuple[TrainState, Progress]:
    """The learners exchange; an exchange receives no private state."""
    key = jax.random.fold_in(state.key, state.iteration)
    scores = current_scores(parts.recipe.spec, state.envs.episodes, progress.valid_steps)
    models = state.cohort._replace(private=())
    exchange, models, metrics = parts.exchange.apply(key, state.exchange, models, scores)
    cohort = models._replace(private=state.cohort.private)
    progress = progress._replace(metrics=progress.metrics | metrics)
    return state._replace(cohort=cohort, exchange=exchange, iteration=state.iteration + 1), progress


# What each device does with its own learners and environments.


def init_learners(parts: Parts, keys: Array, params: Tree) -> tuple[LearnerState, EnvStates, Array]:
    """New learners in new episodes of their worlds. keys (L,), params (L,) per leaf."""
    key_learner, key_env, key_train = jnp.moveaxis(jax.vmap(partial(jax.random.split, num=3))(keys), 1, 0)
    # One after another: batched QR factorisations on two CPU devices deadlock.
    cohort = jax.lax.map(parts.learner.init, key_learner)
    env_keys = jax.vmap(partial(jax.random.split, num=parts.config.algo.num_envs))(key_env)  # (L, E)
    params = jax.tree.map(lambda x: jnp.broadcast_to(x[:, None], env_keys.shape), params)
    return cohort, reset_envs(parts.env, env_keys, params, parts.shards), key_train


def iteration_keys(keys: Array, iteration: Array) -> tuple[Array, Array]:
    """Every learner's keys for collecting and for updating, (L,) each, in one iteration."""
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, iteration)
    key_collect, key_update = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
    return key_collect, key_update


def collect_rollouts(
    parts: Parts,
    iteration: Array,
    horizon: Array,
    keys: Array,
    cohort: LearnerState,
    envs: EnvStates,
    exchange: ExchangeState,
) -> tuple[LearnerState, EnvStates, Rollout]:
    """One rollout of every learner, with its peer targets."""
    env, learner, config, shards = parts.env, parts.learner_for(horizon), parts.config, parts.shards
    key_collect, _ = iteration_keys(keys, iteration)
    if config.revives:
        cohort, envs = abandon_broken(env, learner, cohort, envs)
    if config.hard_resets:
        key_reset = jax.vmap(jax.random.fold_in, (0, None))(key_collect, RESETS)
        cohort, envs = restart_envs(env, learner, key_reset, cohort, envs, shards)
    envs, cohort, rollout = collect(env, learner, config.algo.num_steps, key_collect, cohort, envs, shards)
    return cohort, envs, parts.exchange.add_peer_targets(exchange, rollout)


def update_learners(
    parts: Parts, iteration: Array, horizon: Array, keys: Array, cohort: LearnerState, rollout: Rollout
) -> tuple[LearnerState, Progress]:
    """One update of every learner, `parts.group` of them at a time."""
    _, key_update = iteration_keys(keys, iteration)
    learner_axis = Rollout(1, 1, 1, 1, 1, 1, last_obs=0, peer_targets=1, episode_starts=1)
    learner = parts.learner_for(horizon)
    update = trees.vmap_in_groups(parts.group, learner.update, in_axes=(0, 0, learner_axis))
    before = cohort
    cohort, metrics = update(key_update, before, rollout)
    lost = ~jnp.isfinite(metrics["loss/total"])
    if parts.config.on_nan == "restart":
        lost |= ~is_sound(cohort)
        cohort = undo_lost_updates(before, cohort)
    last = jax.tree.map(lambda x: x[None], rollout.last_obs)
    counts = (
        num_bad(rollout.reward),
        sum(map(num_bad, jax.tree.leaves((rollout.obs, last)))),
        jnp.sum(rollout.valid, (0, 2), dtype=jnp.int32),
    )
    bad_rewards, bad_observations, valid_steps = psum(counts, (DATA,) if parts.shards > 1 else ())
    return cohort, Progress(metrics, valid_steps, bad_rewards > 0, bad_observations > 0, lost)


def num_bad(x: Array) -> Array:
    """How many numbers of each learner are not finite, (L,); x (T, L, ...)."""
    return jnp.sum(~jnp.isfinite(x), (0, *range(2, x.ndim)), dtype=jnp.int32)
