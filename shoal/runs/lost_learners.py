"""Learners whose loss is not a finite number: a warning for each, an error when all are lost."""

import warnings

import numpy as np

from shoal.errors import ShoalError
from shoal.training.loop import Report


def has_finite_loss(report: Report) -> np.ndarray:
    """Which learners still have a finite loss, (L,)."""
    return np.isfinite(report.metrics["loss/total"])


class LostLearners:
    """Warns once of each learner that is lost to NaN."""

    def __init__(self) -> None:
        self.known: set[int] = set()

    def check(self, report: Report) -> None:
        """Warn of learners lost since the last report; raise when none is left."""
        lost = np.flatnonzero(~has_finite_loss(report)).tolist()
        new = [learner for learner in lost if learner not in self.known]
        self.known.update(new)
        if len(lost) == len(report.metrics["loss/total"]):
            raise ShoalError(f"{_describe(report, lost)}. What was saved before is kept.")
        if new:
            warnings.warn(_describe(report, new), RuntimeWarning)


def _describe(report: Report, lost: list[int]) -> str:
    cause = (
        "the environment gave a reward that is not a finite number"
        if np.any(report.bad_rewards)
        else "the loss is not finite; try a smaller --learning-rate, or --norm-reward"
    )
    more = ", ..." if len(lost) > 8 else ""
    return f"learner {', '.join(map(str, lost[:8]))}{more} is lost near step {report.step:,}: {cause}"
