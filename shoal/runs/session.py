"""Training in a run's folder: begun or resumed, saved on the way, finished or stopped."""

import shutil
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from shoal.distributed.mesh import num_processes
from shoal.distributed.processes import (
    OtherProcessFailed,
    connect,
    fetch,
    first_rank_where,
    rank,
    run_on_first,
)
from shoal.envs.adapters.host import EnvironmentCrashed
from shoal.errors import ShoalError
from shoal.runs import checkpoint, saving
from shoal.runs.cache import cache_compilations
from shoal.runs.cadence import Cadence
from shoal.runs.config import differences, load_config, read_settings, to_settings, write_config
from shoal.runs.describing import describe_run
from shoal.runs.divergence import DivergenceCheck, all_lost
from shoal.runs.files import FolderLock, make_folder
from shoal.runs.filming import Films
from shoal.runs.metrics import read_summary, write_summary
from shoal.runs.milestones import Milestones, keep_milestones
from shoal.runs.naming import find_folder
from shoal.runs.numpy_policy import DESCRIPTION
from shoal.runs.own import NO_PARTS, OwnParts
from shoal.runs.signals import stop_signals
from shoal.runs.tracking.trackers import Trackers, read_trackers, record_now
from shoal.runs.trust import SIGNATURE, other_exchange, sign
from shoal.runs.watch import Watch, is_over
from shoal.runs.writer import RunWriter, speeds
from shoal.training.config import TrainConfig
from shoal.training.iteration import TrainState
from shoal.training.loop import Clock, Report, is_lost, progress_reports
from shoal.training.parts import mesh_for
from shoal.training.profile import Profile
from shoal.training.program import Trainer, make_trainer
from shoal.training.scores import best_learner
from shoal.training.waiting import GivenUp, Waiting

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
    waiting: Waiting
    profile: Profile | None = None
    track: tuple[str, ...] = ()


class Finished(NamedTuple):
    """A run that reached its last step or its goal, or was interrupted before."""

    folder: Path
    step: int  # 0 where nothing is saved
    summary: dict  # {} where none was written
    interrupted: bool = False
    reached: dict | None = None  # the goal it stopped at: return and step
    given_up: str | None = None  # the activity that was under way and goes on until the process ends


def open_session(
    config: TrainConfig,
    folder: Path | str | None = None,
    clobber: bool = False,
    *,
    mesh: str | None = None,
    profile: bool = False,
    milestones: Milestones = NO_MILESTONES,
    own: OwnParts = NO_PARTS,
    track: str | Sequence[str] | None = None,
    trainer: Trainer | None = None,
) -> Session | Finished:
    """Begin a run in its folder, or resume it from its newest checkpoint; `Finished` if nothing is left.

    Of several processes the first one reads and writes the folder. `trainer` is one of the same program,
    where there is one (`for_learners`).
    """
    cache_compilations()
    config.check()
    trackers = read_trackers(track)
    recipe = own.recipe(config)
    devices = mesh_for(config, recipe.spec, mesh)
    connect()
    folder = Path(folder or run_on_first(lambda: str(find_folder(config))))
    found = run_on_first(lambda: None if clobber else find_checkpoint(folder, config))
    refuse_islands(folder, found)
    complete = found is not None and found["iteration"] >= config.num_iterations
    if found and (complete or is_over(milestones, config, found)):
        goal = None if complete else found["watch"]["goal"]
        run_on_first(lambda: record_now(folder, trackers))
        run_on_first(lambda: sign(folder, config))
        return Finished(folder, config.steps_after(found["iteration"]), read_summary(folder), reached=goal)
    if found and config.anneal_to is None:
        config = keep_annealing(config, found["anneal_to"])
    start = found["iteration"] if found else 0
    trainer = trainer or make_trainer(config, recipe=recipe, mesh=devices, start=start, **own.trained)
    lock = FolderLock()
    run_on_first(lambda: prepare_folder(folder, lock, config, clobber, config.steps_after(start)))
    milestones = Milestones(**run_on_first(lambda: keep_milestones(folder, milestones)))
    state, timed = trainer.init(), Profile() if profile else None
    run_on_first(lambda: describe_run(folder, trainer.parts, state.cohort, own))
    if not found:
        watch = Watch(milestones, config)
        return Session(folder, trainer, state, None, Clock(), lock, watch, Waiting(), timed, trackers)
    state, meta = saving.restore(trainer, state, folder)
    step, clock = config.steps_after(meta["iteration"]), Clock(**meta["clock"])
    watch = Watch(milestones, config, meta)
    return Session(folder, trainer, state, step, clock, lock, watch, Waiting(), timed, trackers)


