"""Writes the files of a run while it trains: metrics, the lineage of a population, checkpoints."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.runs.background import LAST_SECONDS, Background, Save
from shoal.runs.files import FolderLock
from shoal.runs.lineage import begin_lineage, extend_lineage
from shoal.runs.metrics import MetricsWriter
from shoal.training.loop import Report

Write = Callable[[], None]


class Entry(NamedTuple):
    """What of a report is written, without its state."""

    step: int
    seconds: float
    due: bool
    selected: bool
    metrics: Mapping[str, np.ndarray | float]


class NoWriter:
    """The writer of a process that writes nothing: of several the first one does; a context manager."""

    busy = False

    def __enter__(self) -> "NoWriter":
        return self

    def __exit__(self, *exception) -> None:
        return None

    def check(self) -> None:
        """Tell what went wrong since the last call: a warning, or an error."""

    def write(self, report: Report) -> None:
        """Have a report written."""

    def save(self, step: int, write: Write, size: int, kept: bool = False) -> None:
        """Have a checkpoint of so many bytes written; one that is `kept` no newer one replaces."""

    def finish(self, seconds: float = LAST_SECONDS) -> None:
        """Wait until all is written, or nothing could be for so many seconds."""


class RunWriter(NoWriter):
    """Writes metrics, lineage and checkpoints in a thread, each report before the checkpoints after it.

    `evolved` are the first hyperparameters of a population, (L,) each; empty without selection. `settings`
    are shown in TensorBoard. Nothing is written where the folder is another one than that which was locked.
    """

    def __init__(
        self,
        folder: Path,
        resumed_step: int | None,
        evolved: Mapping[str, np.ndarray],
        settings: Mapping[str, Any],
        lock: FolderLock,
    ):
        self.folder, self.evolved, self.lock = folder, tuple(evolved), lock
        self._extended = -1  # the step of the last selection in lineage.csv
        self.metrics = MetricsWriter(folder, resumed_step, settings)
        if evolved:
            begin_lineage(folder, dict(evolved), resumed_step)
        self._background = Background(self._write_entries, self.metrics.write_events)

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._background.busy

    def __exit__(self, *exception) -> None:
        self._background.close()
        self.metrics.close()

    def check(self) -> None:
        """Tell what went wrong since the last call: a warning, or an error."""
        self._background.check()

    def write(self, report: Report) -> None:
        """Have a report written."""
        if report.selected or report.due:
            metrics = (speeds(report) if report.due else {}) | report.metrics
            entry = Entry(report.step, report.seconds, report.due, report.selected, metrics)
            self._background.add(entry, sum(np.asarray(x).nbytes for x in metrics.values()))

    def save(self, step: int, write: Write, size: int, kept: bool = False) -> None:
        """Have a checkpoint of so many bytes written; one that is `kept` no newer one replaces."""

        def write_here() -> None:
            self.lock.check_place(self.folder)
            write()

        self._background.save(Save(step, write_here, size, kept))

    def finish(self, seconds: float = LAST_SECONDS) -> None:
        """Wait until all is written, or nothing could be for so many seconds."""
        self._background.finish(seconds)

    def _write_entries(self, reports: Sequence[Entry]) -> None:
        self.lock.check_place(self.folder)
        for entry in reports:
            if entry.selected and entry.step > self._extended:  # else it was written before the disk failed
                values = {name: np.asarray(entry.metrics[f"hypers/{name}"]) for name in self.evolved}
                parent, score = (np.asarray(entry.metrics[f"population/{x}"]) for x in ("parent", "score"))
                extend_lineage(self.folder, entry.step, parent, score, values)
                self._extended = entry.step
        self.metrics.write_all((entry.step, entry.seconds, entry.metrics) for entry in reports if entry.due)


def speeds(report: Report) -> dict[str, float]:
    """Steps per second of all learners together, with and without compiling."""
    return {
        "steps_per_second": report.steps_per_second,
        "steps_per_second_compiled": report.steps_per_second_compiled,
    }
