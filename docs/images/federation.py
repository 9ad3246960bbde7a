"""The pictures of docs/how-to/federations.md: eight learners trained twice, isolated and averaged."""

from pathlib import Path

import numpy as np

import shoal
from shoal.exchanges.comm_matrix import read_matrix
from shoal.runs.files import read_json
from shoal.runs.plots.curves import Curve
from shoal.runs.plots.figure import PALETTE, short_numbers, write_figure
from shoal.runs.plots.graph import plot_graph
from shoal.runs.plots.panels import CurveOptions, describe, horizontal, plot_curve

HERE = Path(__file__).parent
KINDS = {"averaged every 4 updates": {"exchange": "average"}, "alone": {}}
SPREAD, EPISODES, OPTIONS = 1.0, 30, CurveOptions()

returns, distances = {}, {}
for name, settings in KINDS.items():
    config = shoal.preset("CartPole-v1", steps=50_000, learners=8, env_spread=SPREAD, **settings)
    steps, apart, played, scores = [], [], [], []
    for report in shoal.train(config):
        steps.append(report.step)
        apart.append(report.metrics["disagreement/policy"].mean())
        if len(steps) % 4 == 0:
            played.append([report.step] * config.learners)
            rows = [row for row in shoal.evaluate(report, EPISODES) if row.learner != "mean"]
            scores.append([row.return_mean for row in rows if row.world == "unseen"])
    returns[name] = Curve(np.array(played), np.array(scores), np.arange(config.learners))
    # the largest between two exchanges
    distances[name] = steps[3:], np.lib.stride_tricks.sliding_window_view(apart, 4).max(1)


def draw(figure) -> None:
    left, right = figure.subplots(1, 2)
    axis = horizontal(returns.values(), OPTIONS)
    lines = [plot_curve(left, curve, OPTIONS, axis, number) for number, curve in enumerate(returns.values())]
    left.legend(lines, returns, title=describe(returns.values(), OPTIONS), alignment="left")
    left.set(ylabel="return in unseen worlds", ylim=(0, 520), xlabel=axis.label)
    for color, (x, y) in zip(PALETTE, distances.values(), strict=False):
        right.plot(x, y, color=color, linewidth=2)
    right.set(ylabel="KL divergence to other policies (nats)", yscale="log", xlabel=axis.label)
    short_numbers(right.xaxis)


write_figure(HERE / "federation.png", draw, (10.0, 3.8))

matrix = read_json(HERE.parent.parent / "examples" / "graphs" / "two_pairs.json")
plot_graph(read_matrix(matrix, 4), HERE / "two_pairs.png")
