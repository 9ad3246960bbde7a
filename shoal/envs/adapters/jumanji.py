"""Jumanji: games, packing and routing. Observations have names; most say which actions are allowed.

Jumanji's agents act together, as one learner with a choice for each; their rewards are added up. Where its
mask is of combinations of choices, as in Tetris, a combination is one choice (`envs/spaces.py`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.envs.adapters.jax_suites import Outcome, adapt_row, making, suite_recipe
from shoal.envs.adapters.suite import Suite
from shoal.imports import import_user_module
from shoal.ops.masks import ACTION_MASK
from shoal.types import EnvRecipe, EnvSpec, Tree

if TYPE_CHECKING:
    import gymnasium.spaces as gs


MANY = 64
"""A part of an observation with more choices, such as a count of steps, is shown as a number."""


def recipe(name: str, options: dict[str, Any]) -> EnvRecipe:
    """The environment that `jumanji.make(name)` makes; options are its constructor's."""
    title = f"jumanji:{name}"
    library = import_user_module("jumanji", title)
    theirs = {key: value for key, value in options.items() if key != "max_episode_steps"}
    with making(title, theirs):
        env = library.make(name, **theirs)
        seen, chosen = _spaces(library.specs.jumanji_specs_to_gym_spaces, env)
    observation, observe, action, act = adapt_row(seen, chosen, title)
    dtype = env.action_spec.dtype
    limit = options.get("max_episode_steps")
    spec = EnvSpec(title, "jumanji", observation, action, limit)

    def reset(key: Array, params: Tree) -> tuple[Tree, Tree]:
        state, now = env.reset(key)
        return state, observe(_named(now.observation))

    def step(key: Array, state: Tree, action: Array, params: Tree) -> Outcome:
        state, now = env.step(state, act(action).astype(dtype))
        ended = jnp.max(now.discount) == 0
        return Outcome(
            state,
            observe(_named(now.observation)),
            jnp.sum(now.reward),
            now.last() & ended,
            now.last() & ~ended,
        )

    def render(state: Tree, params: Tree) -> np.ndarray:
        viewer = env._viewer
        viewer._display = viewer._display_rgb_array
        return np.asarray(viewer.render(jax.tree.map(jnp.asarray, state)))[..., :3].copy()

    return suite_recipe(spec, reset, step, render)


def _named(obs: Any) -> Any:
    """Jumanji's records as dictionaries; the clock of PacMan's ghosts begins as a number of Python's."""
    if isinstance(obs, Array | np.ndarray | int):
        return jnp.asarray(obs)
    parts: dict[str, Any] = obs._asdict() if hasattr(obs, "_asdict") else vars(obs)
    return {name: _named(part) for name, part in parts.items()}


def _spaces(to_gymnasium: Callable[[Any], Any], env: Any) -> tuple["gs.Space", "gs.Space"]:
    """Gymnasium's spaces of an environment; numbers and booleans in boxes are shown as real numbers."""
    import gymnasium.spaces as gs

    def with_floats(space: gs.Space) -> gs.Space:
        if isinstance(space, gs.Dict):
            return gs.Dict({name: with_floats(part) for name, part in space.spaces.items()})
        if isinstance(space, gs.Discrete) and space.n > MANY:
            return gs.Box(0.0, float(space.n))
        return gs.Box(np.float32(space.low), np.float32(space.high)) if isinstance(space, gs.Box) else space

    seen, chosen = with_floats(to_gymnasium(env.observation_spec)), to_gymnasium(env.action_spec)
    mask = seen.spaces.get(ACTION_MASK) if isinstance(seen, gs.Dict) else None
    if isinstance(mask, gs.Box) and isinstance(chosen, gs.Box):  # MultiCVRP's box has one number too many
        chosen = gs.MultiDiscrete(np.full(mask.shape[0], mask.shape[1]))
    return seen, chosen


SUITE = Suite(
    recipe,
    names=lambda: sorted(import_user_module("jumanji", "jumanji").registered_environments()),
    library="jumanji",
)
