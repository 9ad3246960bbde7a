"""The results of a sweep: a row for each trial, and trials.csv."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

import numpy as np

from shoal.errors import ShoalError
from shoal.ops.intervals import TRIM, bootstrap_interval, trimmed_mean
from shoal.runs.files import disk_errors, write_text
from shoal.runs.rows import LARGEST_STEP
from shoal.runs.sweep.halving import ranked

Read = TypeVar("Read")
State: TypeAlias = Literal["waiting", "paused", "stopped", "done", "diverged"]
"""Not begun; to be compared before it goes on; stopped early; trained to the end; a learner diverged."""


class Place(NamedTuple):
    """Where a trial's learners are: in the run in a folder, from this row on."""

    folder: Path
    learner: int


class Row(NamedTuple):
    """A trial and what it has reached.

    >>> row = Row(0, {"gamma": 0.9}, "done", 1000, np.array([1.0, 2.0, 3.0, 10.0]))
    >>> row.mean, row.iqm
    (4.0, 2.5)
    """

    number: int
    values: dict[str, Any]
    state: State = "waiting"
    steps: int = 0  # of each of its learners
    scores: np.ndarray = np.array([])  # a mean return of the last 100 episodes for each seed
    places: tuple[Place, ...] = ()  # one after the other; the last has the newest learners

    @property
    def reached(self) -> tuple[bool, int]:
        """Whether it is done, else how often it went on: steps are rounded up, by each program otherwise."""
        return self.state == "done", 0 if self.state == "done" else len(self.places)

    @property
    def mean(self) -> float:
        """The mean of its scores; NaN where one is not known."""
        return float(np.mean(self.scores)) if len(self.scores) else np.nan

    @property
    def iqm(self) -> float:
        """The interquartile mean of its scores; NaN where one is not known."""
        return float(trimmed_mean(self.scores[None], TRIM["iqm"])[0]) if np.isfinite(self.mean) else np.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % bootstrap interval of the mean."""
        if not np.isfinite(self.mean):
            return np.nan, np.nan
        low, high = bootstrap_interval(self.scores[None])
        return float(low[0]), float(high[0])


def best_first(rows: Iterable[Row]) -> list[Row]:
    """Trials by how far they came, since few steps say little, and by their mean; the best first."""
    found = list(rows)
    order = ranked({index: row.mean for index, row in enumerate(found)})
    in_order = sorted((found[index] for index in order), key=lambda row: row.reached, reverse=True)
    return sorted(in_order, key=lambda row: np.isnan(row.mean))


def write_trials(folder: Path, rows: Iterable[Row]) -> Path:
    """Write trials.csv: a line for each trial."""
    rows = list(rows)
    names = list(rows[0].values) if rows else []
    header = ["trial", *names, "seeds", "state", "steps", "mean", "iqm", "low", "high", "scores", "programs"]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *(_cells(row, names) for row in rows)])
    return write_text(folder / "trials.csv", text.getvalue())


def read_trials(path: Path, names: Iterable[str] = ()) -> list[Row]:
    """The trials in trials.csv, values as they are written, places by name; [] where there is none yet."""
    return _read_lines(path, lambda cells: _read_row(cells, names))


def read_means(path: Path) -> np.ndarray:
    """The mean returns in trials.csv, without those that are not known."""
    means = np.array(_read_lines(path, lambda cells: float(cells["mean"] or "nan")))
    return means[np.isfinite(means)]


def _read_lines(path: Path, read: Callable[[Mapping[str, str]], Read]) -> list[Read]:
    if not path.exists():
        return []
    with disk_errors("read", path), path.open(encoding="utf-8", errors="replace", newline="") as file:
        text = file.read()
    try:
        return [read(cells) for cells in csv.DictReader(io.StringIO(text), strict=True)]
    except (KeyError, ValueError, AttributeError, TypeError, csv.Error) as error:
        reason = " ".join(str(error).split())
        raise ShoalError(f"{path} is damaged ({reason}); the same sweep writes it again") from error


def _read_row(cells: Mapping[str, str], names: Iterable[str]) -> Row:
    steps, state = int(cells["steps"]), cells["state"]
    if not 0 <= steps <= LARGEST_STEP or state not in get_args(State):
        raise ValueError(f"a trial at step {cells['steps']} that is {state}")
    return Row(
        number=int(cells["trial"]),
        values={name: cells[name] for name in names},
        state=state,  # pyright: ignore[reportArgumentType]
        steps=steps,
        scores=np.array(cells["scores"].split(), float),
        places=tuple(_read_place(place) for place in cells["programs"].split()),
    )


def _read_place(text: str) -> Place:
    name, _, learner = text.partition(":")
    return Place(Path(name), int(learner))


def _cells(row: Row, names: list[str]) -> list[str]:
    values = [written(row.values[name]) for name in names]
    numbers = [_number(x) for x in (row.mean, row.iqm, *row.interval)]
    scores = " ".join(map(_number, row.scores))
    places = " ".join(f"{place.folder.name}:{place.learner}" for place in row.places)
    return [
        str(row.number),
        *values,
        str(len(row.scores)),
        row.state,
        str(row.steps),
        *numbers,
        scores,
        places,
    ]


def _number(x: float) -> str:
    return f"{x:.6g}" if np.isfinite(x) else ""


def written(value: Any) -> str:
    """A value as `--grid` takes it.

    >>> written((64, 64)), written(None), written(True), written(3e-4)
    ('64-64', 'none', 'true', '0.0003')
    """
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    return "none" if value is None else str(value).lower()


def describe_values(values: Mapping[str, Any]) -> str:
    """The settings of a trial in a line.

    >>> describe_values({"learning_rate": 3e-4, "hidden": (64, 64)})
    'learning_rate 0.0003, hidden 64-64'
    """
    return ", ".join(f"{name} {written(value)}" for name, value in values.items())
