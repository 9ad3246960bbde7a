"""gymnax: classic control, MinAtar, bsuite, small worlds. Their parameters are data: worlds may differ."""

from dataclasses import asdict
from typing import Any

import jax
import numpy as np
from jax import Array

from shoal.envs.adapters.jax_suites import Outcome, adapt_row, making, suite_recipe
from shoal.envs.adapters.suite import Suite
from shoal.errors import ShoalError
from shoal.imports import import_user_module
from shoal.types import EnvRecipe, EnvSpec, Tree

LIMIT = "max_steps_in_episode"
"""gymnax's name of the time limit."""


def recipe(name: str, options: dict[str, Any]) -> EnvRecipe:
    """The environment that `gymnax.make(name)` makes; options are its constructor's and its parameters."""
    title = f"gymnax:{name}"
    library = import_user_module("gymnax", title)
    options = {LIMIT if key == "max_episode_steps" else key: value for key, value in options.items()}
    with making(title, {}):
        fields = vars(library.make(name)[1])
    theirs = {key: value for key, value in options.items() if key not in fields}
    with making(title, theirs):
        env, defaults = library.make(name, **theirs)
        defaults = defaults.replace(**{key: value for key, value in options.items() if key in fields})
        convert = library.environments.spaces.gymnax_space_to_gym_space
        observed, chosen = convert(env.observation_space(defaults)), convert(env.action_space(defaults))
    observation, observe, action, act = adapt_row(observed, chosen, title)
    numbers = {
        key: value for key, value in asdict(defaults).items() if isinstance(value, float) and key != LIMIT
    }
    spec = EnvSpec(title, "gymnax", observation, action, int(vars(defaults)[LIMIT]), params=numbers)

    def reset(key: Array, params: Tree) -> tuple[Tree, Tree]:
        obs, state = env.reset_env(key, defaults.replace(**params))
        return state, observe(obs)

    def step(key: Array, state: Tree, action: Array, params: Tree) -> Outcome:
        params = defaults.replace(**params)
        obs, state, reward, terminated, _ = env.step_env(key, state, act(action), params)
        return Outcome(state, observe(obs), reward, terminated, env.is_truncated(state, params))

    def render(state: Tree, params: Tree) -> np.ndarray:
        return _draw(env, state, defaults.replace(**jax.tree.map(float, params)))

    return suite_recipe(spec, reset, step, render)


def _draw(env: Any, state: Tree, params: Any) -> np.ndarray:
    """gymnax's own picture of a state."""
    from matplotlib import pyplot
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    visualizer = import_user_module("gymnax.visualize.visualizer", env.name).Visualizer(env, params, [state])
    try:
        visualizer.init()
        if "im" not in vars(visualizer):
            raise ShoalError(f"gymnax has no pictures of {env.name}")
        canvas = FigureCanvasAgg(visualizer.fig)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3].copy()
    finally:
        pyplot.close(visualizer.fig)


SUITE = Suite(recipe, names=lambda: import_user_module("gymnax", "gymnax").registered_envs, library="gymnax")
