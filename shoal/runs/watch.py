"""Watches a run's reports: its evaluations, what is saved and kept, whether its goal is reached."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.runs.milestones import Milestones
from shoal.training.config import TrainConfig
from shoal.training.loop import Interludes, Report
from shoal.training.program import Trainer
from shoal.training.rollout import WINDOW
from shoal.training.scores import best_learner
from shoal.training.validation import make_validation

SCORES = ("return_mean", "return_std", "length_mean")
"""What is remembered of an evaluation, beside its step."""
FRESH: Mapping[str, Any] = {}
"""The record of a run without a checkpoint."""


class Watch:
    """Decides what to save and when to stop: from settings and scores, never from the time.

    `last` is an evaluation, and `best` the one with the best single learner; `goal` is the return that was
    reached, with its step and the run's `steps` then; None where there is none. `meta` is that of the
    checkpoint from which a run resumes.
    """

    def __init__(self, milestones: Milestones, config: TrainConfig, meta: Mapping[str, Any] = FRESH):
        self.milestones, self.config = milestones, config
        watched = meta.get("watch", {})
        self.last, self.best, self.goal = (watched.get(name) for name in ("last", "best", "goal"))
        self.stop_at = None if goal_reached(milestones, meta) else milestones.stop_at
        self.reached = False

    def interludes(self, trainer: Trainer) -> Interludes:
        """The evaluations and checkpoints of the loop."""
        given = self.milestones
        saved = Interludes(save_every=given.save_every or 0, film_every=given.film_every or 0)
        if not given.eval_every:
            return saved
        return saved._replace(
            eval_every=given.eval_every, evaluate=make_validation(trainer.parts, given.episodes)
        )

    def see(self, report: Report) -> None:
        """Note a report's evaluation, and whether it reaches the goal."""
        if report.evaluated:
            scores = {name: report.metrics[f"eval/{name}"].tolist() for name in SCORES}
            self.last = {"step": report.step, **scores}
            if self.best is None or highest(self.last["return_mean"]) >= highest(self.best["return_mean"]):
                self.best = self.last
        score = self.mean_return(report)
        if self.stop_at is not None and score >= self.stop_at:
            self.goal = {"return": score, "step": report.step, "steps": self.config.steps}
            self.reached = True

    def mean_return(self, report: Report) -> float:
        """The mean over learners that is compared with `stop_at`; NaN where it does not count.

        Only an evaluation, or a report that is due, counts: others come at times that depend on the machine.
        """
        if self.milestones.eval_every:
            return float(np.mean(report.metrics["eval/return_mean"])) if report.evaluated else np.nan
        enough = report.due and np.all(report.metrics["episodes"] >= WINDOW)
        return float(np.mean(report.metrics["return_mean"])) if enough else np.nan

    def rank(self, report: Report) -> float:
        """What the best checkpoint is chosen by: the best learner's score; -inf where it does not count."""
        counts = report.evaluated or not self.milestones.eval_every
        return highest(scores_of(report)) if counts else -np.inf

    def must_save(self, report: Report) -> bool:
        """Whether this report is the best by evaluation, is filmed, or its checkpoint is kept."""
        best = report.evaluated and self.best is self.last
        return best or self.keeps(report) or self.films(report)

    def keeps(self, report: Report) -> bool:
        """Whether this report's checkpoint is kept for good."""
        every = self.milestones.save_every
        return bool(every) and self.config.reaches(report.iteration, every)

    def films(self, report: Report) -> bool:
        """Whether the best learner is filmed as it is at this report."""
        every = self.milestones.film_every
        return bool(every) and self.config.reaches(report.iteration, every)

    def meta(self, report: Report) -> dict[str, Any]:
        """What a checkpoint records of this."""
        return {
            "score": self.rank(report),
            "scores": scores_of(report),
            "evaluated": report.evaluated,
            "kept": self.keeps(report),
            "watch": {"last": self.last, "best": self.best, "goal": self.goal},
        }

    def summary(self) -> dict[str, Any]:
        """What summary.json says of this."""
        found = {"evaluation": self.last, "best_evaluation": self.best}
        said = {name: with_best(evaluation) for name, evaluation in found.items() if evaluation is not None}
        return said | ({} if self.goal is None else {"reached": self.goal})


def scores_of(report: Report) -> np.ndarray:
    """The mean return of each learner, (L,): in the evaluation if there is one, else of its last episodes."""
    return report.metrics["eval/return_mean" if report.evaluated else "return_mean"]


def with_best(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluation, with its best learner and that one's mean return."""
    returns = evaluation["return_mean"]
    best = best_learner(returns)
    return {**evaluation, "best_return": returns[best], "best_learner": best}


def highest(scores: Any) -> float:
    """The highest of some scores; -inf where none is known."""
    scores = np.asarray(scores, float)
    return float(np.max(np.where(np.isfinite(scores), scores, -np.inf)))


def goal_reached(milestones: Milestones, meta: Mapping[str, Any]) -> bool:
    """Whether the run of this checkpoint has reached a return as high as this goal."""
    goal = meta.get("watch", {}).get("goal")
    return goal is not None and milestones.stop_at is not None and milestones.stop_at <= goal["return"]


def is_over(milestones: Milestones, config: TrainConfig, meta: Mapping[str, Any]) -> bool:
    """Whether it has, and this command asks for no more steps than the one that reached it."""
    return goal_reached(milestones, meta) and config.steps <= meta["watch"]["goal"]["steps"]
