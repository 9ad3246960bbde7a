"""The program of a run: collect, update and exchange, compiled together."""

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
    compiler_options,
    group_size,
    local_envs,
    num_processes,
    on_each_device,
    psum,
    to_device_order,
)
from shoal.envs.registry import make
from shoal.errors import ShoalError
from shoal.exchanges.population import draw_hypers
from shoal.nets.actor_critic import NetworkMaker
from shoal.ops import trees
from shoal.training.config import TrainConfig
from shoal.training.parts import LearnerMaker, make_exchange_for, make_learner, mesh_for, row_seeds, worlds_of
from shoal.training.rollout import EnvStates, Episodes, collect, reset_envs, restart_envs
from shoal.training.scores import current_scores, disagreement
from shoal.types import Env, EnvRecipe, Exchange, ExchangeState, Learner, LearnerState, Rollout, Tree

HYPERS = 3
"""Sets the key that draws a learner's hyperparameters apart from its others."""
RESETS = 2
"""Sets the key of a rollout's new episodes apart from those of its steps."""


class TrainState(NamedTuple):
    """All there is: saved and restored whole, it continues the same run."""

    cohort: LearnerState  # leading L
    envs: EnvStates
    exchange: ExchangeState
    keys: Array  # (L,) one per learner
    key: Array  # () for what the cohort draws together
    iteration: Array  # () int32


class Progress(NamedTuple):
    """What leaves the compiled program after some iterations."""

    metrics: dict[str, Array]  # (L,) each, of the last iteration
    valid_steps: Array  # (L,) int32, of all the iterations
    bad_rewards: Array  # (L,) bool, in any of them


class Parts(NamedTuple):
    """What an iteration is made of: the static argument of every function below."""

    config: TrainConfig
    recipe: EnvRecipe
    env: Env
    learner: Learner
    exchange: Exchange
    mesh: Mesh
    group: int  # learners that a device updates at a time

    @property
    def shards(self) -> int:
        """Devices that share each learner's environments."""
        return self.mesh.shape[DATA]


class Stages(NamedTuple):
    """An iteration in its parts, compiled apart, so that each can be timed; a replay is changed in place."""

    collect: Callable[[TrainState], tuple[TrainState, Rollout]]
    update: Callable[[TrainState, Rollout], tuple[TrainState, Progress]]
    exchange: Callable[[TrainState, Progress], tuple[TrainState, Progress]]


class Trainer(NamedTuple):
    """A run ready to go: `init()` makes its first state, `advance(state, n)` takes it n iterations on.

    `advance_in_place(private, state without it, n)` does the same and uses up the private state it is given;
    `stages` does one iteration piece by piece; `compare(state)` says how far the learners are apart.

    Environments are built once and begin once: make a new trainer to begin again.
    """

    parts: Parts
    init: Callable[[], TrainState]
    advance: Callable[[TrainState, Array], tuple[TrainState, Progress]]
    advance_in_place: Callable[[Tree, TrainState, Array], tuple[TrainState, Progress]]
    stages: Stages
    compare: Callable[[TrainState], dict[str, Array]]

    @property
    def config(self) -> TrainConfig:
        """The run's settings."""
        return self.parts.config

    @property
    def recipe(self) -> EnvRecipe:
        """The environment."""
        return self.parts.recipe

    @property
    def learner(self) -> Learner:
        """One learner's functions."""
        return self.parts.learner

    @property
    def exchange(self) -> Exchange:
        """How the learners learn together."""
        return self.parts.exchange

    @property
    def mesh(self) -> Mesh:
        """The devices."""
        return self.parts.mesh


def make_trainer(
    config: TrainConfig,
    *,
    recipe: EnvRecipe | None = None,
    learner: LearnerMaker | None = None,
    network: NetworkMaker | None = None,
    exchange: Exchange | None = None,
    mesh: Mesh | str | None = None,
    start: int = 0,
) -> Trainer:
    """Build the environments, the learner and the program that joins them.

    `learner(spec, context)`, `network` and `exchange` are your own, where given. `mesh` divides learners
    and their environments over devices, e.g. "4x2"; chosen from the devices there are unless given. `start`
    is the iteration a resumed run goes on from: environments that cannot be restored start new episodes.
    """
    parts = make_parts(config, recipe, learner, network, exchange, mesh, start)
    spec = state_sharding(parts)
    by_learner, by_step = (NamedSharding(parts.mesh, x) for x in (BY_LEARNER, BY_STEP))
    shown = NamedSharding(parts.mesh, REPLICATED) if num_processes() > 1 else by_learner
    by_env = NamedSharding(parts.mesh, BY_ENV)
    rollout = Rollout(*[by_step] * 6, last_obs=by_env, peer_targets=by_step, episode_starts=by_step)
    jit = partial(jax.jit, compiler_options=compiler_options(parts.mesh))
    in_place = partial(jit, donate_argnums=0)
    stage = jit if parts.learner.grouped else in_place

    def advance_in_place(private: Tree, state: TrainState, count: Array) -> tuple[TrainState, Progress]:
        return advance(parts, state._replace(cohort=state.cohort._replace(private=private)), count)

    return Trainer(
        parts=parts,
        init=jit(partial(init_state, parts), out_shardings=spec),
        advance=jit(partial(advance, parts), out_shardings=(spec, shown)),
        advance_in_place=in_place(advance_in_place, out_shardings=(spec, shown)),
        stages=Stages(
            stage(partial(collect_stage, parts), out_shardings=(spec, rollout)),
            stage(partial(update_stage, parts), out_shardings=(spec, by_learner)),
            stage(partial(exchange_stage, parts), out_shardings=(spec, shown)),
        ),
        compare=jit(
            lambda state: disagreement(parts.learner, state.cohort, state.envs.step.obs), out_shardings=shown
        ),
    )


