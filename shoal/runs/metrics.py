"""The files of a run's metrics: metrics.csv, and the same for TensorBoard.

`metrics.csv` has a record per report and learner. The columns are `step` (environment steps of one learner),
`learner` (from 0), `seconds` (since the run began), and then the metrics in alphabetical order. NaN is `nan`;
a metric that a report does not have is empty; both read back as NaN. A metric that first appears in a later
report adds its column, empty in earlier records, and rewrites the file.
"""

import csv
import io
import mmap
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from shoal.errors import ShoalError
from shoal.runs.events import open_events
from shoal.runs.files import append, disk_errors, keep_damaged, make_folder, replacing
from shoal.runs.rows import (
    LARGEST_STEP,
    DamagedRow,
    Piece,
    ends_of_cells,
    numbers_in,
    pieces,
    read_columns,
    read_header,
)

LEADING = ("step", "learner", "seconds")
"""The columns every metrics.csv begins with."""
NO_SETTINGS: Mapping[str, Any] = {}


Metrics: TypeAlias = Mapping[str, np.ndarray | float]


class MetricsWriter:
    """Appends reports to `metrics.csv` and to a TensorBoard event file, both in the run's folder.

    `resume_step` is the step of the checkpoint the run continues from: later records are removed, because
    the run writes them again, and damaged ones, of which a copy is kept. None starts over: an earlier
    metrics.csv and its events are removed, and TensorBoard is given the `settings`. Reports are on the disk
    when `write` or `write_all` returns, so a crash loses those alone that are being written.
    """

    def __init__(self, folder: Path, resume_step: int | None, settings: Mapping[str, Any] = NO_SETTINGS):
        self.path = make_folder(Path(folder)) / "metrics.csv"
        with disk_errors("remove the earlier metrics in", Path(folder)):
            if resume_step is None:
                self.path.unlink(missing_ok=True)
                for events in Path(folder).glob("events.out.*"):
                    events.unlink()
        self._names = []
        if resume_step is not None and self.path.exists():
            self._names = _keep_rows(self.path, resume_step)
        self._file = self._open()
        self._events = open_events(Path(folder), resume_step)
        self._late: list[tuple[int, dict[str, np.ndarray]]] = []  # not yet among the events
        if self._events is not None and resume_step is None and settings:
            self._events.add_settings(settings)

    def write(self, step: int, seconds: float, metrics: Metrics) -> None:
        """Adds a report. A metric is an array with one entry per learner, or one number for all."""
        self.write_all([(step, seconds, metrics)])
        self.write_events()

    def write_all(self, reports: Iterable[tuple[int, float, Metrics]]) -> None:
        """Adds reports to metrics.csv, and keeps them for `write_events`; if the disk fails, none of them."""
        prepared = [(step, seconds, _arrays(metrics)) for step, seconds, metrics in reports]
        self._widen({name for _, _, arrays in prepared for name in arrays})
        text = "".join(self._rows(*report) for report in prepared)
        append(self._file, self.path, text, flush=True)
        if self._events is not None:
            self._late += [(step, arrays) for step, _, arrays in prepared]

    def write_events(self) -> None:
        """Tells TensorBoard of the reports that are in metrics.csv."""
        while self._late and self._events is not None:
            self._events.add_scalars(*self._late[0])
            self._late.pop(0)

    def _rows(self, step: int, seconds: float, arrays: Mapping[str, np.ndarray]) -> str:
        """The lines of a report."""
        num_learners = max((array.size for array in arrays.values()), default=1)
        columns = {name: array.astype(str).tolist() for name, array in arrays.items()}
        columns["step"] = [str(step)] * num_learners
        columns["learner"] = [str(learner) for learner in range(num_learners)]
        columns["seconds"] = [f"{seconds:.3f}"] * num_learners
        empty = [""] * num_learners
        return _lines(zip(*(columns.get(name, empty) for name in self._names), strict=True))

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

    def _widen(self, metrics: Iterable[str]) -> None:
        """Adds columns for new metrics, which rewrites the file."""
        new = {*metrics} - {*self._names}
        if self._names and not new:
            return
        names = [*LEADING, *sorted({*self._names, *new} - {*LEADING})]
        order = [self._names.index(name) if name in self._names else len(self._names) for name in names]
        with (
            replacing(self.path) as (temporary,),
            temporary.open("w", encoding="utf-8", newline="") as target,
        ):
            target.write(_lines([names]))
            with self.path.open(encoding="utf-8", newline="") as source:
                next(source, None)  # its header
                for line in source:
                    cells = [*line.rstrip("\n").split(","), ""]
                    target.write(",".join([cells[index] for index in order]) + "\n")
        self._file.close()
        self._file = self._open()
        self._names = names


