"""Curves: a metric of one or several runs over steps, seconds or episodes, a column per learner."""

import difflib
from collections.abc import Sequence
from functools import reduce
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from shoal.errors import ShoalError
from shoal.ops.intervals import trimmed_mean

X: TypeAlias = Literal["steps", "seconds", "episodes"]
"""What a curve is plotted over; steps and episodes are those of one learner."""

Table: TypeAlias = dict[str, np.ndarray]
"""The columns of a metrics.csv."""


class Curve(NamedTuple):
    """One metric, a column per learner; NaN where a report lacks it."""

    x: np.ndarray  # (R, L) where each learner is at a report
    values: np.ndarray  # (R, L)
    units: np.ndarray  # (L,) learners of one unit depend on each other

    @property
    def mean_x(self) -> np.ndarray:
        """Where the learners are on average at each report, (R,)."""
        return trimmed_mean(self.x)

    def of(self, learners: np.ndarray) -> "Curve":
        """The same of some learners."""
        return Curve(self.x[:, learners], self.values[:, learners], self.units[learners])


def pivot(table: Table, name: str, x: X = "steps") -> Curve:
    """A metric of one run as reports by learners."""
    return pooled([table], name, x)


def pooled(tables: Sequence[Table], name: str, x: X = "steps", dependent: bool = False) -> Curve:
    """A metric of several runs that report at the same steps: their learners, side by side.

    As far as all of them have got. The learners of one run are a unit where they are `dependent`, each one
    is where they are not.
    """
    steps = reduce(np.intersect1d, (np.unique(table["step"]) for table in tables))
    if not len(steps):
        raise ShoalError("these runs differ in the seed alone but report at different steps; plot each alone")
    column = lambda which: np.hstack([_matrix(table, which, steps) for table in tables])
    values = column(name)
    num_learners = values.shape[1]
    at = np.repeat(steps[:, None], num_learners, axis=1) if x == "steps" else column(x)
    sizes = [table["learner"].max() + 1 for table in tables]
    units = np.repeat(np.arange(len(tables)), sizes) if dependent else np.arange(num_learners)
    return Curve(at, values, units)


def _matrix(table: Table, name: str, steps: np.ndarray) -> np.ndarray:
    """A column of a table as reports at these steps by learners, (R, L)."""
    if name not in table:
        raise ShoalError(unknown_metric(name, table))
    present = np.isin(table["step"], steps)
    found = np.full((len(steps), table["learner"].max() + 1), np.nan)
    found[np.searchsorted(steps, table["step"][present]), table["learner"][present]] = table[name][present]
    return found


def unknown_metric(name: str, table: Table) -> str:
    """What to say of a metric that a table does not have: the nearest names, or all of them.

    >>> unknown_metric("los/value", {"loss/value": np.zeros(1), "entropy": np.zeros(1)})
    'metrics.csv has no column los/value; did you mean loss/value?'
    """
    near = difflib.get_close_matches(name, table, n=3) or [column for column in table if name in column][:3]
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(table)}"
    return f"metrics.csv has no column {name}; {hint}"


def smooth(curve: Curve, window: int) -> Curve:
    """Each learner's mean over its last `window` reports that have a value.

    >>> curve = Curve(np.arange(3)[:, None], np.array([[1.0], [3.0], [8.0]]), np.arange(1))
    >>> smooth(curve, 2).values.ravel().tolist()
    [1.0, 2.0, 5.5]
    """
    if window < 1:
        raise ShoalError(f"smooth takes at least 1 report, not {window}")
    known = np.isfinite(curve.values)
    present = np.where(known, curve.values, 0)
    total, number = np.zeros(known.shape), np.zeros(known.shape)
    for back in range(min(window, len(known))):
        total[back:] += present[: len(known) - back]
        number[back:] += known[: len(known) - back]
    return curve._replace(values=total / np.where(number, number, np.nan))


def speed(table: Table) -> Curve:
    """Environment steps per second of all learners, between one report and the next.

    Pairs of reports between which the clock went back, in a resumed run, are left out.
    """
    clock = pivot(table, "seconds")
    seconds, steps = np.diff(clock.values[:, 0]), np.diff(clock.x[:, 0])
    forward = seconds > 0
    rate = steps[forward] * clock.values.shape[1] / seconds[forward]
    return Curve(clock.x[1:, :1][forward], rate[:, None], np.arange(1))
