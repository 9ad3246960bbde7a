"""lineage.csv: which learner was copied from which, when, with which score, and its hyperparameters.

An entry per learner at the run's start and at every selection: `step` (of one learner), `learner`, `parent`
(itself where it was not replaced), `score` (by which it was ranked; empty at the start), then the evolving
hyperparameters from this step on.
"""

import os
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shoal.errors import ShoalError
from shoal.runs.files import append, disk_errors, keep_damaged, write_text
from shoal.runs.rows import LARGEST_STEP, DamagedRow, read_columns, read_header

LEADING = ("step", "learner", "parent", "score")


class Lineage(NamedTuple):
    """A run's lineage, for G events (the start, then every selection) and L learners."""

    steps: np.ndarray  # (G,)
    parent: np.ndarray  # (G, L) int
    score: np.ndarray  # (G, L)
    hypers: dict[str, np.ndarray]  # (G, L) each


def begin_lineage(folder: Path, hypers: dict[str, np.ndarray], resumed_step: int | None) -> None:
    """Write the first entries, or on resuming remove those that will be written again.

    Where the file is gone or damaged, the lineage goes on with the learners as they are now, by `hypers`.
    """
    path = Path(folder) / "lineage.csv"
    num_learners = len(next(iter(hypers.values())))
    header = ",".join((*LEADING, *hypers)) + "\n"
    kept, complete = (header, False) if resumed_step is None else _kept(path, num_learners, resumed_step)
    write_text(path, kept or header)
    if not complete:
        now = (np.arange(num_learners), np.full(num_learners, np.nan), hypers)
        extend_lineage(folder, resumed_step or 0, *now)


def _kept(path: Path, num_learners: int, last_step: int) -> tuple[str, bool]:
    """The entries up to a step, and whether they are all there; of a damaged file a copy is kept."""
    if not path.exists():
        warnings.warn(f"{path} is gone: the lineage begins anew at step {last_step:,}", RuntimeWarning)
        return "", False
    with disk_errors("read", path):
        text = path.read_bytes().decode(errors="replace")
    header, *lines = text[: text.rfind("\n") + 1].splitlines(keepends=True) or [""]
    steps = list(map(_step_of, lines))
    early = next((index for index, step in enumerate(steps) if step > last_step), len(lines))
    whole = 0  # entries of whole events
    while header.startswith(",".join(LEADING)) and whole + num_learners <= early:
        event = [line.split(",") for line in lines[whole : whole + num_learners]]
        learners = [cells[1] if len(cells) == header.count(",") + 1 else "" for cells in event]
        same = steps[whole] >= 0 and len({*steps[whole : whole + num_learners]}) == 1
        if not same or learners != list(map(str, range(num_learners))):
            break
        whole += num_learners
    kept = "".join([header, *lines[:whole]]) if whole else ""
    if whole and whole == early:
        return kept, True
    keep_damaged(path, f"{path} is damaged in line {whole + 2}")
    return kept, False


def _step_of(line: str) -> int:
    """The step an entry begins with; -1 where it begins with none."""
    step = line.split(",")[0]
    return int(step) if step.isascii() and step.isdecimal() and len(step) <= 16 else -1


def extend_lineage(
    folder: Path, step: int, parent: np.ndarray, score: np.ndarray, hypers: dict[str, np.ndarray]
) -> None:
    """Add one selection; it is on the disk afterwards."""
    columns = [
        [str(step)] * len(parent),
        map(str, range(len(parent))),
        map(str, np.asarray(parent).astype(int).tolist()),
        ("" if np.isnan(x) else f"{x:.6g}" for x in np.asarray(score, float).tolist()),
        *([f"{x:.9g}" for x in np.asarray(values).tolist()] for values in hypers.values()),
    ]
    path = Path(folder) / "lineage.csv"
    with disk_errors("write", path), path.open("ab", buffering=0) as file:
        text = "".join(",".join(cells) + "\n" for cells in zip(*columns, strict=True))
        append(file, path, text, flush=True)


def read_lineage(folder: Path) -> Lineage:
    """The lineage in a run's folder."""
    path = Path(folder) / "lineage.csv"
    if not path.exists():
        raise ShoalError(f"{folder} has no lineage.csv; give the folder of a population's run")
    with disk_errors("read", path), path.open("rb") as file:
        names, begin = read_header(file)
        if tuple(names[:4]) != LEADING or len({*names}) < len(names):
            raise ShoalError(f"{path} is damaged in line 1; repair it, or move the file away")
        columns = read_columns(file, path, names, names, begin, os.fstat(file.fileno()).st_size, 2)
    if not len(columns["step"]):
        raise ShoalError(f"{path} is empty; move the file away")
    num_learners = int(np.argmin(columns["step"] == columns["step"][0])) or len(columns["step"])
    num_events = len(columns["step"]) // num_learners  # a run that was killed may have left half an event
    table = {name: x[: num_events * num_learners].reshape(-1, num_learners) for name, x in columns.items()}
    hypers = {name: x for name, x in table.items() if name not in LEADING}
    _check_events(path, table, hypers)
    return Lineage(table["step"][:, 0].astype(int), table["parent"].astype(int), table["score"], hypers)


def _check_events(path: Path, table: dict[str, np.ndarray], hypers: dict[str, np.ndarray]) -> None:
    """Raise where a row does not belong to its event, or a parent is no learner."""
    step, learner, parent = table["step"], table["learner"], table["parent"]
    num_learners = step.shape[1]
    with np.errstate(invalid="ignore"):
        good = (step == step[:, :1]) & (learner == np.arange(num_learners))
        good &= (parent >= 0) & (parent < num_learners) & (parent % 1 == 0)
        good &= (step >= 0) & (step <= LARGEST_STEP)
        good[1:] &= step[1:] > step[:-1]
    for values in hypers.values():
        good &= np.isfinite(values)
    if not good.all():
        raise DamagedRow(path, 2 + int(np.argmin(good)))


def ancestors(lineage: Lineage, learner: int) -> np.ndarray:
    """The number of the learner's ancestor from each event on, (G,); the last one is the learner itself."""
    line = np.empty(len(lineage.steps), int)
    for event in reversed(range(len(lineage.steps))):
        line[event] = learner
        learner = int(lineage.parent[event, learner])
    return line


def hyper_plan(lineage: Lineage, learner: int) -> list[tuple[int, dict[str, float]]]:
    """The hyperparameters of a learner's ancestors: (step from which on, values)."""
    line = ancestors(lineage, learner)
    at = lambda event: {name: float(x[event, line[event]]) for name, x in lineage.hypers.items()}
    entries = [(int(step), at(event)) for event, step in enumerate(lineage.steps)]
    return [e for i, e in enumerate(entries) if i == 0 or e[1] != entries[i - 1][1]]
