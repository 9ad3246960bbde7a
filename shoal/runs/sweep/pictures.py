"""The pictures of a sweep: parallel coordinates, importance, learning curves of the best."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shoal.exchanges.exploration import Prior
from shoal.runs.metrics import read_metrics
from shoal.runs.plots.curves import Curve, pivot
from shoal.runs.plots.figure import PALETTE, short, write_figure
from shoal.runs.plots.panels import CurveOptions, plot_metric
from shoal.runs.sweep.axes import Axis
from shoal.runs.sweep.importance import importance
from shoal.runs.sweep.table import Row, best_first, describe_values, written

SHOWN = 5
"""The best trials whose curves are shown."""
LABEL = 36
"""The most characters of a label in a legend."""


def draw_sweep(folder: Path, rows: Sequence[Row], axes: Mapping[str, Axis]) -> list[Path]:
    """Write parallel.png, importance.png and curves.png into a sweep's folder."""
    scored = [row for row in rows if np.isfinite(row.mean)]
    if not scored:
        return []
    size = (1.6 * len(axes) + 3.4, 4.2)
    figures = [
        write_figure(folder / "parallel.png", partial(plot_parallel, rows=scored, axes=axes), size),
        write_figure(folder / "curves.png", partial(plot_best, rows=best_first(scored)[:SHOWN]), (7.2, 4.4)),
    ]
    if len(shares := importance(scored, axes)):
        size = (6.4, 1.4 + 0.4 * len(shares))
        figures.append(write_figure(folder / "importance.png", partial(plot_importance, shares=shares), size))
    return figures


def plot_parallel(figure: Any, rows: Sequence[Row], axes: Mapping[str, Axis]) -> None:
    """A vertical axis for each setting and one for the score; a line for each trial, the best ones on top."""
    import matplotlib as mpl

    plot = figure.subplots()
    scores = np.array([row.mean for row in rows])
    places = [positions([row.values[name] for row in rows], axis) for name, axis in axes.items()]
    heights = np.stack([*(heights for heights, _ in places), scaled(scores)], axis=1)
    shade = mpl.colormaps["viridis_r"]
    for index in np.argsort(scores):
        rank = scaled(scores)[index]
        style = {"color": shade(0.2 + 0.8 * rank), "alpha": 0.35 + 0.65 * rank, "linewidth": 1 + 1.5 * rank}
        plot.plot(range(heights.shape[1]), heights[index], **style)
    ticks = [*(ticks for _, ticks in places), score_ticks(scores)]
    for column, marks in enumerate(ticks):
        plot.axvline(column, color="#777777", linewidth=0.8, zorder=0)
        for height, text in marks:
            box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1}
            plot.text(column + 0.04, height, text, fontsize=9, va="center", bbox=box)
    names = [name.replace("_", "\n") for name in axes]
    plot.set_xticks(range(heights.shape[1]), [*names, "mean\nreturn"])
    plot.set(yticks=[], xlim=(-0.15, heights.shape[1] - 0.55), title=f"{len(rows)} trials")
    plot.spines[["left", "bottom"]].set_visible(False)
    plot.grid(False)


def positions(values: Sequence[Any], axis: Axis) -> tuple[np.ndarray, list[tuple[float, str]]]:
    """Where values are between 0 and 1 on their axis, and its ticks: (height, text)."""
    if isinstance(axis, Prior) and axis.kind != "choice":
        warp = {"log": np.log, "one-minus-log": lambda x: -np.log1p(-x)}.get(axis.kind, lambda x: x)
        low, high = warp(np.float64(axis.low)), warp(np.float64(axis.high))
        heights = (warp(np.array(values, float)) - low) / (high - low)
        return heights, [(0.0, f"{axis.low:g}"), (1.0, f"{axis.high:g}")]
    choices = list(axis.choices if isinstance(axis, Prior) else axis.values)
    if all(isinstance(choice, int | float) for choice in choices):
        choices.sort()
    names = [f"{choice:g}" if isinstance(axis, Prior) else written(choice) for choice in choices]
    where = np.linspace(0, 1, len(choices)) if len(choices) > 1 else np.array([0.5])
    ticks = [(float(height), name) for height, name in zip(where, names, strict=True)]
    return np.array([where[choices.index(value)] for value in values]), ticks


def scaled(scores: np.ndarray) -> np.ndarray:
    """Scores between 0, the lowest, and 1, the highest.

    >>> scaled(np.array([1.0, 2.0, 5.0])).tolist()
    [0.0, 0.25, 1.0]
    """
    low, high = scores.min(), scores.max()
    return (scores - low) / (high - low) if high > low else np.full(scores.shape, 0.5)


def score_ticks(scores: np.ndarray) -> list[tuple[float, str]]:
    """The lowest and the highest score; one tick where they are equal."""
    low, high = float(scores.min()), float(scores.max())
    label = lambda score: short(float(f"{score:.3g}"), max(abs(low), abs(high)))
    return [(0.0, label(low)), (1.0, label(high))] if high > low else [(0.5, label(low))]


def plot_importance(figure: Any, shares: Mapping[str, float]) -> None:
    """A bar for each setting: the share of the scores' variance that it explains on its own."""
    plot = figure.subplots()
    names = sorted(shares, key=lambda name: shares[name])
    plot.barh(
        [name.replace("_", " ") for name in names], [100 * shares[name] for name in names], color=PALETTE[0]
    )
    plot.set(
        xlim=(0, 100), xlabel="variance of the trials' ranks that it explains alone (%)", title="Importance"
    )
    plot.grid(False, axis="y")


def plot_best(figure: Any, rows: Sequence[Row]) -> None:
    """The learning curves of the best trials, with 95 % bootstrap intervals over seeds."""
    tables = {place.folder: read_metrics(place.folder) for row in rows for place in row.places}
    curves = {label_of(row): curve_of(row, tables) for row in rows}
    plot_metric(figure, curves, "return_mean", CurveOptions(), f"The best {len(rows)} trials")


def label_of(row: Row) -> str:
    """A trial in a legend: its settings, or its number where they are too long.

    >>> label_of(Row(3, {"gamma": 0.9})), label_of(Row(3, {"learning_rate": 0.00123456, "gamma": 0.987654}))
    ('gamma 0.9', 'trial 3')
    """
    text = describe_values(row.values)
    return text if len(text) <= LABEL else f"trial {row.number}"


def curve_of(row: Row, tables: Mapping[Path, dict[str, np.ndarray]]) -> Curve:
    """A trial's returns over all its programs, a column for each seed."""
    parts, seeds = [pivot(tables[place.folder], "return_mean") for place in row.places], len(row.scores)
    chosen = [
        (
            part.x[:, place.learner : place.learner + seeds],
            part.values[:, place.learner : place.learner + seeds],
        )
        for part, place in zip(parts, row.places, strict=True)
    ]
    x, values = (np.concatenate(arrays) for arrays in zip(*chosen, strict=True))
    return Curve(x, values, np.arange(seeds))
