"""The picture in docs/how-to/worlds-that-differ.md, of examples/worlds/walker.json."""

import json
from pathlib import Path

import gymnasium
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import shoal.envs.worlds.walker  # noqa: F401

HERE = Path(__file__)
WIDTH = 20.0  # of one picture, in Box2D's units


def panorama(env: gymnasium.Env) -> np.ndarray:
    """The first two screens of the terrain, side by side."""
    env.unwrapped.cloud_poly = []  # they move with the screen
    screens = []
    for scroll in (0.0, WIDTH):
        env.unwrapped.scroll = scroll
        screens.append(env.render()[150:400])
    return np.concatenate(screens, axis=1)


worlds = json.loads((HERE.parents[2] / "examples" / "worlds" / "walker.json").read_text())
env = gymnasium.make("shoal/BipedalObstacles-v0", render_mode="rgb_array")
figure, rows = plt.subplots(len(worlds), 1, figsize=(10, 11.2))
for row, (number, world) in zip(rows, worlds.items(), strict=True):
    env.reset(seed=5, options={"world": world})
    row.imshow(panorama(env))
    mix = ", ".join(f"{kind} {weight:g}" for kind, weight in world.items() if weight)
    row.set_title(f"world {number}: {mix}", loc="left", fontsize=10)
    row.axis("off")
figure.tight_layout()
figure.savefig(HERE.with_suffix(".png"), dpi=100)
