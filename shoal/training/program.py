"""The program of a run: collect, update and exchange, compiled together."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shoal.distributed.mesh import (
    DATA,
    ENVS,
    PLACES,
    ROWS,
    STEPS,
    WHOLE,
    add_up,
    compiler_options,
    group_size,
    make_mesh,
    num_processes,
    of_this_process,
    on_each_device,
    read_shape,
    to_places,
)
from shoal.envs.registry import make
from shoal.envs.worlds.parameters import drawn, given, same
from shoal.errors import ShoalError
from shoal.exchanges.combinators import chain, part_names
from shoal.exchanges.exploration import check_names
from shoal.exchanges.make import make_exchange
from shoal.exchanges.population import drawn as drawn_hypers
from shoal.exchanges.population import follow
from shoal.learners.dqn import DQNConfig, dqn
from shoal.learners.hyper_schedules import in_iterations
from shoal.learners.ppo import PPOConfig, ppo
from shoal.learners.td3 import TD3Config, td3
from shoal.learners.wrappers.augmentation import augmented
from shoal.learners.wrappers.curiosity import curious
from shoal.learners.wrappers.team import team
from shoal.nets.actor_critic import NetworkMaker
from shoal.ops import trees
from shoal.training.config import TrainConfig
from shoal.training.rollout import Episodes, Worlds, begin_anew, collect
from shoal.training.rollout import begin as begin_worlds
from shoal.training.scores import disagreement, standing
from shoal.types import (
    Env,
    EnvRecipe,
    EnvSpec,
    Exchange,
    ExchangeMemory,
    Learner,
    LearnerState,
    Rollout,
    Tree,
)

HYPERS = 3
"""Sets the key that draws a learner's hyperparameters apart from its others."""
RESETS = 2
"""Sets the key of a rollout's new episodes apart from those of its steps."""


class TrainState(NamedTuple):
    """All there is: saved and restored whole, it continues the same run."""

    cohort: LearnerState  # leading L
    worlds: Worlds
    exchange: Tree
    keys: Array  # (L,) one per learner
    key: Array  # () for what the cohort draws together
    iteration: Array  # () int32


class Pulse(NamedTuple):
    """What leaves the compiled program after some iterations."""

    metrics: dict[str, Array]  # (L,) each, of the last iteration
    valid_steps: Array  # (L,) int32, of all the iterations
    bad_rewards: Array  # (L,) bool, in any of them


class Stages(NamedTuple):
    """An iteration in its parts, compiled apart, so that each can be timed; a replay is changed in place."""

    collect: Callable[[TrainState], tuple[TrainState, Rollout]]
    update: Callable[[TrainState, Rollout], tuple[TrainState, Pulse]]
    exchange: Callable[[TrainState, Pulse], tuple[TrainState, Pulse]]


class Trainer(NamedTuple):
    """A run ready to go: `begin()` makes its first state, `advance(state, n)` takes it n iterations on.

    `advance_in_place(memory, state without it, n)` does the same and uses up the memory it is given;
    `stages` does one iteration piece by piece.

    Environments are built once and begin once: make a new trainer to begin again.
    """

    config: TrainConfig
    recipe: EnvRecipe
    learner: Learner
    exchange: Exchange
    mesh: Mesh
    begin: Callable[[], TrainState]
    advance: Callable[[TrainState, Array], tuple[TrainState, Pulse]]
    advance_in_place: Callable[[Tree, TrainState, Array], tuple[TrainState, Pulse]]
    stages: Stages
    compare: Callable[[TrainState], dict[str, Array]]


