"""Training: an iterator of reports.

for report in train(TrainConfig("CartPole-v1", steps=50_000)):
    print(report.step, report.metrics["return_mean"])
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import jax
import numpy as np

from shoal.distributed.processes import OtherProcessFailed, broadcast_from_first, fetch, first_rank_where
from shoal.envs.adapters.faults import Fault
from shoal.envs.adapters.host import take_crash
from shoal.training.config import TrainConfig
from shoal.training.crashes import settle_crashes
from shoal.training.iteration import Progress, TrainState
from shoal.training.profile import Profile, profiled
from shoal.training.program import Trainer, make_trainer
from shoal.training.scores import score_metrics
from shoal.training.waiting import Waiting
from shoal.types import LearnerState

Advance: TypeAlias = Callable[[TrainState, Any], tuple[TrainState, Progress]]
"""Trains for a number of iterations: (state, count) -> (state, progress)."""
Compare: TypeAlias = Callable[[TrainState], dict[str, Any]]
"""How far the learners are apart: state -> metrics."""
PROGRESS_SECONDS = 0.5
"""About how long one call of the compiled program takes."""
PROGRAMS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""What functions of trainers are compiled to, so that a trainer that trains again compiles nothing."""


class Clock(NamedTuple):
    """The time a run has taken and the steps it has made, since it began."""

    seconds: float = 0.0  # compiling and evaluating included
    compile_seconds: float = 0.0
    valid_steps: int = 0  # by all learners
    eval_seconds: float = 0.0

    @property
    def steps_per_second(self) -> float:
        """Valid environment steps of all learners, over all seconds but those of evaluations."""
        return self.valid_steps / max(self.seconds - self.eval_seconds, 1e-9)

    @property
    def steps_per_second_compiled(self) -> float:
        """The same without the seconds spent compiling."""
        return self.valid_steps / max(self.seconds - self.eval_seconds - self.compile_seconds, 1e-9)


def no_evaluation(cohort: LearnerState) -> dict[str, np.ndarray]:
    """No metrics."""
    return {}


class Interludes(NamedTuple):
    """What follows the first iteration to reach a multiple of so many steps, and the last; 0 is never."""

    eval_every: int = 0
    evaluate: Callable[[LearnerState], dict[str, np.ndarray]] = no_evaluation  # metrics, (L,) each
    save_every: int = 0  # the loop only sees to it that there is a report to save
    film_every: int = 0  # the same


NO_INTERLUDES = Interludes()


class Report(NamedTuple):
    """The state of training.

    >>> import shoal
    >>> config = shoal.preset("CartPole-v1", steps=2048, learners=2, reports=2)
    >>> report = next(shoal.train(config))
    >>> report.step, report.metrics["return_mean"].shape, report.state.cohort.hypers.learning_rate.shape
    (1024, (2,), (2,))
    """

    iteration: int
    step: int  # environment steps per learner
    due: bool  # whether it belongs in metrics.csv; the others only show progress
    selected: bool  # whether a selection of learners took place just before
    evaluated: bool  # whether the learners were evaluated just before
    metrics: dict[str, np.ndarray]  # (L,) each
    bad_rewards: np.ndarray  # (L,) bool: a reward since the last report was not finite
    bad_observations: np.ndarray  # (L,) bool: an observation since the last report was not finite
    lost: np.ndarray  # (L,) bool: a loss since the last report was not finite
    crashes: dict[int, Fault]  # by learner: how its environment failed since the last report
    clock: Clock
    state: TrainState  # a replay in it is valid until the next report
    trainer: Trainer  # the parts of the run: its learner, environment, exchange and settings

    @property
    def seconds(self) -> float:
        """Seconds since the run began, compiling included."""
        return self.clock.seconds

    @property
    def steps_per_second(self) -> float:
        """Valid environment steps of all learners, over all seconds but those of evaluations."""
        return self.clock.steps_per_second

    @property
    def steps_per_second_compiled(self) -> float:
        """The same without the seconds spent compiling."""
        return self.clock.steps_per_second_compiled

    def after(self, before: Clock) -> "Report":
        """The same report with the clock of a run that was resumed at `before`."""
        return self._replace(clock=Clock(*(a + b for a, b in zip(before, self.clock, strict=True))))


