"""Craftax: open worlds with achievements; classic and full, as symbols or as pixels."""

from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.envs.adapters.jax_suites import Outcome, known_options, making, suite_recipe
from shoal.envs.adapters.suite import Suite
from shoal.imports import import_user_module
from shoal.types import Box, Discrete, EnvRecipe, EnvSpec, Tree

LIMIT = "max_timesteps"
"""Craftax's name of the time limit."""

NAMES = (
    "Craftax-Symbolic-v1",
    "Craftax-Pixels-v1",
    "Craftax-Classic-Symbolic-v1",
    "Craftax-Classic-Pixels-v1",
)


def recipe(name: str, options: dict[str, Any]) -> EnvRecipe:
    """The environment of that name without automatic reset; options are its parameters."""
    title = f"craftax:{name}"
    library = import_user_module("craftax.craftax_env", title)
    options = {LIMIT if key == "max_episode_steps" else key: value for key, value in options.items()}
    with making(title, options):
        env = library.make_craftax_env_from_name(name, auto_reset=False)
    known_options(title, options, vars(env.default_params))
    defaults = env.default_params.replace(**options)
    shape = env.observation_space(defaults).shape
    pixels = "Pixels" in name
    spec = EnvSpec(
        title,
        "craftax",
        Box(shape, 0, 255, "uint8") if pixels else Box(shape),
        Discrete(env.action_space(defaults).n),
        vars(defaults)[LIMIT],
        params={key: value for key, value in asdict(defaults).items() if isinstance(value, float)},
    )

    def show(obs: Array) -> Array:
        return jnp.round(255 * obs).astype(jnp.uint8) if pixels else obs

    def reset(key: Array, params: Tree) -> tuple[Tree, Tree]:
        obs, state = env.reset_env(key, defaults.replace(**params))
        return state, show(obs)

    def step(key: Array, state: Any, action: Array, params: Tree) -> Outcome:
        params = defaults.replace(**params)
        obs, state, reward, _, _ = env.step_env(key, state, action, params)
        ended = env.is_terminal(state.replace(timestep=jnp.zeros_like(state.timestep)), params)
        return Outcome(state, show(obs), reward, ended, state.timestep >= vars(params)[LIMIT])

    def render(state: Any, params: Tree) -> np.ndarray:
        kind = "craftax_classic" if "Classic" in name else "craftax"
        renderer = import_user_module(f"craftax.{kind}.renderer", title)
        size = import_user_module(f"craftax.{kind}.constants", title).BLOCK_PIXEL_SIZE_IMG
        draw = renderer.make_craftax_pixel_renderer(size)
        return np.asarray(draw(jax.tree.map(jnp.asarray, state))).round().astype(np.uint8)

    return suite_recipe(spec, reset, step, render)


SUITE = Suite(recipe, names=lambda: NAMES, library="craftax")
