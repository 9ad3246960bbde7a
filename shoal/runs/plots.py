"""Plots of runs: learning curves, losses, speed, comparisons, communication graphs, lineages."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import ShoalError
from shoal.exchanges.builders import communication_graph
from shoal.runs.config import from_settings, read_settings
from shoal.runs.files import replacing
from shoal.runs.lineage import Lineage, ancestors, read_lineage
from shoal.runs.metrics import read_metrics

# Wong's palette, which people with any of the common colour blindnesses can tell apart
# (Nature Methods 8, 441, 2011), without its yellow, which is too pale for a line on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")

DIAGNOSTICS = (
    "entropy",
    "approx_kl",
    "clip_fraction",
    "clipfrac",
    "explained_variance",
    "q_mean",
    "grad_norm",
    "learning_rate",
)
"""Metrics in the figure of the losses, beside those whose names begin with `loss/`."""

LINK = "#5B6770"
"""The colour of lines between learners."""

PULL = 0.4
"""How far long links bend towards the centre of the circle."""

MANY_LINES = 32
"""With more learners, only their mean and band are plotted."""

STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "axes.edgecolor": "#777777",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.constrained_layout.w_pad": 0.09,
    "figure.constrained_layout.h_pad": 0.09,
}


class Curve(NamedTuple):
    """One metric of one run, a column per learner; NaN where a report lacks it."""

    steps: np.ndarray  # (R,) reports
    values: np.ndarray  # (R, L)


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
        written += _plot_graph(run, folders[run])
        written += _lineage_figure(run, pivot(table, "return_mean"), folders[run])
    if len(tables) > 1:
        curves = {labels[run]: pivot(table, "return_mean") for run, table in tables.items()}
        comparison = (Path(runs[0]).resolve().parent if out is None else Path(out)) / "comparison.png"
        written.append(write_figure(comparison, lambda figure: _plot_comparison(figure, curves)))
    return written


def destinations(runs: Sequence[Path], out: Path | None = None) -> dict[Path, Path]:
    """Where the figures of each run go."""
    labels = _labels(list(dict.fromkeys(Path(run) for run in runs)))
    if out is None:
        return {run: run / "plots" for run in labels}
    return {run: Path(out) / (label if len(labels) > 1 else "") for run, label in labels.items()}


def plot_graph(matrix: np.ndarray, path: Path) -> Path:
    """Plots a communication matrix; returns the file.

    matrix[i, j] is the weight with which learner i receives from j. Learners are on a circle, clockwise from
    the top. The width of a link is its weight over the largest one. Where the two directions differ, arrows
    point to the receiver. The diagonal is not plotted.
    """
    weights = np.where(np.eye(len(matrix), dtype=bool), 0.0, matrix)
    side = 5.6 if len(weights) <= 24 else 8.0
    return write_figure(Path(path), lambda figure: _plot_network(figure, weights), (side, side + 0.4))


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
    written = [write_figure(folder / "returns.png", lambda figure: _plot_returns(figure, returns, label))]
    for title, names in panels.items():
        known = [name for name in names if np.isfinite(table[name]).any() and table[name].any()]
        curves = {name: pivot(table, name) for name in known}
        if curves:
            size = (4.0 * min(3, len(curves)), 2.7 * -(-len(curves) // 3) + 0.3)
            plot_on = partial(_plot_panels, curves=curves, title=label)
            written.append(write_figure(folder / f"{title}.png", plot_on, size))
    if len(rates.steps) > 1:
        written.append(write_figure(folder / "speed.png", lambda figure: _plot_speed(figure, rates, label)))
    return written


def _plot_graph(run: Path, folder: Path) -> list[Path]:
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
    lineage, final = read_lineage(run), returns.values[-1]
    best = int(np.nanargmax(final)) if np.isfinite(final).any() else 0
    size = (8.0, 3.0 + 1.8 * len(lineage.hypers))
    plot_on = partial(_plot_lineage, lineage=lineage, best=best, end=int(returns.steps[-1]))
    return [write_figure(folder / "lineage.png", plot_on, size)]


def _plot_lineage(figure, lineage: Lineage, best: int, end: int) -> None:
    """The copies on top, hyperparameters over time below; the best learner's ancestors in colour."""
    num_learners, line = lineage.parent.shape[1], ancestors(lineage, best)
    steps = np.append(lineage.steps, max(end, int(lineage.steps[-1]) + 1))
    heights = [1.6] + [1.0] * len(lineage.hypers)
    tree, *paths = figure.subplots(1 + len(lineage.hypers), 1, sharex=True, height_ratios=heights)
    tree.hlines(np.arange(num_learners), 0, steps[-1], color=LINK, linewidth=0.6, alpha=0.5)
    for step, parents in zip(lineage.steps, lineage.parent, strict=True):
        copied = np.flatnonzero(parents != np.arange(num_learners))
        tree.vlines(np.full(len(copied), step), copied, parents[copied], color=LINK, linewidth=0.6)
        tree.plot(np.full(len(copied), step), copied, "o", color=LINK, markersize=2.5)
    tree.step(steps, np.append(line, line[-1]), where="post", color=PALETTE[0], linewidth=2.2)
    tree.set(title="copies of learners; the ancestors of the best one in colour", ylabel="learner")
    tree.locator_params(axis="y", integer=True)
    for axes, (name, values) in zip(paths, lineage.hypers.items(), strict=True):
        whole = np.vstack([values, values[-1:]])
        axes.step(steps, whole, where="post", color=LINK, linewidth=0.6, alpha=0.5)
        own = values[np.arange(len(line)), line]
        axes.step(steps, np.append(own, own[-1]), where="post", color=PALETTE[0], linewidth=2.2)
        axes.set(ylabel=name.replace("_", " "))
        if values.min() > 0 and values.max() > 10 * values.min():
            axes.set_yscale("log")
    paths[-1].set_xlabel(_steps_label(num_learners))
    _count_axis(paths[-1].xaxis)