def find_checkpoint(folder: Path, config: TrainConfig) -> dict | None:
    """The record of the newest checkpoint there and the step its run is annealed to; None without one.

    An error if the run there has other settings.
    """
    saved = folder / "config.yaml"
    other = other_exchange(read_settings(saved), config) if saved.exists() else None
    old = load_config(saved) if saved.exists() and not other else config
    if changes := [f"its exchange is {other}"] if other else differences(old, config):
        raise ShoalError(
            f"{folder} holds a run with other settings ({'; '.join(changes)}); "
            "use --out for another folder, or --clobber to start over"
        )
    meta = checkpoint.newest_meta(folder / "checkpoints", resumes=True)
    return meta and meta | {"anneal_to": old.anneal_to or old.steps}


def refuse_islands(folder: Path, found: dict | None) -> None:
    """Raise where the run in a folder is on islands, which keep what one program would go on from."""
    if found and "islands" in found:
        raise ShoalError(f"{folder} holds a run on islands; add --islands, or --clobber to start over")


def keep_annealing(config: TrainConfig, anneal_to: int) -> TrainConfig:
    """The settings of a run that goes on, annealed as it began; says so where that ends before the run."""
    kept = replace(config, anneal_to=anneal_to)
    if kept.num_annealed == config.num_annealed:
        return config
    if kept.num_annealed < kept.num_iterations and config.algo.anneals and rank() == 0:
        several = len(config.algo.anneals) > 1
        are, keep = ("are", "keep their end values") if several else ("is", "keeps its end value")
        warnings.warn(
            f"{' and '.join(config.algo.anneals)} {are} annealed to step {anneal_to:,} and then {keep}; "
            "--anneal-to N changes that",
            RuntimeWarning,
        )
    return kept


def prepare_folder(folder: Path, lock: FolderLock, config: TrainConfig, clobber: bool, step: int) -> None:
    """Make the folder, lock it, clear it if asked or of what is after the step, and write the settings."""
    lock.take(make_folder(folder))
    if clobber:
        clear_folder(folder)
    checkpoint.forget_after(folder / "checkpoints", step)
    write_config(folder / "config.yaml", config)
    sign(folder, config)


def clear_folder(folder: Path) -> None:
    """Remove the files of a run from its folder, and no others."""
    for name in ("checkpoints", "plots", "videos", "export", "tracking", "islands"):
        shutil.rmtree(folder / name, ignore_errors=True)
    files = (
        "config.yaml",
        "metrics.csv",
        "summary.json",
        "lineage.csv",
        "milestones.json",
        "note.txt",
        "islands.csv",
    )
    for name in (*files, SIGNATURE, DESCRIPTION, "events.out.*"):
        for path in folder.glob(name):
            path.unlink()


def train_session(session: Session, show: Callable[[Report], None], until: int | None = None) -> Finished:
    """Train to the end or the goal, or until Ctrl-C or SIGTERM; `show` is called with every report.

    With `until` to the first report that is due at that step or later.
    """
    report, track = None, session.track if rank() == 0 else ()
    with (
        stop_signals(session.waiting),
        Films(session.folder) as films,
        Trackers(session.folder, track) as trackers,
    ):
        reports = run_session(session)
        try:
            for report in reports:
                show(report)
                trackers.check()
                films.check(report.step if rank() == 0 and session.watch.films(report) else None)
                if first_rank_where(session.waiting.stopping) is not None:
                    break
                if until is not None and report.due and report.step >= until:
                    break
            reports.close()
        except GivenUp as given_up:
            return give_up(session, report, str(given_up))
        assert report is not None, "a session has at least one iteration left"
        finished = finish_session(session, report)
        if not finished.interrupted:
            session.waiting.begin("filming")
            films.finish(lambda: session.waiting.stopping)
        return finished


