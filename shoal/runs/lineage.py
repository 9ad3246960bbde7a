"""lineage.csv: which learner was copied from which, when, with which score, and its hyperparameters.

An entry per learner at the run's start and at every selection: `step` (of one learner), `learner`, `parent`
(itself where it was not replaced), `score` (by which it was ranked; empty at the start), then the evolving
hyperparameters from this step on.
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
    """A run's lineage, for G events (the start, then every selection) and L learners."""

    steps: np.ndarray  # (G,)
    parent: np.ndarray  # (G, L) int
    score: np.ndarray  # (G, L)
    hypers: dict[str, np.ndarray]  # (G, L) each


def begin_lineage(folder: Path, hypers: dict[str, np.ndarray], resumed_step: int | None) -> None:
    """Write the first entries, or on resuming remove those that will be written again."""
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
    """Add one selection."""
    text = io.StringIO()
    entries = csv.writer(text, lineterminator="\n")
    for learner in range(len(parent)):
        seen = "" if np.isnan(score[learner]) else f"{score[learner]:.6g}"
        values = [f"{x[learner]:.9g}" for x in hypers.values()]
        entries.writerow([step, learner, int(parent[learner]), seen, *values])
    path = Path(folder) / "lineage.csv"
    with disk_errors("write", path), path.open("a", encoding="utf-8") as file:
        file.write(text.getvalue())


def read_lineage(folder: Path) -> Lineage:
    """The lineage in a run's folder."""
    path = Path(folder) / "lineage.csv"
    if not path.is_file():
        raise ShoalError(f"{folder} has no lineage.csv; give the folder of a population's run")
    with disk_errors("read", path):
        text = path.read_text(encoding="utf-8")
    entries = list(csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1])))  # without a half-written one
    steps, counts = np.unique([int(entry["step"]) for entry in entries], return_counts=True)
    if not len(steps):
        raise ShoalError(f"{path} is empty; start over with --clobber")
    steps = steps[counts == counts[0]]  # a run that was killed may have left half an event
    shape = (len(steps), int(counts[0]))
    entries = entries[: shape[0] * shape[1]]
    column = lambda name: np.array([float(entry[name] or "nan") for entry in entries]).reshape(shape)
    names = [name for name in entries[0] if name not in LEADING]
    parent = column("parent").astype(int)
    return Lineage(steps, parent, column("score"), {name: column(name) for name in names})


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