def make_parts(
    config: TrainConfig,
    recipe: EnvRecipe | None,
    learner: LearnerMaker | None,
    network: NetworkMaker | None,
    exchange: Exchange | None,
    mesh: Mesh | str | None,
    start: int,
) -> Parts:
    """Everything an iteration needs, built."""
    config.check()
    recipe = recipe or make(config.env, **config.options)
    devices = mesh if isinstance(mesh, Mesh) else mesh_for(config, recipe.spec, mesh)
    made = make_learner(config, recipe.spec, network, devices.shape[DATA], learner)
    apart = made.grouped and not config.shares_gradients
    on_device = config.learners // devices.shape["learners"]
    group = group_size(devices, config.learners) if apart else on_device
    exchange = exchange or make_exchange_for(config, made, recipe.spec, devices, group)
    seeds = to_device_order(row_seeds(config, start), devices)
    env = recipe.build(local_envs(seeds, devices), False)
    if config.hard_resets and env.restart is None:
        raise ShoalError(f"{config.env} cannot start new episodes at any time: leave hard_resets out")
    return Parts(config, recipe, env, made, exchange, devices, group)


# How a run's state is divided over the devices.


def cohort_spec(parts: Parts) -> LearnerState:
    """Learners over `learners`; what belongs to their environments also over `data`."""
    private = jax.tree.map(lambda by_env: BY_ENV if by_env else BY_LEARNER, parts.learner.by_env)
    return LearnerState(*[BY_LEARNER] * 6)._replace(private=private)


ENVS_SPEC = EnvStates(BY_DEVICE_ROW, BY_ENV, Episodes(BY_ENV, BY_ENV, BY_LEARNER, BY_LEARNER, BY_LEARNER))
EXCHANGE_SPEC = ExchangeState(BY_LEARNER, REPLICATED)
ROLLOUT_SPEC = Rollout(*[BY_STEP] * 6, last_obs=BY_ENV, peer_targets=BY_STEP, episode_starts=BY_STEP)


def state_sharding(parts: Parts) -> TrainState:
    """Where each array of a run's state lies."""
    specs = TrainState(cohort_spec(parts), ENVS_SPEC, EXCHANGE_SPEC, BY_LEARNER, REPLICATED, REPLICATED)
    is_spec = lambda x: isinstance(x, PartitionSpec)
    return jax.tree.map(partial(NamedSharding, parts.mesh), specs, is_leaf=is_spec)


# The program: the first state, and an iteration in three stages.


def init_state(parts: Parts) -> TrainState:
    """New learners in new episodes of their worlds."""
    config = parts.config
    params = jax.tree.map(np.asarray, worlds_of(config, parts.recipe.spec))
    key_cohort, key_members = jax.random.split(jax.random.key(config.seed))
    members = config.first_member + jnp.arange(config.learners)
    member_keys = jax.vmap(jax.random.fold_in, (None, 0))(key_members, members)
    specs = (BY_LEARNER, BY_LEARNER), (cohort_spec(parts), ENVS_SPEC, BY_LEARNER)
    cohort, envs, keys = on_each_device(parts.mesh, partial(init_learners, parts), *specs)(
        member_keys, params
    )
    if config.priors:
        key_hypers = jax.vmap(jax.random.fold_in, (0, None))(member_keys, HYPERS)
        cohort = cohort._replace(hypers=draw_hypers(config.priors, key_hypers, cohort.hypers))
    exchange, models = parts.exchange.init(cohort._replace(private=()))
    cohort = models._replace(private=cohort.private)
    return TrainState(cohort, envs, exchange, keys, key_cohort, jnp.int32(0))


