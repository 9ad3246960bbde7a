"""A trained learner's policy and value over the state space, and one of its episodes."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import jax
import numpy as np

from shoal.envs.classic.views import VIEWS, View
from shoal.errors import ShoalError
from shoal.ops import trees
from shoal.runs.checkpoint import newest_meta
from shoal.runs.evaluation import own_world
from shoal.runs.learners import choose_learner, find_parts, load_learners
from shoal.runs.own import NO_PARTS, OwnParts
from shoal.runs.plots.episode import episode_panels, flickers, plot_episode
from shoal.runs.plots.figure import outlined, panel_grid, short_numbers, write_figure
from shoal.runs.plots.groups import title_of
from shoal.runs.policy import clip_action
from shoal.runs.trust import trusted_config
from shoal.training.episode import episode, trajectory
from shoal.training.players import greedy
from shoal.types import Box, EnvSpec, Learner, LearnerState

CELLS = 161
"""Points along each side of a map."""
MAX_NUMBERS = 24
"""Observations with more numbers are not plotted."""

Judge: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Observations (B, ...) -> greedy actions (B, ...) and values (B,)."""


class Maps(NamedTuple):
    """A learner's actions and values on a plane of states; the first axis is y, the second x."""

    x: np.ndarray  # (CELLS,)
    y: np.ndarray  # (CELLS,)
    action: np.ndarray  # (CELLS, CELLS) greedy; of several numbers, the first
    value: np.ndarray  # (CELLS, CELLS) expected discounted returns
    bound: float | None  # on the size of actions; None where they are discrete


def plot_policy(
    run: Path, folder: Path, seed: int = 0, own: OwnParts = NO_PARTS, format: str = "png"
) -> list[Path]:
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
        return _plot_best_learner(run, Path(folder), seed, own, format)
    except ShoalError as error:
        warnings.warn(f"no episode of {run} is plotted: {error}", RuntimeWarning)
        return []


def _plot_best_learner(run: Path, folder: Path, seed: int, own: OwnParts, format: str) -> list[Path]:
    config = trusted_config(run)
    parts = find_parts(run, config, own)
    size_of_obs = _vector_size(parts.recipe.spec)
    if newest_meta(run / "checkpoints") is None or not 0 < size_of_obs <= MAX_NUMBERS:
        return []
    trained = load_learners(run, parts=parts)
    name, cohort = choose_learner(trained, "best")
    learner, state, spec = trained.learner, trees.take(cohort, 0), trained.recipe.spec
    played = trajectory(episode(trained.recipe, learner, cohort, seed, params=own_world(trained, name)))
    played = played._replace(action=clip_action(spec.action, played.action))
    title = title_of(config, run.resolve().name) + (f", learner {name}" if config.learners > 1 else "")
    view, judge = find_view(spec), make_judge(learner, state) if learner.value else None
    panels = episode_panels(spec, view, played, judge(played.obs)[1] if judge else None)
    rows, columns = panel_grid(len(panels))
    plot_on = partial(plot_episode, panels=panels, played=played, title=title)
    written = [write_figure(folder / f"trajectory.{format}", plot_on, (4.0 * columns, 2.1 * rows + 0.9))]
    if judge and view:
        maps = evaluate_plane(view, spec, judge)
        plot_on = partial(_plot_maps, maps=maps, view=view, obs=played.obs, title=title)
        written.append(write_figure(folder / f"state_space.{format}", plot_on, (11.0, 4.6)))
    return written


def find_view(spec: EnvSpec) -> View | None:
    """The view of an environment; None where it is unknown or its observations differ from the view."""
    view = VIEWS.get(spec.name)
    return view if view and len(view.observation) == _vector_size(spec) else None


