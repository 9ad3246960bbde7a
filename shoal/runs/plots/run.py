"""The plots of one or several runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from shoal.errors import ShoalError
from shoal.exchanges.builders import communication_graphs
from shoal.runs.lineage import read_lineage
from shoal.runs.metrics import read_metrics
from shoal.runs.own import NO_PARTS, OwnParts
from shoal.runs.plots.curves import Curve, Table, pivot, pooled, smooth, speed
from shoal.runs.plots.figure import is_figure, panel_grid, write_figure
from shoal.runs.plots.graph import parts_of, plot_graph
from shoal.runs.plots.groups import (
    find_runs,
    group_runs,
    label_groups,
    label_runs,
    read_all,
    read_config,
    title_groups,
    title_of,
)
from shoal.runs.plots.lineage import plot_lineage
from shoal.runs.plots.panels import (
    MANY_CURVES,
    CurveOptions,
    plot_metric,
    plot_panels,
    plot_shares,
    plot_speed,
)
from shoal.runs.plots.policy import plot_policy
from shoal.training.config import TrainConfig
from shoal.training.scores import best_learner

Format: TypeAlias = Literal["png", "svg", "pdf"]
"""The formats of figures."""
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
RETURN = "return_mean"
LINEAGE = "lineage.csv"
"""The file that a population's run has."""


@dataclass(frozen=True)
class PlotOptions(CurveOptions):
    """What is plotted, and how."""

    metric: str | None = None
    """Plot this column of metrics.csv alone."""
    label: tuple[str, ...] = ()
    """What the curves of a comparison are called, one for each, in their order."""
    episode: bool = True
    """Plot an episode of each run's best learner, and its policy and value over the state space."""
    seed: int = 0
    """The seed of the episode."""
    format: Format | None = None
    """What the figures are written as: png unless given. SVG and PDF print sharply at any size."""

    def place(self, folder: Path, name: str) -> Path:
        """The file of a figure in a folder."""
        return folder / f"{name}.{self.format or 'png'}"


class Recorded(NamedTuple):
    """What a run has recorded."""

    table: Table
    config: TrainConfig | None  # None where there is only a metrics.csv


def plot(
    runs: Sequence[Path | str],
    out: Path | str | None = None,
    options: PlotOptions | None = None,
    own: OwnParts = NO_PARTS,
) -> list[Path]:
    """Plots every run, and several runs in comparison; returns the files written.

    `runs` are folders of runs, folders with runs below them, or patterns. Runs that differ in their seed
    alone are one curve of the comparison.

    A run's own figures go to RUN/plots, each where the run has data for it: `returns.png`, `losses.png`,
    `shares.png`, `together.png`, `team.png`, `graph.png`, `lineage.png`, `speed.png`, and those of
    `plot_policy`; with another `format` they end in that. With several runs `comparison.png` goes beside the
    first run's folder. With `out` everything goes there, a folder per run if there are several. Where `out`
    is a .png, .pdf or .svg, or a metric is chosen, there is one figure: that metric, of all runs.
    """
    options, out = options or PlotOptions(), Path(out) if out is not None else None
    recorded = read_all(find_runs(runs), lambda run: Recorded(read_metrics(run), read_config(run)))
    if not recorded:
        raise ShoalError("nothing to plot: give the folder of at least one run")
    if out and is_figure(out) and options.format and out.suffix != f".{options.format}":
        raise ShoalError(f"{out} and the format {options.format} are two formats; give one of them")
    if (out and is_figure(out)) or options.metric:
        return [_plot_one_figure(recorded, out, options)]
    written = []
    for run, folder in destinations(list(recorded), out).items():
        written += _plot_run(run, recorded[run], folder, options)
        if options.episode:
            written += plot_policy(run, folder, options.seed, own, options.format or "png")
    if len(recorded) > 1:
        written.append(_plot_one_figure(recorded, out, options))
    return written


def destinations(runs: Sequence[Path], out: Path | None = None) -> dict[Path, Path]:
    """Where the figures of each run go."""
    labels = label_runs(list(runs))
    if out is None:
        return {run: run / "plots" for run in labels}
    return {run: out / (label if len(labels) > 1 else "") for run, label in labels.items()}


def _plot_one_figure(recorded: dict[Path, Recorded], out: Path | None, options: PlotOptions) -> Path:
    """One metric of all runs: runs that differ in the seed alone are one curve."""
    groups = label_groups(group_runs({run: one.config for run, one in recorded.items()}), options.label)
    metric = options.metric or RETURN
    curves = {
        label: smooth(
            pooled([recorded[run].table for run in group.runs], metric, options.x, group.dependent),
            options.smooth,
        )
        for label, group in groups.items()
    }
    plot_on = partial(plot_metric, curves=curves, metric=metric, options=options, title=title_groups(groups))
    size = (9.6, 4.4) if len(curves) > MANY_CURVES else (6.4, 4.0)
    return write_figure(_path_of_one_figure(list(recorded), out, options), plot_on, size)


