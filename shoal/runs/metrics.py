"""The files of a run's metrics: metrics.csv, the same for TensorBoard, and summary.json.

`metrics.csv` has a record per report and learner. The columns are `step` (environment steps of one learner),
`learner` (from 0), `seconds` (since the run began), and then the metrics in alphabetical order. NaN is `nan`;
a metric that a report does not have is empty; both read back as NaN. A metric that first appears in a later
report adds its column, empty in earlier records, and rewrites the file.
"""

import csv
import io
import json
import math
import mmap
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import ShoalError
from shoal.runs.events import open_events
from shoal.runs.files import disk_errors, make_folder, read_json, write_text

LEADING = ("step", "learner", "seconds")
"""The columns every metrics.csv begins with."""
NO_SETTINGS: Mapping[str, Any] = {}


class MetricsWriter:
    """Appends reports to `metrics.csv` and to a TensorBoard event file, both in the run's folder.

    `resume_step` is the step of the checkpoint the run continues from: later records are removed,
    because the run writes them again. None starts over: an earlier metrics.csv and its events are removed,
    and TensorBoard is given the `settings`. A report is on the disk when `write` returns, so a crash loses
    one report at most.
    """

    def __init__(self, folder: Path, resume_step: int | None, settings: Mapping[str, Any] = NO_SETTINGS):
        self.path = make_folder(Path(folder)) / "metrics.csv"
        with disk_errors("remove the earlier metrics in", Path(folder)):
            if resume_step is None:
                self.path.unlink(missing_ok=True)
                for events in Path(folder).glob("events.out.*"):
                    events.unlink()
        names, records = _read_records(self.path) if self.path.exists() else ([], [])
        kept = [record for record in records if resume_step is not None and int(record[0]) <= resume_step]
        if self.path.exists():
            write_text(self.path, _lines([names, *kept] if names else []))
        self._names = names
        self._file = self._open()
        self._events = open_events(Path(folder), resume_step)
        if self._events is not None and resume_step is None and settings:
            self._events.add_settings(settings)

    def write(self, step: int, seconds: float, metrics: Mapping[str, np.ndarray | float]) -> None:
        """Adds a report. A metric is an array with one entry per learner, or one number for all."""
        if clash := metrics.keys() & {*LEADING}:
            raise ValueError(f"a metric may not be called {', '.join(sorted(clash))}")
        arrays = {name: _real(value) for name, value in sorted(metrics.items())}
        num_learners = max((array.size for array in arrays.values()), default=1)
        arrays = {name: np.broadcast_to(array, (num_learners,)) for name, array in arrays.items()}
        self._widen(arrays.keys())
        columns = {name: array.astype(str).tolist() for name, array in arrays.items()}
        columns["step"] = [str(step)] * num_learners
        columns["learner"] = [str(learner) for learner in range(num_learners)]
        columns["seconds"] = [f"{seconds:.3f}"] * num_learners
        empty = [""] * num_learners
        self._append(_lines(zip(*(columns.get(name, empty) for name in self._names), strict=True)))
        if self._events is not None:
            self._events.add_scalars(step, arrays)

    def close(self) -> None:
        """Closes both files."""
        self._file.close()
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def _open(self) -> io.FileIO:
        # Without a buffer: after a failed write, close() has nothing left to write.
        with disk_errors("write", self.path):
            return self.path.open("ab", buffering=0)

    def _append(self, text: str) -> None:
        """Adds lines; if the disk fails, the file stays as it was."""
        with disk_errors("write", self.path):
            size = self.path.stat().st_size
        remaining = memoryview(text.encode())
        try:
            with disk_errors("write", self.path):
                while remaining:
                    remaining = remaining[self._file.write(remaining) :]
                os.fsync(self._file.fileno())
        except ShoalError:
            os.truncate(self.path, size)
            raise

    def _widen(self, metrics: Iterable[str]) -> None:
        """Adds columns for new metrics, which rewrites the file."""
        new = {*metrics} - {*self._names}
        if self._names and not new:
            return
        names = [*LEADING, *sorted({*self._names, *new} - {*LEADING})]
        old = _read_records(self.path)[1] if self._names else []
        records = [dict(zip(self._names, values, strict=True)) for values in old]
        write_text(self.path, _lines([names, *([one.get(name, "") for name in names] for one in records)]))
        self._file.close()
        self._file = self._open()
        self._names = names


