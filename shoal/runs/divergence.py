"""Learners that diverge: a warning for each, an error when all have, or one where the run is to stop."""

import warnings

import numpy as np

from shoal.errors import ShoalError
from shoal.training.loop import Report, is_lost


class Diverged(ShoalError):
    """Every learner of a run has diverged, or one that the run is to stop for."""


AFTERWARDS = {"drop": "", "restart": "; the update is undone", "stop": ""}
"""What becomes of a diverged learner, by the setting `on_nan`."""


class DivergenceCheck:
    """Warns once of each learner whose loss is not finite."""

    def __init__(self) -> None:
        self.known: set[int] = set()
        self.faults: dict[int, str] = {}  # the environment's, by learner

    def check(self, report: Report) -> None:
        """Warn of learners that diverged since the last report; raise when all have."""
        for what, bad in (("an observation", report.bad_observations), ("a reward", report.bad_rewards)):
            for learner in np.flatnonzero(bad).tolist():
                if learner not in self.faults and not report.lost[learner]:  # it has a replay
                    env = report.trainer.parts.config.env
                    warnings.warn(
                        f"{env} gave learner {learner} {what} that is not finite near step {report.step:,}: "
                        f"such steps are left out of the replay; try shoal check {env}",
                        RuntimeWarning,
                    )
                self.faults.setdefault(learner, what)
        new = [learner for learner in np.flatnonzero(report.lost).tolist() if learner not in self.known]
        self.known.update(new)
        on_nan = report.trainer.parts.config.on_nan
        if all_lost(report) or (on_nan == "stop" and new):
            diverged = np.flatnonzero(report.lost).tolist()
            raise Diverged(f"{self._describe(report, diverged)}; earlier checkpoints are kept")
        if new:
            warnings.warn(self._describe(report, new) + AFTERWARDS[on_nan], RuntimeWarning)

    def _describe(self, report: Report, learners: list[int]) -> str:
        cause = "the loss is not finite; try a smaller --learning-rate, or --norm-reward"
        for learner in learners[::-1]:
            if learner in self.faults:
                env = report.trainer.parts.config.env
                cause = f"{env} gave {self.faults[learner]} that is not finite; try shoal check {env}"
        listed = ", ".join(map(str, learners[:8])) + ", ..." * (len(learners) > 8)
        return f"learner {listed} diverged near step {report.step:,}: {cause}"


def all_lost(report: Report) -> bool:
    """Whether no learner is left to train."""
    return bool(is_lost(report.trainer.parts.config, report.metrics).all())