def make_judge(learner: Learner, state: LearnerState) -> Judge:
    """What one learner, without memory, does and expects at any observations; compiled once.

    They are filled up to the size of a plane, because a program is for one size.
    """
    size, value_of = CELLS * CELLS, learner.value
    assert value_of is not None, "the caller checks it"

    @jax.jit
    def judge(state, obs):
        noise = trees.take(greedy(learner).draw(jax.random.key(0), (1, size)), 0)
        action, _ = learner.act(learner.for_evaluation(state, size), obs, noise, np.ones(size, bool))
        return action, value_of(state, obs)

    def judge_any(obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        filled = np.resize(obs, (size, *obs.shape[1:]))
        action, value = jax.device_get(judge(state, filled))
        return action[: len(obs)], value[: len(obs)]

    return judge_any


def evaluate_plane(view: View, spec: EnvSpec, judge: Judge) -> Maps:
    """The greedy action and the value of one learner at every point of the plane."""
    x, y = (np.linspace(axis.low, axis.high, CELLS) for axis in view.axes)
    across, up = (grid.ravel() for grid in np.meshgrid(x, y))
    *numbers, _ = np.broadcast_arrays(*view.observe(across, up), across)
    action, value = judge(np.stack(numbers, -1).astype(np.float32))
    first = clip_action(spec.action, action).reshape(CELLS, CELLS, -1)[..., 0]
    bound = np.max(np.abs([spec.action.low, spec.action.high])) if isinstance(spec.action, Box) else None
    return Maps(x, y, first, value.reshape(CELLS, CELLS), bound)


def _vector_size(spec: EnvSpec) -> int:
    """The size of an observation that is one agent's vector; 0 for all others."""
    space, alone = spec.observation, spec.agents is None
    return space.shape[0] if alone and isinstance(space, Box) and len(space.shape) == 1 else 0


def _plot_maps(figure, maps: Maps, view: View, obs: np.ndarray, title: str) -> None:
    """The policy on the left, the value on the right, with the episode."""
    left, right = figure.subplots(1, 2, sharey=True)
    if maps.bound is None:
        _plot_choices(left, maps, view.choices)
    else:
        _plot_map(left, maps, maps.action, cmap="RdBu_r", vmin=-maps.bound, vmax=maps.bound)
    _plot_map(right, maps, maps.value, cmap="viridis")
    x, y = view.axes
    for axes, name in ((left, f"policy: {view.action}"), (right, "value: expected discounted return")):
        _plot_path(axes, view, obs)
        axes.grid(False)
        axes.set(title=name, xlabel=x.label, xlim=(x.low, x.high), ylim=(y.low, y.high))
        short_numbers(axes.xaxis, axes.yaxis)
        if x.ticks:
            axes.set_xticks(*zip(*x.ticks, strict=True))
    left.set(ylabel=y.label)
    elsewhere = f", {view.elsewhere}" if view.elsewhere else ""
    figure.suptitle(f"{title}{elsewhere}; one episode from \N{WHITE CIRCLE} to \N{BLACK CIRCLE}")


def _plot_map(axes, maps: Maps, numbers: np.ndarray, **how) -> None:
    """Numbers on the plane in colours, with their scale; `how` goes to matplotlib."""
    bar = axes.figure.colorbar(
        _plot_cells(axes, maps, numbers, interpolation="bilinear", **how), ax=axes, pad=0.02
    )
    short_numbers(bar.ax.yaxis)


def _plot_choices(axes, maps: Maps, choices: tuple[str, ...]) -> None:
    """Discrete actions, each in its colour."""
    import matplotlib
    from matplotlib.colors import ListedColormap

    colors = ListedColormap(matplotlib.colormaps["RdBu_r"](np.linspace(0.2, 0.8, len(choices))))
    how = {"interpolation": "nearest", "cmap": colors, "vmin": -0.5, "vmax": len(choices) - 0.5}
    bar = axes.figure.colorbar(_plot_cells(axes, maps, maps.action, **how), ax=axes, pad=0.02)
    bar.set_ticks(range(len(choices)), labels=choices)


def _plot_cells(axes, maps: Maps, numbers: np.ndarray, **how):
    """A picture with the outermost points of the plane on its edges."""
    ends = []
    for points in (maps.x, maps.y):
        half = (points[1] - points[0]) / 2
        ends += [points[0] - half, points[-1] + half]
    return axes.imshow(numbers, origin="lower", extent=ends, aspect="auto", **how)


def _plot_path(axes, view: View, obs: np.ndarray) -> None:
    """The episode from a ring to a disc: a line, one for each turn around a periodic axis, or dots.

    Where it leaps to and fro at every step, a line would be a blot.
    """
    x, y = view.locate(*obs.T)
    low, high = view.axes[0].low, view.axes[0].high
    whole = np.unwrap(x, period=high - low) if view.axes[0].periodic else x
    if flickers(y) or flickers(whole):
        axes.plot(x, y, ".", color="black", markersize=4, markeredgecolor="white", markeredgewidth=0.4)
    else:
        for turn in np.unique(np.round((whole - x) / (high - low))):
            line = whole - turn * (high - low)
            axes.plot(line, y, color="black", linewidth=1.0, path_effects=outlined(1.0))
    for end, face, edge in ((0, "white", "black"), (-1, "black", "white")):
        inside = all(axis.low <= at[end] <= axis.high for axis, at in zip(view.axes, (x, y), strict=True))
        style = {"markeredgecolor": edge, "markersize": 8, "zorder": 3, "clip_on": not inside}
        axes.plot(x[end], y[end], "o", color=face, **style)