def make_trainer(
    config: TrainConfig,
    *,
    recipe: EnvRecipe | None = None,
    network: NetworkMaker | None = None,
    exchange: Exchange | None = None,
    mesh: Mesh | str | None = None,
    start: int = 0,
) -> Trainer:
    """Build the environments, the learner and the program that joins them.

    `mesh` divides learners and their environments over devices, e.g. "4x2"; chosen from the devices there
    are unless given. `start` is the iteration a resumed run goes on from: environments that cannot be
    restored begin new episodes there, not the first ones again.
    """
    config.check()
    recipe = recipe or make(config.env, **config.options)
    devices = mesh if isinstance(mesh, Mesh) else mesh_for(config, recipe.spec, mesh)
    shards = devices.shape[DATA]
    learner = make_learner(config, recipe.spec, network, shards)
    apart = learner.grouped and not config.shares_gradients
    on_device = config.learners // devices.shape["learners"]
    group = group_size(devices, config.learners) if apart else on_device
    exchange = exchange or exchange_of(config, learner, devices, group)
    seeds = to_places(row_seeds(config, start), devices)
    env = recipe.build(of_this_process(seeds, devices), False)
    if config.hard_resets and env.restart is None:
        raise ShoalError(f"{config.env} does not begin new episodes at any time: leave hard_resets out")
    params = jax.tree.map(np.asarray, worlds_of(config, recipe.spec))

    cohort_spec = LearnerState(*[ROWS] * 6)._replace(
        memory=jax.tree.map(lambda split: ENVS if split else ROWS, learner.by_env)
    )
    worlds_spec = Worlds(PLACES, ENVS, Episodes(ENVS, ENVS, ROWS, ROWS, ROWS))
    memory_spec = ExchangeMemory(ROWS, WHOLE)
    rollout_spec = Rollout(*[STEPS] * 6, last_obs=ENVS, advice=STEPS, begins=STEPS)
    state_spec = TrainState(cohort_spec, worlds_spec, memory_spec, keys=ROWS, key=WHOLE, iteration=WHOLE)
    on_mesh = partial(on_each_device, devices)

    local_begin = partial(begin_learners, env, learner, config.algo.num_envs, shards)
    local_collect = partial(
        collect_rollouts, env, learner, exchange.advise, config.algo.num_steps, config.hard_resets, shards
    )
    local_update = partial(update_learners, learner, group, shards)

    def local_iterate(iteration, keys, cohort, worlds, memory):
        cohort, worlds, rollout = local_collect(iteration, keys, cohort, worlds, memory)
        cohort, pulse = local_update(iteration, keys, cohort, rollout)
        return cohort, worlds, pulse

    seen_by_all = (WHOLE, ROWS, cohort_spec, worlds_spec, memory_spec)
    begin_rows = on_mesh(local_begin, (ROWS, ROWS), (cohort_spec, worlds_spec, ROWS))
    collect_rows = on_mesh(local_collect, seen_by_all, (cohort_spec, worlds_spec, rollout_spec))
    update_rows = on_mesh(local_update, (WHOLE, ROWS, cohort_spec, rollout_spec), (cohort_spec, ROWS))
    iterate_rows = on_mesh(local_iterate, seen_by_all, (cohort_spec, worlds_spec, ROWS))

    placed = shardings(devices, state_spec)

    def begin() -> TrainState:
        key_cohort, key_members = jax.random.split(jax.random.key(config.seed))
        members = config.first_member + jnp.arange(config.learners)
        member_keys = jax.vmap(jax.random.fold_in, (None, 0))(key_members, members)
        cohort, worlds, keys = begin_rows(member_keys, params)
        if config.priors:
            key_hypers = jax.vmap(jax.random.fold_in, (0, None))(member_keys, HYPERS)
            cohort = cohort._replace(hypers=drawn_hypers(config.priors, key_hypers, cohort.hypers))
        memory, models = exchange.init(cohort._replace(memory=()))
        cohort = models._replace(memory=cohort.memory)
        return TrainState(cohort, worlds, memory, keys, key_cohort, jnp.int32(0))

    def collect_stage(state: TrainState) -> tuple[TrainState, Rollout]:
        rows = (state.iteration, state.keys, state.cohort, state.worlds, state.exchange)
        cohort, worlds, rollout = collect_rows(*rows)
        return state._replace(cohort=cohort, worlds=worlds), rollout

    def update_stage(state: TrainState, rollout: Rollout) -> tuple[TrainState, Pulse]:
        cohort, pulse = update_rows(state.iteration, state.keys, state.cohort, rollout)
        return state._replace(cohort=cohort), pulse

    def exchange_stage(state: TrainState, pulse: Pulse) -> tuple[TrainState, Pulse]:
        key = jax.random.fold_in(state.key, state.iteration)
        now = standing(recipe.spec, state.worlds.episodes, pulse.valid_steps)
        models = state.cohort._replace(memory=())
        memory, models, exchanged = exchange.apply(key, state.exchange, models, now)
        cohort = models._replace(memory=state.cohort.memory)
        pulse = pulse._replace(metrics=pulse.metrics | exchanged)
        return state._replace(cohort=cohort, exchange=memory, iteration=state.iteration + 1), pulse

    def iteration(state: TrainState) -> tuple[TrainState, Pulse]:
        rows = (state.iteration, state.keys, state.cohort, state.worlds, state.exchange)
        cohort, worlds, pulse = iterate_rows(*rows)
        return exchange_stage(state._replace(cohort=cohort, worlds=worlds), pulse)

    def advance(state: TrainState, count: Array) -> tuple[TrainState, Pulse]:
        def body(_, carry):
            state, before = carry
            state, pulse = iteration(state)
            total = before.valid_steps + pulse.valid_steps
            pulse = Pulse(pulse.metrics, total, before.bad_rewards | pulse.bad_rewards)
            # Shown to all processes when it leaves the loop, not at every turn.
            return jax.lax.with_sharding_constraint((state, pulse), (placed, NamedSharding(devices, ROWS)))

        _, shapes = jax.eval_shape(iteration, state)
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.fori_loop(0, count, body, (state, nothing))

    def advance_in_place(memory: Tree, state: TrainState, count: Array) -> tuple[TrainState, Pulse]:
        return advance(state._replace(cohort=state.cohort._replace(memory=memory)), count)

    shown = NamedSharding(devices, WHOLE if num_processes() > 1 else ROWS)
    compiled = partial(jax.jit, compiler_options=compiler_options(devices))
    alter = compiled if learner.grouped else partial(compiled, donate_argnums=0)
    return Trainer(
        config,
        recipe,
        learner,
        exchange,
        devices,
        compiled(begin, out_shardings=placed),
        compiled(advance, out_shardings=(placed, shown)),
        compiled(advance_in_place, out_shardings=(placed, shown), donate_argnums=0),
        Stages(
            alter(collect_stage, out_shardings=(placed, shardings(devices, rollout_spec))),
            alter(update_stage, out_shardings=(placed, NamedSharding(devices, ROWS))),
            alter(exchange_stage, out_shardings=(placed, shown)),
        ),
        compiled(
            lambda state: disagreement(learner, state.cohort, state.worlds.step.obs), out_shardings=shown
        ),
    )


