"""Plots of a trained learner: its policy and value over the state space, and one episode."""

import warnings
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from shoal.envs.classic.views import VIEWS, View
from shoal.errors import ShoalError
from shoal.ops import trees
from shoal.runs.checkpoint import newest_meta
from shoal.runs.config import from_settings, read_settings
from shoal.runs.evaluation import own_world
from shoal.runs.learners import choose_learner, find_parts, load_learners
from shoal.runs.own import NO_PARTS, OwnParts
from shoal.runs.plots.figure import PALETTE, write_figure
from shoal.runs.policy import clip_action
from shoal.training.episode import Trajectory, episode, trajectory
from shoal.training.evaluate import greedy
from shoal.types import Box, Discrete, EnvSpec, Learner, LearnerState

CELLS = 161
"""Points along each side of a map."""
MAX_NUMBERS = 24
"""Observations with more numbers are not plotted."""


class Maps(NamedTuple):
    """A learner's actions and values on a plane of states; the first axis is y, the second x."""

    x: np.ndarray  # (CELLS,)
    y: np.ndarray  # (CELLS,)
    action: np.ndarray  # (CELLS, CELLS) greedy; of several numbers, the first
    value: np.ndarray  # (CELLS, CELLS) expected discounted returns
    bound: float | None  # on the size of actions; None where they are discrete


def plot_policy(run: Path, folder: Path, seed: int = 0, own: OwnParts = NO_PARTS) -> list[Path]:
    """Plots the best learner of a run; returns the files written.

    `trajectory.png` is one greedy episode, the one that `shoal play` shows, where an observation is a vector
    of at most MAX_NUMBERS numbers. `state_space.png` is the policy and the value with that episode over them,
    where the environment is in VIEWS and the policy has no memory. A run without a checkpoint has neither. A
    run that cannot be loaded or played here is skipped with a warning.
    """
    run = Path(run)
    if not (run / "config.yaml").is_file():
        return []
    try:
        return _plot_best_learner(run, Path(folder), seed, own)
    except ShoalError as error:
        warnings.warn(f"no episode of {run} is plotted: {error}", RuntimeWarning)
        return []


