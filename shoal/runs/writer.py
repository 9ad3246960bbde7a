"""Writes the files of a run while it trains: metrics, and the lineage of a population."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal.runs.lineage import begin_lineage, extend_lineage
from shoal.runs.metrics import MetricsWriter
from shoal.training.loop import Report


class RunWriter:
    """Writes metrics and lineage; a context manager.

    `evolved` are the first hyperparameters of a population, (L,) each; empty without selection. `settings`
    are shown in TensorBoard.
    """

    def __init__(
        self,
        folder: Path,
        resumed_step: int | None,
        evolved: Mapping[str, np.ndarray],
        settings: Mapping[str, Any],
    ):
        self.folder, self.evolved = folder, tuple(evolved)
        self.metrics = MetricsWriter(folder, resumed_step, settings)
        if evolved:
            begin_lineage(folder, dict(evolved), resumed_step)

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, *exception) -> None:
        self.metrics.close()

    def write(self, report: Report) -> None:
        """Write a report."""
        if report.selected:
            values = {name: report.metrics[f"hypers/{name}"] for name in self.evolved}
            parent, score = report.metrics["population/parent"], report.metrics["population/score"]
            extend_lineage(self.folder, report.step, parent, score, values)
        if report.due:
            self.metrics.write(report.step, report.seconds, speeds(report) | report.metrics)


def speeds(report: Report) -> dict[str, float]:
    """Steps per second of all learners together, with and without compiling."""
    return {
        "steps_per_second": report.steps_per_second,
        "steps_per_second_compiled": report.steps_per_second_compiled,
    }
