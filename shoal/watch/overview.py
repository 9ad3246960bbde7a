"""The list of runs and sweeps: state, progress, time left, score with a sparkline, speed."""

from textwrap import shorten
from typing import Any

import numpy as np

from shoal.runs.catalogue import RunRow
from shoal.watch.numbers import plain
from shoal.watch.shelf import Entry, Shelf

SPARKS = 40
"""The points of a sparkline, at most."""
BRIEF = 50
"""The most characters of a setting's value."""
RECENT = 10
"""The last reports between which speed is measured."""


def overview(shelf: Shelf) -> dict[str, Any]:
    """Every run, the one that changed last first, and every sweep."""
    runs = sorted(map(described, shelf.runs().values()), key=lambda run: run["changed"], reverse=True)
    sweeps = [{"id": entry.id, "name": entry.name} for entry in shelf.sweeps().values()]
    return {"runs": runs, "sweeps": sweeps, "folders": [str(root) for root in shelf.roots]}


def described(entry: Entry) -> dict[str, Any]:
    """One run in the list."""
    return entry.once("described", entry.stamp("checkpoints"), lambda: _described(entry, entry.row()))


def _described(entry: Entry, row: RunRow) -> dict[str, Any]:
    changed = row.settings or {}
    found = {
        "id": entry.id,
        "name": entry.name,
        "state": row.state,
        "changed": row.changed,
        "env": row.env,
        "algo": row.algo,
        "learners": 1,
        "step": row.step,
        "steps": row.steps,
        "mean": plain(row.return_mean),
        "best": plain(row.best_return),
        "bestLearner": None,
        "differs": {name: brief(value) for name, value in changed.items()},
        "error": row.error,
        "spark": [],
        "speed": None,
        "left": None,
        "seconds": None,
    }
    if row.state == "damaged":
        return found
    try:
        return found | {"learners": entry.config().learners} | _progress(entry, row)
    except Exception as error:  # its last report can be read, but not all of metrics.csv
        return found | {"state": "damaged", "error": str(error)}


def _progress(entry: Entry, row: RunRow) -> dict[str, Any]:
    """Sparkline, speed and time left, from the reports."""
    table = entry.tail.read("step", "learner", "seconds", "return_mean")
    if not table:
        return {}
    first = np.flatnonzero(np.diff(table["step"], prepend=-1))  # of each report, its first record
    steps, seconds = table["step"][first], table["seconds"][first]
    found = {"seconds": plain(seconds[-1])}
    if "return_mean" in table:
        means = np.array([mean_known(part) for part in np.split(table["return_mean"], first[1:])])
        last = table["return_mean"][first[-1] :]
        found["bestLearner"] = int(np.nanargmax(last)) if np.isfinite(last).any() else None
        stride = max(1, -(-len(means) // SPARKS))
        found["spark"] = plain(means[::-1][::stride][::-1])
    back = max(0, len(steps) - 1 - RECENT)
    if (spent := seconds[-1] - seconds[back]) > 0:
        speed = (steps[-1] - steps[back]) / spent
        found["speed"] = plain(speed * entry.config().learners)
        found["left"] = plain((row.steps - steps[-1]) / speed) if row.state == "running" and speed else None
    return found


def mean_known(values: np.ndarray) -> float:
    """The mean of those that are finite."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else np.nan


def brief(value: Any) -> str:
    """A setting's value in a short line; what a file gave is not told."""
    return "given" if isinstance(value, dict) else shorten(written(value), BRIEF, placeholder=" ...")


def written(value: Any) -> str:
    """A setting's value in a line.

    >>> written((64, 64)), written(True), written(None), written(0.0003)
    ('64 64', 'on', 'none', '0.0003')
    """
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple | list) and not any(isinstance(item, dict) for item in value):
        value = " ".join(map(str, value)) or None
    return "none" if value is None else str(value)
