"""MuJoCo Playground: the DM Control suite, and legged robots and hands, on MJX. Their physics are data.

Playground downloads the models of its robots when the first one is made; the DM Control suite needs none.
MJX is computed by JAX; the option `impl=warp` chooses Warp, on an NVIDIA GPU, where worlds cannot differ.
"""

import copy
from typing import Any

import numpy as np

from shoal.envs.adapters.brax import FACTORS, OURS, choose_opengl, robot_recipe, scaled_model
from shoal.envs.adapters.jax_suites import known_options, making
from shoal.envs.adapters.suite import Suite
from shoal.imports import import_user_module
from shoal.types import EnvRecipe, Tree


def recipe(name: str, options: dict[str, Any]) -> EnvRecipe:
    """The environment that `registry.load(name)` makes; options override its configuration."""
    title = f"playground:{name}"
    choose_opengl()
    registry = import_user_module("mujoco_playground", title).registry
    config = registry.get_default_config(name).to_dict()
    known_options(title, {key: value for key, value in options.items() if key not in OURS}, config)
    # two of ours are in Playground's configuration, under the same or another name
    ours = {"max_episode_steps": config["episode_length"], "action_repeat": config["action_repeat"]}
    overrides = {"impl": "jax"} if "impl" in config else {}
    overrides |= {key: value for key, value in options.items() if key not in OURS}
    with making(title, {}):
        env = registry.load(name, config_overrides=overrides)

    def in_world(factors: Tree) -> Any:
        made = copy.copy(env)
        made._mjx_model = scaled_model(env.mjx_model, factors)
        return made

    def render(state: Any, factors: Tree) -> np.ndarray:
        return env.render(state)

    differ = overrides.get("impl") == "jax" and options.get("worlds", True)
    return robot_recipe(
        env,
        title,
        "playground",
        ours | options,
        render,
        FACTORS if differ else {},
        in_world if differ else None,
    )


SUITE = Suite(
    recipe,
    names=lambda: import_user_module("mujoco_playground", "playground").registry.ALL_ENVS,
    library="mujoco_playground",
)
