"""A run in its folder: begun or resumed, watched, saved, stopped and opened again."""

import shutil
import signal
import time
import warnings
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from shoal.distributed.mesh import num_processes
from shoal.distributed.processes import (
    FailedElsewhere,
    broadcast_from_first,
    connect,
    fetch,
    rank,
    run_on_first,
)
from shoal.envs.adapters.host import EnvironmentCrashed
from shoal.envs.registry import make
from shoal.envs.worlds import parameters
from shoal.envs.worlds.levels import has_levels, level_options
from shoal.errors import ShoalError
from shoal.exchanges.mixing import mean_learner
from shoal.learners.wrappers.match import both, match
from shoal.ops import trees
from shoal.runs import checkpoint, saving
from shoal.runs.config import (
    default_folder,
    differences,
    from_settings,
    read_settings,
    to_settings,
    write_config,
)
from shoal.runs.files import FolderLock, make_folder
from shoal.runs.lineage import read_lineage, schedule_of
from shoal.runs.metrics import write_summary
from shoal.runs.writer import RunWriter, speeds
from shoal.training.config import TrainConfig
from shoal.training.evaluate import Evaluation, evaluate, summarise, visits
from shoal.training.loop import Clock, Report, progress_reports
from shoal.training.parts import make_learner, mesh_for, worlds_of
from shoal.training.profile import Profile
from shoal.training.program import Trainer, TrainState, make_trainer
from shoal.types import EnvRecipe, Learner, LearnerState, Tree

SAVE_SECONDS = 30.0
"""At most so much work is lost to a crash."""


class Session(NamedTuple):
    """A run about to go on."""

    folder: Path
    trainer: Trainer
    state: TrainState
    resumed_step: int | None
    clock: Clock
    lock: FolderLock
    profile: Profile | None = None


class Finished(NamedTuple):
    """How a run ended."""

    folder: Path
    summary: dict
    interrupted: bool


def open_session(
    config: TrainConfig,
    folder: Path | None = None,
    clobber: bool = False,
    *,
    mesh: str | None = None,
    profile: bool = False,
) -> Session | int:
    """Begin a run in its folder, or take it up where its newest checkpoint left it.

    A run that is already complete is not opened; the step it reached is returned instead. Where several
    processes run it together, the first one reads and writes the folder.
    """
    config.check()
    recipe = make(config.env, **config.options)
    folder = Path(folder or default_folder(config))
    devices = mesh_for(config, recipe.spec, mesh)
    connect()
    found = run_on_first(lambda: None if clobber else resumable(folder, config))
    if found and found["iteration"] >= config.num_iterations:
        return config.steps_after(found["iteration"])
    trainer = make_trainer(config, recipe=recipe, mesh=devices, start=found["iteration"] if found else 0)
    lock = FolderLock()
    run_on_first(lambda: prepare(folder, lock, config, clobber))
    state, timed = trainer.init(), Profile() if profile else None
    if not found:
        return Session(folder, trainer, state, None, Clock(), lock, timed)
    state, meta = saving.restore(trainer, state, folder)
    step = config.steps_after(meta["iteration"])
    return Session(folder, trainer, state, step, Clock(**meta["clock"]), lock, timed)


def prepare(folder: Path, lock: FolderLock, config: TrainConfig, clobber: bool) -> None:
    """Make the folder, keep others out, empty it if asked, and write down the settings."""
    lock.take(make_folder(folder))
    if clobber:
        clear(folder)
    write_config(folder / "config.yaml", config)


def replayed(folder: Path) -> TrainConfig:
    """One learner along the hyperparameters of a population's best line of descent."""
    opened = open_run(folder)
    schedule = schedule_of(read_lineage(folder), opened.best)
    plan = [[step, values] for step, values in schedule if step <= opened.step]
    return replace(opened.config, learners=1, exchanges=(), evolve=(), hyper_plan=plan)


def resumable(folder: Path, config: TrainConfig) -> dict | None:
    """What is recorded of the newest checkpoint there, if it is of a run with these settings."""
    saved = folder / "config.yaml"
    if saved.exists() and (changes := differences(from_settings(read_settings(saved)), config)):
        raise ShoalError(
            f"{folder} holds a run with other settings ({'; '.join(changes)}); "
            "use --out for another folder, or --clobber to start over"
        )
    return checkpoint.newest_meta(folder / "checkpoints")


