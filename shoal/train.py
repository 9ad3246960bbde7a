"""Training: collect, update, exchange, compiled as one program; an iterator of reports.

for report in train(TrainConfig("CartPole-v1", steps=50_000)):
    print(report.step, report.metrics["return_mean"])
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding

from shoal import trees
from shoal.collect import Worlds, collect
from shoal.collect import begin as begin_worlds
from shoal.envs.host import raise_crash
from shoal.envs.make import make
from shoal.envs.worlds import drawn, given, same
from shoal.exchange.exploration import Prior, check_names, read_priors
from shoal.exchange.make import ExchangeConfig, make_exchange
from shoal.exchange.population import check_schedule, follow
from shoal.exchange.population import drawn as drawn_hypers
from shoal.exchange.schedule import chain
from shoal.learners.dqn import DQNConfig, dqn
from shoal.learners.ppo import PPOConfig, ppo
from shoal.learners.td3 import TD3Config, td3
from shoal.mesh import ROWS, WHOLE, group_size, make_mesh, on_each_device
from shoal.networks import NetworkMaker
from shoal.standing import disagreement, scores, standing
from shoal.types import (
    Env,
    EnvRecipe,
    EnvSpec,
    Exchange,
    ExchangeMemory,
    Learner,
    LearnerState,
    Rollout,
    ShoalError,
    Tree,
)

HYPERS = 3
"""Sets the key that draws a learner's hyperparameters apart from its others."""
PULSE_SECONDS = 0.5
"""About how long the compiled program runs before Python looks up."""

Algorithm: TypeAlias = PPOConfig | TD3Config | DQNConfig
"""A learner's settings; which they are says what kind of learner it is."""


