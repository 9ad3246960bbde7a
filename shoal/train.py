"""Training: collect, update, exchange, compiled as one program; an iterator of reports.

for report in train(TrainConfig("CartPole-v1", steps=50_000)):
    print(report.step, report.metrics["return_mean"])
"""

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding

from shoal.collect import Episodes, Worlds, collect
from shoal.collect import begin as begin_worlds
from shoal.envs.host import raise_crash
from shoal.envs.make import make
from shoal.exchange.schedule import none
from shoal.learners.ppo import PPOConfig, ppo
from shoal.mesh import ROWS, WHOLE, group_size, in_groups, make_mesh, on_each_device
from shoal.networks import NetworkMaker
from shoal.types import Env, EnvRecipe, Exchange, Learner, LearnerState, Rollout, ShoalError, Tree

PULSE_SECONDS = 0.5
"""About how long the compiled program runs before Python looks up."""


@dataclass(frozen=True)
class TrainConfig:
    """A run: everything that decides its numbers."""

    env: str
    """Environment id, e.g. CartPole-v1; jax:, envpool: or gym: before it forces a backend."""
    algo: PPOConfig = field(default_factory=PPOConfig)
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

    def __post_init__(self):
        for name in ("steps", "learners", "reports"):
            if getattr(self, name) < 1:
                raise ShoalError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.seed < 0 or self.first_member < 0:
            raise ShoalError("seed and first_member must not be negative")

    @property
    def num_iterations(self) -> int:
        """Rollouts, and updates, in the run."""
        return -(-self.steps // self.algo.batch_size)

    @property
    def report_every(self) -> int:
        """Iterations between rows of metrics."""
        return max(1, self.num_iterations // self.reports)


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
    metrics: dict[str, np.ndarray]  # (L,) each
    bad_rewards: np.ndarray  # (L,) bool: a reward since the last report was no finite number
    clock: Clock
    state: TrainState

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

    Environments are built once and begin once: make a new trainer to begin again.
    """

    config: TrainConfig
    recipe: EnvRecipe
    learner: Learner
    mesh: Mesh
    begin: Callable[[], TrainState]
    advance: Callable[[TrainState, Array], tuple[TrainState, Pulse]]


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
    recipe = recipe or make(config.env, **config.env_options)
    exchange = exchange or none()
    rows = config.algo.batch_size // config.algo.num_minibatches
    mesh = make_mesh(config.learners, recipe.spec.parallel, rows)
    learner = ppo(config.algo, recipe.spec, config.num_iterations, network)
    env = recipe.build(row_seeds(config, start).reshape(mesh.shape["learners"], -1), False)
    divided, whole = NamedSharding(mesh, ROWS), NamedSharding(mesh, WHOLE)
    placed = TrainState(divided, divided, exchange=whole, keys=divided, key=whole, iteration=whole)

    local_begin = partial(begin_learners, env, learner, config.algo.num_envs)
    local_iterate = partial(iterate, env, learner, config.algo.num_steps, group_size(mesh, config.learners))
    begin_rows = on_each_device(mesh, local_begin, (ROWS,), ROWS)
    iterate_rows = on_each_device(mesh, local_iterate, (WHOLE, ROWS, ROWS, ROWS), ROWS)

    def begin() -> TrainState:
        key_cohort, key_members = jax.random.split(jax.random.key(config.seed))
        members = config.first_member + jnp.arange(config.learners)
        cohort, worlds, keys = begin_rows(jax.vmap(jax.random.fold_in, (None, 0))(key_members, members))
        return TrainState(cohort, worlds, exchange.init(cohort), keys, key_cohort, jnp.int32(0))

    def iteration(state: TrainState) -> tuple[TrainState, Pulse]:
        cohort, worlds, pulse = iterate_rows(state.iteration, state.keys, state.cohort, state.worlds)
        key = jax.random.fold_in(state.key, state.iteration)
        memory, cohort, exchanged = exchange.apply(key, state.exchange, cohort)
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

    return Trainer(
        config,
        recipe,
        learner,
        mesh,
        jax.jit(begin, out_shardings=placed),
        jax.jit(advance, out_shardings=(placed, divided)),
    )


def begin_learners(
    env: Env, learner: Learner, num_envs: int, keys: Array
) -> tuple[LearnerState, Worlds, Array]:
    """New learners in new episodes, on one device. keys (L,)."""
    key_learner, key_env, key_train = jnp.moveaxis(jax.vmap(partial(jax.random.split, num=3))(keys), 1, 0)
    # One after another: batched QR factorisations on two CPU devices wait for each other for ever.
    cohort = jax.lax.map(learner.init, key_learner)
    row_keys = jax.vmap(partial(jax.random.split, num=num_envs))(key_env)  # (L, E)
    params = jax.tree.map(lambda x: jnp.full(row_keys.shape, x, jnp.float32), env.spec.params)
    return cohort, begin_worlds(env, row_keys, params), key_train


def iterate(
    env: Env,
    learner: Learner,
    num_steps: int,
    group: int,
    iteration: Array,
    keys: Array,
    cohort: LearnerState,
    worlds: Worlds,
) -> tuple[LearnerState, Worlds, Pulse]:
    """One rollout and one update of every learner on one device, `group` updates at a time."""
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, iteration)
    key_collect, key_update = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
    worlds, cohort, rollout = collect(env, learner, num_steps, key_collect, cohort, worlds)
    learner_axis = Rollout(1, 1, 1, 1, 1, 1, last_obs=0)
    update = in_groups(group, learner.update, in_axes=(0, 0, learner_axis))
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
    advance = trainer.advance.lower(state, jnp.int32(1)).compile()
    compile_seconds = time.perf_counter() - began
    while iteration < config.num_iterations:
        row = min((iteration // config.report_every + 1) * config.report_every, config.num_iterations)
        count = min(count, row - iteration)
        before = time.perf_counter()
        state, pulse = run(advance, state, count)
        now = time.perf_counter()
        iteration += count
        valid_steps += int(np.sum(pulse.valid_steps))
        yield Report(
            iteration=iteration,
            step=iteration * config.algo.batch_size,
            due=iteration == row,
            metrics=pulse.metrics | scores(state.worlds.episodes),
            bad_rewards=pulse.bad_rewards,
            clock=Clock(now - began, compile_seconds, valid_steps),
            state=state,
        )
        count = max(1, min(2 * count, int(PULSE_SECONDS * count / (now - before))))


def run(advance: Callable, state: TrainState, count: int) -> tuple[TrainState, Pulse]:
    """Advance and wait; an environment that raised meanwhile is reported as itself."""
    state, pulse = advance(state, jnp.int32(count))
    pulse = jax.device_get(pulse)
    raise_crash()
    return state, pulse


def scores(episodes: Episodes) -> dict[str, np.ndarray]:
    """Raw scores over the last finished episodes; NaN until one has finished."""
    returns, lengths, finished = jax.device_get((episodes.returns, episodes.lengths, episodes.finished))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the mean of nothing is NaN, as wanted
        return {
            "return_mean": np.nanmean(returns, 1),
            "return_std": np.nanstd(returns, 1),
            "length_mean": np.nanmean(lengths, 1),
            "episodes": finished,
        }


def row_seeds(config: TrainConfig, start: int) -> np.ndarray:
    """A seed per environment, (L, E), a function of the learner's own number."""
    members = range(config.first_member, config.first_member + config.learners)
    entropy = [np.random.SeedSequence([config.seed, member, start]) for member in members]
    return np.stack([e.generate_state(config.algo.num_envs) for e in entropy])