def clear(folder: Path) -> None:
    """Remove what a run left in its folder, and nothing else."""
    for name in ("checkpoints", "plots", "videos"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("config.yaml", "metrics.csv", "summary.json", "lineage.csv", "events.out.*"):
        for path in folder.glob(name):
            path.unlink()


def watch(session: Session) -> Generator[Report, None, None]:
    """Train to the end, writing metrics and checkpoints; every pulse is yielded to be shown.

    However it ends, by itself, closed early or by an error, what was reached is saved.
    """
    report, saved_step, saved_at, best = None, session.resumed_step, time.monotonic(), -np.inf
    in_step = True  # whether every process is at the same point
    try:
        with open_writer(session) as writer:
            for report in progress_reports(session.trainer, session.state, session.profile):
                report = report.after(session.clock)
                check_finite(report)
                if writer:
                    writer.write(report)
                yield report
                waited, score = time.monotonic() - saved_at, top_score(report)
                better = report.due and score > best and waited > SAVE_SECONDS / 6
                if broadcast_from_first(int(waited > SAVE_SECONDS or better)):
                    save(session, report)
                    saved_step, saved_at, best = report.step, time.monotonic(), max(best, score)
    except Exception as error:
        in_step = num_processes() == 1 or isinstance(error, EnvironmentCrashed | FailedElsewhere)
        raise
    finally:
        if in_step and report is not None and report.step != saved_step and worth_saving(report):
            save(session, report)
        session.lock.release()


def open_writer(session: Session) -> AbstractContextManager[RunWriter | None]:
    """Who writes down what happens: the first of the processes."""
    config = session.trainer.config
    hypers = fetch(session.state.cohort.hypers)._asdict() if config.selection_every else {}
    evolved = {name: hypers[name] for name in config.priors} if config.selection_every else {}
    return RunWriter(session.folder, session.resumed_step, evolved) if rank() == 0 else nullcontext()


def worth_saving(report: Report) -> bool:
    """Whether a learner's losses are finite and the state is there: a replay changed in place may be gone."""
    gone = any(x.is_deleted() for x in jax.tree.leaves(report.state))
    return not gone and bool(np.any(healthy(report)))


def healthy(report: Report) -> np.ndarray:
    """Which learners still have finite losses, (L,)."""
    return np.isfinite(report.metrics["loss/total"])


def check_finite(report: Report) -> None:
    """Complain of learners lost to NaN: a warning while others go on, an error when none does."""
    lost = np.flatnonzero(~healthy(report))
    if not len(lost):
        return
    cause = (
        "the environment gave a reward that is not a finite number"
        if np.any(report.bad_rewards)
        else ("the loss is not finite; try a smaller --learning-rate, or --norm-reward")
    )
    message = f"learner {', '.join(map(str, lost[:8]))} is lost near step {report.step:,}: {cause}"
    if len(lost) == len(report.metrics["loss/total"]):
        raise ShoalError(message + ". What was saved before is kept.")
    warnings.warn(message, RuntimeWarning)


def top_score(report: Report) -> float:
    """The best learner's mean return; -inf before any episode has ended."""
    scores = report.metrics["return_mean"]
    return float(np.max(np.where(np.isfinite(scores), scores, -np.inf)))


def finish(session: Session, report: Report, interrupted: bool) -> Finished:
    """Write summary.json."""
    config = session.trainer.config
    scores = report.metrics["return_mean"]
    best = int(np.nanargmax(scores)) if np.any(np.isfinite(scores)) else 0
    summary = {
        "env": config.env,
        "backend": session.trainer.recipe.spec.backend,
        "algo": to_settings(config)["algo"],
        "learners": config.learners,
        "steps": report.step,
        "seconds": report.seconds,
        **speeds(report),
        "return_mean": scores,
        "best_return": scores[best],
        "best_learner": best,
        "interrupted": interrupted,
    }
    if session.profile:
        summary["seconds_per_iteration"] = session.profile.table()
    if rank() == 0:
        write_summary(session.folder, summary)
    return Finished(session.folder, summary, interrupted)


def save(session: Session, report: Report) -> None:
    """Write a checkpoint of everything the run needs to go on."""
    meta = {
        "iteration": report.iteration,
        "score": top_score(report),
        "scores": report.metrics["return_mean"],
        "clock": report.clock._asdict(),
    }
    saving.save(session.trainer, report.state, session.folder, report.step, meta)


class Opened(NamedTuple):
    """A trained run, ready to be looked at."""

    config: TrainConfig
    recipe: EnvRecipe
    learner: Learner
    cohort: LearnerState  # leading L
    best: int
    step: int


def open_run(folder: Path, which: str = "latest") -> Opened:
    """The learners of a run, from its newest or its best checkpoint."""
    config = from_settings(read_settings(Path(folder) / "config.yaml"))
    recipe = make(config.env, **config.options)
    learner = make_learner(config, recipe.spec)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), config.learners))
    like = {"cohort": jax.eval_shape(jax.vmap(learner.init), keys)}
    load = checkpoint.load_best if which == "best" else checkpoint.load_latest
    loaded = load(Path(folder) / "checkpoints", like)
    if loaded is None:
        raise ShoalError(f"{folder} holds no checkpoint yet; train it first")
    parts, meta = loaded
    scores = np.array([np.nan if x is None else x for x in meta["scores"]], float)
    best = int(np.nanargmax(scores)) if np.any(np.isfinite(scores)) else 0
    return Opened(config, recipe, learner, parts["cohort"], best, config.steps_after(meta["iteration"]))


