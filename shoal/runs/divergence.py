"""Learners that diverge: a warning for each, an error when all have, or one where the run is to stop."""

import warnings

import numpy as np

from shoal.envs.adapters.faults import Fault
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
        self.faults: dict[int, str] = {}  # numbers of the environment that are not finite, by learner
        self.crashes: dict[int, Fault] = {}  # how environments failed, by learner

    def check(self, report: Report) -> None:
        """Warn of learners that diverged since the last report; raise when all have."""
        self._tell_crashes(report)
        for what, bad in (("an observation", report.bad_observations), ("a reward", report.bad_rewards)):
            for learner in np.flatnonzero(bad).tolist():
                known = learner in self.faults or learner in self.crashes
                if not known and not report.lost[learner]:  # it has a replay
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
            error = Diverged(f"{self._describe(report, diverged)}; earlier checkpoints are kept")
            crash = next((self.crashes[one] for one in diverged if one in self.crashes), None)
            error.traceback_text = crash.traceback_text if crash else ""
            raise error
        if new:
            warnings.warn(self._describe(report, new) + AFTERWARDS[on_nan], RuntimeWarning)

    def _tell_crashes(self, report: Report) -> None:
        """Warn of learners whose environment failed, each once."""
        on_nan = report.trainer.parts.config.on_nan
        then = "its environment is made anew" if on_nan == "restart" else "the others train on"
        for learner, fault in report.crashes.items():
            if learner not in self.crashes and not all_lost(report) and on_nan != "stop":
                warnings.warn(
                    f"learner {learner} is lost near step {report.step:,}: {fault}; {then}", RuntimeWarning
                )
                self.known.add(learner)
            self.crashes.setdefault(learner, fault)

    def _describe(self, report: Report, learners: list[int]) -> str:
        undone = report.trainer.parts.config.on_nan == "restart"
        what = "the loss is not finite" + ", or parameters become too large" * undone
        cause = f"{what}; try a smaller --learning-rate, or --norm-reward"
        for learner in learners[::-1]:
            if learner in self.faults:
                env = report.trainer.parts.config.env
                cause = f"{env} gave {self.faults[learner]} that is not finite; try shoal check {env}"
            if learner in self.crashes:
                cause = str(self.crashes[learner])
        listed = ", ".join(map(str, learners[:8])) + ", ..." * (len(learners) > 8)
        return f"learner {listed} diverged near step {report.step:,}: {cause}"


def all_lost(report: Report) -> bool:
    """Whether no learner is left to train."""
    return bool(is_lost(report.trainer.parts.config, report.metrics).all())
