"""Brax: robots by four physics engines, chosen by the option `backend`. Their physics are data."""

import copy
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.envs.adapters.host import one_line_errors
from shoal.envs.adapters.jax_suites import Outcome, making, suite_recipe
from shoal.envs.adapters.suite import Suite
from shoal.imports import import_user_module
from shoal.types import Box, EnvRecipe, EnvSpec, Tree

EPISODE = 1000
"""Brax's own number of steps, with those that repeat an action."""

OURS = ("max_episode_steps", "action_repeat", "worlds")
"""The options that are not the suite's. `worlds=false` fixes the physics, which is a little faster."""

FACTORS = {"mass": 1.0, "friction": 1.0, "strength": 1.0, "damping": 1.0, "gravity": 1.0}
"""What may differ between worlds, as factors of the robot's own numbers."""
SPREAD = (0.25, 0.5, 1.5)


def recipe(name: str, options: dict[str, Any]) -> EnvRecipe:
    """The environment that `brax.envs.get_environment(name)` makes; options are its constructor's."""
    title = f"brax:{name}"
    choose_opengl()
    envs = import_user_module("brax.envs", title)
    theirs = {key: value for key, value in options.items() if key not in OURS}
    with making(title, theirs):
        env = envs.get_environment(name, **theirs)
    differ = "sys" in vars(env) and options.get("worlds", True)

    def in_world(factors: Tree) -> Any:
        made = copy.copy(env)
        made.sys = scaled(env.sys, factors)
        return made

    def render(state: Any, factors: Tree) -> np.ndarray:
        return env.render([state.pipeline_state])[0]

    return robot_recipe(
        env, title, "brax", options, render, FACTORS if differ else {}, in_world if differ else None
    )


def choose_opengl() -> None:
    """Let MuJoCo draw where there is no display; it reads this when it is imported."""
    if "DISPLAY" not in os.environ:
        os.environ.setdefault("MUJOCO_GL", "egl")


def scaled(system: Any, factors: Tree) -> Any:
    """Brax's system, and MuJoCo's model in it, with its physical numbers times their factors."""
    mass, link = factors["mass"], system.link
    return scaled_model(system, factors).replace(
        gravity=system.gravity * factors["gravity"],
        link=link.replace(
            inertia=link.inertia.replace(i=link.inertia.i * mass, mass=link.inertia.mass * mass)
        ),
        actuator=system.actuator.replace(gear=system.actuator.gear * factors["strength"]),
        dof=system.dof.replace(damping=system.dof.damping * factors["damping"]),
    )


def scaled_model(model: Any, factors: Tree) -> Any:
    """MJX's model with its physical numbers times their factors."""
    mass = factors["mass"]
    return model.replace(
        opt=model.opt.replace(gravity=model.opt.gravity * factors["gravity"]),
        body_mass=model.body_mass * mass,
        body_inertia=model.body_inertia * mass,
        body_subtreemass=model.body_subtreemass * mass,
        geom_friction=model.geom_friction * factors["friction"],
        actuator_gear=model.actuator_gear * factors["strength"],
        dof_damping=model.dof_damping * factors["damping"],
    )


def robot_recipe(
    env: Any,
    title: str,
    suite: str,
    options: dict[str, Any],
    render: Callable[[Tree, Tree], np.ndarray],
    factors: dict[str, float],
    in_world: Callable[[Tree], Any] | None,
) -> EnvRecipe:
    """The recipe of an environment with Brax's interface: `reset(key)` and `step(state, action)`.

    The option `action_repeat` takes every action so many times, or until the episode ends.
    """
    repeat, episode = options.get("action_repeat", 1), options.get("max_episode_steps", EPISODE)
    with one_line_errors(title):
        shapes = jax.eval_shape(env.reset, jax.random.key_data(jax.random.key(0)))
    boxes = jax.tree.map(lambda x: Box(x.shape), shapes.obs)
    action = Box((env.action_size,), -1.0, 1.0)
    spread = dict.fromkeys(factors, SPREAD)
    spec = EnvSpec(title, suite, boxes, action, -(-episode // repeat), params=factors, spread=spread)
    made = in_world or (lambda factors: env)

    def reset(key: Array, factors: Tree) -> tuple[Tree, Tree]:
        state = made(factors).reset(key)
        return state, state.obs

    def step(key: Array, state: Any, action: Array, factors: Tree) -> Outcome:
        world = made(factors)

        def act(before: tuple[Any, Array], _: None) -> tuple[tuple[Any, Array], None]:
            state, reward = before
            over = state.done > 0
            after = world.step(jax.tree.map(jnp.asarray, state), action)
            state = jax.tree.map(lambda old, new: jnp.where(over, old, new), state, after)
            return (state, reward + jnp.where(over, 0.0, after.reward)), None

        if repeat == 1:
            state = world.step(state, action)
            return Outcome(state, state.obs, state.reward, state.done)
        (state, reward), _ = jax.lax.scan(act, (state, jnp.float32(0)), None, repeat)
        return Outcome(state, state.obs, reward, state.done)

    def picture(state: Tree, factors: Tree) -> np.ndarray:
        with one_line_errors(title):
            return np.asarray(render(state, factors))

    return suite_recipe(spec, reset, step, picture)


SUITE = Suite(recipe, names=lambda: import_user_module("brax.envs", "brax")._envs, library="brax")
