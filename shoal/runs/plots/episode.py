"""One episode of a learner: every number that it saw, did, was given and expected, step by step."""

from typing import NamedTuple

import numpy as np

from shoal.envs.classic.views import View
from shoal.runs.plots.figure import PALETTE, short_numbers, subplots
from shoal.training.episode import Trajectory
from shoal.types import Discrete, EnvSpec

WINDOW = 25
"""Steps over which what leaps to and fro is averaged."""


class Panel(NamedTuple):
    """One number over an episode."""

    title: str
    values: np.ndarray  # (T,) of every step, or (T + 1,) of every state
    color: str
    choices: tuple[str, ...] = ()  # the names of whole numbers


def episode_panels(
    spec: EnvSpec, view: View | None, played: Trajectory, value: np.ndarray | None
) -> list[Panel]:
    """A panel for each number of an observation, each of an action, the reward unless constant, the value."""
    actions = played.action.reshape(len(played.action), -1)
    count = lambda noun, num: [f"{noun} {i}" for i in range(num)] if num > 1 else [noun]
    seen = view.observation if view else count("observation", played.obs.shape[1])
    done = [view.action] if view else count("action", actions.shape[1])
    unnamed = tuple(map(str, range(spec.action.num))) if isinstance(spec.action, Discrete) else ()
    choices = view.choices if view else unnamed
    panels = [Panel(name, numbers, PALETTE[0]) for name, numbers in zip(seen, played.obs.T, strict=True)]
    panels += [
        Panel(name, numbers, PALETTE[1], choices) for name, numbers in zip(done, actions.T, strict=True)
    ]
    if np.ptp(played.reward) > 0:
        panels.append(Panel("reward", played.reward, PALETTE[2]))
    if value is not None:
        panels.append(Panel("value: expected discounted return", value, PALETTE[3]))
    return panels


def plot_episode(figure, panels: list[Panel], played: Trajectory, title: str) -> None:
    """All panels over the steps. What leaps to and fro is pale, with its mean over `WINDOW` steps on top."""
    num_steps = len(played.reward)
    all_axes = subplots(figure, len(panels))
    for axes, panel in zip(all_axes, panels, strict=True):
        _plot_panel(axes, panel, at_steps=len(panel.values) == num_steps)
    averaged = any(flickers(panel.values) for panel in panels)
    explained = f"\npale: every step; strong: mean of about {WINDOW} steps" if averaged else ""
    figure.suptitle(f"{title}, one episode: return {played.reward.sum():.4g} in {num_steps} steps{explained}")
    figure.supxlabel("step", fontsize="medium")


def _plot_panel(axes, panel: Panel, at_steps: bool) -> None:
    name, values, color, choices = panel
    pale = flickers(values)
    if choices and pale:
        axes.plot(values, "|", color=color, markersize=7, alpha=0.35)
    else:
        style = {"linewidth": 0.7, "alpha": 0.4} if pale else {"linewidth": 1.6}
        axes.plot(values, color=color, drawstyle="steps-post" if at_steps else "default", **style)
    if pale and len(choices) in (0, 2):  # the mean of more choices says nothing
        axes.plot(running_mean(values, WINDOW), color=color, linewidth=2)
    axes.set(title=name)
    if choices:
        axes.set_yticks(range(len(choices)), choices)
        axes.set(ylim=(-0.3, len(choices) - 0.7))
    else:
        short_numbers(axes.yaxis)


def flickers(values: np.ndarray) -> bool:
    """Whether most of the way that a number of a long episode goes is to and fro, and gone when smoothed.

    >>> flickers(np.arange(200) % 2), flickers(np.sin(np.arange(200) / 10)), flickers(np.arange(20) % 2)
    (True, False, False)
    """
    way = lambda x: np.abs(np.diff(x)).sum()
    return len(values) > 4 * WINDOW and bool(way(values) > 3 * way(running_mean(values, 5)))


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """The mean around each step, of about `window` steps: weights fall smoothly to 0 at twice the distance.

    >>> running_mean(np.array([0.0, 4.0, 0.0, 4.0, 0.0]), 2).round(9).tolist()
    [1.333333333, 2.0, 2.0, 2.0, 1.333333333]
    """
    weights = np.hanning(2 * window + 1)
    sums = lambda x: np.convolve(x, weights)[window : window + len(values)]
    return sums(values) / sums(np.ones(len(values)))
