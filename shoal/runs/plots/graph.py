"""The communication graph of learners."""

from pathlib import Path

import numpy as np

from shoal.exchanges.topology import components
from shoal.runs.plots.figure import LINK, PALETTE, write_figure

PULL = 0.4
"""How far long links bend towards the centre of the circle."""


def plot_graph(matrix: np.ndarray, path: Path) -> Path:
    """Plots a communication matrix; returns the file.

    matrix[i, j] is the weight with which learner i receives from j. Learners are on a circle, clockwise from
    the top. The width of a link is its weight over the largest one. Where the two directions differ, arrows
    point to the receiver. The diagonal is not plotted. Learners without a way to each other have the colours
    of their curves (`parts_of`).
    """
    weights = np.where(np.eye(len(matrix), dtype=bool), 0.0, matrix)
    side = 5.6 if len(weights) <= 24 else 8.0
    return write_figure(Path(path), lambda figure: _plot_network(figure, weights), (side, side + 0.4))


def parts_of(matrix: np.ndarray) -> list[np.ndarray]:
    """The learners of each component of a graph; [] where they are one, none is linked, or colours are few.

    >>> [part.tolist() for part in parts_of(np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]]))]
    [[0, 2], [1]]
    """
    of = components(matrix)
    number = of.max() + 1
    useful = 1 < number <= len(PALETTE) and number < len(of)
    return [np.flatnonzero(of == part) for part in range(number)] if useful else []


def _plot_network(figure, weights: np.ndarray) -> None:
    axes = figure.subplots()
    num_learners, num_links = len(weights), np.count_nonzero(np.triu(weights + weights.T))
    turns = np.arange(num_learners) / num_learners - 0.25 * (num_learners == 2)  # two are side by side
    points = np.stack([np.sin(2 * np.pi * turns), np.cos(2 * np.pi * turns)], axis=1) * (num_learners > 1)
    radius = min(0.11, 0.66 * np.sin(np.pi / max(2, num_learners)))
    if num_links:
        _plot_links(axes, points, radius, weights, num_links)
    colors = np.full(num_learners, PALETTE[0])
    for color, part in zip(PALETTE, parts_of(weights), strict=False):
        colors[part] = color
    _plot_learners(axes, points, radius, colors)
    count = lambda number, noun: f"{number:,} {noun}{'' if number == 1 else 's'}"
    axes.set(title=f"{count(num_learners, 'learner')}, {count(num_links, 'link')}")
    axes.set(xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), aspect="equal")
    axes.axis("off")


def _plot_learners(axes, points: np.ndarray, radius: float, colors: np.ndarray) -> None:
    """Numbered discs, in the colour of the learners' curves."""
    from matplotlib.patches import Circle

    unit = 72 * axes.figure.get_figwidth() / 2.4  # points, approximately
    text = {"ha": "center", "va": "center_baseline", "color": "white", "fontsize": 0.85 * radius * unit}
    for learner, (point, color) in enumerate(zip(points, colors, strict=True)):
        axes.add_patch(Circle(point, radius, facecolor=color, edgecolor="white", zorder=3))
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
