"""The list of runs and sweeps: state, progress, time left, score with a sparkline, speed."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from shoal.runs.catalogue import RunRow
from shoal.runs.sweep.catalogue import describe_sweep
from shoal.watch.numbers import plain
from shoal.watch.shelf import Entry, Shelf

SWEEP = ("sweep.yaml", "trials.csv", "best.yaml")
"""The files of a sweep that say how it stands."""
SPARKS = 40
"""The points of a sparkline, at most."""
BRIEF = 50
"""The most characters of a setting's value."""
RECENT = 10
"""The last reports between which speed is measured."""


def overview(shelf: Shelf) -> dict[str, Any]:
    """Every run, the one that changed last first, and every sweep, with its programs as one."""
    sweeps: dict[Path, list[Entry]] = {entry.folder: [] for entry in shelf.sweeps().values()}
    alone = []
    for run in shelf.runs().values():
        above = next((at for at in run.folder.parents if at in sweeps), None)
        (alone if above is None else sweeps[above]).append(run)
    found = [described_sweep(entry, sweeps[entry.folder]) for entry in shelf.sweeps().values()]
    return {
        "runs": sorted(map(described, alone), key=lambda run: run["changed"], reverse=True),
        "sweeps": found,
        "folders": [str(root) for root in shelf.roots],
    }


def described(entry: Entry) -> dict[str, Any]:
    """One run in the list."""
    return entry.once("described", entry.stamp("checkpoints"), lambda: _described(entry, entry.row()))


def described_sweep(entry: Entry, programs: Sequence[Entry]) -> dict[str, Any]:
    """One sweep in the list."""
    stamp = [entry.stamp(*SWEEP), *(one.stamp("checkpoints") for one in programs)]
    rows = [one.row() for one in programs]
    make = lambda: _shown(entry, describe_sweep(entry.folder, rows)) | {"programs": len(rows)}
    return entry.once("described", stamp, make)


def _shown(entry: Entry, row: RunRow) -> dict[str, Any]:
    changed = row.settings or {}
    return {
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


def _described(entry: Entry, row: RunRow) -> dict[str, Any]:
    found = _shown(entry, row)
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