def speed(table: dict[str, np.ndarray]) -> Curve:
    """Environment steps per second of all learners, between one report and the next.

    Pairs of reports between which the clock went back, in a resumed run, are left out.
    """
    clock = pivot(table, "seconds")
    seconds, steps = np.diff(clock.values[:, 0]), np.diff(clock.steps)
    forward = seconds > 0
    rate = steps[forward] * clock.values.shape[1] / seconds[forward]
    return Curve(clock.steps[1:][forward], rate[:, None])


def write_figure(path: Path, plot_on: Callable[[Any], None], size: tuple[float, float] = (6.4, 4.0)) -> Path:
    """Writes a figure, without pyplot, which keeps every figure and needs a screen."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):  # pyright: ignore[reportArgumentType]
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        plot_on(figure)
        with replacing(path) as (temporary,):
            figure.savefig(temporary, dpi=150)
    return path


def _plot_curve(axes, curve: Curve, color: str, label: str | None = None, thin: bool = True) -> None:
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
    _count_axis(axes.xaxis)


def _plot_returns(figure, curve: Curve, title: str) -> None:
    axes = figure.subplots()
    num_learners = curve.values.shape[1]
    mean_label = f"mean of {num_learners} learners ± 1 s.d." if num_learners > 1 else None
    _plot_curve(axes, curve, PALETTE[0], mean_label)
    if not np.isfinite(curve.values).any():
        axes.text(
            0.5, 0.5, "no episode has ended yet", transform=axes.transAxes, ha="center", color="#777777"
        )
    axes.set(title=title, xlabel=_steps_label(num_learners), ylabel="episode return")
    if mean_label:
        axes.legend(loc="best")


def _plot_comparison(figure, curves: dict[str, Curve]) -> None:
    axes = figure.subplots()
    many = {curve.values.shape[1] for curve in curves.values()} != {1}
    for index, (label, curve) in enumerate(curves.items()):
        _plot_curve(axes, curve, PALETTE[index % len(PALETTE)], label, thin=False)
    title = "mean over learners ± 1 s.d." if many else ""
    axes.set(title=title, xlabel=_steps_label(2 if many else 1), ylabel="episode return")
    axes.legend(loc="best")


def _plot_panels(figure, curves: dict[str, Curve], title: str) -> None:
    columns = min(3, len(curves))
    panels = figure.subplots(-(-len(curves) // columns), columns, squeeze=False).ravel()
    for axes, (name, curve) in zip(panels, curves.items(), strict=False):
        _plot_curve(axes, curve, PALETTE[0])
        axes.set(title=name.replace("_", " "))
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))
    for axes in panels[len(curves) :]:
        axes.set_visible(False)
    figure.suptitle(title, fontsize=11)
    figure.supxlabel(_steps_label(next(iter(curves.values())).values.shape[1]), fontsize=10)


def _plot_speed(figure, curve: Curve, title: str) -> None:
    axes = figure.subplots()
    _plot_curve(axes, curve, PALETTE[2])
    _count_axis(axes.yaxis)
    axes.set(title=title, xlabel="environment steps", ylabel="steps per second, all learners")
    axes.set_ylim(bottom=0)


def _plot_network(figure, weights: np.ndarray) -> None:
    axes = figure.subplots()
    num_learners, num_links = len(weights), np.count_nonzero(np.triu(weights + weights.T))
    turns = np.arange(num_learners) / num_learners - 0.25 * (num_learners == 2)  # two are side by side
    points = np.stack([np.sin(2 * np.pi * turns), np.cos(2 * np.pi * turns)], axis=1) * (num_learners > 1)
    radius = min(0.11, 0.66 * np.sin(np.pi / max(2, num_learners)))
    if num_links:
        _plot_links(axes, points, radius, weights, num_links)
    _plot_learners(axes, points, radius)
    count = lambda number, noun: f"{number:,} {noun}{'' if number == 1 else 's'}"
    axes.set(title=f"{count(num_learners, 'learner')}, {count(num_links, 'link')}")
    axes.set(xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), aspect="equal")
    axes.axis("off")


def _plot_learners(axes, points: np.ndarray, radius: float) -> None:
    """Numbered discs, in the colour of the learners' curves."""
    from matplotlib.patches import Circle

    unit = 72 * axes.figure.get_figwidth() / 2.4  # points, approximately
    text = {"ha": "center", "va": "center_baseline", "color": "white", "fontsize": 0.85 * radius * unit}
    for learner, point in enumerate(points):
        axes.add_patch(Circle(point, radius, facecolor=PALETTE[0], edgecolor="white", zorder=3))
        axes.text(*point, str(learner), zorder=4, **text)