def train(config: TrainConfig, **parts) -> Iterator[Report]:
    """Train, yielding a report about `config.reports` times.

    `parts` go to `make_trainer`: an environment, learner, network or exchange of your own, a mesh.

    >>> import shoal
    >>> config = shoal.preset("CartPole-v1", steps=2048, learners=2, reports=2)
    >>> for report in shoal.train(config):
    ...     print(report.step, report.metrics["return_mean"].shape)
    1024 (2,)
    2048 (2,)
    """
    trainer = make_trainer(config, **parts)
    return (report for report in progress_reports(trainer, trainer.init()) if report.due)


def progress_reports(
    trainer: Trainer,
    state: TrainState,
    profile: Profile | None = None,
    interludes: Interludes = NO_INTERLUDES,
    waiting: Waiting | None = None,
) -> Iterator[Report]:
    """Train to the end from `state`, with a report about every `PROGRESS_SECONDS`.

    Which iterations have a report that is `due` depends on the settings alone, not on time; those with an
    evaluation have one. With a `profile`, the stages of each iteration run and are timed one by one.
    `waiting` tells what is under way.
    """
    config, waiting = trainer.parts.config, waiting or Waiting()
    began = time.perf_counter()
    advance, compare = compile_programs(trainer, state, profile, waiting)
    clock = Clock(compile_seconds=time.perf_counter() - began)
    iteration, count = int(state.iteration), 1
    lost = np.zeros(config.learners, bool)  # since the last report that is due
    while iteration < config.num_iterations:
        count = min(count, next_boundary(config, interludes, iteration) - iteration)
        iteration += count
        due, selected, evaluated = what_follows(config, interludes, iteration)
        before = time.perf_counter()
        state, progress = waiting.call("training", run, advance, state, count)
        state, progress, crashes = settle_crashes(config, trainer.parts.env, state, progress, selected)
        now = time.perf_counter()
        spent, lost = now - before, lost | progress.lost
        metrics = metrics_of(trainer, state, progress, lost, with_hypers=due or selected)
        if due:
            metrics |= metrics_when_due(trainer, state, metrics, compare, profile)
        if evaluated:
            trained = time.perf_counter()
            metrics |= waiting.call("evaluating", interludes.evaluate, state.cohort)
            now = time.perf_counter()
            clock = clock._replace(eval_seconds=clock.eval_seconds + now - trained)
        valid_steps = clock.valid_steps + int(np.sum(progress.valid_steps))
        clock = clock._replace(seconds=now - began, valid_steps=valid_steps)
        yield Report(
            iteration=iteration,
            step=config.steps_after(iteration),
            due=due,
            selected=selected,
            evaluated=evaluated,
            metrics=metrics,
            bad_rewards=progress.bad_rewards,
            bad_observations=progress.bad_observations,
            lost=progress.lost,
            crashes=crashes,
            clock=clock,
            state=state,
            trainer=trainer,
        )
        lost = lost & (not due)
        if profile:
            profile.add("logging", time.perf_counter() - now)
        count = broadcast_from_first(max(1, min(2 * count, int(PROGRESS_SECONDS * count / spent))))


def compile_programs(
    trainer: Trainer, state: TrainState, profile: Profile | None, waiting: Waiting
) -> tuple[Advance, Compare | None]:
    """What trains for some iterations, and what compares the learners where there are several."""
    if profile:
        advance = waiting.call("compiling", profiled, trainer.stages, state, profile)
    else:
        advance = compiled(trainer, state, waiting)
    compare = compiled_once(waiting, trainer.compare, state) if trainer.parts.config.learners > 1 else None
    waiting.call("compiling", first_rank_where, False)  # wait until all processes have compiled
    return advance, compare


def what_follows(config: TrainConfig, interludes: Interludes, iteration: int) -> tuple[bool, bool, bool]:
    """Whether an iteration is followed by a report that is due, by a selection, by an evaluation.

    >>> what_follows(TrainConfig("CartPole-v1", steps=100 * 512, reports=10), NO_INTERLUDES, 10)
    (True, False, False)
    """
    selects, eval_every = config.selection_every, interludes.eval_every
    selected = bool(selects) and iteration % selects == 0
    evaluated = bool(eval_every) and config.reaches(iteration, eval_every)
    last = iteration == config.num_iterations
    return evaluated or last or iteration % config.report_every == 0, selected, evaluated


