"""Training in a run's folder: begun or resumed, saved on the way, finished or stopped."""

import shutil
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from shoal.distributed.mesh import num_processes
from shoal.distributed.processes import (
    OtherProcessFailed,
    broadcast_from_first,
    connect,
    fetch,
    first_rank_where,
    rank,
    run_on_first,
)
from shoal.envs.adapters.host import EnvironmentCrashed
from shoal.envs.registry import make
from shoal.errors import ShoalError
from shoal.runs import checkpoint, saving
from shoal.runs.config import (
    default_folder,
    differences,
    from_settings,
    read_settings,
    to_settings,
    write_config,
)
from shoal.runs.divergence import DivergenceCheck, has_finite_loss
from shoal.runs.files import FolderLock, make_folder
from shoal.runs.metrics import read_summary, write_summary
from shoal.runs.milestones import Milestones, keep_milestones
from shoal.runs.signals import stop_signals
from shoal.runs.tracking.trackers import Trackers, read_trackers, record_now
from shoal.runs.watch import Watch, is_over
from shoal.runs.writer import RunWriter, speeds
from shoal.training.config import TrainConfig
from shoal.training.iteration import TrainState
from shoal.training.loop import Clock, Report, progress_reports
from shoal.training.parts import mesh_for
from shoal.training.profile import Profile
from shoal.training.program import Trainer, make_trainer
from shoal.training.scores import best_learner

SAVE_SECONDS = 30.0
"""Seconds between checkpoints: a crash loses no more work."""
NO_MILESTONES = Milestones()


class Session(NamedTuple):
    """A run that is ready to train."""

    folder: Path
    trainer: Trainer
    state: TrainState
    resumed_step: int | None
    clock: Clock
    lock: FolderLock
    watch: Watch
    profile: Profile | None = None
    track: tuple[str, ...] = ()


class Finished(NamedTuple):
    """A run that reached its last step or its goal, or was interrupted before."""

    folder: Path
    step: int
    summary: dict  # {} where none was written
    interrupted: bool = False
    reached: dict | None = None  # the goal it stopped at: return and step


def open_session(
    config: TrainConfig,
    folder: Path | str | None = None,
    clobber: bool = False,
    *,
    mesh: str | None = None,
    profile: bool = False,
    milestones: Milestones = NO_MILESTONES,
    track: str | Sequence[str] | None = None,
) -> Session | Finished:
    """Begin a run in its folder, or resume it from its newest checkpoint; `Finished` if nothing is left.

    Of several processes the first one reads and writes the folder.
    """
    config.check()
    trackers = read_trackers(track)
    recipe = make(config.env, **config.options)
    folder = Path(folder or default_folder(config))
    devices = mesh_for(config, recipe.spec, mesh)
    connect()
    found = run_on_first(lambda: None if clobber else find_checkpoint(folder, config))
    complete = found is not None and found["iteration"] >= config.num_iterations
    if found and (complete or is_over(milestones, config, found)):
        goal = None if complete else found["watch"]["goal"]
        run_on_first(lambda: record_now(folder, trackers))
        return Finished(folder, config.steps_after(found["iteration"]), read_summary(folder), reached=goal)
    trainer = make_trainer(config, recipe=recipe, mesh=devices, start=found["iteration"] if found else 0)
    lock = FolderLock()
    run_on_first(lambda: prepare_folder(folder, lock, config, clobber))
    milestones = Milestones(**run_on_first(lambda: keep_milestones(folder, milestones)))
    state, timed = trainer.init(), Profile() if profile else None
    if not found:
        watch = Watch(milestones, config)
        return Session(folder, trainer, state, None, Clock(), lock, watch, timed, trackers)
    state, meta = saving.restore(trainer, state, folder)
    step = config.steps_after(meta["iteration"])
    watch = Watch(milestones, config, meta)
    return Session(folder, trainer, state, step, Clock(**meta["clock"]), lock, watch, timed, trackers)


def find_checkpoint(folder: Path, config: TrainConfig) -> dict | None:
    """The record of the newest checkpoint there; an error if its run has other settings."""
    saved = folder / "config.yaml"
    if saved.exists() and (changes := differences(from_settings(read_settings(saved)), config)):
        raise ShoalError(
            f"{folder} holds a run with other settings ({'; '.join(changes)}); "
            "use --out for another folder, or --clobber to start over"
        )
    return checkpoint.newest_meta(folder / "checkpoints")


def prepare_folder(folder: Path, lock: FolderLock, config: TrainConfig, clobber: bool) -> None:
    """Make the folder, lock it, clear it if asked, and write the settings."""
    lock.take(make_folder(folder))
    if clobber:
        clear_folder(folder)
    write_config(folder / "config.yaml", config)


