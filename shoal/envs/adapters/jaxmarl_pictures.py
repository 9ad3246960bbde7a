"""Pictures of JaxMARL's worlds, by its own visualisers."""

import contextlib
import io
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.imports import import_user_module

Painter = Callable[[Any, Any], np.ndarray]
"""(the state of one world, its parameters) -> RGB (H, W, 3)"""


def painter(env: Any, world: str) -> Painter | None:
    """What draws this world; None where JaxMARL has no pictures of it."""
    if world.startswith("MPE") and "push" not in world:  # its colours are none
        return lambda moment, params: _particles(env, moment.state)
    if "SMAX" in world:
        return lambda moment, params: _units(env, moment.state)
    if world == "overcooked":
        return lambda moment, params: _kitchen(env, moment.state)
    if world == "overcooked_v2":
        return lambda moment, params: _kitchen_v2(env, moment.state)
    return None


def _particles(env: Any, state: Any) -> np.ndarray:
    drawn_by = import_user_module("jaxmarl.environments.mpe.mpe_visualizer", env.name)
    with contextlib.redirect_stdout(io.StringIO()), _headless():
        return _pixels(drawn_by.MPEVisualizer(env, [state]).fig)


def _units(env: Any, state: Any) -> np.ndarray:
    import matplotlib.pyplot as plt

    inner, units = getattr(env, "_env", env), getattr(state, "state", state)
    shots = {agent: units.prev_attack_actions[i] for i, agent in enumerate(inner.agents)}
    with _headless():
        figure, axes = plt.subplots(figsize=(5, 5), dpi=100)
        inner.init_render(axes, (None, units, shots), 0, int(units.step)).remove()  # a picture of the picture
        return _pixels(figure)


def _kitchen(env: Any, state: Any) -> np.ndarray:
    drawn_by = import_user_module("jaxmarl.viz.overcooked_visualizer", env.name)
    border = env.agent_view_size - 2
    grid = np.asarray(state.maze_map)[border:-border, border:-border]
    return drawn_by.OvercookedVisualizer._render_grid(
        grid, highlight_mask=None, agent_dir_idx=state.agent_dir_idx, agent_inv=state.agent_inv
    )


def _kitchen_v2(env: Any, state: Any) -> np.ndarray:
    drawn_by = import_user_module("jaxmarl.viz.overcooked_v2_visualizer", env.name)
    return np.asarray(drawn_by.OvercookedV2Visualizer()._render_state(state, env.agent_view_size), np.uint8)


@contextlib.contextmanager
def _headless():
    """Without windows, whatever matplotlib is set to."""
    import matplotlib.pyplot as plt

    before = plt.get_backend()
    plt.switch_backend("agg")
    try:
        yield
    finally:
        plt.switch_backend(before)


def _pixels(figure: Any) -> np.ndarray:
    import matplotlib.pyplot as plt

    figure.canvas.draw()
    picture = np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()
    plt.close(figure)
    return picture