def _plot_links(axes, points: np.ndarray, radius: float, weights: np.ndarray, num_links: int) -> None:
    """Lines, and arrows where the two directions differ; bent where there is one in each direction."""
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.lines import Line2D

    alike = np.isclose(weights, weights.T, atol=0)
    receiver, sender = np.nonzero(np.where(alike, np.triu(weights), weights))
    weight, arrow = weights[receiver, sender], ~alike[receiver, sender]
    bend = 0.12 * (arrow & (weights[sender, receiver] != 0))
    widest = np.clip(18 / np.sqrt(num_links), 0.8, 3.2)
    width = np.maximum(0.35, widest * weight / weight.max())
    head = arrow * (0.35 * radius + 0.014 * width)
    nearest = 2 * np.sin(np.pi / len(weights))
    lines, heads = _arrows(points[sender], points[receiver], nearest, bend, arrow * 1.1 * radius, head)

    style = {"color": LINK, "alpha": np.clip(8 / np.sqrt(num_links), 0.25, 0.8)}
    axes.add_collection(LineCollection(list(lines), linewidths=width, capstyle="butt", zorder=1, **style))
    axes.add_collection(PolyCollection(list(heads[arrow]), linewidths=0, zorder=2, **style))
    ends = [] if np.allclose(weight, weight[0], atol=0) else [weight.argmin(), weight.argmax()]
    if ends or arrow.any():
        axes.legend(
            [Line2D([], [], linewidth=width[link], color=LINK) for link in ends],
            [f"weight {weight[link]:.3g}" for link in ends],
            title="arrows point to the receiver" if arrow.any() else None,
            title_fontsize=9,
            loc="upper center",
            bbox_to_anchor=(0.5, 0.02),
            ncols=2,
        )


def _arrows(
    start: np.ndarray, end: np.ndarray, nearest: float, bend: np.ndarray, gap: np.ndarray, head: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Curves (M, 24, 2) from `start` towards `end`, and the triangles (M, 3, 2) they end in.

    x(t) = (1 - t)^2 start + 2 t (1 - t) control + t^2 base

    The base is that of the triangle, whose tip is `gap` away from `end`. The control point is `bend` beside
    the middle, and nearer to the centre of the circle for links longer than those of neighbours (`nearest`),
    so that links do not cross the learners between.
    """
    span = np.linalg.norm(end - start, axis=1, keepdims=True)
    across = (end - start)[:, ::-1] * [1, -1]
    control = (start + end) / 2 * (1 - PULL * (1 - nearest / span)) + bend[:, None] * across
    towards = (end - control) / np.linalg.norm(end - control, axis=1, keepdims=True)
    tip = end - gap[:, None] * towards
    base = tip - head[:, None] * towards
    side = 0.4 * head[:, None] * towards[:, ::-1] * [1, -1]
    t = np.linspace(0, 1, 24)[:, None]
    curve = (1 - t) ** 2 * start[:, None] + 2 * t * (1 - t) * control[:, None] + t**2 * base[:, None]
    return curve, np.stack([base + side, tip, base - side], axis=1)


def _count_axis(axis) -> None:
    """Ticks as 50k or 2M."""
    from matplotlib.ticker import EngFormatter

    axis.set_major_formatter(EngFormatter(sep=""))


def _steps_label(num_learners: int) -> str:
    return "environment steps per learner" if num_learners > 1 else "environment steps"
