"""Metrics over time: learning curves, comparisons, panels, speed."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from shoal.ops.intervals import TRIM, bootstrap_interval, middle, trimmed_mean
from shoal.runs.plots.curves import Curve, X
from shoal.runs.plots.figure import PALETTE, short_numbers, subplots
from shoal.runs.plots.words import axis_in_words, metric_in_words, unit_of_time

CROWD = 16
"""Among the lines of more learners the thick one and its band are on white."""
MANY_LINES = 64
"""Of more learners there is no line for each."""
MANY_CURVES = 6
"""The legend of more curves is beside the axes."""
SHORT_LABEL = 20
"""Curves with labels of at most so many letters have them at their ends, instead of a legend."""
LABEL_GAP = 0.07
"""The least distance of two such labels, as a share of the axis."""
STATISTICS = {"mean": "mean", "iqm": "interquartile mean"}
DASHES = ("-", "--", ":", "-.")
"""The next one each time the colours are used up."""


@dataclass(frozen=True)
class CurveOptions:
    """How curves are made from metrics."""

    x: X = "steps"
    """What is on the horizontal axis; steps and episodes are those of one learner."""
    statistic: Literal["mean", "iqm"] = "mean"
    """What the thick line is of the learners: their mean, or the interquartile mean (of the middle half)."""
    smooth: int = 1
    """Show the mean of the last so many reports."""


class Axis(NamedTuple):
    """The horizontal axis of a figure."""

    label: str
    unit: float  # x is divided by it


def horizontal(curves: Iterable[Curve], options: CurveOptions) -> Axis:
    """The axis that fits these curves."""
    curves = list(curves)
    if options.x != "seconds":
        return Axis(axis_in_words(options.x, any(curve.values.shape[1] > 1 for curve in curves)), 1)
    seconds, name = unit_of_time(max(curve.mean_x[-1] for curve in curves))
    return Axis(f"time ({name})", seconds)


def plot_metric(
    figure,
    curves: dict[str, Curve],
    metric: str,
    options: CurveOptions,
    title: str,
    best: bool = False,
    each: bool = False,
) -> None:
    """One metric of one run, with a line for each learner, or of several runs in comparison.

    With `best` also the highest value among the learners at each report, with `each` also a line for each
    learner where there are several curves.
    """
    axes, axis = figure.subplots(), horizontal(curves.values(), options)
    lines = {
        label: plot_curve(axes, curve, options, axis, number, each=each or len(curves) == 1)
        for number, (label, curve) in enumerate(curves.items())
    }
    for curve in curves.values() if best else ():
        axes.plot(curve.mean_x / axis.unit, highest(curve.values), color=PALETTE[1], label="the best learner")
    explained = describe(curves.values(), options)
    if not any(np.isfinite(curve.values).any() for curve in curves.values()):
        nothing = "no episode has ended yet" if metric == "return_mean" else "no values yet"
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, nothing, transform=axes.transAxes, ha="center", color="#777777")
    elif 1 < len(curves) <= MANY_CURVES and all(len(label) <= SHORT_LABEL for label in curves):
        label_ends(axes, {label: line[-1] for label, line in lines.items()})
        figure.supxlabel(explained, fontsize="small", color="#555555")
    elif len(curves) > 1:
        place = {"loc": "outside right upper"} if len(curves) > MANY_CURVES else {"loc": "best"}
        owner = figure if len(curves) > MANY_CURVES else axes
        owner.legend(lines.values(), lines, title=explained.replace(", ", ",\n"), alignment="left", **place)
    elif explained:
        others = axes.get_legend_handles_labels()
        axes.legend([*lines.values(), *others[0]], [explained, *others[1]], loc="best")
    smoothed = f", mean of {options.smooth} reports" if options.smooth > 1 else ""
    axes.set(title=title, xlabel=axis.label, ylabel=metric_in_words(metric) + smoothed)


def highest(values: np.ndarray) -> np.ndarray:
    """The highest known value of each report (R, L); NaN where none is known.

    >>> highest(np.array([[1.0, 3.0], [np.nan, 2.0], [np.nan, np.nan]])).tolist()
    [3.0, 2.0, nan]
    """
    found = np.max(np.where(np.isfinite(values), values, -np.inf), axis=1)
    return np.where(np.isfinite(found), found, np.nan)


def label_ends(axes, lines: dict[str, Any]) -> None:
    """Each curve's label beside its last value, moved apart where two would cover each other."""
    ends = {}
    for label, line in lines.items():
        values = np.asarray(line.get_ydata(), float)
        if len(known := np.flatnonzero(np.isfinite(values))):
            ends[label] = (line.get_xdata()[known[-1]], values[known[-1]])
    low, high = axes.get_ylim()
    gap, previous = LABEL_GAP * (high - low), -np.inf
    for label, (x, y) in sorted(ends.items(), key=lambda item: item[1][1]):
        previous = max(y, previous + gap)
        color = lines[label].get_color()
        style = {"va": "center", "ha": "left", "fontweight": "bold", "annotation_clip": False}
        at = {"xytext": (1.02, previous), "textcoords": ("axes fraction", "data")}
        line = {"arrowprops": {"arrowstyle": "-", "color": color, "linewidth": 0.7, "alpha": 0.6}}
        axes.annotate(label, (x, y), color=color, **style, **at, **line)