def shardings(mesh: Mesh, specs: Tree) -> Tree:
    """Where arrays lie, from how they are divided."""
    is_spec = lambda x: isinstance(x, PartitionSpec)
    return jax.tree.map(partial(NamedSharding, mesh), specs, is_leaf=is_spec)


def mesh_for(config: TrainConfig, spec: EnvSpec, asked: str | None) -> Mesh:
    """The devices of a run."""
    shape = read_shape(asked) if asked else None
    if shape and shape[1] > 1 and not config.algo.divisible:
        raise ShoalError(
            f"mesh {asked}: only ppo's environments are divided; {shape[0] * shape[1]}x1 divides learners"
        )
    num_envs = config.algo.num_envs if config.algo.divisible else 1
    return make_mesh(config.learners, num_envs, parallel=spec.parallel, work=config.algo.work, shape=shape)


def make_learner(
    config: TrainConfig, spec: EnvSpec, network: NetworkMaker | None = None, shards: int = 1
) -> Learner:
    """One learner of a run, its environments divided over `shards` devices."""
    across = ("learners", "group") if config.shares_gradients else ()
    match config.algo:
        case PPOConfig() as algo:
            rest = (config.num_iterations, network, across, shards)
            if spec.agents is not None:
                if algo.augment:
                    raise ShoalError("augment is for environments with one agent")
                plans = tuple(in_iterations(plan, algo.rollout_size) for plan in algo.schedules)
                one = lambda num_envs: replace(algo, num_envs=num_envs, schedules=plans)
                player = lambda seen, num_envs: make_ppo(seen, *rest, one(num_envs))
                return team(player, algo, spec, algo.num_envs, shards)
            plain = partial(make_ppo, spec, *rest)
            return augmented(plain, algo, spec) if algo.augment else plain(algo)
        case _ if spec.agents is not None:
            raise ShoalError(f"{spec.name} has {spec.agents} agents, and only ppo plays in teams")
        case _ if network:
            raise ShoalError("networks of your own are for ppo only")
        case TD3Config() as algo:
            return td3(algo, spec, across)
        case DQNConfig() as algo:
            return dqn(algo, spec, config.num_iterations, across)


def make_ppo(
    spec: EnvSpec,
    num_updates: int,
    network: NetworkMaker | None,
    across: tuple[str, ...],
    shards: int,
    algo: PPOConfig,
) -> Learner:
    """A PPO learner, curious if it is to be."""
    learner = ppo(algo, spec, num_updates, network, across, shards)
    return curious(learner, algo, spec, across, shards) if algo.curiosity else learner


