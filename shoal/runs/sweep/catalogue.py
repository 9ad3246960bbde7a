"""Sweeps in a list of runs: one line for all programs of a sweep."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from shoal.errors import ShoalError
from shoal.runs.catalogue import RunRow, State
from shoal.runs.config import read_settings
from shoal.runs.files import is_locked
from shoal.runs.sweep.plan import counted


def fold_sweeps(rows: Iterable[RunRow], folders: Sequence[Path]) -> list[RunRow]:
    """The rows with one for each sweep instead of those of its programs, the newest first.

    A sweep that is itself among `folders`, where runs are looked for, stays a list of programs.
    """
    alone, programs = [], {}
    asked = {folder.resolve() for folder in folders}
    for row in rows:
        folder = row.folder.parent.parent
        is_program = row.folder.parent.name == "programs" and (folder / "sweep.yaml").is_file()
        if is_program and not asked & {folder.resolve(), *row.folder.resolve().parents[:1]}:
            programs.setdefault(folder, []).append(row)
        else:
            alone.append(row)
    sweeps = [describe_sweep(folder, own) for folder, own in programs.items()]
    return sorted([*alone, *sweeps], key=lambda row: row.changed, reverse=True)


def describe_sweep(folder: Path, programs: Sequence[RunRow]) -> RunRow:
    """A sweep, from its settings, its trials and the rows of its programs."""
    row = RunRow(folder, "damaged", max(one.changed for one in programs), programs=len(programs))
    if damaged := [one for one in programs if one.state == "damaged"]:
        return row._replace(error=f"{damaged[0].folder.name}: {damaged[0].error}")
    try:
        asked, means = read_settings(folder / "sweep.yaml"), read_means(folder)
        tried = f"{counted(asked['trials'], 'setting')} x {counted(asked['seeds'], 'seed')}"
    except (ShoalError, KeyError, ValueError) as error:
        return row._replace(error=" ".join(str(error).split()))
    return row._replace(
        state=sweep_state(folder, programs),
        env=programs[0].env,
        algo=programs[0].algo,
        step=max(one.step for one in programs),
        steps=max(one.steps for one in programs),
        return_mean=float(means.mean()) if means.size else None,
        best_return=float(means.max()) if means.size else None,
        settings={asked["method"]: tried, "varied": tuple(asked["axes"])},
    )


def sweep_state(folder: Path, programs: Sequence[RunRow]) -> State:
    """How a sweep stands: best.yaml is written at its end."""
    if is_locked(folder):
        return "running"
    if (folder / "best.yaml").is_file():
        return "done"
    return "lost" if any(one.state == "lost" for one in programs) else "stopped"


def read_means(folder: Path) -> np.ndarray:
    """The mean returns of a sweep's trials, without those that are not known."""
    path = folder / "trials.csv"
    if not path.is_file():
        return np.array([])
    with path.open(newline="", encoding="utf-8") as file:
        return np.array([float(line["mean"]) for line in csv.DictReader(file) if line["mean"]])