def plot_panels(figure, curves: dict[str, Curve], options: CurveOptions, title: str) -> None:
    """A panel for each metric of one run."""
    axis, panels = horizontal(curves.values(), options), subplots(figure, len(curves))
    for axes, (metric, curve) in zip(panels, curves.items(), strict=False):
        plot_curve(axes, curve, options, axis)
        axes.set(title=metric_in_words(metric))
    explained = describe(curves.values(), options)
    figure.suptitle(f"{title}: {explained}" if explained else title)
    figure.supxlabel(axis.label, fontsize="medium")


def plot_shares(figure, curves: dict[str, Curve], options: CurveOptions, title: str) -> None:
    """Shares of a whole, such as the loss's, on top of each other: the learners' means, which add up to 1."""
    axes, axis = figure.subplots(), horizontal(curves.values(), options)
    means = np.array([trimmed_mean(curve.values) for curve in curves.values()])
    known = np.isfinite(means).all(0)
    x = next(iter(curves.values())).mean_x[known] / axis.unit
    labels = [name.partition("/")[2].replace("_", " ") for name in curves]
    axes.stackplot(x, means[:, known], labels=labels, colors=(*PALETTE[:-1], "#999999"), alpha=0.85)
    axes.set(title=title, xlabel=axis.label, ylabel="share of the loss", ylim=(0, 1))
    axes.margins(x=0)
    short_numbers(axes.xaxis, axes.yaxis)
    figure.legend(loc="outside right upper", reverse=True)


def plot_speed(figure, curve: Curve, title: str) -> None:
    """Environment steps per second over the steps."""
    axes = figure.subplots()
    plot_curve(axes, curve, CurveOptions(), Axis("", 1), 2)
    axes.set(title=title, xlabel="environment steps per learner", ylabel=metric_in_words("steps_per_second"))
    axes.set_ylim(bottom=0)


def plot_curve(
    axes, curve: Curve, options: CurveOptions, axis: Axis, number: int = 0, each: bool = True
) -> tuple:
    """The learners' mean as a thick line, its bootstrap interval as a band, each learner as a thin line.

    Of very many learners, nine of ten lie in a pale band. `number` picks colour and dashes. Returns what a
    legend shows.
    """
    color, dashes = PALETTE[number % len(PALETTE)], DASHES[number // len(PALETTE) % len(DASHES)]
    num_learners, trim = curve.values.shape[1], TRIM[options.statistic]
    each_x, x = curve.x / axis.unit, curve.mean_x / axis.unit
    center = trimmed_mean(curve.values, trim)
    if each and 1 < num_learners <= MANY_LINES:
        thin = {"linewidth": 0.7, "alpha": min(0.5, 2 / num_learners**0.5)}
        names = ["each learner", *["_"] * (num_learners - 1)]
        axes.plot(each_x, curve.values, color=color, label=names, **thin)
    elif each and num_learners > MANY_LINES:
        spread = middle(curve.values, 0.9)
        axes.fill_between(x, *spread, color=color, alpha=0.12, linewidth=0, label="nine of ten learners")
    if each and num_learners > CROWD:
        axes.plot(x, center, color="white", linewidth=4.5, label="_")
    shown = []
    if len(np.unique(curve.units)) > 1:
        interval = bootstrap_interval(curve.values, trim, curve.units)
        shown = [axes.fill_between(x, *interval, color=color, alpha=0.25, linewidth=0, zorder=2)]
    style = {"linestyle": dashes, "marker": "o" if len(x) == 1 else None, "linewidth": 2, "label": "_"}
    line = axes.plot(x, center, color=color, **style)
    short_numbers(axes.xaxis, axes.yaxis)
    return (*shown, *line)


def describe(curves: Iterable[Curve], options: CurveOptions) -> str:
    """What the thick lines and their bands are; empty where each line is one learner.

    >>> several = Curve(np.zeros((1, 5)), np.zeros((1, 5)), np.arange(5))
    >>> describe([several], CurveOptions(statistic="iqm"))
    'interquartile mean of 5 learners, 95 % bootstrap interval'
    """
    sizes = sorted({curve.values.shape[1] for curve in curves})
    if sizes == [1]:
        return ""
    numbers = " to ".join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))
    return f"{STATISTICS[options.statistic]} of {numbers} learners, 95 % bootstrap interval"