@dataclass(frozen=True)
class TrainConfig:
    """A run: everything that decides its numbers."""

    env: str
    """Environment id, e.g. CartPole-v1; jax:, envpool: or gym: before it forces a backend."""
    algo: Algorithm = field(default_factory=PPOConfig)
    """The learner's settings."""
    steps: int = 100_000
    """Environment steps per learner, rounded up to whole rollouts."""
    learners: int = 1
    """How many learners train, each with its own seed."""
    seed: int = 1
    """Decides everything random."""
    first_member: int = 0
    """Number of the first learner: member 3 of a cohort, alone, is --learners 1 --first-member 3."""
    reports: int = 100
    """About how many rows of metrics the run writes per learner."""
    env_options: dict[str, Any] = field(default_factory=dict)
    """Options for the environment's own constructor."""
    env_spread: float = 0.0
    """How far the learners' worlds differ: the deviation their physical parameters are drawn with."""
    env_params: Any = None
    """Their physical parameters, given: a JSON file, {"0": {"gravity": 9.8, "length": 0.7}, ...}."""
    evolve: tuple[str, ...] = ()
    """Hyperparameters that each learner draws for itself, and populations change: names, or name=PRIOR, e.g.
    learning_rate "gamma=one-minus-log 0.9 0.999". A population has some that it changes unless told (PPO's:
    learning_rate, clip_coef and ent_coef)."""
    schedule: Any = None
    """Hyperparameters by a plan: [[step, {learning_rate: 0.001, ...}], ...], from each step on; what
    --replay RUN takes from a population's best line of descent."""
    exchanges: tuple[ExchangeConfig, ...] = ()
    """How the learners learn together."""

    def __post_init__(self):
        for name in ("steps", "learners", "reports"):
            if getattr(self, name) < 1:
                raise ShoalError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.seed < 0 or self.first_member < 0:
            raise ShoalError("seed and first_member must not be negative")
        if self.env_spread < 0:
            raise ShoalError(f"env_spread must not be negative, but is {self.env_spread}")
        if self.env_spread and self.env_params is not None:
            raise ShoalError("worlds are drawn (env_spread) or given (env_params), not both")

    def check(self) -> None:
        """Raise where settings that belong together do not fit."""
        if self.exchanges and self.learners < 2:
            raise ShoalError("an exchange needs at least 2 learners: say --learners")
        if self.algo.prox_coef and not any(exchange.mixes for exchange in self.exchanges):
            raise ShoalError("prox_coef stays near what was received: it needs an exchange of parameters")
        parts = {part.partition(":")[0] for exchange in self.exchanges for part in exchange.parts}
        if self.algo.prox_coef and parts and not self.algo.learns <= parts:
            needed = " and ".join(sorted(self.algo.learns))
            raise ShoalError(f"prox_coef stays near what was received: exchange {needed}")
        if sum(exchange.selects for exchange in self.exchanges) > 1:
            raise ShoalError("a population has one rule of selection, not several")
        if self.schedule is not None:
            check_schedule(self.schedule)

    def steps_after(self, iteration: int) -> int:
        """Environment steps per learner after so many iterations."""
        return iteration * self.algo.rollout_size

    @property
    def num_iterations(self) -> int:
        """Rollouts, and updates, in the run."""
        return -(-self.steps // self.algo.rollout_size)

    @property
    def report_every(self) -> int:
        """Iterations between rows of metrics."""
        return max(1, self.num_iterations // self.reports)

    @property
    def priors(self) -> dict[str, Prior]:
        """What learners draw, and populations change."""
        selects = any(exchange.selects for exchange in self.exchanges)
        return read_priors(self.evolve or (self.algo.evolved if selects else ()))

    @property
    def evolving(self) -> tuple[str, ...]:
        """The hyperparameters that are not the same for every learner at all times."""
        return (*self.priors, *(self.schedule[0][1] if self.schedule else ()))

    @property
    def selection_every(self) -> int | None:
        """Iterations between selections, where there are any."""
        return next((exchange.local_updates for exchange in self.exchanges if exchange.selects), None)

    @property
    def shares_gradients(self) -> bool:
        """Whether the learners take every step together."""
        return any(exchange.exchange == "gradients" for exchange in self.exchanges)


class TrainState(NamedTuple):
    """All there is: saved and restored whole, it continues the same run."""

    cohort: LearnerState  # leading L
    worlds: Worlds
    exchange: Tree
    keys: Array  # (L,) one per learner
    key: Array  # () for what the cohort draws together
    iteration: Array  # () int32


class Clock(NamedTuple):
    """What a run has used and done, since it began."""

    seconds: float = 0.0  # compiling included
    compile_seconds: float = 0.0
    valid_steps: int = 0  # by all learners


class Report(NamedTuple):
    """How training stands."""

    iteration: int
    step: int  # environment steps per learner
    due: bool  # whether this is a row of metrics or only a sign of life
    selected: bool  # whether the learners were ranked and replaced just before
    metrics: dict[str, np.ndarray]  # (L,) each
    bad_rewards: np.ndarray  # (L,) bool: a reward since the last report was no finite number
    clock: Clock
    state: TrainState  # whose replay, where there is one, lasts until the next report

    @property
    def seconds(self) -> float:
        """Since the run began, compiling included."""
        return self.clock.seconds

    @property
    def steps_per_second(self) -> float:
        """Valid environment steps of all learners, over all seconds."""
        return self.clock.valid_steps / max(self.clock.seconds, 1e-9)

    @property
    def steps_per_second_compiled(self) -> float:
        """The same without the seconds spent compiling."""
        return self.clock.valid_steps / max(self.clock.seconds - self.clock.compile_seconds, 1e-9)

    def after(self, before: Clock) -> "Report":
        """The same report, of a run that had used `before` when it was resumed."""
        return self._replace(clock=Clock(*(a + b for a, b in zip(before, self.clock, strict=True))))


class Pulse(NamedTuple):
    """What leaves the compiled program after some iterations."""

    metrics: dict[str, Array]  # (L,) each, of the last iteration
    valid_steps: Array  # (L,) int32, of all the iterations
    bad_rewards: Array  # (L,) bool, in any of them


class Trainer(NamedTuple):
    """A run ready to go: `begin()` makes its first state, `advance(state, n)` takes it n iterations on.

    `advance_in_place(memory, state without it, n)` does the same and uses up the memory it is given.

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
    compare: Callable[[TrainState], dict[str, Array]]


def train(config: TrainConfig, **parts) -> Iterator[Report]:
    """Train, yielding a report about `config.reports` times.

    `parts` are those of `make_trainer`: an environment, a network or an exchange of your own.

    >>> import shoal
    >>> config = shoal.TrainConfig("CartPole-v1", steps=1024, learners=2, seed=1, reports=2)
    >>> for report in shoal.train(config):
    ...     print(report.step, report.metrics["return_mean"].shape)
    512 (2,)
    1024 (2,)
    """
    trainer = make_trainer(config, **parts)
    return (report for report in pulses(trainer, trainer.begin()) if report.due)


def make_trainer(
    config: TrainConfig,
    *,
    recipe: EnvRecipe | None = None,
    network: NetworkMaker | None = None,
    exchange: Exchange | None = None,
    start: int = 0,
) -> Trainer:
    """Build the environments, the learner and the program that joins them.

    `start` is the iteration a resumed run goes on from: environments that cannot be restored begin
    new episodes there, not the first ones again.
    """
    config.check()
    recipe = recipe or make(config.env, **config.env_options)
    mesh = make_mesh(config.learners, recipe.spec.parallel, config.algo.work)
    num_devices = mesh.shape["learners"]
    learner = make_learner(config, recipe.spec, network)
    apart = learner.grouped and not config.shares_gradients
    group = group_size(mesh, config.learners) if apart else config.learners // num_devices
    hypers = jax.eval_shape(learner.init, jax.random.key(0)).hypers
    check_names(config.evolving, hypers)
    exchange = exchange or make_exchange(
        config.exchanges,
        learner,
        config.learners,
        anchored=config.algo.prox_coef > 0,
        priors=config.priors,
        seed=config.seed,
        mesh=mesh,
        group=group,
    )
    if config.schedule:
        plan = [(step // config.algo.rollout_size, values) for step, values in config.schedule]
        exchange = chain(exchange, follow(plan))
    env = recipe.build(row_seeds(config, start).reshape(num_devices, -1), False)
    params = jax.tree.map(jnp.asarray, worlds_of(config, recipe.spec))
    divided, whole = NamedSharding(mesh, ROWS), NamedSharding(mesh, WHOLE)
    memory = ExchangeMemory(divided, whole)
    placed = TrainState(divided, divided, exchange=memory, keys=divided, key=whole, iteration=whole)

    local_begin = partial(begin_learners, env, learner, config.algo.num_envs)
    local_iterate = partial(iterate, env, learner, exchange.advise, config.algo.num_steps, group)
    begin_rows = on_each_device(mesh, local_begin, (ROWS, ROWS), ROWS)
    rows_and_whole = (WHOLE, ROWS, ROWS, ROWS, ExchangeMemory(ROWS, WHOLE))
    iterate_rows = on_each_device(mesh, local_iterate, rows_and_whole, ROWS)

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

    def iteration(state: TrainState) -> tuple[TrainState, Pulse]:
        cohort, worlds, pulse = iterate_rows(
            state.iteration, state.keys, state.cohort, state.worlds, state.exchange
        )
        key = jax.random.fold_in(state.key, state.iteration)
        now = standing(worlds.episodes, pulse.valid_steps)
        memory, models, exchanged = exchange.apply(key, state.exchange, cohort._replace(memory=()), now)
        cohort = models._replace(memory=cohort.memory)
        pulse = pulse._replace(metrics=pulse.metrics | exchanged)
        return TrainState(cohort, worlds, memory, state.keys, state.key, state.iteration + 1), pulse

    def advance(state: TrainState, count: Array) -> tuple[TrainState, Pulse]:
        def body(_, carry):
            state, before = carry
            state, pulse = iteration(state)
            total = before.valid_steps + pulse.valid_steps
            return state, Pulse(pulse.metrics, total, before.bad_rewards | pulse.bad_rewards)

        _, shapes = jax.eval_shape(iteration, state)
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.fori_loop(0, count, body, (state, nothing))

    def advance_in_place(memory: Tree, state: TrainState, count: Array) -> tuple[TrainState, Pulse]:
        return advance(state._replace(cohort=state.cohort._replace(memory=memory)), count)

    return Trainer(
        config,
        recipe,
        learner,
        exchange,
        mesh,
        jax.jit(begin, out_shardings=placed),
        jax.jit(advance, out_shardings=(placed, divided)),
        jax.jit(advance_in_place, out_shardings=(placed, divided), donate_argnums=0),
        jax.jit(lambda state: disagreement(learner, state.cohort, state.worlds.step.obs)),
    )


def make_learner(config: TrainConfig, spec: EnvSpec, network: NetworkMaker | None = None) -> Learner:
    """One learner of a run."""
    across = ("learners", "group") if config.shares_gradients else ()
    match config.algo:
        case PPOConfig() as algo:
            return ppo(algo, spec, config.num_iterations, network, across)
        case _ if network:
            raise ShoalError("networks of your own are for ppo only")
        case TD3Config() as algo:
            return td3(algo, spec, across)
        case DQNConfig() as algo:
            return dqn(algo, spec, config.num_iterations, across)


def worlds_of(config: TrainConfig, spec: EnvSpec) -> Tree:
    """The physical parameters of every learner's world, (L,) per leaf."""
    members = range(config.first_member, config.first_member + config.learners)
    if config.env_params is not None:
        return given(spec, config.env_params, members)
    if config.env_spread:
        return drawn(spec, config.env_spread, members, config.seed)
    return same(spec, config.learners)


def begin_learners(
    env: Env, learner: Learner, num_envs: int, keys: Array, params: Tree
) -> tuple[LearnerState, Worlds, Array]:
    """New learners in new episodes of their worlds, on one device. keys (L,), params (L,) per leaf."""
    key_learner, key_env, key_train = jnp.moveaxis(jax.vmap(partial(jax.random.split, num=3))(keys), 1, 0)
    # One after another: batched QR factorisations on two CPU devices wait for each other for ever.
    cohort = jax.lax.map(learner.init, key_learner)
    row_keys = jax.vmap(partial(jax.random.split, num=num_envs))(key_env)  # (L, E)
    params = jax.tree.map(lambda x: jnp.broadcast_to(x[:, None], row_keys.shape), params)
    return cohort, begin_worlds(env, row_keys, params), key_train


def iterate(
    env: Env,
    learner: Learner,
    advise: Callable[[ExchangeMemory, Rollout], Rollout],
    num_steps: int,
    group: int,
    iteration: Array,
    keys: Array,
    cohort: LearnerState,
    worlds: Worlds,
    memory: ExchangeMemory,
) -> tuple[LearnerState, Worlds, Pulse]:
    """One rollout and one update of every learner on one device, `group` updates at a time."""
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, iteration)
    key_collect, key_update = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
    worlds, cohort, rollout = collect(env, learner, num_steps, key_collect, cohort, worlds)
    rollout = advise(memory, rollout)
    learner_axis = Rollout(1, 1, 1, 1, 1, 1, last_obs=0, advice=1)
    update = trees.in_groups(group, learner.update, in_axes=(0, 0, learner_axis))
    cohort, metrics = update(key_update, cohort, rollout)
    bad_rewards = ~jnp.all(jnp.isfinite(rollout.reward), (0, 2))
    return cohort, worlds, Pulse(metrics, jnp.sum(rollout.valid, (0, 2), dtype=jnp.int32), bad_rewards)


def pulses(trainer: Trainer, state: TrainState) -> Iterator[Report]:
    """Train to the end from `state`, with a sign of life about every `PULSE_SECONDS`.

    Where rows fall depends on the configuration alone, never on the clock.
    """
    config = trainer.config
    began = time.perf_counter()
    iteration, count, valid_steps = int(state.iteration), 1, 0
    advance = compiled(trainer, state)
    compare = trainer.compare.lower(state).compile() if config.learners > 1 else None
    compile_seconds = time.perf_counter() - began
    selects = config.selection_every
    while iteration < config.num_iterations:
        row = min((iteration // config.report_every + 1) * config.report_every, config.num_iterations)
        ranking = (iteration // selects + 1) * selects if selects else row
        count = min(count, row - iteration, ranking - iteration)
        before = time.perf_counter()
        state, pulse = run(advance, state, count)
        now = time.perf_counter()
        iteration += count
        valid_steps += int(np.sum(pulse.valid_steps))
        due, selected = iteration == row, bool(selects) and iteration == ranking
        metrics = pulse.metrics | scores(state.worlds.episodes)
        if due or selected:
            hypers = jax.device_get(state.cohort.hypers)
            metrics |= {f"hypers/{name}": getattr(hypers, name) for name in config.evolving}
        if due and compare:
            metrics |= jax.device_get(compare(state)) | trainer.exchange.account(metrics)
        yield Report(
            iteration=iteration,
            step=config.steps_after(iteration),
            due=due,
            selected=selected,
            metrics=metrics,
            bad_rewards=pulse.bad_rewards,
            clock=Clock(now - began, compile_seconds, valid_steps),
            state=state,
        )
        count = max(1, min(2 * count, int(PULSE_SECONDS * count / (now - before))))


def compiled(trainer: Trainer, state: TrainState) -> Callable[[TrainState, Array], tuple[TrainState, Pulse]]:
    """`trainer.advance`, compiled; a replay is changed in place, so the one in an older state is gone."""
    if trainer.learner.grouped:
        return trainer.advance.lower(state, jnp.int32(1)).compile()
    apart = lambda state: (state.cohort.memory, state._replace(cohort=state.cohort._replace(memory=())))
    program = trainer.advance_in_place.lower(*apart(state), jnp.int32(1)).compile()
    return lambda state, count: program(*apart(state), count)


def run(advance: Callable, state: TrainState, count: int) -> tuple[TrainState, Pulse]:
    """Advance and wait; an environment that raised meanwhile is reported as itself."""
    state, pulse = advance(state, jnp.int32(count))
    pulse = jax.device_get(pulse)
    raise_crash()
    return state, pulse


def row_seeds(config: TrainConfig, start: int) -> np.ndarray:
    """A seed per environment, (L, E), a function of the learner's own number."""
    members = range(config.first_member, config.first_member + config.learners)
    entropy = [np.random.SeedSequence([config.seed, member, start]) for member in members]
    return np.stack([e.generate_state(config.algo.num_envs) for e in entropy])