def advance(parts: Parts, state: TrainState, count: Array) -> tuple[TrainState, Progress]:
    """So many iterations on; `count` is data, so one program serves a run of any length."""
    placed = (state_sharding(parts), NamedSharding(parts.mesh, BY_LEARNER))

    def body(_, carry):
        state, before = carry
        state, progress = iterate(parts, state)
        total = before.valid_steps + progress.valid_steps
        progress = Progress(progress.metrics, total, before.bad_rewards | progress.bad_rewards)
        # Shown to all processes when it leaves the loop, not at every turn.
        return jax.lax.with_sharding_constraint((state, progress), placed)

    _, shapes = jax.eval_shape(partial(iterate, parts), state)
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.fori_loop(0, count, body, (state, zero))


def iterate(parts: Parts, state: TrainState) -> tuple[TrainState, Progress]:
    """One iteration: every learner collects a rollout and learns from it, then they exchange."""
    state, rollout = collect_stage(parts, state)
    state, progress = update_stage(parts, state, rollout)
    return exchange_stage(parts, state, progress)


def collect_stage(parts: Parts, state: TrainState) -> tuple[TrainState, Rollout]:
    """A rollout of every learner."""
    cohort = cohort_spec(parts)
    in_specs = (REPLICATED, BY_LEARNER, cohort, ENVS_SPEC, EXCHANGE_SPEC)
    run = on_each_device(
        parts.mesh, partial(collect_rollouts, parts), in_specs, (cohort, ENVS_SPEC, ROLLOUT_SPEC)
    )
    cohort, envs, rollout = run(state.iteration, state.keys, state.cohort, state.envs, state.exchange)
    return state._replace(cohort=cohort, envs=envs), rollout


def update_stage(parts: Parts, state: TrainState, rollout: Rollout) -> tuple[TrainState, Progress]:
    """Every learner learns from its rollout."""
    cohort = cohort_spec(parts)
    in_specs = (REPLICATED, BY_LEARNER, cohort, ROLLOUT_SPEC)
    run = on_each_device(parts.mesh, partial(update_learners, parts), in_specs, (cohort, BY_LEARNER))
    cohort, progress = run(state.iteration, state.keys, state.cohort, rollout)
    return state._replace(cohort=cohort), progress


def exchange_stage(parts: Parts, state: TrainState, progress: Progress) -> tuple[TrainState, Progress]:
    """The learners exchange what their exchange says; it does not see what is private."""
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
    # One after another: batched QR factorisations on two CPU devices wait for each other for ever.
    cohort = jax.lax.map(parts.learner.init, key_learner)
    row_keys = jax.vmap(partial(jax.random.split, num=parts.config.algo.num_envs))(key_env)  # (L, E)
    params = jax.tree.map(lambda x: jnp.broadcast_to(x[:, None], row_keys.shape), params)
    return cohort, reset_envs(parts.env, row_keys, params, parts.shards), key_train


def iteration_keys(keys: Array, iteration: Array) -> tuple[Array, Array]:
    """Every learner's keys for collecting and for updating, (L,) each, in one iteration."""
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, iteration)
    key_collect, key_update = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
    return key_collect, key_update


def collect_rollouts(
    parts: Parts,
    iteration: Array,
    keys: Array,
    cohort: LearnerState,
    envs: EnvStates,
    exchange: ExchangeState,
) -> tuple[LearnerState, EnvStates, Rollout]:
    """One rollout of every learner, with what its peers' policies say of it."""
    env, learner, config, shards = parts.env, parts.learner, parts.config, parts.shards
    key_collect, _ = iteration_keys(keys, iteration)
    if config.hard_resets:
        key_reset = jax.vmap(jax.random.fold_in, (0, None))(key_collect, RESETS)
        cohort, envs = restart_envs(env, learner, key_reset, cohort, envs, shards)
    envs, cohort, rollout = collect(env, learner, config.algo.num_steps, key_collect, cohort, envs, shards)
    return cohort, envs, parts.exchange.add_peer_targets(exchange, rollout)


def update_learners(
    parts: Parts, iteration: Array, keys: Array, cohort: LearnerState, rollout: Rollout
) -> tuple[LearnerState, Progress]:
    """One update of every learner, `parts.group` of them at a time."""
    _, key_update = iteration_keys(keys, iteration)
    learner_axis = Rollout(1, 1, 1, 1, 1, 1, last_obs=0, peer_targets=1, episode_starts=1)
    update = trees.vmap_in_groups(parts.group, parts.learner.update, in_axes=(0, 0, learner_axis))
    cohort, metrics = update(key_update, cohort, rollout)
    agents = tuple(range(3, rollout.reward.ndim))
    bad_rewards = jnp.sum(~jnp.isfinite(rollout.reward), (0, 2, *agents), dtype=jnp.int32)
    valid_steps = jnp.sum(rollout.valid, (0, 2), dtype=jnp.int32)
    bad_rewards, valid_steps = psum((bad_rewards, valid_steps), (DATA,) if parts.shards > 1 else ())
    return cohort, Progress(metrics, valid_steps, bad_rewards > 0)