def choose(opened: Opened, which: str) -> tuple[list[int | str], LearnerState]:
    """The learners asked for: `best`, `mean` (the average of all), `all`, or a number.

    All learners of a federation include their mean.
    """
    num = opened.config.learners
    if which == "all" and any(not exchange.selects for exchange in opened.config.exchanges):
        with_mean = jax.tree.map(
            lambda *rows: np.concatenate(rows), opened.cohort, mean_learner(opened.cohort)
        )
        return [*range(num), "mean"], with_mean
    if which == "all":
        return list(range(num)), opened.cohort
    if which == "mean":
        return ["mean"], mean_learner(opened.cohort)
    if which != "best" and not (which.isdigit() and int(which) < num):
        raise ShoalError(f"no learner {which!r}; choose best, mean, all or 0 to {num - 1}")
    index = opened.best if which == "best" else int(which)
    return [index], trees.take(opened.cohort, np.array([index]))


def matches(
    own: Opened, other: Opened, which: str, episodes: int, seed: int, sampled: bool = False
) -> list[Evaluation]:
    """Two runs' learners against each other: each row's first team is that of the one named first.

    Learners are `which` of the first run, its best where all are meant, against the other's best.
    """
    spec = own.recipe.spec
    if other.config.env != own.config.env:
        raise ShoalError(f"a run of {own.config.env} cannot play against one of {other.config.env}")
    (name,), mine = choose(own, "best" if which == "all" else which)
    (theirs,), rival = choose(other, "best")
    rows = []
    for title, first, second in (
        (f"this {name}, other {theirs}", (own.learner, mine), (other.learner, rival)),
        (f"other {theirs}, this {name}", (other.learner, rival), (own.learner, mine)),
    ):
        game = match(first[0], second[0], spec)
        cohort = both(first[1], second[1])
        returns, lengths = evaluate(own.recipe, game, cohort, episodes, seed, sampled=sampled)
        rows.append(summarise(title, returns[0], lengths[0], "default", spec))
    return rows


def on_levels(opened: Opened, which: str | None) -> tuple[Opened, str]:
    """The run on some of its game's levels (seen, unseen, all), and what to call that world."""
    env, options = opened.config.env, opened.config.options
    if not has_levels(env, options):
        if which is not None:
            raise ShoalError(f"{env} has no levels to choose (no options start_level and num_levels)")
        return opened, "default"
    title, options = level_options(env, options, which or "seen")
    return opened._replace(recipe=make(env, **options)), title


def places(opened: Opened, names: list[int | str], episodes: int, each: bool) -> dict[str, Tree] | None:
    """The worlds in which a run's learners are evaluated; None where all worlds are the same.

    Unseen worlds are drawn like the learners' own, one per episode; where those were given, from the
    ranges they span.
    """
    config, spec = opened.config, opened.recipe.spec
    if not config.env_spread and config.env_params is None:
        return None
    own = worlds_of(config, spec)
    fresh = (
        parameters.draw_unseen_worlds(spec, config.env_spread, episodes, config.seed)
        if config.env_spread
        else parameters.between(own, episodes, config.seed)
    )
    return visits(names, own, episodes, fresh, each)


def world_of(opened: Opened, name: int | str) -> Tree:
    """The physical parameters of a learner's own world; the default ones for the mean of all."""
    if isinstance(name, str):
        return None
    return trees.take(worlds_of(opened.config, opened.recipe.spec), name)


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collects Ctrl-C and SIGTERM instead of dying of them; a second Ctrl-C is obeyed at once."""
    caught: list[int] = []

    def note(number, frame):
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
