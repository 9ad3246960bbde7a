"""Metrics over time: learning curves, comparisons of runs, panels, speed."""

from typing import NamedTuple

import numpy as np

from shoal.errors import ShoalError
from shoal.runs.plots.figure import PALETTE, count_axis, steps_label

MANY_LINES = 32
"""With more learners, only their mean and band are plotted."""


class Curve(NamedTuple):
    """One metric of one run, a column per learner; NaN where a report lacks it."""

    steps: np.ndarray  # (R,) reports
    values: np.ndarray  # (R, L)


def pivot(table: dict[str, np.ndarray], name: str) -> Curve:
    """A metric as reports by learners."""
    if name not in table:
        raise ShoalError(f"metrics.csv has no column {name}; it has {', '.join(table)}")
    steps, report = np.unique(table["step"], return_inverse=True)
    values = np.full((len(steps), table["learner"].max() + 1), np.nan)
    values[report, table["learner"]] = table[name]
    return Curve(steps, values)


def mean_and_deviation(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over the learners with a finite value, per report; NaN without any."""
    known = np.isfinite(values)
    number = np.where(known.any(axis=1), known.sum(axis=1), np.nan)
    mean = np.where(known, values, 0).sum(axis=1) / number
    spread = np.where(known, values - mean[:, None], 0)
    return mean, np.sqrt((spread**2).sum(axis=1) / number)


def speed(table: dict[str, np.ndarray]) -> Curve:
    """Environment steps per second of all learners, between one report and the next.

    Pairs of reports between which the clock went back, in a resumed run, are left out.
    """
    clock = pivot(table, "seconds")
    seconds, steps = np.diff(clock.values[:, 0]), np.diff(clock.steps)
    forward = seconds > 0
    rate = steps[forward] * clock.values.shape[1] / seconds[forward]
    return Curve(clock.steps[1:][forward], rate[:, None])


def plot_curve(axes, curve: Curve, color: str, label: str | None = None, thin: bool = True) -> None:
    """Each learner as a thin line, their mean as a thick one, one standard deviation as a band."""
    num_learners = curve.values.shape[1]
    mean, deviation = mean_and_deviation(curve.values)
    marker = "o" if len(curve.steps) == 1 else None
    if num_learners > 1:
        axes.fill_between(
            curve.steps, mean - deviation, mean + deviation, color=color, alpha=0.18, linewidth=0
        )
    if thin and 1 < num_learners <= MANY_LINES:
        names = ["each learner", *[None] * (num_learners - 1)]
        axes.plot(curve.steps, curve.values, color=color, linewidth=0.6, alpha=0.45, label=names)
    axes.plot(curve.steps, mean, color=color, linewidth=2, marker=marker, label=label)
    count_axis(axes.xaxis)


def plot_returns(figure, curve: Curve, title: str) -> None:
    axes = figure.subplots()
    num_learners = curve.values.shape[1]
    mean_label = f"mean of {num_learners} learners ± 1 s.d." if num_learners > 1 else None
    plot_curve(axes, curve, PALETTE[0], mean_label)
    if not np.isfinite(curve.values).any():
        axes.text(
            0.5, 0.5, "no episode has ended yet", transform=axes.transAxes, ha="center", color="#777777"
        )
    axes.set(title=title, xlabel=steps_label(num_learners), ylabel="episode return")
    if mean_label:
        axes.legend(loc="best")


def plot_comparison(figure, curves: dict[str, Curve]) -> None:
    axes = figure.subplots()
    many = {curve.values.shape[1] for curve in curves.values()} != {1}
    for index, (label, curve) in enumerate(curves.items()):
        plot_curve(axes, curve, PALETTE[index % len(PALETTE)], label, thin=False)
    title = "mean over learners ± 1 s.d." if many else ""
    axes.set(title=title, xlabel=steps_label(2 if many else 1), ylabel="episode return")
    axes.legend(loc="best")


def plot_panels(figure, curves: dict[str, Curve], title: str) -> None:
    columns = min(3, len(curves))
    panels = figure.subplots(-(-len(curves) // columns), columns, squeeze=False).ravel()
    for axes, (name, curve) in zip(panels, curves.items(), strict=False):
        plot_curve(axes, curve, PALETTE[0])
        axes.set(title=name.replace("_", " "))
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))
    for axes in panels[len(curves) :]:
        axes.set_visible(False)
    figure.suptitle(title, fontsize=11)
    figure.supxlabel(steps_label(next(iter(curves.values())).values.shape[1]), fontsize=10)


def plot_speed(figure, curve: Curve, title: str) -> None:
    axes = figure.subplots()
    plot_curve(axes, curve, PALETTE[2])
    count_axis(axes.yaxis)
    axes.set(title=title, xlabel="environment steps", ylabel="steps per second, all learners")
    axes.set_ylim(bottom=0)
