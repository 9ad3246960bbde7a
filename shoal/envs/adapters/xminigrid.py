"""XLand-MiniGrid: grid worlds with rules and goals, and ports of MiniGrid.

Each cell that the agent sees is a tile in a colour, shown as a choice among each. The option `benchmark`
draws the task of every episode from one of XLand-MiniGrid's benchmarks, such as trivial-1m.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.envs.adapters.jax_suites import Outcome, known_options, making, suite_recipe
from shoal.envs.adapters.suite import Suite
from shoal.imports import import_user_module
from shoal.types import Box, Discrete, EnvRecipe, EnvSpec, Tree

LIMIT = "max_steps"
"""The suite's name of the time limit."""
TASKS = "benchmark"
"""The option that is ours."""


def recipe(name: str, options: dict[str, Any]) -> EnvRecipe:
    """The environment that `xminigrid.make(name)` makes; options are its parameters."""
    title = f"xminigrid:{name}"
    library = import_user_module("xminigrid", title)
    options = {LIMIT if key == "max_episode_steps" else key: value for key, value in options.items()}
    theirs = {key: value for key, value in options.items() if key != TASKS}
    known_options(title, theirs, vars(library.make(name)[1]))
    with making(title, {}):
        env, defaults = library.make(name, **theirs)
        tasks = library.load_benchmark(options[TASKS]) if TASKS in options else None
    kinds = import_user_module("xminigrid.core.constants", title)
    depths = (kinds.NUM_TILES, kinds.NUM_COLORS)
    size, _, _ = env.observation_shape(defaults)
    spec = EnvSpec(
        title,
        "xminigrid",
        Box((size, size, sum(depths)), 0.0, 1.0),
        Discrete(env.num_actions(defaults)),
        defaults.max_steps,
    )

    def show(cells: Array) -> Array:
        return jnp.concatenate([jax.nn.one_hot(cells[..., i], depth) for i, depth in enumerate(depths)], -1)

    def reset(key: Array, params: Tree) -> tuple[Tree, Tree]:
        world = defaults
        if tasks is not None:
            key, key_task = jax.random.split(key)
            world = defaults.replace(ruleset=tasks.sample_ruleset(key_task))
        now = env.reset(world, key)
        return now, show(now.observation)

    def step(key: Array, state: Any, action: Array, params: Tree) -> Outcome:
        now = env.step(defaults, state, action)
        ended = now.discount == 0
        return Outcome(now, show(now.observation), now.reward, ended, now.last() & ~ended)

    def render(state: Any, params: Tree) -> np.ndarray:
        return np.asarray(env.render(defaults, state)).astype(np.uint8)

    return suite_recipe(spec, reset, step, render)


SUITE = Suite(
    recipe,
    names=lambda: import_user_module("xminigrid", "xminigrid").registered_environments(),
    library="xminigrid",
)
