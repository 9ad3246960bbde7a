"""`shoal runs`: the runs there are, how far they are, how good, and in which settings they differ."""

import json
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from shoal.cli.arguments import read_arguments
from shoal.cli.status import STATUS
from shoal.errors import ShoalError
from shoal.runs.catalogue import RunRow, list_runs
from shoal.runs.naming import ROOT, SHORT
from shoal.runs.progress import format_large, format_return
from shoal.runs.sweep.catalogue import fold_sweeps


@dataclass(frozen=True)
class Runs:
    """List runs, newest first: state, steps, returns, settings that differ from the preset.

    A sweep is one line; its returns are the mean of its settings, and the best setting's.
    """

    folders: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="[FOLDER ...]")] = ()
    """Where to look; runs/ unless given."""
    programs: bool = False
    """List the programs of sweeps, too; `shoal runs SWEEP` lists those of one sweep."""
    json: bool = False
    """Print one JSON list instead of a table."""
    debug: bool = False
    """Show the whole traceback of an error."""


def main(arguments: list[str]) -> int:
    """List runs."""
    options = read_arguments(Runs, "shoal runs", arguments)
    if missing := [folder for folder in options.folders if not folder.is_dir()]:
        raise ShoalError(f"{missing[0]} is no folder; give one that holds runs")
    folders = options.folders or (ROOT,)
    found = list_runs(folders)
    found = found if options.programs else fold_sweeps(found, folders)
    STATUS.clear()
    if options.json:
        print(json.dumps([as_json(row) for row in found], indent=1))
    elif found:
        print("\n".join(table(found)))
    else:
        print(f"no runs below {' or '.join(map(str, folders))}; begin with shoal train CartPole-v1")
    return 0


def as_json(row: RunRow) -> dict[str, Any]:
    """A run for programs; `settings` are those that differ from the preset."""
    return {name: value for name, value in row._asdict().items() if name != "in_name"} | {
        "folder": str(row.folder)
    }


def table(rows: Sequence[RunRow]) -> list[str]:
    """A line for each run."""
    heads = ("state", "steps", "mean", "best learner", "best evaluated", "changed", "run (settings)")
    cells = [heads, *map(_cells, rows)]
    if all(row.best_evaluation is None for row in rows):
        cells = [line[:4] + line[5:] for line in cells]
    widths = [max(map(len, column)) for column in list(zip(*cells, strict=True))[:-1]]
    return ["  ".join([*map(str.ljust, line, widths), line[-1]]) for line in cells]


def _cells(row: RunRow) -> tuple[str, ...]:
    """Its columns; the last has its name, and in brackets what that does not say."""
    name = str(row.folder.relative_to(ROOT) if row.folder.is_relative_to(ROOT) else row.folder)
    ago = age(time.time() - row.changed)
    if row.state == "damaged":
        return row.state, "", "", "", "", ago, f"{name} ({row.error})"
    note = f": {row.note}" if row.note else ""
    said = [f"{SHORT.get(key, key)} {_brief(value)}" for key, value in (row.settings or {}).items()]
    return (
        row.state,
        f"{format_large(row.step)} of {format_large(row.steps)}",
        _score(row.return_mean),
        _score(row.best_return),
        _score(row.best_evaluation),
        ago,
        (name if row.in_name else f"{name} ({', '.join([row.env, row.algo, *said])})") + note,
    )


def _score(value: float | None) -> str:
    return "-" if value is None else format_return(value)


def _brief(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return textwrap.shorten(text, 40, placeholder=" ...")


def age(seconds: float) -> str:
    """How long ago something was.

    >>> age(59), age(600), age(7300), age(260_000)
    ('59 s ago', '10 min ago', '2 h ago', '3 days ago')
    """
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size or (seconds >= size and unit != "days"):
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"