def metrics_of(
    trainer: Trainer, state: TrainState, progress: Progress, lost: np.ndarray, with_hypers: bool
) -> dict[str, np.ndarray]:
    """What every report tells: losses, scores, who was lost; also the hyperparameters that change."""
    config = trainer.parts.config
    scores = score_metrics(trainer.parts.recipe.spec, state.envs.episodes)
    metrics: dict[str, Any] = progress.metrics | without_lost(scores, is_lost(config, progress.metrics))
    if config.learners > 1:
        metrics["lost"] = lost
    if with_hypers:
        hypers = fetch(state.cohort.hypers)
        metrics |= {f"hypers/{name}": getattr(hypers, name) for name in config.evolving}
    return metrics


def metrics_when_due(
    trainer: Trainer,
    state: TrainState,
    metrics: dict[str, np.ndarray],
    compare: Compare | None,
    profile: Profile | None,
) -> dict[str, np.ndarray]:
    """What only reports that are due tell: how far the learners are apart, how long each stage takes."""
    found = fetch(compare(state)) | trainer.parts.exchange.derive_metrics(metrics) if compare else {}
    stages = profile.pop_report() if profile else {}
    return found | {name: np.full(trainer.parts.config.learners, x) for name, x in stages.items()}


def is_lost(config: TrainConfig, metrics: dict[str, np.ndarray]) -> np.ndarray:
    """Which learners are lost after an iteration with these metrics, (L,)."""
    return ~np.isfinite(metrics["loss/total"]) & (config.on_nan != "restart")


def without_lost(scores: dict[str, np.ndarray], lost: np.ndarray) -> dict[str, np.ndarray]:
    """Scores in which lost learners have none: what their environments still count is not theirs."""
    return {name: x if name == "episodes" else np.where(lost, np.nan, x) for name, x in scores.items()}


def next_boundary(config: TrainConfig, interludes: Interludes, iteration: int) -> int:
    """The first iteration after this one that a report, a selection or an interlude follows."""
    multiples = [every for every in (config.report_every, config.selection_every) if every]
    steps = [x for x in (interludes.eval_every, interludes.save_every, interludes.film_every) if x]
    nearest = [(iteration // every + 1) * every for every in multiples]
    nearest += [config.next_reaching(iteration, every) for every in steps]
    return min(*nearest, config.num_iterations)


def compiled(trainer: Trainer, state: TrainState, waiting: Waiting) -> Advance:
    """`trainer.advance`, compiled. A replay is updated in place, which deletes it from the older state.

    Nothing is updated in place where an environment may raise: the state before is then still there to save.
    Only what XLA does is in another thread: JAX's context managers hold for the one that traces.
    """
    if trainer.parts.learner.grouped or trainer.parts.recipe.may_raise:
        return compiled_once(waiting, trainer.advance, state, np.int32(1))
    split = lambda state: (state.cohort.private, state._replace(cohort=state.cohort._replace(private=())))
    program = compiled_once(waiting, trainer.advance_in_place, *split(state), np.int32(1))
    return lambda state, count: program(*split(state), count)


def compiled_once(waiting: Waiting, function: Any, *arguments: Any) -> Any:
    """A trainer's function, compiled for arguments of these shapes, which are always the same."""
    if function not in PROGRAMS:
        PROGRAMS[function] = waiting.call("compiling", function.lower(*arguments).compile)
    return PROGRAMS[function]


def run(advance: Advance, state: TrainState, count: int) -> tuple[TrainState, Progress]:
    """Advance and wait; raises the exception of an environment, or of another process."""
    state, progress = advance(state, np.int32(count))
    progress = jax.device_get(progress)
    crash = take_crash()
    if (where := first_rank_where(crash is not None)) is not None:
        raise crash or OtherProcessFailed(f"rank {where} failed")
    return state, progress