def clear_folder(folder: Path) -> None:
    """Remove the files of a run from its folder, and no others."""
    for name in ("checkpoints", "plots", "videos", "tracking"):
        shutil.rmtree(folder / name, ignore_errors=True)
    names = ("config.yaml", "metrics.csv", "summary.json", "lineage.csv", "milestones.json", "events.out.*")
    for name in names:
        for path in folder.glob(name):
            path.unlink()


def train_session(session: Session, show: Callable[[Report], None]) -> Finished:
    """Train to the end or the goal, or until Ctrl-C or SIGTERM; `show` is called with every report."""
    report, track = None, session.track if rank() == 0 else ()
    with stop_signals() as caught, Trackers(session.folder, track) as trackers:
        reports = run_session(session)
        for report in reports:
            show(report)
            trackers.check()
            if first_rank_where(bool(caught)) is not None:
                break
        reports.close()
        assert report is not None, "a session has at least one iteration left"
        return finish_session(session, report)


def run_session(session: Session) -> Generator[Report, None, None]:
    """Train to the end or the goal, writing metrics and checkpoints; yields every report.

    The last state is saved at the end, when closed early, and after an error.
    """
    report, saved_step, saved_at, best = None, session.resumed_step, time.monotonic(), -np.inf
    in_step, divergence = True, DivergenceCheck()  # in_step: all processes are at the same report
    watch, interludes = session.watch, session.watch.interludes(session.trainer)
    try:
        with open_writer(session) as writer:
            for report in progress_reports(session.trainer, session.state, session.profile, interludes):
                report = report.after(session.clock)
                divergence.check(report)
                watch.see(report)
                if writer:
                    writer.write(report)
                yield report
                elapsed, score = time.monotonic() - saved_at, watch.rank(report)
                better = report.due and score > best and elapsed > SAVE_SECONDS / 6
                due = broadcast_from_first(int(elapsed > SAVE_SECONDS or better))
                if due or watch.must_save(report):
                    save_report(session, report)
                    saved_step, saved_at, best = report.step, time.monotonic(), max(best, score)
                if watch.reached:
                    break
    except Exception as error:
        in_step = num_processes() == 1 or isinstance(error, EnvironmentCrashed | OtherProcessFailed)
        raise
    finally:
        if in_step and report is not None and report.step != saved_step and can_save(report):
            save_report(session, report)
        session.lock.release()


def open_writer(session: Session) -> AbstractContextManager[RunWriter | None]:
    """The writer of metrics and lineage, in the first process; None in the others."""
    config = session.trainer.parts.config
    hypers = fetch(session.state.cohort.hypers)._asdict() if config.selection_every else {}
    evolved = {name: hypers[name] for name in config.priors} if config.selection_every else {}
    settings = to_settings(config) | session.watch.milestones.given()
    if rank() > 0:
        return nullcontext()
    return RunWriter(session.folder, session.resumed_step, evolved, settings)


def can_save(report: Report) -> bool:
    """Whether any learner's loss is finite and the state exists: an update in place deletes it."""
    deleted = any(x.is_deleted() for x in jax.tree.leaves(report.state))
    return not deleted and bool(np.any(has_finite_loss(report)))


def finish_session(session: Session, report: Report) -> Finished:
    """Write summary.json."""
    config = session.trainer.parts.config
    reached = session.watch.reached
    interrupted = report.iteration < config.num_iterations and not reached
    scores = report.metrics["return_mean"]
    best = best_learner(scores)
    summary = {
        "env": config.env,
        "algo": to_settings(config)["algo"],
        "learners": config.learners,
        "steps": report.step,
        "seconds": report.seconds,
        **speeds(report),
        "return_mean": scores,
        "best_return": scores[best],
        "best_learner": best,
        "backend": session.trainer.parts.recipe.spec.backend,
        "interrupted": interrupted,
        **session.watch.summary(),
    }
    if session.profile:
        summary["seconds_per_iteration"] = session.profile.table()
    if rank() == 0:
        write_summary(session.folder, summary)
    goal = session.watch.goal if reached else None
    return Finished(session.folder, report.step, summary, interrupted, goal)


def save_report(session: Session, report: Report) -> None:
    """Write a checkpoint of everything the run needs to resume."""
    meta = {
        "iteration": report.iteration,
        "clock": report.clock._asdict(),
        **session.watch.meta(report),
    }
    saving.save(session.trainer, report.state, session.folder, report.step, meta)
