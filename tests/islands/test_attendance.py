"""islands.csv: its last row, meetings that will be held again, a file that is damaged."""

import pytest

from shoal.islands.attendance import (
    COLUMNS,
    MEETINGS,
    Attendance,
    begin_meetings,
    extend_meetings,
    last_meeting,
)


@pytest.fixture
def folder(tmp_path):
    """Three meetings at steps 64, 128 and 192; the second without an island."""
    begin_meetings(tmp_path, None)
    for round in (1, 2, 3):
        absent = {1: "lost: a node, gone"} if round == 2 else {}
        attendance = Attendance(absent, 0.5, 0.1, {0: 10, 1: 20}, {0: 1})
        extend_meetings(tmp_path, round, 64 * round, 2.0, 4, attendance)
    return tmp_path


def rounds(folder):
    head, *lines = (folder / MEETINGS).read_text().splitlines()
    assert head == ",".join(COLUMNS)
    return [int(line.split(",")[0]) for line in lines]


def test_the_last_whole_row(folder):
    assert last_meeting(folder) == (3, 4, "")
    begin_meetings(folder, 128)
    assert last_meeting(folder) == (2, 4, "1 lost: a node, gone")
    with (folder / MEETINGS).open("a") as file:
        file.write("3,192,")  # being written
    assert last_meeting(folder) == (2, 4, "1 lost: a node, gone")
    begin_meetings(folder, None)
    assert last_meeting(folder) is None
    assert last_meeting(folder / "nowhere") is None


@pytest.mark.parametrize("damage", [b"\xff\xfe\n", b"\n\n", b"nonsense\n", b"4,256"])
def test_damaged_lines_are_left_out(folder, damage):
    with (folder / MEETINGS).open("ab") as file:
        file.write(damage)
    begin_meetings(folder, 10_000)
    assert rounds(folder) == [1, 2, 3]