def exchange_of(config: TrainConfig, learner: Learner, mesh: Mesh, group: int) -> Exchange:
    """How a run's learners learn together."""
    state = jax.eval_shape(learner.init, jax.random.key(0))
    check_names(config.evolving, state.hypers)
    if config.algo.prox_coef and config.parts and "encoder" in part_names(state.params) - config.parts:
        raise ShoalError("prox_coef stays near what was received: exchange the encoder, too")
    exchange = make_exchange(
        config.exchanges,
        learner,
        config.learners,
        anchored=config.algo.prox_coef > 0,
        priors=config.priors,
        seed=config.seed,
        mesh=mesh,
        group=group,
    )
    if not config.schedule:
        return exchange
    plan = [(step // config.algo.rollout_size, values) for step, values in config.schedule]
    return chain(exchange, follow(plan))


def worlds_of(config: TrainConfig, spec: EnvSpec) -> Tree:
    """The physical parameters of every learner's world, (L,) per leaf."""
    members = range(config.first_member, config.first_member + config.learners)
    if config.env_params is not None:
        return given(spec, config.env_params, members)
    if config.env_spread:
        return drawn(spec, config.env_spread, members, config.seed)
    return same(spec, config.learners)


def row_seeds(config: TrainConfig, start: int) -> np.ndarray:
    """A seed per environment, (L, E), a function of the learner's own number."""
    members = range(config.first_member, config.first_member + config.learners)
    entropy = [np.random.SeedSequence([config.seed, member, start]) for member in members]
    return np.stack([e.generate_state(config.algo.num_envs) for e in entropy])


def begin_learners(
    env: Env, learner: Learner, num_envs: int, shards: int, keys: Array, params: Tree
) -> tuple[LearnerState, Worlds, Array]:
    """New learners in new episodes of their worlds, on one device. keys (L,), params (L,) per leaf."""
    key_learner, key_env, key_train = jnp.moveaxis(jax.vmap(partial(jax.random.split, num=3))(keys), 1, 0)
    # One after another: batched QR factorisations on two CPU devices wait for each other for ever.
    cohort = jax.lax.map(learner.init, key_learner)
    row_keys = jax.vmap(partial(jax.random.split, num=num_envs))(key_env)  # (L, E)
    params = jax.tree.map(lambda x: jnp.broadcast_to(x[:, None], row_keys.shape), params)
    return cohort, begin_worlds(env, row_keys, params, shards), key_train


def keys_of(keys: Array, iteration: Array) -> tuple[Array, Array]:
    """Every learner's keys for collecting and for updating, (L,) each, in one iteration."""
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, iteration)
    key_collect, key_update = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
    return key_collect, key_update


def collect_rollouts(
    env: Env,
    learner: Learner,
    advise: Callable[[ExchangeMemory, Rollout], Rollout],
    num_steps: int,
    hard_resets: bool,
    shards: int,
    iteration: Array,
    keys: Array,
    cohort: LearnerState,
    worlds: Worlds,
    memory: ExchangeMemory,
) -> tuple[LearnerState, Worlds, Rollout]:
    """One rollout of every learner on one device, and what others think of it."""
    key_collect, _ = keys_of(keys, iteration)
    if hard_resets:
        key_reset = jax.vmap(jax.random.fold_in, (0, None))(key_collect, RESETS)
        cohort, worlds = begin_anew(env, learner, key_reset, cohort, worlds, shards)
    worlds, cohort, rollout = collect(env, learner, num_steps, key_collect, cohort, worlds, shards)
    return cohort, worlds, advise(memory, rollout)


def update_learners(
    learner: Learner,
    group: int,
    shards: int,
    iteration: Array,
    keys: Array,
    cohort: LearnerState,
    rollout: Rollout,
) -> tuple[LearnerState, Pulse]:
    """One update of every learner on one device, `group` of them at a time."""
    _, key_update = keys_of(keys, iteration)
    learner_axis = Rollout(1, 1, 1, 1, 1, 1, last_obs=0, advice=1, begins=1)
    update = trees.in_groups(group, learner.update, in_axes=(0, 0, learner_axis))
    cohort, metrics = update(key_update, cohort, rollout)
    agents = tuple(range(3, rollout.reward.ndim))
    bad_rewards = jnp.sum(~jnp.isfinite(rollout.reward), (0, 2, *agents), dtype=jnp.int32)
    valid_steps = jnp.sum(rollout.valid, (0, 2), dtype=jnp.int32)
    bad_rewards, valid_steps = add_up((bad_rewards, valid_steps), (DATA,) if shards > 1 else ())
    return cohort, Pulse(metrics, valid_steps, bad_rewards > 0)
