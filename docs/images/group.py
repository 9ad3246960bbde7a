"""The film at the top of the README: `python docs/images/group.py` trains sixteen learners on Pendulum-v1."""

from pathlib import Path
from typing import NamedTuple

import jax
import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import EllipseCollection, LineCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image

import shoal
from shoal.runs.plots.figure import PALETTE, STYLE, short, short_numbers
from shoal.runs.video import write_video
from shoal.training.players import greedy
from shoal.training.rollout import collect, reset_envs

LEARNERS, SIDE = 16, 4
MOMENTS = (1, 8, 16, 24, 49)
"""The reports at which the learners are shown."""
STEPS, STRIDE, FPS, LAST = 110, 2, 20, 30
"""Steps of each moment, steps from frame to frame, frames a second, frames that show the end."""
WORST, BEST = -1500, 0
COLOURS = LinearSegmentedColormap.from_list("return", [PALETTE[1], "#B9BFC4", PALETTE[0]])


class Training(NamedTuple):
    """What the film shows."""

    steps: np.ndarray  # (R,)
    returns: np.ndarray  # (R, L)
    angles: list[np.ndarray]  # (STEPS, L) at each of MOMENTS


def train() -> Training:
    """Train, and let all learners play greedily at each moment, each from its own start."""
    steps, returns, angles, play = [], [], [], None
    for report in shoal.train(shoal.preset("Pendulum-v1", learners=LEARNERS)):
        steps.append(report.step)
        returns.append(report.metrics["return_mean"])
        play = play or make_play(report.trainer.parts)
        if len(steps) in MOMENTS:
            angles.append(np.asarray(play(report.state.cohort)))
    return Training(np.array(steps), np.array(returns), angles)


def make_play(parts):
    """cohort -> the angles (STEPS, L) of one episode of each learner."""
    env, learner = parts.recipe.build(np.zeros((1, LEARNERS), np.uint32), False), greedy(parts.learner)
    keys = jax.random.split(jax.random.key(5), (LEARNERS, 1))
    params = jax.tree.map(lambda x: np.full((LEARNERS, 1), x, np.float32), env.spec.params)

    @jax.jit
    def play(cohort):
        envs = reset_envs(env, keys, params)
        obs = collect(env, learner, STEPS, keys[:, 0], cohort, envs)[2].obs[:, :, 0]
        return jax.numpy.arctan2(obs[..., 1], obs[..., 0])

    return play


class Film:
    """The figure, and what of it moves."""

    def __init__(self, training: Training):
        self.training = training
        self.figure = Figure(figsize=(9.6, 4.3), layout="constrained", dpi=100)
        self.canvas = FigureCanvasAgg(self.figure)
        self.tiles, axes = self.figure.subplots(1, 2, width_ratios=[1, 1.22])
        row, column = np.divmod(np.arange(LEARNERS), SIDE)
        self.pivots = np.stack([column, SIDE - 1 - row], axis=1).astype(float)
        for x, y in self.pivots:
            box = "round,pad=0,rounding_size=0.12"
            self.tiles.add_patch(
                FancyBboxPatch((x - 0.46, y - 0.46), 0.92, 0.92, box, fc="#F1F3F5", ec="none")
            )
        self.rods = self.tiles.add_collection(LineCollection([], linewidths=6, capstyle="round"))
        size = {"units": "x", "offsets": self.pivots, "transOffset": self.tiles.transData}
        self.tiles.add_collection(EllipseCollection(0.07, 0.07, 0, facecolors="#222222", zorder=3, **size))
        self.tiles.set(xlim=(-0.5, SIDE - 0.5), ylim=(-0.5, SIDE - 0.5), aspect="equal")
        self.tiles.axis("off")
        self.thin = [axes.plot([], [], linewidth=0.9, alpha=0.75)[0] for _ in range(LEARNERS)]
        self.thick = axes.plot([], [], color="#222222", linewidth=2.2)[0]
        self.ends = axes.scatter(np.zeros(LEARNERS), np.zeros(LEARNERS), s=22, zorder=3)
        axes.set(xlim=(0, training.steps[-1] * 1.02), ylim=(WORST, BEST + 40))
        axes.set(xlabel="environment steps per learner", ylabel="episode return")
        short_numbers(axes.xaxis, axes.yaxis)
        self.axes = axes
        self.tiles.set_title(f"{LEARNERS} learners, one program")

    def frame(self, angles: np.ndarray, step: float) -> np.ndarray:
        """A picture of the rods at these angles (L,), 0 upright, and of the curves up to a step."""
        steps, returns = self.training.steps, self.training.returns
        seen = steps <= step
        now = np.array([np.interp(step, steps, one) for one in returns.T])
        colours = COLOURS(Normalize(WORST, -100)(now))
        tips = self.pivots + 0.36 * np.stack([-np.sin(angles), np.cos(angles)], axis=1)
        self.rods.set_segments(np.stack([self.pivots, tips], axis=1))
        self.rods.set_color(colours)
        x = np.append(steps[seen], step)
        for line, one, end, colour in zip(self.thin, returns.T, now, colours, strict=True):
            line.set_data(x, np.append(one[seen], end))
            line.set_color(colour)
        self.thick.set_data(x, np.append(returns[seen].mean(1), now.mean()))
        self.ends.set_offsets(np.stack([np.full(LEARNERS, step), now], axis=1))
        self.ends.set_facecolor(colours)
        rounded = short(1000 * round(step / 1000), 10_000)
        self.axes.set_title(
            f"after {rounded} steps: mean return {now.mean():.0f}".replace("-", "\N{MINUS SIGN}")
        )
        self.canvas.draw()
        return np.asarray(self.canvas.buffer_rgba())[..., :3].copy()


def frames(training: Training) -> list[np.ndarray]:
    """Moment after moment; meanwhile the curves grow to the next one."""
    film, shown = Film(training), []
    at = training.steps[np.array(MOMENTS) - 1]
    film.frame(training.angles[0][0], at[0])  # the layout is made once
    film.figure.set_layout_engine("none")
    for angles, start, end in zip(training.angles, at, [*at[1:], at[-1]], strict=True):
        turns = angles[::STRIDE]
        steps = np.linspace(start, end, len(turns), endpoint=False)
        shown += [film.frame(*one) for one in zip(turns, steps, strict=True)]
    return shown + [shown[-1]] * LAST


def in_one_palette(pictures: list[np.ndarray]) -> list[np.ndarray]:
    """The pictures in the colours of four of them, so that what stands still costs no bytes."""
    sample = Image.fromarray(np.concatenate(pictures[:: len(pictures) // 3]))
    palette = sample.quantize(96, dither=Image.Dither.NONE)
    reduced = (Image.fromarray(one).quantize(palette=palette, dither=Image.Dither.NONE) for one in pictures)
    whitened = lambda picture: np.where(picture > 250, 255, picture).astype(np.uint8)
    return [whitened(np.asarray(one.convert("RGB"))) for one in reduced]


if __name__ == "__main__":
    with matplotlib.rc_context(STYLE):
        shown = frames(train())
    path = write_video(in_one_palette(shown), Path(__file__).with_suffix(".gif"), FPS)
    print(f"{path} {path.stat().st_size / 1e6:.2f} MB")
