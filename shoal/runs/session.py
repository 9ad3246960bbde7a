"""Training in a run's folder: begun or resumed, saved on the way, finished or stopped."""

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax

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
from shoal.runs.background import LAST_SECONDS
from shoal.runs.cache import cache_compilations
from shoal.runs.cadence import Cadence
from shoal.runs.config import to_settings, write_config
from shoal.runs.describing import describe_run
from shoal.runs.divergence import DivergenceCheck, all_lost
from shoal.runs.ending import summary_at_end, summary_of
from shoal.runs.files import FolderGone, FolderLock
from shoal.runs.filming import Films
from shoal.runs.folder import clear_folder as clear_folder
from shoal.runs.folder import (
    find_checkpoint,
    iteration_of,
    keep_annealing,
    prepare_folder,
    refuse_islands,
)
from shoal.runs.milestones import Milestones, keep_milestones
from shoal.runs.naming import find_folder
from shoal.runs.own import NO_PARTS, OwnParts
from shoal.runs.signals import stop_signals
from shoal.runs.summary import write_summary
from shoal.runs.tracking.trackers import Trackers, read_trackers, record_now
from shoal.runs.trust import sign
from shoal.runs.watch import Watch, is_over
from shoal.runs.writer import NoWriter, RunWriter
from shoal.training.config import TrainConfig
from shoal.training.iteration import TrainState
from shoal.training.loop import Clock, Report, progress_reports
from shoal.training.parts import mesh_for
from shoal.training.profile import Profile
from shoal.training.program import Trainer, make_trainer
from shoal.training.waiting import GivenUp, Waiting

NO_MILESTONES = Milestones()
FLUSHED_BYTES = 64 << 20
"""A checkpoint of at most so many bytes is on the disk before the next one is written."""


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
        summary = run_on_first(lambda: summary_at_end(folder, config, found, recipe.spec.backend))
        run_on_first(lambda: record_now(folder, trackers))
        run_on_first(lambda: sign(folder, config))
        return Finished(folder, config.steps_after(found["iteration"]), summary, reached=goal)
    if found and config.anneal_to is None:
        config = keep_annealing(config, found["anneal_to"])
    start = iteration_of(found)
    trainer = trainer or make_trainer(config, recipe=recipe, mesh=devices, start=start, **own.trained)
    lock = FolderLock()
    run_on_first(lambda: prepare_folder(folder, lock, config, clobber, found))
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

    They are written while training goes on. The last state is saved at the end, when closed early, and after
    an error.
    """
    try:
        with open_writer(session) as writer:
            yield from written_reports(session, writer)
    finally:
        session.lock.release()


def written_reports(session: Session, writer: NoWriter) -> Generator[Report, None, None]:
    """The reports of a session, which `writer` writes, with the checkpoints that are due and the last one."""
    report, watch, interludes = None, session.watch, session.watch.interludes(session.trainer)
    in_step, divergence = True, DivergenceCheck()  # in_step: all processes are at the same report
    cadence, patience = Cadence(watch, session.resumed_step), LAST_SECONDS
    reports = progress_reports(session.trainer, session.state, session.profile, interludes, session.waiting)
    try:
        for report in reports:
            report = report.after(session.clock)
            divergence.check(report)
            watch.see(report)
            writer.check()
            writer.write(report)
            if cadence.is_due(report, writer.busy):
                replay = cadence.takes_replay(report)
                save_report(session, report, writer, replay, kept=cadence.must_save(report))
                cadence.note(report, replay)
            yield report  # a stop requested while it was saved comes before the next iteration
            if watch.reached:
                break
    except (Exception, KeyboardInterrupt) as error:
        in_step = num_processes() == 1 or isinstance(error, EnvironmentCrashed | OtherProcessFailed)
        patience = 0.0
        raise
    finally:
        unsaved = report is not None and report.step != cadence.complete_step
        if in_step and unsaved and can_save(report):
            save_report(session, report, writer, last=True)
        session.waiting.begin("saving")
        writer.finish(0.0 if session.waiting.stopping else patience)


def open_writer(session: Session) -> NoWriter:
    """The writer of metrics, lineage and checkpoints; only the first process writes."""
    config = session.trainer.parts.config
    hypers = fetch(session.state.cohort.hypers)._asdict() if config.selection_every else {}
    evolved = {name: hypers[name] for name in config.priors} if config.selection_every else {}
    settings = to_settings(config) | session.watch.milestones.given()
    if rank() > 0:
        return NoWriter()
    return RunWriter(session.folder, session.resumed_step, evolved, settings, session.lock)


def can_save(report: Report) -> bool:
    """Whether the state exists, which an update in place deletes, and it is worth going on from."""
    deleted = any(x.is_deleted() for x in jax.tree.leaves(report.state))
    stopped = report.trainer.parts.config.on_nan == "stop" and report.lost.any()
    return not (deleted or stopped or all_lost(report))


def finish_session(session: Session, report: Report) -> Finished:
    """Write summary.json."""
    config, reached = session.trainer.parts.config, session.watch.reached
    interrupted = report.iteration < config.num_iterations and not reached
    summary = summary_of(report, session.watch, interrupted)
    if session.profile:
        summary["seconds_per_iteration"] = session.profile.table()
    if rank() == 0:
        write_summary(session.folder, summary, flush=not interrupted)
    goal = session.watch.goal if reached else None
    return Finished(session.folder, report.step, summary, interrupted, goal)


def save_report(
    session: Session,
    report: Report,
    writer: NoWriter,
    replay: bool = True,
    *,
    kept: bool = True,
    last: bool = False,
) -> None:
    """Have a checkpoint written of everything the run needs to resume; without `replay` of all but that.

    While it waits to be written, no newer one takes its place if it is `kept`. A run that stops should end
    soon: it removes no old ones, and does not wait for the disk.
    """
    session.waiting.begin("saving")
    if not session.lock.is_in_place(session.folder):
        raise rescue(session, report)
    arrays = saving.arrays_to_save(report.trainer, report.state, replay, training_goes_on=not last)
    meta, step, size = meta_of(report, session.watch), report.step, sum(x.nbytes for x in arrays.values())

    def write() -> None:
        saved, stopping = session.folder / "checkpoints", session.waiting.stopping
        flush = size <= FLUSHED_BYTES and not stopping
        checkpoint.write(saved, step, arrays, meta, replay, flush=flush)
        if not session.waiting.stopping:
            checkpoint.prune(saved)

    writer.save(step, write, size, kept)


def rescue(session: Session, report: Report) -> ShoalError:
    """Save the state of a run whose folder is gone beside it; the error that says so."""
    folder, number = session.folder, 1
    while (place := folder.with_name(f"{folder.name}__rescued{number}")).exists():
        number += 1
    config = report.trainer.parts.config
    write_config(place / "config.yaml", config)
    sign(place, config)
    save_into(place, report, session.watch)
    return FolderGone(
        f"{folder} was removed, renamed or replaced while its run trained; its state at step "
        f"{report.step:,} is saved: shoal train --config {place / 'config.yaml'} --out {place} goes on"
    )


def save_into(folder: Path, report: Report, watch: Watch) -> None:
    """Write a checkpoint of a report in any folder."""
    arrays = saving.arrays_to_save(report.trainer, report.state)
    if rank() == 0:
        checkpoint.write(folder / "checkpoints", report.step, arrays, meta_of(report, watch))
        checkpoint.prune(folder / "checkpoints")


def meta_of(report: Report, watch: Watch) -> dict:
    """What a checkpoint records beside its arrays."""
    return {"iteration": report.iteration, "clock": report.clock._asdict(), **watch.meta(report)}
