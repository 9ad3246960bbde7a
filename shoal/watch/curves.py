"""A run's metrics as the page draws them: a line per learner, or bands and a heatmap of many."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.ops.intervals import TRIM, bootstrap_interval, middle, trimmed_mean
from shoal.runs.metrics import LEADING
from shoal.runs.plots.curves import Curve, pivot, pooled
from shoal.runs.plots.groups import group_runs, label_groups
from shoal.runs.plots.words import metric_in_words
from shoal.watch.numbers import as_bytes, plain
from shoal.watch.shelf import Entry

MANY_LEARNERS = 32
"""Of more learners there is no line for each."""
MOST_POINTS = 400
"""Of more reports neighbours are averaged."""


def metric_curves(
    entry: Entry, metrics: Sequence[str], learner: int | None, heat: bool
) -> list[dict[str, Any]]:
    """These metrics of a run, those of them it has; with the line of a learner, with a heatmap."""
    table = entry.tail.read(*LEADING, *metrics)
    return [
        drawn(name, table, learner, heat)
        for name in metrics
        if name in table and np.isfinite(table[name]).any()
    ]


def drawn(name: str, table: dict[str, np.ndarray], learner: int | None, heat: bool) -> dict[str, Any]:
    """One metric of one run."""
    whole = {key: table[key].astype(int) for key in ("step", "learner")}
    curve = pivot(table | whole, name)
    x, values, per_point = fewer_points(curve.x[:, 0], curve.values)
    many = values.shape[1] > MANY_LEARNERS
    found = {
        "metric": name,
        "label": metric_in_words(name),
        "learners": values.shape[1],
        "perPoint": per_point,
        "x": plain(x),
        "mean": plain(trimmed_mean(values)),
        "last": plain(values[-1]) if not many else None,
    }
    if learner is not None and learner < values.shape[1]:
        found |= {"learner": learner, "line": plain(values[:, learner])}
    if many:
        found |= {"nine": plain(middle(values, 0.9)), "half": plain(middle(values, 0.5))}
    else:
        found["lines"] = plain(values.T)
    if heat and values.shape[1] > 1:
        order = ranking(values)
        found["heat"] = as_bytes(values[:, order].T) | {"order": order.tolist()}
    return found


def ranking(values: np.ndarray) -> np.ndarray:
    """The learners by their last value, the highest first; those without one come last."""
    last = values[-1]
    return np.argsort(np.where(np.isfinite(last), -last, np.inf), kind="stable")


def fewer_points(x: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """At most `MOST_POINTS` reports: means of so many neighbours, the last of which ends at the last report.

    >>> x, values, each = fewer_points(np.arange(900.0), np.arange(900.0)[:, None])
    >>> len(x), each, float(x[-1]), values[-1].tolist()
    (300, 3, 899.0, [898.0])
    """
    each = -(-len(x) // MOST_POINTS)
    if each < 2:
        return x, values, 1
    ends = np.arange(len(x) - 1, -1, -each)[::-1]
    means = [trimmed_mean(values[max(0, end + 1 - each) : end + 1].T) for end in ends]
    return x[ends], np.array(means), each


def compared(entries: Sequence[Entry], metric: str) -> dict[str, Any]:
    """One metric of several runs; those that differ in the seed alone are one curve with its interval."""
    tables = {entry.folder: entry.tail.read(*LEADING, metric) for entry in entries}
    missing = [entry.name for entry in entries if metric not in tables[entry.folder]]
    configs = {entry.folder: entry.config() for entry in entries if entry.name not in missing}
    groups = label_groups(group_runs(configs), ()) if configs else {}
    curves = []
    for label, group in groups.items():
        whole = [_with_integers(tables[run]) for run in group.runs]
        curve = pooled(whole, metric, dependent=group.dependent)
        x, values, _ = fewer_points(curve.x[:, 0], curve.values)
        curves.append(
            {
                "label": label,
                "runs": len(group.runs),
                "learners": values.shape[1],
                "x": plain(x),
                "mean": plain(trimmed_mean(values)),
                "band": plain(_interval(Curve(x, values, curve.units))),
                "last": plain(trimmed_mean(values[-1:])[0]),
            }
        )
    return {"metric": metric, "label": metric_in_words(metric), "curves": curves, "missing": missing}


def _interval(curve: Curve) -> np.ndarray | None:
    if len(np.unique(curve.units)) < 2:
        return None
    return np.array(bootstrap_interval(curve.values, TRIM["mean"], curve.units, resamples=200))


def _with_integers(table: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return table | {name: table[name].astype(int) for name in ("step", "learner")}
