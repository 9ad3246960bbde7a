"""The reports that are added to metrics.csv while a run trains, and their numbers for a tracker."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np

Columns: TypeAlias = Mapping[str, np.ndarray]
"""The numbers of one report by name, (L,) each; NaN where a learner has none."""

NOT_METRICS = ("step", "learner")
OF_THE_RUN = ("seconds", "steps_per_second", "steps_per_second_compiled")
"""Columns that are the same for all learners."""


class NewReports:
    """Reads the reports of so many learners that were added to a metrics.csv since the last call."""

    def __init__(self, path: Path, num_learners: int):
        self.path, self.num_learners = path, num_learners
        self.file, self.offset, self.names = (0, 0), 0, []

    def read(self) -> list[tuple[int, Columns]]:
        """Whole reports with their steps; from the first one again once a new column has changed the file."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            stat = self.path.stat()
            if (stat.st_dev, stat.st_ino) != self.file:
                self.file, self.offset, self.names = (stat.st_dev, stat.st_ino), 0, []
            file.seek(self.offset)
            lines = file.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()  # half written
        if lines and not self.names:
            self.names = next(csv.reader([lines[0].decode()]))
            self.offset = len(lines.pop(0))
        reports = []
        for start in range(0, len(lines) - self.num_learners + 1, self.num_learners):
            report = lines[start : start + self.num_learners]
            reports.append(self._columns(report))
            self.offset += sum(map(len, report))
        return reports

    def _columns(self, lines: list[bytes]) -> tuple[int, Columns]:
        cells = zip(*csv.reader(line.decode() for line in lines), strict=True)
        columns = {
            name: np.array([cell or "nan" for cell in column], float)
            for name, column in zip(self.names, cells, strict=True)
        }
        return int(columns["step"][0]), {k: x for k, x in columns.items() if k not in NOT_METRICS}


def of_cohort(columns: Columns) -> dict[str, float]:
    """The mean over the learners, and as a band around it the lowest and the highest.

    >>> of_cohort({"return_mean": np.array([1.0, 3.0, np.nan]), "seconds": np.array([9.0, 9.0, 9.0])})
    {'return_mean': 2.0, 'return_mean_low': 1.0, 'return_mean_high': 3.0, 'seconds': 9.0}
    """
    numbers = {}
    for name, column in columns.items():
        known = column[np.isfinite(column)]
        if not known.size:
            continue
        numbers[name] = float(known.mean())
        if column.size > 1 and name not in OF_THE_RUN:
            numbers |= {f"{name}_low": float(known.min()), f"{name}_high": float(known.max())}
    return numbers


def of_learner(columns: Columns, learner: int) -> dict[str, float]:
    """The numbers of one learner."""
    numbers = {name: float(column[learner]) for name, column in columns.items()}
    return {name: x for name, x in numbers.items() if np.isfinite(x)}
