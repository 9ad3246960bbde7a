"""The result of a run: from its last report, or from its last checkpoint where a crash came between."""

from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import ShoalError
from shoal.runs.config import to_settings
from shoal.runs.metrics import read_metrics
from shoal.runs.milestones import Milestones
from shoal.runs.summary import read_summary, write_summary
from shoal.runs.watch import Watch
from shoal.training.config import TrainConfig
from shoal.training.loop import Clock, Report, is_lost
from shoal.training.scores import best_learner


def summary_of(report: Report, watch: Watch, interrupted: bool) -> dict[str, Any]:
    """The result at a report."""
    parts = report.trainer.parts
    return summarise(
        parts.config, report.step, report.clock, report.metrics, parts.recipe.spec.backend, watch, interrupted
    )


def summarise(
    config: TrainConfig,
    step: int,
    clock: Clock,
    metrics: dict[str, np.ndarray],
    backend: str,
    watch: Watch,
    interrupted: bool,
) -> dict[str, Any]:
    """The content of summary.json."""
    scores = metrics["return_mean"]
    best = best_learner(scores)
    return {
        "env": config.env,
        "algo": to_settings(config)["algo"],
        "learners": config.learners,
        "steps": step,
        "seconds": clock.seconds,
        "steps_per_second": clock.steps_per_second,
        "steps_per_second_compiled": clock.steps_per_second_compiled,
        "return_mean": scores,
        "best_return": scores[best],
        "best_learner": best,
        "lost_learners": np.flatnonzero(is_lost(config, metrics)).tolist(),
        "backend": backend,
        "interrupted": interrupted,
        **watch.summary(),
    }


def summary_at_end(folder: Path, config: TrainConfig, meta: dict[str, Any], backend: str) -> dict[str, Any]:
    """The summary of a run that has ended; from its last checkpoint where it is missing or damaged."""
    step = config.steps_after(meta["iteration"])
    try:
        summary = read_summary(folder)
    except ShoalError:
        summary = {}
    if summary.get("steps") == step and not summary.get("interrupted"):
        return summary
    watch = Watch(Milestones(), config, meta)
    last = _last_metrics(folder, config, step, meta)
    write_summary(folder, summarise(config, step, Clock(**meta["clock"]), last, backend, watch, False))
    return read_summary(folder)


def _last_metrics(
    folder: Path, config: TrainConfig, step: int, meta: dict[str, Any]
) -> dict[str, np.ndarray]:
    """The returns and losses of a run's last report; where it is lost, the scores of its checkpoint."""
    try:
        table = read_metrics(folder)
        rows, names = table["step"] == step, ("return_mean", "loss/total")
        last = {name: table[name][rows].astype(np.float32) for name in names}
        if len(last["return_mean"]) == config.learners:
            return last
    except (ShoalError, KeyError):
        pass
    scores = np.array(meta["scores"], float)
    return {"return_mean": scores, "loss/total": np.where(np.isfinite(scores), 0.0, np.nan)}