def _plot_best_learner(run: Path, folder: Path, seed: int, own: OwnParts) -> list[Path]:
    config = from_settings(read_settings(run / "config.yaml"))
    parts = find_parts(run, config, own)
    size_of_obs = _vector_size(parts.recipe.spec)
    if newest_meta(run / "checkpoints") is None or not 0 < size_of_obs <= MAX_NUMBERS:
        return []
    trained = load_learners(run, parts=parts)
    name, cohort = choose_learner(trained, "best")
    learner, state, spec = trained.learner, trees.take(cohort, 0), trained.recipe.spec
    played = trajectory(episode(trained.recipe, learner, cohort, seed, params=own_world(trained, name)))
    played = played._replace(action=clip_action(spec.action, played.action))
    title = run.resolve().name + (f", learner {name}" if config.learners > 1 else "")
    panels = _panels(spec, played)
    if learner.value is not None:
        panels.append(
            _Panel("value: expected discounted return", values_of(learner, state, played.obs), PALETTE[3])
        )
    size = (4.0 * min(3, len(panels)), 2.1 * -(-len(panels) // 3) + 0.6)
    plot_on = partial(_plot_trajectory, panels=panels, title=f"{title}: one episode")
    written = [write_figure(folder / "trajectory.png", plot_on, size)]
    if learner.value is not None and (view := find_view(spec)) is not None:
        maps = evaluate_plane(view, spec, learner, state)
        plot_on = partial(_plot_maps, maps=maps, view=view, obs=played.obs, title=title)
        written.append(write_figure(folder / "state_space.png", plot_on, (11.0, 4.4)))
    return written


def find_view(spec: EnvSpec) -> View | None:
    """The view of an environment; None where it is unknown or its observations differ from the view."""
    view = VIEWS.get(spec.name)
    return view if view and len(view.observation) == _vector_size(spec) else None


def evaluate_plane(view: View, spec: EnvSpec, learner: Learner, state: LearnerState) -> Maps:
    """The greedy action and the value of one learner at every point of the plane."""
    x, y = (np.linspace(axis.low, axis.high, CELLS) for axis in view.axes)
    across, up = (grid.ravel() for grid in np.meshgrid(x, y))
    *numbers, _ = np.broadcast_arrays(*view.observe(across, up), across)
    obs = np.stack(numbers, -1).astype(np.float32)  # (CELLS * CELLS, numbers)
    noise = trees.take(greedy(learner).draw(jax.random.key(0), (1, len(obs))), 0)
    episode_starts = np.ones(len(obs), bool)
    action, _ = jax.jit(learner.act)(learner.for_evaluation(state, len(obs)), obs, noise, episode_starts)
    first = clip_action(spec.action, action).reshape(CELLS, CELLS, -1)[..., 0]
    bound = np.max(np.abs([spec.action.low, spec.action.high])) if isinstance(spec.action, Box) else None
    return Maps(x, y, first, values_of(learner, state, obs).reshape(CELLS, CELLS), bound)


def values_of(learner: Learner, state: LearnerState, obs: np.ndarray) -> np.ndarray:
    """The value of each observation."""
    assert learner.value is not None, "the caller checks it"
    return np.asarray(jax.jit(learner.value)(state, obs))


def _vector_size(spec: EnvSpec) -> int:
    """The size of an observation that is one agent's vector; 0 for all others."""
    space, alone = spec.observation, spec.agents is None
    return space.shape[0] if alone and isinstance(space, Box) and len(space.shape) == 1 else 0


class _Panel(NamedTuple):
    title: str
    values: np.ndarray  # (T,) of every step, or (T + 1,) of every state
    color: str
    choices: tuple[str, ...] = ()  # the names of whole numbers


def _panels(spec: EnvSpec, played: Trajectory) -> list[_Panel]:
    """A panel for each number of an observation, each of an action, and the reward."""
    view, actions = find_view(spec), played.action.reshape(len(played.action), -1)
    count = lambda noun, num: [f"{noun} {i}" for i in range(num)] if num > 1 else [noun]
    seen = view.observation if view else count("observation", played.obs.shape[1])
    done = [view.action] if view else count("action", actions.shape[1])
    unnamed = tuple(map(str, range(spec.action.num))) if isinstance(spec.action, Discrete) else ()
    choices = view.choices if view else unnamed
    return [
        *(_Panel(name, numbers, PALETTE[0]) for name, numbers in zip(seen, played.obs.T, strict=True)),
        *(_Panel(name, numbers, PALETTE[1], choices) for name, numbers in zip(done, actions.T, strict=True)),
        _Panel(f"reward, {played.reward.sum():.4g} in total", played.reward, PALETTE[2]),
    ]


def _plot_trajectory(figure, panels: list[_Panel], title: str) -> None:
    columns, num_steps = min(3, len(panels)), min(len(panel.values) for panel in panels)
    all_axes = figure.subplots(-(-len(panels) // columns), columns, squeeze=False, sharex=True).ravel()
    for axes, (name, values, color, choices) in zip(all_axes, panels, strict=False):
        style = "steps-post" if len(values) == num_steps else "default"
        axes.plot(values, color=color, linewidth=1.6, drawstyle=style)
        axes.set(title=name)
        if choices:
            axes.set_yticks(range(len(choices)), choices)
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    for axes in all_axes[len(panels) - columns : len(panels)]:
        axes.tick_params(labelbottom=True)
        axes.set(xlabel="step")
    figure.suptitle(title, fontsize=11)


def _plot_maps(figure, maps: Maps, view: View, obs: np.ndarray, title: str) -> None:
    """The policy on the left, the value on the right, with the episode."""
    left, right = figure.subplots(1, 2, sharey=True)
    if maps.bound is None:
        _plot_choices(left, maps, view.choices)
    else:
        picture = left.pcolormesh(maps.x, maps.y, maps.action, cmap="RdBu_r", shading="gouraud")
        picture.set_clim(-maps.bound, maps.bound)
        figure.colorbar(picture, ax=left, pad=0.02)
    picture = right.pcolormesh(maps.x, maps.y, maps.value, cmap="viridis", shading="gouraud")
    figure.colorbar(picture, ax=right, pad=0.02)
    x, y = view.axes
    for axes, name in ((left, f"policy: {view.action}"), (right, "value: expected discounted return")):
        _plot_path(axes, view, obs)
        axes.grid(False)
        axes.set(title=name, xlabel=x.label, xlim=(x.low, x.high), ylim=(y.low, y.high))
        if x.ticks:
            axes.set_xticks(*zip(*x.ticks, strict=True))
    left.set(ylabel=y.label)
    elsewhere = f", {view.elsewhere}" if view.elsewhere else ""
    figure.suptitle(f"{title}{elsewhere}; one episode from \N{WHITE CIRCLE} to \N{BLACK CIRCLE}", fontsize=11)


def _plot_choices(axes, maps: Maps, choices: tuple[str, ...]) -> None:
    """Discrete actions, each in its colour."""
    import matplotlib
    from matplotlib.colors import ListedColormap

    colors = ListedColormap(matplotlib.colormaps["RdBu_r"](np.linspace(0.2, 0.8, len(choices))))
    picture = axes.pcolormesh(maps.x, maps.y, maps.action, cmap=colors, shading="nearest")
    picture.set_clim(-0.5, len(choices) - 0.5)
    bar = axes.figure.colorbar(picture, ax=axes, pad=0.02)
    bar.set_ticks(range(len(choices)), labels=choices)


def _plot_path(axes, view: View, obs: np.ndarray) -> None:
    """The episode as a line from a ring to a disc; around a periodic axis, a line for each turn."""
    from matplotlib.patheffects import withStroke

    x, y = view.locate(*obs.T)
    low, high = view.axes[0].low, view.axes[0].high
    whole = np.unwrap(x, period=high - low) if view.axes[0].periodic else x
    outline = [withStroke(linewidth=2.6, foreground="white")]
    for turn in np.unique(np.round((whole - x) / (high - low))):
        line = whole - turn * (high - low)
        axes.plot(line, y, color="black", linewidth=1.0, path_effects=outline)
    for end, face, edge in ((0, "white", "black"), (-1, "black", "white")):
        inside = all(axis.low <= at[end] <= axis.high for axis, at in zip(view.axes, (x, y), strict=True))
        style = {"markeredgecolor": edge, "markersize": 8, "zorder": 3, "clip_on": not inside}
        axes.plot(x[end], y[end], "o", color=face, **style)
