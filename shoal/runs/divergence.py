"""Learners that diverge: a warning for each, an error when all have."""

import warnings

import numpy as np

from shoal.errors import ShoalError
from shoal.training.loop import Report


def has_finite_loss(report: Report) -> np.ndarray:
    """Which learners have a finite loss, (L,)."""
    return np.isfinite(report.metrics["loss/total"])


class AllDiverged(ShoalError):
    """Every learner of a run has diverged."""


class DivergenceCheck:
    """Warns once of each learner whose loss is not finite."""

    def __init__(self) -> None:
        self.known: set[int] = set()

    def check(self, report: Report) -> None:
        """Warn of learners that diverged since the last report; raise when all have."""
        diverged = np.flatnonzero(~has_finite_loss(report)).tolist()
        new = [learner for learner in diverged if learner not in self.known]
        self.known.update(new)
        if len(diverged) == len(report.metrics["loss/total"]):
            raise AllDiverged(f"{_describe(report, diverged)}; earlier checkpoints are kept")
        if new:
            warnings.warn(_describe(report, new), RuntimeWarning)


def _describe(report: Report, learners: list[int]) -> str:
    cause = (
        "the environment gave a reward that is not finite"
        if np.any(report.bad_rewards)
        else "the loss is not finite; try a smaller --learning-rate, or --norm-reward"
    )
    more = ", ..." if len(learners) > 8 else ""
    return f"learner {', '.join(map(str, learners[:8]))}{more} diverged near step {report.step:,}: {cause}"
