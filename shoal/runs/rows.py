"""Rows of numbers in a CSV file that grows: read in pieces, and only the columns asked for.

The last line may be incomplete, where it is being written or a crash has cut it; it does not count.
"""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from shoal.errors import ShoalError

CHUNK = 8 << 20
"""Bytes that are read at once."""
LONGEST_HEADER, LONGEST_CELL = 1 << 20, 64
"""Letters that a header and a cell may have; numbers are shorter."""
LARGEST_STEP = 1 << 53
"""Larger steps are damage: a float does not hold them exactly."""
COMMA, NEWLINE, RETURN = b",\n\r"


class DamagedRow(ShoalError):
    """A line that is no row of the table: it has other columns, or a cell that is no number."""

    def __init__(self, path: Path, line: int):
        super().__init__(f"{path} is damaged in line {line}; repair that line, or move the file away")
        self.line = line


class Piece(NamedTuple):
    """Whole lines of a file."""

    text: np.ndarray  # bytes
    begin: int  # their place in the file
    line: int  # the number of the first one; the header is line 1


def read_header(file: BinaryIO) -> tuple[list[str], int]:
    """The names of the columns and the place of the first row; ([], 0) where the header is not complete."""
    header = file.readline(LONGEST_HEADER)
    if not header.endswith(b"\n"):
        return [], 0
    return next(csv.reader([header.decode(errors="replace")]), []), len(header)


def whole_lines(file: BinaryIO, begin: int, end: int) -> int:
    """The bytes from one place up to the last end of a line before another."""
    last = end
    while last > begin:
        start = max(begin, last - CHUNK)
        file.seek(start)
        found = file.read(last - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1 - begin
        last = start
    return 0


def pieces(file: BinaryIO, begin: int, end: int, line: int = 2) -> Iterator[Piece]:
    """The whole lines between two places."""
    while begin < end:
        length = whole_lines(file, begin, min(begin + CHUNK, end)) or whole_lines(file, begin, end)
        if not length:
            return
        file.seek(begin)
        piece = Piece(np.frombuffer(file.read(length), np.uint8), begin, line)
        yield piece
        begin, line = begin + length, line + int(np.count_nonzero(piece.text == NEWLINE))


def ends_of_cells(piece: Piece, num_columns: int, path: Path) -> np.ndarray:
    """Where the cells of a piece end, (R, C); raises where a line has more or fewer cells."""
    if not piece.text.all():  # as a power cut leaves what was not yet on the disk
        zero = int(np.argmin(piece.text))
        raise DamagedRow(path, piece.line + int(np.count_nonzero(piece.text[:zero] == NEWLINE)))
    ends = np.flatnonzero((piece.text == COMMA) | (piece.text == NEWLINE))
    is_last = piece.text[ends] == NEWLINE
    numbers = np.flatnonzero(is_last)
    expected = num_columns * np.arange(1, len(numbers) + 1) - 1
    if len(wrong := np.flatnonzero(numbers != expected)):
        raise DamagedRow(path, piece.line + int(wrong[0]))
    return ends.reshape(-1, num_columns)


def numbers_in(piece: Piece, ends: np.ndarray, index: int, path: Path) -> np.ndarray:
    """The numbers in one column of a piece; empty cells are NaN."""
    text, stop = piece.text, ends[:, index]
    start = ends[:, index - 1] + 1 if index else np.append(0, ends[:-1, -1] + 1)
    if index == ends.shape[1] - 1:  # lines that end as on Windows
        stop = stop - ((stop > start) & (text[stop - 1] == RETURN))
    lengths = stop - start
    if len(long := np.flatnonzero(lengths > LONGEST_CELL)):
        raise DamagedRow(path, piece.line + int(long[0]))
    width = max(3, int(lengths.max(initial=0)))
    place = start[:, None] + np.arange(width)
    letters = np.where(place < stop[:, None], text[np.minimum(place, len(text) - 1)], 0).astype(np.uint8)
    cells = letters.view(f"S{width}").ravel()
    cells[lengths == 0] = b"nan"
    try:
        return cells.astype(float)
    except ValueError:
        for row, cell in enumerate(cells):
            try:
                float(cell)
            except ValueError:
                raise DamagedRow(path, piece.line + row) from None
        raise


def read_columns(
    file: BinaryIO, path: Path, names: Sequence[str], wanted: Sequence[str], begin: int, end: int, line: int
) -> dict[str, np.ndarray]:
    """Some columns of the whole rows between two places."""
    parts: dict[str, list[np.ndarray]] = {name: [np.empty(0)] for name in wanted}
    for piece in pieces(file, begin, end, line):
        ends = ends_of_cells(piece, len(names), path)
        for name in wanted:
            parts[name].append(numbers_in(piece, ends, names.index(name), path))
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}
