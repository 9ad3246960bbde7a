"""Runs a sweep: one program after the other, each a run in a folder of its own that resumes."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shoal.runs import checkpoint, saving
from shoal.runs.divergence import Diverged
from shoal.runs.metrics import read_metrics
from shoal.runs.session import Finished, Session, open_session
from shoal.runs.sweep.halving import num_kept, promote
from shoal.runs.sweep.plan import Group, Plan, Trial, together
from shoal.runs.sweep.table import Place, Row, write_trials
from shoal.training.config import TrainConfig
from shoal.training.program import Trainer, for_learners

Train = Callable[[Session, int], Finished]
"""Trains a session to a step, and shows how far it is."""


class Job(NamedTuple):
    """Trials that train together, to a step."""

    group: Group
    trials: list[Trial]
    until: int


class Interrupted(Exception):
    """A stop signal came; the same sweep goes on where it stopped."""


def run_plan(plan: Plan, folder: Path, train: Train, mesh: str | None = None) -> dict[int, Row]:
    """Train all trials of a plan; the results by the trials' numbers. What is already trained is read."""
    rows: dict[int, Row] = {}
    jobs = {"grid": in_turn, "random": in_turn, "tpe": asked}[plan.method]
    jobs = halved if plan.halving else jobs
    trainers: dict[str, Trainer] = {}
    for number, job in enumerate(jobs(plan, rows, folder)):
        place = folder / "programs" / f"{number:03d}"
        size = plan.size(job.group)
        padded = [*job.trials, *[job.trials[-1]] * (size - len(job.trials))]  # one shape, so one program
        config = together(job.group, padded, plan.seeds)
        if checkpoint.resume_step(place / "checkpoints") < job.until:
            session = open_job(config, place, [rows[trial.number] for trial in padded], trainers, mesh)
            train_job(session, job.until, train)
        scores, finite = (x.reshape(size, -1) for x in read_scores(place, job.until, config.learners))
        for index, trial in enumerate(job.trials):
            row = rows[trial.number]._replace(scores=scores[index], steps=job.until)
            rows[trial.number] = reached(
                row, job, bool(finite[index].all()), Place(place, index * plan.seeds)
            )
        write_trials(folder, rows.values())
    return rows


def open_job(
    config: TrainConfig, folder: Path, rows: list[Row], trainers: dict[str, Trainer], mesh: str | None
) -> Session:
    """A program that goes on from its newest checkpoint, from those of its trials, or begins.

    `trainers` are those made so far: runs that differ in data alone share one, which compiles nothing again,
    where environments are part of the program; others are built, and begin, once.
    """
    kind = repr(replace(config, learner_hypers=None))
    known = for_learners(trainers[kind], config) if kind in trainers else None
    opened = open_session(config, folder, mesh=mesh, trainer=known)
    assert isinstance(opened, Session), "its last step has not been trained"
    if opened.trainer.parts.recipe.spec.exact_resume:  # its environments are arrays in the program
        trainers[kind] = opened.trainer
    if opened.resumed_step is not None or not rows[0].places:
        return opened
    seeds = config.learners // len(rows)
    before = [(row.places[-1].folder, row.places[-1].learner + i) for row in rows for i in range(seeds)]
    return opened._replace(state=saving.restore_rows(opened.trainer, opened.state, before))


def train_job(session: Session, until: int, train: Train) -> None:
    """Train a program to a step; one whose learners have all diverged ends where they did."""
    try:
        finished = train(session, until)
    except Diverged:
        return
    if finished.step < until:
        raise Interrupted


def read_scores(folder: Path, until: int, learners: int) -> tuple[np.ndarray, np.ndarray]:
    """The mean returns of a program's learners at a step, and which losses are finite, (L,) each.

    A return is NaN before an episode has ended, and that of a learner that diverged.
    """
    table = read_metrics(folder)
    there = table["step"] == until
    if not there.any():  # all of them diverged before
        return np.full(learners, np.nan), np.zeros(learners, bool)
    finite = np.isfinite(table["loss/total"][there])
    return np.where(finite, table["return_mean"][there], np.nan), finite


def reached(row: Row, job: Job, finite: bool, place: Place) -> Row:
    """A trial's row after a job."""
    last = job.until == job.group.config.steps_after(job.group.config.num_iterations)
    state = "diverged" if not finite else "done" if last else "paused"
    return row._replace(state=state, places=(*row.places, place))


def begin(trials: list[Trial], rows: dict[int, Row]) -> None:
    """Rows for trials that have not begun."""
    rows |= {trial.number: Row(trial.number, trial.values) for trial in trials}


def in_turn(plan: Plan, rows: dict[int, Row], folder: Path) -> Iterator[Job]:
    """Every trial to the end, program after program."""
    begin(plan.trials, rows)
    for group in plan.groups:
        yield from jobs_of(group, list(group.trials), plan.size(group), group.config.steps)


def jobs_of(group: Group, trials: list[Trial], size: int, steps: int) -> Iterator[Job]:
    """A group's trials, as many at a time as its program trains, to the end of the rollout of a step."""
    until = group.config.steps_after(-(-steps // group.config.algo.rollout_size))
    for start in range(0, len(trials), size):
        yield Job(group, trials[start : start + size], until)


def halved(plan: Plan, rows: dict[int, Row], folder: Path) -> Iterator[Job]:
    """Every trial to the first rung, the best of them to the second, and so on.

    A program's rows go from those that stop to those that go on, which are then all further on by the same
    steps: it is the same program, and a trial has the same numbers as one that nothing stops. Where no score
    is known yet, because no episode has ended, all go on.
    """
    begin(plan.trials, rows)
    chosen = [list(group.trials) for group in plan.groups]
    sizes = [plan.size(group) for group in plan.groups]
    for rung in range(max(len(plan.rungs(group)) for group in plan.groups)):
        if rung:
            scores = {trial.number: rows[trial.number].mean for trials in chosen for trial in trials}
            numbers = [[trial.number for trial in group.trials] for group in plan.groups]
            keep = (
                num_kept(plan.num_trials, rung) if np.isfinite(list(scores.values())).any() else len(scores)
            )
            going_on = promote(scores, keep, numbers, sizes)
            stop(rows, set(scores) - {number for group in going_on for number in group})
            by_number = {trial.number: trial for trial in plan.trials}
            chosen = [[by_number[number] for number in group] for group in going_on]
        for group, trials, size in zip(plan.groups, chosen, sizes, strict=True):
            if rung < len(rungs := plan.rungs(group)):
                yield from jobs_of(group, trials, size, rungs[rung])


def stop(rows: dict[int, Row], numbers: set[int]) -> None:
    """These trials do not go on."""
    for number in numbers:
        if rows[number].state == "paused":
            rows[number] = rows[number]._replace(state="stopped")


def asked(plan: Plan, rows: dict[int, Row], folder: Path) -> Iterator[Job]:
    """The trials that Optuna asks for, as many at a time as a program trains."""
    from shoal.runs.sweep.tpe import Study

    study = Study(plan, folder)
    while len(rows) < plan.num_trials:
        trials = study.ask(len(rows))
        begin(trials, rows)
        yield from jobs_of(plan.only_group, trials, len(trials), plan.base.steps)
        study.tell([rows[trial.number] for trial in trials])
