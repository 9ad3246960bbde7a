"""The pictures of docs/how-to/federations.md: eight learners trained twice, isolated and averaged."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import shoal
from shoal.exchanges.comm_matrix import read_matrix
from shoal.runs.files import read_json
from shoal.runs.plots.graph import plot_graph

HERE = Path(__file__).parent
KINDS = {"alone": ("#D55E00", {}), "averaged every 4 updates": ("#0072B2", {"exchange": "average"})}

SPREAD, EPISODES = 1.0, 30

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4))
for name, (colour, settings) in KINDS.items():
    config = shoal.preset("CartPole-v1", steps=50_000, learners=8, env_spread=SPREAD, **settings)
    steps, apart, played, returns = [], [], [], []
    for report in shoal.train(config):
        steps.append(report.step)
        apart.append(report.metrics["disagreement/policy"].mean())
        if len(steps) % 4 == 0:
            played.append(report.step)
            rows = [row for row in shoal.evaluate(report, EPISODES) if row.learner != "mean"]
            returns.append([row.return_mean for row in rows if row.world == "unseen"])
    returns = np.array(returns)  # (reports, learners)
    left.plot(played, returns, color=colour, linewidth=0.6, alpha=0.4)
    left.plot(played, returns.mean(1), color=colour, linewidth=2.5, label=name)
    between = np.lib.stride_tricks.sliding_window_view(apart, 4).max(1)  # the largest between two exchanges
    right.plot(steps[3:], between, color=colour, linewidth=2.5, label=name)
left.set(ylabel="return in unseen worlds", ylim=(0, 520))
right.set(ylabel="KL to the other policies", yscale="log")
for axis in (left, right):
    axis.set_xlabel("environment steps per learner")
    axis.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:.0f}k")
    axis.grid(color="#e5e5e5")
    axis.spines[["top", "right"]].set_visible(False)
left.legend(frameon=False, loc="lower right")
figure.tight_layout()
figure.savefig(HERE / "federation.png", dpi=130)

matrix = read_json(HERE.parent.parent / "examples" / "graphs" / "two_pairs.json")
plot_graph(read_matrix(matrix, 4), HERE / "two_pairs.png")
