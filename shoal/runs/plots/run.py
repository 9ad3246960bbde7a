"""The plots of one or several runs."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from shoal.errors import ShoalError
from shoal.exchanges.builders import communication_graph
from shoal.runs.config import from_settings, read_settings
from shoal.runs.lineage import read_lineage
from shoal.runs.metrics import read_metrics
from shoal.runs.plots.curves import (
    Curve,
    pivot,
    plot_comparison,
    plot_panels,
    plot_returns,
    plot_speed,
    speed,
)
from shoal.runs.plots.figure import write_figure
from shoal.runs.plots.graph import plot_graph
from shoal.runs.plots.lineage import plot_lineage
from shoal.training.scores import best_learner

DIAGNOSTICS = (
    "entropy",
    "approx_kl",
    "clip_fraction",
    "explained_variance",
    "q_mean",
    "grad_norm",
    "learning_rate",
)
"""Metrics in the figure of the losses, beside those whose names begin with `loss/`."""


def plot(runs: Sequence[Path], out: Path | None = None) -> list[Path]:
    """Plots every run, and several runs in comparison; returns the files written.

    A run's own figures go to RUN/plots: `returns.png`, `losses.png`, `together.png`, `graph.png`,
    `lineage.png`, `speed.png`, each where the run has data for it. With several runs
    `comparison.png` goes beside the first run's folder. With `out` everything goes there, a folder per
    run if there are several.
    """
    if not runs:
        raise ShoalError("nothing to plot: give the folder of at least one run")
    folders = destinations(runs, out)
    tables = {run: read_metrics(run) for run in folders}
    labels = _labels(list(tables))
    written = []
    for run, table in tables.items():
        written += _plot_run(table, labels[run], folders[run])
        written += _graph_figures(run, folders[run])
        written += _lineage_figure(run, pivot(table, "return_mean"), folders[run])
    if len(tables) > 1:
        curves = {labels[run]: pivot(table, "return_mean") for run, table in tables.items()}
        comparison = (Path(runs[0]).resolve().parent if out is None else Path(out)) / "comparison.png"
        written.append(write_figure(comparison, lambda figure: plot_comparison(figure, curves)))
    return written


def destinations(runs: Sequence[Path], out: Path | None = None) -> dict[Path, Path]:
    """Where the figures of each run go."""
    labels = _labels(list(dict.fromkeys(Path(run) for run in runs)))
    if out is None:
        return {run: run / "plots" for run in labels}
    return {run: Path(out) / (label if len(labels) > 1 else "") for run, label in labels.items()}


def _labels(runs: list[Path]) -> dict[Path, str]:
    """The folder's name, with its parent's where two runs share it."""
    names = [run.resolve().name for run in runs]
    shared = Counter(names)
    return {
        run: name if shared[name] == 1 else f"{run.resolve().parent.name}-{name}"
        for run, name in zip(runs, names, strict=True)
    }


def _plot_run(table: dict[str, np.ndarray], label: str, folder: Path) -> list[Path]:
    returns, rates = pivot(table, "return_mean"), speed(table)
    beginning = lambda *prefixes: [name for name in table if name.startswith(prefixes)]
    panels = {
        "losses": beginning("loss/") + [name for name in DIAGNOSTICS if name in table],
        "together": beginning("disagreement/", "exchange/", "privacy/epsilon"),
        "team": beginning("return_agent", "return_team", "win_rate_team"),
    }
    written = [write_figure(folder / "returns.png", lambda figure: plot_returns(figure, returns, label))]
    for title, names in panels.items():
        known = [name for name in names if np.isfinite(table[name]).any() and table[name].any()]
        curves = {name: pivot(table, name) for name in known}
        if curves:
            size = (4.0 * min(3, len(curves)), 2.7 * -(-len(curves) // 3) + 0.3)
            plot_on = partial(plot_panels, curves=curves, title=label)
            written.append(write_figure(folder / f"{title}.png", plot_on, size))
    if len(rates.steps) > 1:
        written.append(write_figure(folder / "speed.png", lambda figure: plot_speed(figure, rates, label)))
    return written


def _graph_figures(run: Path, folder: Path) -> list[Path]:
    """The communication graphs of a run, where its exchanges have any."""
    if not (run / "config.yaml").is_file():
        return []
    config = from_settings(read_settings(run / "config.yaml"))
    graphs = [communication_graph(exchange, config.learners, config.seed) for exchange in config.exchanges]
    known = [graph for graph in graphs if graph is not None]
    name = lambda index: f"graph_{index}.png" if index else "graph.png"
    return [plot_graph(graph, folder / name(index)) for index, graph in enumerate(known)]


def _lineage_figure(run: Path, returns: Curve, folder: Path) -> list[Path]:
    """The lineage of a run, where it has one."""
    if not (run / "lineage.csv").is_file():
        return []
    lineage, best = read_lineage(run), best_learner(returns.values[-1])
    size = (8.0, 3.0 + 1.8 * len(lineage.hypers))
    plot_on = partial(plot_lineage, lineage=lineage, best=best, end=int(returns.steps[-1]))
    return [write_figure(folder / "lineage.png", plot_on, size)]
