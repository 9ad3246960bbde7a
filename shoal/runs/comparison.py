"""Comparisons of runs: means with intervals, sample efficiency, and which is better how probably."""

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import ShoalError
from shoal.ops.comparison import Estimate, Group, improvement
from shoal.ops.intervals import TRIM, bootstrap_interval, trimmed_mean
from shoal.runs.metrics import read_metrics
from shoal.runs.plots.curves import Curve, pooled
from shoal.runs.plots.groups import find_runs, group_runs, label_groups, read_all, read_config


class Compared(NamedTuple):
    """Runs that differ in the seed alone, at a step."""

    label: str
    runs: list[Path]
    step: int  # of each learner
    scores: Group
    mean: Estimate
    iqm: Estimate
    area: Estimate  # the mean over all steps so far: who learns sooner has more


class Comparison(NamedTuple):
    """Several groups of runs compared with each other."""

    metric: str
    groups: list[Compared]
    improvements: dict[tuple[str, str], Estimate]  # P(a score of the first is better than one of the second)
    dependent: list[str]  # groups of one run whose learners exchange: their intervals say too little

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "metric": self.metric,
            "groups": [
                {
                    "label": one.label,
                    "runs": list(map(str, one.runs)),
                    "learners": len(one.scores.scores),
                    "step": one.step,
                    "scores": [x if np.isfinite(x) else None for x in one.scores.scores.tolist()],
                    **{name: getattr(one, name)._asdict() for name in ("mean", "iqm", "area")},
                }
                for one in self.groups
            ],
            "improvements": [
                {"better": a, "than": b, **estimate._asdict()}
                for (a, b), estimate in self.improvements.items()
            ],
        }


def compare(
    runs: Sequence[Path | str],
    metric: str = "return_mean",
    at: int | None = None,
    labels: Sequence[str] = (),
) -> Comparison:
    """Compare runs at the last step that all have reached, or `at` a step; seeds of one setting are pooled.

    >>> import shoal
    >>> compared = shoal.compare(["runs/demo"])
    >>> compared.groups[0].step, len(compared.groups[0].scores.scores)
    (1024, 2)
    """
    tables = read_all(find_runs(runs), read_metrics)
    if not tables:
        raise ShoalError("nothing to compare: give the folders of at least two runs")
    configs = {run: read_config(run) for run in tables}
    if mixed := [run for run, config in configs.items() if config and config.learner_hypers]:
        raise ShoalError(f"{mixed[0]} is a program of a sweep; its trials.csv compares its learners")
    groups = label_groups(group_runs(configs), labels)
    curves = {
        label: pooled([tables[run] for run in group.runs], metric, dependent=group.dependent)
        for label, group in groups.items()
    }
    common = min(curve.x[-1, 0] for curve in curves.values())
    step = common if at is None else at
    if late := [label for label, curve in curves.items() if not curve.x[0, 0] <= step <= curve.x[-1, 0]]:
        first, last = curves[late[0]].x[[0, -1], 0].astype(int)
        raise ShoalError(
            f"{late[0]} has no report at step {step:,.0f}; it has them from {first:,} to {last:,}"
        )
    found = [compared(label, groups[label].runs, curve, step) for label, curve in curves.items()]
    pairs = permutations(found, 2)
    better = {(a.label, b.label): improvement(a.scores, b.scores) for a, b in pairs}
    alone = [
        label
        for label, group in groups.items()
        if len(group.runs) == 1 and group.config and group.config.exchanges
    ]
    return Comparison(metric, found, better, alone)


def compared(label: str, runs: list[Path], curve: Curve, step: float) -> Compared:
    """A group's scores at its last report up to a step."""
    values = curve.values[curve.x[:, 0] <= step]
    known = np.where(np.isfinite(values), values, 0.0)
    number = np.isfinite(values).sum(axis=0)
    area = known.sum(axis=0) / np.where(number, number, np.nan)
    reached = int(curve.x[len(values) - 1, 0])
    last = values[-1]
    return Compared(
        label=label,
        runs=runs,
        step=reached,
        scores=Group(last, curve.units),
        mean=estimate(last, curve.units, "mean"),
        iqm=estimate(last, curve.units, "iqm"),
        area=estimate(area, curve.units, "mean"),
    )


def estimate(scores: np.ndarray, units: np.ndarray, statistic: str) -> Estimate:
    """A mean of scores (n,), with its 95 % bootstrap interval over their units."""
    trim = TRIM[statistic]
    low, high = bootstrap_interval(scores[None], trim, units)
    return Estimate(float(trimmed_mean(scores[None], trim)[0]), float(low[0]), float(high[0]))
