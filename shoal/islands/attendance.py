"""islands.csv: a row per meeting: how many learners came, who was absent and why, seconds, bytes."""

import csv
import io
from pathlib import Path
from typing import NamedTuple

from shoal.runs.files import append, disk_errors, write_text

MEETINGS = "islands.csv"
COLUMNS = ("round", "step", "seconds", "came", "absent", "waited", "exchange", "received", "sent")
LONGEST = 1 << 16
"""Bytes at the end of the file among which its last row is looked for."""


class Attendance(NamedTuple):
    """Who came to a meeting, how long it took, and what was carried."""

    absent: dict[int, str]  # islands, and why: lost, late, left out
    waited: float  # seconds until all had come that were waited for
    exchanged: float  # seconds of the exchange
    received: dict[int, int]  # bytes from each island
    sent: dict[int, int]  # bytes to each island


class LastMeeting(NamedTuple):
    """The end of islands.csv."""

    round: int
    came: int  # learners
    absent: str  # islands and why, such as "0 late; 2 lost: its process ended (SIGKILL)"


def begin_meetings(folder: Path, resumed_step: int | None) -> None:
    """Write the head of islands.csv, or on resuming remove the meetings that will be held again."""
    path = folder / MEETINGS
    with disk_errors("read", path):
        text = path.read_bytes().decode(errors="replace") if path.is_file() else ""
    whole = [line for line in text.split("\n")[1:-1] if _step_of(line) is not None]
    kept = [line for line in whole if resumed_step is not None and (_step_of(line) or 0) <= resumed_step]
    write_text(path, "".join(f"{line}\n" for line in [",".join(COLUMNS), *kept]))


def _step_of(line: str) -> int | None:
    """The step of a row; None where a line is none."""
    cells = line.split(",")
    return int(cells[1]) if len(cells) >= len(COLUMNS) and cells[1].isdecimal() else None


def extend_meetings(
    folder: Path, round: int, step: int, seconds: float, came: int, attendance: Attendance
) -> None:
    """Write a meeting to which so many learners came."""
    row = (
        round,
        step,
        f"{seconds:.3f}",
        came,
        "; ".join(f"{island} {why}" for island, why in sorted(attendance.absent.items())),
        f"{attendance.waited:.4f}",
        f"{attendance.exchanged:.4f}",
        sum(attendance.received.values()),
        sum(attendance.sent.values()),
    )
    text, path = io.StringIO(), folder / MEETINGS
    csv.writer(text, lineterminator="\n").writerow(row)
    with disk_errors("write", path), path.open("ab", buffering=0) as file:
        append(file, path, text.getvalue())


def last_meeting(folder: Path) -> LastMeeting | None:
    """The last whole row; None before the first."""
    try:
        with (folder / MEETINGS).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - LONGEST))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    for line in reversed(text.split("\n")[:-1]):
        cells = next(csv.reader([line]), [])
        if len(cells) == len(COLUMNS) and cells[0].isdecimal() and cells[3].isdecimal():
            return LastMeeting(int(cells[0]), int(cells[3]), cells[4])
    return None
