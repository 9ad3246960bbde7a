"""lineage.csv: who became whom, when, with which score, and every hyperparameter's path.

A row per learner at the run's start and at every selection: `step` (of one learner), `learner`, `parent`
(itself where it stayed), `score` (what it was ranked by; empty at the start), then the hyperparameters
that evolve, as they are from this step on.
"""

import csv
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shoal.errors import ShoalError
from shoal.runs.files import disk_errors, write_text

LEADING = ("step", "learner", "parent", "score")


class Lineage(NamedTuple):
    """A run's lineage, by event and learner."""

    steps: np.ndarray  # (G,)
    parent: np.ndarray  # (G, L) int
    score: np.ndarray  # (G, L)
    hypers: dict[str, np.ndarray]  # (G, L) each


def begin_lineage(folder: Path, hypers: dict[str, np.ndarray], resumed_step: int | None) -> None:
    """Write the first rows, or on resuming drop those that will be written again."""
    path = Path(folder) / "lineage.csv"
    if resumed_step is None:
        write_text(path, ",".join((*LEADING, *hypers)) + "\n")
        num_learners = len(next(iter(hypers.values())))
        extend_lineage(folder, 0, np.arange(num_learners), np.full(num_learners, np.nan), hypers)
    else:
        if not path.is_file():
            raise ShoalError(f"{path} is gone; bring it back, or start over with --clobber")
        header, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if line.endswith("\n") and int(line.split(",")[0]) <= resumed_step]
        write_text(path, "".join([header, *kept]))


def extend_lineage(
    folder: Path, step: int, parent: np.ndarray, score: np.ndarray, hypers: dict[str, np.ndarray]
) -> None:
    """Add what one selection did."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for learner in range(len(parent)):
        seen = "" if np.isnan(score[learner]) else f"{score[learner]:.6g}"
        values = [f"{x[learner]:.9g}" for x in hypers.values()]
        rows.writerow([step, learner, int(parent[learner]), seen, *values])
    path = Path(folder) / "lineage.csv"
    with disk_errors("write", path), path.open("a", encoding="utf-8") as file:
        file.write(text.getvalue())


def read_lineage(folder: Path) -> Lineage:
    """What lineage.csv says."""
    path = Path(folder) / "lineage.csv"
    if not path.is_file():
        raise ShoalError(f"{folder} has no lineage.csv: it is not a population's run")
    with disk_errors("read", path), path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    steps, counts = np.unique([int(row["step"]) for row in rows], return_counts=True)
    if not len(steps):
        raise ShoalError(f"{path} is empty")
    steps = steps[counts == counts[0]]  # a run that was killed may have left half an event
    shape = (len(steps), int(counts[0]))
    rows = rows[: shape[0] * shape[1]]
    column = lambda name: np.array([float(row[name] or "nan") for row in rows]).reshape(shape)
    names = [name for name in rows[0] if name not in LEADING]
    parent = column("parent").astype(int)
    return Lineage(steps, parent, column("score"), {name: column(name) for name in names})


def ancestors(lineage: Lineage, learner: int) -> np.ndarray:
    """Whose place the learner's ancestor had from each event on, (G,): the last is the learner itself."""
    line = np.empty(len(lineage.steps), int)
    for event in reversed(range(len(lineage.steps))):
        line[event] = learner
        learner = int(lineage.parent[event, learner])
    return line


def schedule_of(lineage: Lineage, learner: int) -> list[tuple[int, dict[str, float]]]:
    """The hyperparameters of a learner's line of descent: from which step on, and what."""
    line = ancestors(lineage, learner)
    at = lambda event: {name: float(x[event, line[event]]) for name, x in lineage.hypers.items()}
    entries = [(int(step), at(event)) for event, step in enumerate(lineage.steps)]
    return [e for i, e in enumerate(entries) if i == 0 or e[1] != entries[i - 1][1]]