def read_metrics(path: Path) -> dict[str, np.ndarray]:
    """The columns of a metrics.csv, or of that in a run's folder; `step` and `learner` are integers.

    An incomplete last record, left by a crash, is ignored.
    """
    path = Path(path) / "metrics.csv" if Path(path).is_dir() else Path(path)
    if not path.exists():
        raise ShoalError(f"{path} is not there; give the folder of a run")
    with disk_errors("read", path), path.open("rb") as file:
        names, begin = read_header(file)
        check_names(names, path)
        columns = read_columns(file, path, names, names, begin, os.fstat(file.fileno()).st_size, 2)
    if not names or not len(columns["step"]):
        raise ShoalError(f"{path} has no records yet; they begin with the run's first report")
    check_places(columns["step"], columns["learner"], path)
    whole = {name: columns[name].astype(np.int64) for name in ("step", "learner")}
    return columns | whole


def check_names(names: list[str], path: Path) -> None:
    """Raise where the first line of a file is not that of a metrics.csv; it may not be written yet."""
    if names and tuple(names[:3]) != LEADING:
        raise ShoalError(f"{path} is not a metrics file: its first columns are not {', '.join(LEADING)}")
    if len({*names}) < len(names):
        raise ShoalError(f"{path} is damaged in line 1: two columns have one name; repair that line")


def check_places(step: np.ndarray, learner: np.ndarray, path: Path) -> None:
    """Raise where steps or learners are none, or a learner is beyond those that any report has."""
    with np.errstate(invalid="ignore"):
        bad = ~((step >= 0) & (step <= LARGEST_STEP) & (step % 1 == 0) & (learner >= 0) & (learner % 1 == 0))
        if not bad.any():
            bad = learner >= np.unique(step, return_counts=True)[1].max()
    if bad.any():
        raise DamagedRow(path, 2 + int(np.argmax(bad)))


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
        names = text[: max(header, 0)].decode(errors="replace").rstrip("\r").split(",")
        records = [line.split(",") for line in text[start + 1 : end].decode(errors="replace").splitlines()]
    if tuple(names[:3]) != LEADING:
        raise ShoalError(f"{path} is not a metrics file: its first columns are not {', '.join(LEADING)}")
    if not records or "return_mean" not in names:
        return none
    column = names.index("return_mean")
    try:
        return int(records[-1][0]), np.array([float(record[column] or "nan") for record in records])
    except (ValueError, IndexError) as error:
        raise ShoalError(
            f"{path} is damaged in its last lines; repair them, or move the file away"
        ) from error


def _arrays(metrics: Metrics) -> dict[str, np.ndarray]:
    """The metrics in alphabetical order, with a number for each learner."""
    if clash := metrics.keys() & {*LEADING}:
        raise ValueError(f"a metric may not be called {', '.join(sorted(clash))}")
    arrays = {name: _real(value) for name, value in sorted(metrics.items())}
    num_learners = max((array.size for array in arrays.values()), default=1)
    return {name: np.broadcast_to(array, (num_learners,)) for name, array in arrays.items()}


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


def _keep_rows(path: Path, last_step: int) -> list[str]:
    """Keep the rows of a metrics.csv up to a step, as a new file; the names of its columns.

    Of a file with damaged rows among them, which are left out, a copy is kept.
    """
    with disk_errors("read", path), path.open("rb") as source:
        names, begin = read_header(source)
        try:
            check_names(names, path)
        except ShoalError as error:
            keep_damaged(path, str(error))
            names, begin = [], 0
        with replacing(path) as (temporary,), temporary.open("wb") as target:
            source.seek(0)
            target.write(source.read(begin))
            end = os.fstat(source.fileno()).st_size if names else 0
            damaged = _copy_rows(source, target, begin, end, (names, last_step, path))
            if damaged is not None:
                keep_damaged(path, f"{path} is damaged in line {damaged}")
    return names


def _copy_rows(
    source: BinaryIO, target: BinaryIO, begin: int, end: int, about: tuple[list[str], int, Path]
) -> int | None:
    """Copy the rows up to a step; the number of the first damaged line that is left out, if any."""
    names, last_step, path = about
    damaged = None
    for piece in pieces(source, begin, end):
        try:
            ends = ends_of_cells(piece, len(names), path)
            late = numbers_in(piece, ends, 0, path) > last_step
        except DamagedRow:
            lines, bad, over = _whole_rows(piece, len(names), last_step)
            target.write(lines)
            damaged = bad if damaged is None else damaged
            if over:
                break
            continue
        if late.any():
            first = int(np.argmax(late))
            target.write(piece.text[: ends[first - 1, -1] + 1 if first else 0].tobytes())
            break
        target.write(piece.text.tobytes())
    return damaged


def _whole_rows(piece: Piece, num_columns: int, last_step: int) -> tuple[bytes, int | None, bool]:
    """The rows up to a step in a damaged piece, its first damaged line, and whether a later step follows."""
    kept, damaged = [], None
    for number, line in enumerate(piece.text.tobytes().splitlines(keepends=True), start=piece.line):
        step, *others = line.split(b",")
        if not step.isdigit() or len(step) > 16 or len(others) != num_columns - 1 or b"\0" in line:
            damaged = number if damaged is None else damaged
        elif int(step) > last_step:
            return b"".join(kept), damaged, True
        else:
            kept.append(line)
    return b"".join(kept), damaged, False
