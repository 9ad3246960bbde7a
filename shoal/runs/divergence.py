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
        self.faults: dict[int, str] = {}  # the environment's, by learner; a replay brings them up later

    def check(self, report: Report) -> None:
        """Warn of learners that diverged since the last report; raise when all have."""
        lost = ~has_finite_loss(report)
        for what, bad in (("an observation", report.bad_observations), ("a reward", report.bad_rewards)):
            for learner in np.flatnonzero(bad).tolist():
                self.faults.setdefault(learner, what)
        diverged = np.flatnonzero(lost).tolist()
        new = [learner for learner in diverged if learner not in self.known]
        self.known.update(new)
        if lost.all():
            raise AllDiverged(f"{self._describe(report, diverged)}; earlier checkpoints are kept")
        if new:
            warnings.warn(self._describe(report, new), RuntimeWarning)

    def _describe(self, report: Report, learners: list[int]) -> str:
        cause = "the loss is not finite; try a smaller --learning-rate, or --norm-reward"
        for learner in learners[::-1]:
            if learner in self.faults:
                env = report.trainer.parts.config.env
                cause = f"{env} gave {self.faults[learner]} that is not finite; try shoal check {env}"
        listed = ", ".join(map(str, learners[:8])) + ", ..." * (len(learners) > 8)
        return f"learner {listed} diverged near step {report.step:,}: {cause}"