def read_metrics(path: Path) -> dict[str, np.ndarray]:
    """The columns of a metrics.csv, or of that in a run's folder; `step` and `learner` are integers.

    An incomplete last record, left by a crash, is ignored.
    """
    path = Path(path) / "metrics.csv" if Path(path).is_dir() else Path(path)
    names, records = _read_records(path)
    if not records:
        raise ShoalError(f"{path} has no records yet; they begin with the run's first report")
    try:
        columns = {
            name: np.array([float(cell) if cell else math.nan for cell in column])
            for name, column in zip(names, zip(*records, strict=True), strict=True)
        }
    except ValueError as error:
        raise ShoalError(f"{path} is not a metrics file: {error}") from error
    whole = {name: columns[name].astype(np.int64) for name in ("step", "learner")}
    return columns | whole


def read_last_report(folder: Path, learners: int) -> tuple[int, np.ndarray]:
    """The step of the last report in a run's metrics.csv, and the learners' mean returns; (0, []) before it.

    Only the end of the file is read.
    """
    path, none = Path(folder) / "metrics.csv", (0, np.array([]))
    if not path.is_file() or not path.stat().st_size:
        return none
    with (
        disk_errors("read", path),
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
    ):
        header, end = text.find(b"\n"), text.rfind(b"\n")
        start = end
        for _ in range(learners):
            start = max(header, text.rfind(b"\n", header, start))
        names = text[: max(header, 0)].decode().split(",")
        records = [line.split(",") for line in text[start + 1 : end].decode().splitlines()]
    if tuple(names[:3]) != LEADING:
        raise ShoalError(f"{path} is not a metrics file: its first columns are not {', '.join(LEADING)}")
    if not records or "return_mean" not in names:
        return none
    column = names.index("return_mean")
    return int(records[-1][0]), np.array([float(record[column] or "nan") for record in records])


def read_summary(folder: Path) -> dict:
    """The content of summary.json in a run's folder; {} where there is none yet."""
    path = Path(folder) / "summary.json"
    return read_json(path) if path.is_file() else {}


def write_summary(folder: Path, summary: Mapping, flush: bool = True) -> Path:
    """Writes summary.json atomically; arrays become lists and NaN becomes null."""
    text = json.dumps(_plain(summary), indent=2, allow_nan=False)
    return write_text(Path(folder) / "summary.json", f"{text}\n", flush)


def _plain(value):
    """The same value in JSON's types."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str | bool | int | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return _plain(np.asarray(value).tolist())


def _real(value) -> np.ndarray:
    """A flat array of ints or floats, whose `astype(str)` is the shortest exact text."""
    array = np.atleast_1d(np.asarray(value))
    if array.ndim != 1:
        raise ValueError(f"a metric has one number per learner, not the shape {array.shape}")
    if array.dtype.kind in "iuf" and array.dtype.itemsize > 2:
        return array
    return array.astype(np.int64 if array.dtype.kind in "biu" else np.float32)


def _lines(records) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(records)
    return text.getvalue()


def _read_records(path: Path) -> tuple[list[str], list[list[str]]]:
    """The header and the records, without an incomplete last line."""
    if not path.exists():
        raise ShoalError(f"{path} is not there; give the folder of a run")
    with disk_errors("read", path):
        text = path.read_text(encoding="utf-8", errors="replace")
    names, *records = csv.reader(io.StringIO(text[: text.rfind("\n") + 1])) if "\n" in text else [[]]
    if names and tuple(names[:3]) != LEADING:
        raise ShoalError(f"{path} is not a metrics file: its first columns are not {', '.join(LEADING)}")
    for line, record in enumerate(records, start=2):
        if len(record) != len(names) or not record[0].isdecimal():
            raise ShoalError(f"{path} is damaged in line {line}; repair that line, or move the file away")
    return names, records
