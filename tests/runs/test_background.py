"""Files are written while training goes on: in order, bounded, again where the disk was full."""

import errno
import threading
import time
import warnings

import pytest

from shoal.errors import ShoalError
from shoal.runs import background
from shoal.runs.background import Background, Save
from shoal.runs.files import disk_errors


class Disk:
    """What is written on a disk that may be slow or full; `full` is an error number."""

    def __init__(self):
        self.written, self.full, self.gate = [], 0, threading.Event()
        self.gate.set()

    def write(self, *what):
        self.gate.wait(10)
        with disk_errors("write", "disk"):
            if self.full:
                raise OSError(self.full, "No space left on device")
        self.written += what

    def save(self, step, **how):
        return Save(step, lambda: self.write(f"save {step}"), **how)


@pytest.fixture
def disk(monkeypatch):
    monkeypatch.setattr(background, "RETRY_SECONDS", 0.02)
    return Disk()


@pytest.fixture
def writing(disk):
    made = Background(lambda reports: disk.write(*reports), lambda: None)
    yield made
    disk.gate.set()
    made.close()


def test_reports_come_before_the_checkpoints_after_them(disk, writing):
    disk.gate.clear()
    for step in range(1, 6):
        writing.add(step, 8)
    writing.save(disk.save(5))
    assert disk.written == []
    assert writing.busy
    disk.gate.set()
    writing.finish(1.0)
    assert disk.written == [1, 2, 3, 4, 5, "save 5"]
    assert not writing.busy


def test_a_waiting_checkpoint_makes_way_for_a_newer_one_unless_it_is_kept(disk, writing):
    disk.gate.clear()
    writing.save(disk.save(1))
    time.sleep(0.05)  # it is being written now
    for step, kept in ((2, True), (3, False), (4, True), (5, False), (6, False)):
        writing.save(disk.save(step, kept=kept))
    disk.gate.set()
    writing.finish(1.0)
    assert disk.written == ["save 1", "save 2", "save 4", "save 6"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_disk_is_told_once_and_all_is_written_later(disk, writing, number):
    disk.full = number
    writing.add(1, 8)
    writing.save(disk.save(1))
    while writing._fault is None:
        time.sleep(0.01)
    with pytest.warns(RuntimeWarning, match=r"cannot write disk: No space.*Training goes on"):
        writing.check()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        writing.check()
        writing.add(2, 8)
        writing.save(disk.save(2))
    disk.full = 0
    with pytest.warns(RuntimeWarning, match="can be written again"):
        writing.finish(5.0)
    assert disk.written == [1, 2, "save 2"]


def test_a_run_that_ends_on_a_full_disk_says_so(disk, writing):
    disk.full = errno.ENOSPC
    writing.save(disk.save(1))
    with (
        pytest.warns(RuntimeWarning, match="Training goes on"),
        pytest.raises(ShoalError, match="No space left on device; free some space"),
    ):
        writing.finish(0.1)


def test_other_errors_end_the_run(disk, writing):
    disk.full = errno.ENOENT
    writing.add(1, 8)
    with pytest.raises(ShoalError, match="cannot write disk"):
        writing.finish(5.0)
    with pytest.raises(ShoalError, match="cannot write disk"):
        writing.check()
    writing.add(2, 8)  # nobody waits for a thread that has ended
    writing.save(disk.save(2))


def test_what_waits_is_bounded(disk, writing, monkeypatch):
    """On a slow disk the caller waits; on a full one the oldest are left out, and that is said."""
    monkeypatch.setattr(background, "MOST_BYTES", 100)
    disk.gate.clear()
    for step in range(12):
        writing.add(step, 10)  # the twelfth is the first that has to wait
        if step == 10:
            threading.Timer(0.1, disk.gate.set).start()
    assert disk.gate.is_set()
    writing.finish(1.0)
    assert disk.written == list(range(12))
    disk.full = errno.ENOSPC
    writing.add(12, 90)
    while writing._fault is None:
        time.sleep(0.01)
    with pytest.warns(RuntimeWarning, match="Training goes on"):
        writing.check()
    for step in (13, 14):
        writing.add(step, 90)
    with pytest.warns(RuntimeWarning, match="1 reports are left out"):
        writing.check()