def give_up(session: Session, report: Report | None, activity: str) -> Finished:
    """Finish a run whose call under way took too long to wait for its end."""
    meta = checkpoint.newest_meta(session.folder / "checkpoints", resumes=True) if rank() == 0 else None
    saved = session.trainer.parts.config.steps_after(meta["iteration"]) if meta else 0
    summary = finish_session(session, report).summary if report else {}
    return Finished(session.folder, saved, summary, interrupted=True, given_up=activity)


def describe_stop(finished: Finished) -> str:
    """Where a run stopped, and what is saved of it.

    >>> describe_stop(Finished(Path("runs/a"), 1024, {}, interrupted=True, given_up="training"))
    'stopped inside an iteration; runs/a is saved at step 1,024'
    """
    where = "the first iteration" if not finished.step else "an iteration"
    inside = {None: "stopped", "training": f"stopped inside {where}"}
    how = inside.get(finished.given_up, f"stopped while {finished.given_up}")
    if not finished.step:
        return f"{how}; nothing is saved yet"
    return f"{how}; {finished.folder} is saved at step {finished.step:,}"


def run_session(session: Session) -> Generator[Report, None, None]:
    """Train to the end or the goal, writing metrics and checkpoints; yields every report.

    The last state is saved at the end, when closed early, and after an error.
    """
    report, watch, interludes = None, session.watch, session.watch.interludes(session.trainer)
    in_step, divergence = True, DivergenceCheck()  # in_step: all processes are at the same report
    cadence = Cadence(watch, session.resumed_step)
    try:
        with open_writer(session) as writer:
            reports = progress_reports(
                session.trainer, session.state, session.profile, interludes, session.waiting
            )
            for report in reports:
                report = report.after(session.clock)
                divergence.check(report)
                watch.see(report)
                if writer:
                    writer.write(report)
                if cadence.is_due(report):
                    replay = cadence.takes_replay(report)
                    save_report(session, report, replay)
                    cadence.note(report, replay)
                yield report  # a stop requested while it was saved comes before the next iteration
                if watch.reached:
                    break
    except (Exception, KeyboardInterrupt) as error:
        in_step = num_processes() == 1 or isinstance(error, EnvironmentCrashed | OtherProcessFailed)
        raise
    finally:
        if in_step and report is not None and report.step != cadence.complete_step and can_save(report):
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
    """Whether the state exists, which an update in place deletes, and it is worth going on from."""
    deleted = any(x.is_deleted() for x in jax.tree.leaves(report.state))
    stopped = report.trainer.parts.config.on_nan == "stop" and report.lost.any()
    return not (deleted or stopped or all_lost(report))


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
        "lost_learners": np.flatnonzero(is_lost(config, report.metrics)).tolist(),
        "backend": session.trainer.parts.recipe.spec.backend,
        "interrupted": interrupted,
        **session.watch.summary(),
    }
    if session.profile:
        summary["seconds_per_iteration"] = session.profile.table()
    if rank() == 0:
        write_summary(session.folder, summary, flush=not interrupted)
    goal = session.watch.goal if reached else None
    return Finished(session.folder, report.step, summary, interrupted, goal)


def save_report(session: Session, report: Report, replay: bool = True) -> None:
    """Write a checkpoint of everything the run needs to resume; without `replay` of all but that.

    A run that stops should end soon: it removes no old ones, which waits for the disk.
    """
    session.waiting.begin("saving")
    save_into(session.folder, report, session.watch, replay, keep_old=session.waiting.stopping)


def save_into(
    folder: Path, report: Report, watch: Watch, replay: bool = True, keep_old: bool = False
) -> None:
    """The same, of a report in any folder."""
    meta = {
        "iteration": report.iteration,
        "clock": report.clock._asdict(),
        **watch.meta(report),
    }
    saving.save(report.trainer, report.state, folder, report.step, meta, replay, keep_old)
