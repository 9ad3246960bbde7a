"""The columns of a metrics.csv that grows: only what is new is read, and only the columns asked for."""

import csv
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from shoal.errors import ShoalError
from shoal.runs.metrics import LEADING, read_metrics

CHUNK = 8 << 20
"""Bytes that are read at once."""
COMMA, NEWLINE = b",\n"


class MetricsTail:
    """The columns of one metrics.csv, kept and read on with each call.

    An incomplete last line is left for the next call. A file that was written anew is read anew.
    """

    def __init__(self, path: Path):
        self.path, self._lock = path, threading.Lock()
        self._file_id, self._begin, self._end = 0, 0, 0  # the records read are the bytes from begin to end
        self._names: list[str] = []
        self._columns: dict[str, np.ndarray] = {}

    def read(self, *names: str) -> dict[str, np.ndarray]:
        """These columns, those of them that the file has; {} before its first record."""
        with self._lock:
            try:
                with self.path.open("rb") as file:
                    self._read_on(file, names)
            except FileNotFoundError:
                return {}
            found = {name: self._columns[name] for name in names if name in self._columns}
        return found if all(map(len, found.values())) else {}

    def names(self) -> list[str]:
        """The names of all columns; [] before the first record."""
        self.read(*LEADING)
        return self._names

    def _read_on(self, file: BinaryIO, names: Sequence[str]) -> None:
        stat = os.fstat(file.fileno())
        if stat.st_ino != self._file_id or stat.st_size < self._end:
            self._file_id, self._columns = stat.st_ino, {}
            self._begin = self._end = len(header := file.readline())
            self._names = next(csv.reader([header.decode(errors="replace")]), [])
            if not header.endswith(b"\n"):  # not yet written
                self._file_id, self._names = 0, []
                return
            if tuple(self._names[:3]) != LEADING:
                read_metrics(self.path)  # says what is wrong
        if new := [name for name in names if name in self._names and name not in self._columns]:
            self._columns |= self._parsed(file, self._begin, self._end, new)
        end = self._end + _whole_lines(file, self._end, stat.st_size)
        if end > self._end:
            added = self._parsed(file, self._end, end, list(self._columns))
            self._columns = {
                name: np.concatenate([column, added[name]]) for name, column in self._columns.items()
            }
            self._end = end

    def _parsed(self, file: BinaryIO, begin: int, end: int, names: list[str]) -> dict[str, np.ndarray]:
        """Columns of the records between two places."""
        parts: dict[str, list[np.ndarray]] = {name: [np.empty(0)] for name in names}
        for text in _chunks(file, begin, end):
            ends = np.flatnonzero((text == COMMA) | (text == NEWLINE))
            if len(ends) % len(self._names) or np.any(
                text[ends[len(self._names) - 1 :: len(self._names)]] != NEWLINE
            ):
                read_metrics(self.path)  # says which line is damaged
                raise ShoalError(f"{self.path} changed while it was read; look again")
            ends = ends.reshape(-1, len(self._names))
            for name in names:
                parts[name].append(_numbers(text, ends, self._names.index(name), self.path))
        return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def _whole_lines(file: BinaryIO, begin: int, size: int) -> int:
    """The bytes from a place up to the last end of a line."""
    end = size
    while end > begin:
        start = max(begin, end - CHUNK)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1 - begin
        end = start
    return 0


def _chunks(file: BinaryIO, begin: int, end: int) -> Iterator[np.ndarray]:
    """The bytes between two ends of lines, in pieces of whole lines."""
    while begin < end:
        length = _whole_lines(file, begin, min(begin + CHUNK, end)) or end - begin
        file.seek(begin)
        yield np.frombuffer(file.read(length), np.uint8)
        begin += length


def _numbers(text: np.ndarray, ends: np.ndarray, index: int, path: Path) -> np.ndarray:
    """The numbers in one column of lines whose cells end at `ends` (R, C); empty cells are NaN."""
    stop = ends[:, index]
    start = ends[:, index - 1] + 1 if index else np.append(0, ends[:-1, -1] + 1)
    width = max(3, int((stop - start).max()))
    place = start[:, None] + np.arange(width)
    letters = np.where(place < stop[:, None], text[np.minimum(place, len(text) - 1)], 0).astype(np.uint8)
    cells = letters.view(f"S{width}").ravel()
    cells[start == stop] = b"nan"
    try:
        return cells.astype(float)
    except ValueError as error:
        raise ShoalError(f"{path} is not a metrics file: {error}") from error
