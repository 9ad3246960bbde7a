"""Sweeps in a list of runs: one line for all programs of a sweep."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from shoal.errors import ShoalError
from shoal.runs.catalogue import RunRow, State
from shoal.runs.config import read_settings
from shoal.runs.files import is_locked
from shoal.runs.sweep.plan import counted
from shoal.runs.sweep.table import read_means


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
        asked, means = read_settings(folder / "sweep.yaml"), read_means(folder / "trials.csv")
        tried = f"{counted(asked['trials'], 'setting')} x {counted(asked['seeds'], 'seed')}"
    except (ShoalError, KeyError, ValueError, TypeError) as error:
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
