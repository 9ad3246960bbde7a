"""A sweep: its trials from trials.csv, which settings matter, and its programs."""

from operator import itemgetter
from typing import Any

import numpy as np

from shoal.learners.registry import ALGORITHMS
from shoal.runs.config import read_settings
from shoal.runs.sweep.axes import read_axes
from shoal.runs.sweep.importance import importance
from shoal.runs.sweep.table import Row, best_first, read_trials
from shoal.watch.numbers import plain
from shoal.watch.shelf import Entry, Shelf


def sweep_page(entry: Entry, shelf: Shelf) -> dict[str, Any]:
    """Its settings and trials, the share of the scores that each setting explains, its programs."""
    plan = read_settings(entry.folder / "sweep.yaml")
    names = list(plan.get("axes", {}))
    rows = read_trials(entry.folder / "trials.csv", names)
    programs = [run for run in shelf.runs().values() if entry.folder in run.folder.parents]
    return {
        "id": entry.id,
        "name": entry.name,
        "folder": str(entry.folder),
        "method": str(plan.get("method", "")),
        "axes": names,
        "drawn": [name for name in names if is_drawn(plan["axes"][name])],
        "trials": [
            {
                "number": row.number,
                "values": [row.values[name] for name in names],
                "state": row.state,
                "steps": row.steps,
                "mean": plain(row.mean),
                "scores": plain(row.scores),
            }
            for row in rows
        ],
        "order": [row.number for row in best_first(rows)],
        "importance": _importance(plan, rows),
        "programs": sorted(({"id": run.id, "name": run.name} for run in programs), key=itemgetter("name")),
    }


def is_drawn(axis: Any) -> bool:
    """Whether any number between two may come from a sweep's axis.

    >>> is_drawn([0.9, 0.99]), is_drawn("choice 4 10"), is_drawn("log 0.0001 0.01")
    (False, False, True)
    """
    return isinstance(axis, str) and not axis.startswith("choice")


def _importance(plan: dict[str, Any], rows: list[Row]) -> dict[str, float]:
    """How much each setting explains, of the trials that have a score; {} where nothing can be said."""
    scored = [row for row in rows if np.isfinite(row.mean)]
    algo = plan.get("settings", {}).get("algo", "ppo")
    if len(scored) < 2 or algo not in ALGORITHMS:
        return {}
    listed = {name: values for name, values in plan["axes"].items() if isinstance(values, list)}
    drawn = [f"{name}={prior}" for name, prior in plan["axes"].items() if name not in listed]
    axes = read_axes(algo, listed, drawn)
    return {name: plain(share) for name, share in importance(scored, axes).items()}