def _path_of_one_figure(runs: list[Path], out: Path | None, options: PlotOptions) -> Path:
    """The file of a single figure: `out` itself, or in that folder a name after the metric."""
    if out and is_figure(out):
        return out
    metric = (options.metric or "").replace("/", "_")
    if len(runs) == 1:
        return options.place(out or runs[0] / "plots", metric)
    name = "_".join(["comparison", *[metric] * bool(metric)])
    return options.place(out or runs[0].resolve().parent, name)


def _plot_run(run: Path, recorded: Recorded, folder: Path, options: PlotOptions) -> list[Path]:
    """All figures of one run."""
    table, config = recorded
    title = title_of(config, run.resolve().name)
    population = (run / LINEAGE).is_file()
    parts = _linked_parts(config) if config and not population else []
    written = [_returns_figure(table, folder, title, options, population, parts)]
    written += _panel_figures(table, folder, title, options)
    written += _shares_figure(table, folder, title, options)
    if len((rates := speed(table)).values) > 1:
        written.append(
            write_figure(options.place(folder, "speed"), partial(plot_speed, curve=rates, title=title))
        )
    written += _graph_figures(config, folder, options) if config else []
    return written + _lineage_figure(run, pivot(table, RETURN), folder, title, options)


def _returns_figure(
    table: Table, folder: Path, title: str, options: PlotOptions, best: bool, parts: list[np.ndarray]
) -> Path:
    """Returns; where the learners' graph has several parts, each part has its own colour and label."""
    whole = smooth(pivot(table, RETURN, options.x), options.smooth)
    curves = {name_learners(part): whole.of(part) for part in parts} or {"": whole}
    how = {"options": options, "title": title, "best": best, "each": True}
    return write_figure(
        options.place(folder, "returns"), partial(plot_metric, curves=curves, metric=RETURN, **how)
    )


def name_learners(learners: np.ndarray) -> str:
    """What a curve of these learners is called.

    >>> name_learners(np.array([2])), name_learners(np.array([0, 2, 3])), name_learners(np.arange(9))
    ('learner 2', 'learners 0 2 3', 'learners 0 1 2 ... 8')
    """
    numbers = [str(learner) for learner in learners]
    shown = numbers if len(numbers) < 6 else [*numbers[:3], "...", numbers[-1]]
    return f"learner{'s' * (len(numbers) > 1)} {' '.join(shown)}"


def _linked_parts(config: TrainConfig) -> list[np.ndarray]:
    """The learners of each part of a run's communication graphs together; [] where there is one part."""
    graphs = communication_graphs(config.exchanges, config.learners, config.seed)
    return parts_of(sum(np.abs(graph) for graph in graphs)) if graphs else []


def _shares_figure(table: Table, folder: Path, title: str, options: PlotOptions) -> list[Path]:
    """The shares of the loss, where a run has them."""
    names = [name for name in table if name.startswith("loss_share/") and np.isfinite(table[name]).any()]
    if not names:
        return []
    curves = {name: smooth(pivot(table, name, options.x), options.smooth) for name in names}
    plot_on = partial(plot_shares, curves=curves, options=options, title=title)
    return [write_figure(options.place(folder, "shares"), plot_on, (7.4, 4.0))]


def _panel_figures(table: Table, folder: Path, title: str, options: PlotOptions) -> list[Path]:
    """The figures of several metrics, each where it has any."""
    beginning = lambda *prefixes: [name for name in table if name.startswith(prefixes)]
    panels = {
        "losses": beginning("loss/") + [name for name in DIAGNOSTICS if name in table],
        "together": beginning("disagreement/", "exchange/", "privacy/epsilon"),
        "team": beginning("return_agent", "return_team", "win_rate_team"),
    }
    written = []
    for file, names in panels.items():
        known = [name for name in names if np.isfinite(table[name]).any() and table[name].any()]
        curves = {name: smooth(pivot(table, name, options.x), options.smooth) for name in known}
        if curves:
            rows, columns = panel_grid(len(curves))
            size = (4.0 * columns, 2.7 * rows + 0.5)
            plot_on = partial(plot_panels, curves=curves, options=options, title=title)
            written.append(write_figure(options.place(folder, file), plot_on, size))
    return written


def _graph_figures(config: TrainConfig, folder: Path, options: PlotOptions) -> list[Path]:
    """The communication graphs of a run, where its exchanges have any."""
    known = communication_graphs(config.exchanges, config.learners, config.seed)
    name = lambda index: f"graph_{index}" if index else "graph"
    return [plot_graph(graph, options.place(folder, name(index))) for index, graph in enumerate(known)]


def _lineage_figure(run: Path, returns: Curve, folder: Path, title: str, options: PlotOptions) -> list[Path]:
    """The lineage of a run, where it has one."""
    if not (run / LINEAGE).is_file():
        return []
    lineage, best = read_lineage(run), best_learner(returns.values[-1])
    size = (8.0, 3.6 + 1.7 * len(lineage.hypers))
    plot_on = partial(plot_lineage, lineage=lineage, best=best, end=int(returns.mean_x[-1]), title=title)
    return [write_figure(options.place(folder, "lineage"), plot_on, size)]
