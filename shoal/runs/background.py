"""Writing in a thread: training waits neither for a slow disk nor for a full one."""

import errno
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from shoal.errors import ShoalError

MOST_BYTES = 256 << 20
"""Bytes of reports, and of checkpoints, that wait to be written. Beyond them training waits, or where nothing
can be written leaves the oldest out."""
RETRY_SECONDS = 5.0
"""Seconds between two tries where the disk is full, or cannot be written for another reason that may pass."""
LAST_SECONDS = 600.0
"""How long a run that has ended tries to write what it has."""
PASSING = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EIO,
    errno.EACCES,
    errno.EPERM,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
)
"""Errors of a disk that may pass: writing is tried again, and training goes on meanwhile."""

Report = TypeVar("Report")


class Save(NamedTuple):
    """A checkpoint to be written."""

    step: int
    write: Callable[[], None]
    size: int = 0  # in bytes
    kept: bool = False  # for good: a newer one does not replace it


class Background(Generic[Report]):
    """Writes reports in their order and one checkpoint at a time, those before it first.

    A checkpoint that waits makes way for a newer one, unless it is kept for good.

    `check` tells in the calling thread what went wrong: it warns of what may pass, and raises the rest.
    """

    def __init__(self, write_reports: Callable[[Sequence[Report]], None], settle: Callable[[], None]):
        """`settle` is called after each writing of reports, for what need not be repeated with them."""
        self._write_reports, self._settle = write_reports, settle
        self._reports: deque[tuple[Report, int]] = deque()
        self._bytes, self._left_out = 0, 0
        self._saves: deque[Save] = deque()
        self._unsettled, self._ending, self._at_once = False, False, False
        self._error: BaseException | None = None  # ends the writing
        self._fault: ShoalError | None = None  # may pass
        self._told, self._lost_steps = False, []
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, daemon=True, name="writing")
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written; one that cannot be makes way for a newer one."""
        return bool(self._saves) and self._fault is None

    def add(self, report: Report, size: int) -> None:
        """Have a report of so many bytes written; it must not change any more."""
        with self._changed:
            while self._bytes > MOST_BYTES and self._goes_on():
                self._changed.wait()
            while self._bytes > MOST_BYTES and len(self._reports) > 1:  # nothing can be written
                self._bytes -= self._reports.popleft()[1]
                self._left_out += 1
            self._reports.append((report, size))
            self._bytes += size
            self._changed.notify_all()

    def save(self, save: Save) -> None:
        """Have a checkpoint written."""
        with self._changed:
            while self._saves and self._waiting_bytes() + save.size > MOST_BYTES and self._goes_on():
                self._changed.wait()
            stay = [one for i, one in enumerate(self._saves) if one.kept or (i == 0 and self._fault is None)]
            while len(stay) > 1 and sum(one.size for one in stay) + save.size > MOST_BYTES:
                self._lost_steps.append(stay.pop(0).step)  # nothing can be written
            self._saves = deque([*stay, save])
            self._changed.notify_all()

    def _waiting_bytes(self) -> int:
        return sum(one.size for one in self._saves)

    def check(self) -> None:
        """Warn once where nothing can be written for now, and when it can again; raise other errors."""
        with self._changed:
            error, fault = self._error, self._fault
            left_out, lost_steps, self._left_out, self._lost_steps = self._left_out, self._lost_steps, 0, []
        if error is not None:
            raise error
        if fault is not None and not self._told:
            warnings.warn(f"{fault}. Training goes on, and writing is tried again", RuntimeWarning)
        if fault is None and self._told:
            warnings.warn("the disk can be written again: what had to wait is saved", RuntimeWarning)
        self._told = fault is not None
        if left_out:
            warnings.warn(
                f"{left_out} reports are left out of metrics.csv: too many wait to be written", RuntimeWarning
            )
        for step in lost_steps:
            warnings.warn(f"the checkpoint at step {step:,} cannot be kept", RuntimeWarning)

    def finish(self, seconds: float) -> None:
        """Wait until all is written; raises where nothing can be written for so many seconds."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._fault, self._at_once = None, True  # try once more, now
            self._changed.notify_all()
        while self._waits() and self._error is None and not sys.is_finalizing():
            if (fault := self._fault) is None:
                deadline = max(deadline, time.monotonic() + seconds)
            elif time.monotonic() >= deadline:
                raise fault
            self.check()
            with self._changed:
                self._changed.wait(0.1)
        self.check()

    def _waits(self) -> bool:
        return bool(self._reports or self._saves or self._unsettled)

    def close(self) -> None:
        """End the thread after what it writes now; what still waits is given up."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        if not sys.is_finalizing():  # Python has stopped the thread by then
            self._thread.join()

    def _goes_on(self) -> bool:
        return self._fault is None and self._error is None

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waits() and not self._ending:
                    self._changed.wait()
                if self._ending or self._error is not None:
                    return
                reports, save = list(self._reports), next(iter(self._saves), None)
            try:
                self._write(reports, save)
                fault = None
            except Exception as error:
                fault = error if isinstance(error, ShoalError) and may_pass(error) else None
                if fault is None:
                    with self._changed:
                        self._error = error
                        self._changed.notify_all()
                    return
            with self._changed:
                self._fault = fault
                self._changed.notify_all()
                again = time.monotonic() + RETRY_SECONDS if fault else 0.0
                while time.monotonic() < again and not (self._ending or self._at_once):
                    self._changed.wait(again - time.monotonic())
                self._at_once = False

    def _write(self, reports: list[tuple[Report, int]], save: Save | None) -> None:
        """Write reports, then a checkpoint, and forget each as soon as it is written."""
        if reports:
            self._write_reports([report for report, _ in reports])
            with self._changed:
                for written in reports:
                    if self._reports and self._reports[0] is written:
                        self._bytes -= self._reports.popleft()[1]
                self._unsettled = True
                self._changed.notify_all()
        if self._unsettled:
            self._settle()
            self._unsettled = False
        if save is not None:
            save.write()
            with self._changed:
                if self._saves and self._saves[0] is save:
                    self._saves.popleft()
                self._changed.notify_all()


def may_pass(error: ShoalError) -> bool:
    """Whether an error of the disk may pass by itself, or by what the user does meanwhile."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in PASSING
