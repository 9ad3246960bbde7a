"""The columns of a metrics.csv that grows: only what is new is read, and only the columns asked for."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from shoal.errors import ShoalError
from shoal.runs.metrics import LEADING, check_names, read_metrics
from shoal.runs.rows import DamagedRow, read_columns, read_header, whole_lines

LAST = 200
"""Bytes at the end of what was read, which tell a file that was written anew."""


class MetricsTail:
    """The columns of one metrics.csv, kept and read on with each call.

    An incomplete last line is left for the next call. A file that was written anew is read anew.
    """

    def __init__(self, path: Path):
        self.path, self._lock = path, threading.Lock()
        self._file_id, self._begin, self._end = 0, 0, 0  # the records read are the bytes from begin to end
        self._seen = (b"", b"")
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
        if stat.st_ino != self._file_id or stat.st_size < self._end or self._marks(file) != self._seen:
            self._file_id, self._columns = stat.st_ino, {}
            file.seek(0)
            self._names, self._begin = read_header(file)
            self._end = self._begin
            if not self._names:  # not yet written
                self._file_id = 0
                return
            check_names(self._names, self.path)
        if new := [name for name in names if name in self._names and name not in self._columns]:
            self._columns |= self._parsed(file, self._begin, self._end, new)
        end = self._end + whole_lines(file, self._end, stat.st_size)
        if end > self._end:
            added = self._parsed(file, self._end, end, list(self._columns))
            self._columns = {
                name: np.concatenate([column, added[name]]) for name, column in self._columns.items()
            }
            self._end = end
        self._seen = self._marks(file)

    def _marks(self, file: BinaryIO) -> tuple[bytes, bytes]:
        """The file's head, and the end of what was read; a new file may have an old one's number."""
        file.seek(0)
        head = file.read(self._begin)
        start = max(self._begin, self._end - LAST)
        file.seek(start)
        return head, file.read(self._end - start)

    def _parsed(self, file: BinaryIO, begin: int, end: int, names: list[str]) -> dict[str, np.ndarray]:
        """Columns of the records between two places."""
        try:
            return read_columns(file, self.path, self._names, names, begin, end, 2)
        except DamagedRow:
            read_metrics(self.path)  # says which line it is
            raise ShoalError(f"{self.path} changed while it was read; look again") from None
