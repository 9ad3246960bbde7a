"""When a run saves: every half minute, when it gets better, at its milestones; a large replay seldom."""

import time

import numpy as np

from shoal.distributed.processes import broadcast_from_first
from shoal.runs.saving import replay_bytes
from shoal.runs.watch import Watch
from shoal.training.loop import Report

SAVE_SECONDS = 30.0
"""Seconds between checkpoints; below 0 every report is saved."""
REPLAY_SECONDS = 600.0
"""Seconds between checkpoints with a large replay, the only ones from which its run resumes."""
SMALL_REPLAY = 32e6
"""Bytes of a replay that every checkpoint holds."""


class Cadence:
    """Decides which reports are saved, and with which their replays; the same in all processes."""

    def __init__(self, watch: Watch, resumed_step: int | None):
        self.watch, self.best = watch, -np.inf
        self.complete_step = resumed_step  # the last one saved with its replay
        self.saved_at = self.replay_at = time.monotonic()

    def is_due(self, report: Report, busy: bool) -> bool:
        """Whether a report should be saved; while the one before is written only if it must."""
        elapsed = time.monotonic() - self.saved_at
        better = report.due and self.watch.rank(report) > self.best and elapsed > SAVE_SECONDS / 6
        due = broadcast_from_first(
            int((elapsed > SAVE_SECONDS or better) and not (busy and SAVE_SECONDS >= 0))
        )
        return bool(due) or self.must_save(report)

    def must_save(self, report: Report) -> bool:
        """Whether a report is saved whatever else is being written."""
        return self.watch.must_save(report) or SAVE_SECONDS < 0

    def takes_replay(self, report: Report) -> bool:
        """Whether it should be saved with its replay."""
        overdue = broadcast_from_first(int(time.monotonic() - self.replay_at > REPLAY_SECONDS))
        return bool(overdue) or replay_bytes(report.state) <= SMALL_REPLAY

    def note(self, report: Report, replay: bool) -> None:
        """A report was saved."""
        self.saved_at, self.best = time.monotonic(), max(self.best, self.watch.rank(report))
        if replay:
            self.complete_step, self.replay_at = report.step, self.saved_at
