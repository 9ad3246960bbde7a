"""JaxMARL's worlds of several agents: MPE, SMAX, Overcooked, Hanabi, the switch riddle.

Ids are JaxMARL's own; a map or a layout follows after a hyphen: `HeuristicEnemySMAX-3m`,
`overcooked-cramped_room`. Options are those of the world's class. Observations have the parts of a team:

| part          | shape    | meaning                                                                   |
|---------------|----------|---------------------------------------------------------------------------|
| `obs`         | (A, ...) | what each agent sees, padded with zeros to the largest                    |
| `alive`       | (A,)     | SMAX: 1, or 0 for a unit that has fallen                                  |
| `action_mask` | (A, n)   | SMAX and Hanabi: what is allowed; else where agents have unequal choices  |
| `state`       | (A, S)   | SMAX: JaxMARL's world state, the same for all                             |

JaxMARL says `done` for both kinds of ends. Here the clock truncates, after as many steps as in JaxMARL; all
other ends terminate.
"""

import inspect
import io
import sys
import warnings
from collections.abc import Collection
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from shoal.envs.adapters.jax_env import NO_LIMIT, from_jax
from shoal.envs.adapters.jaxmarl_agents import agents_of
from shoal.envs.adapters.jaxmarl_pictures import painter
from shoal.envs.adapters.suite import Suite, UnknownOptions, option_errors
from shoal.imports import import_user_module
from shoal.ops.masks import ACTION_MASK
from shoal.types import Box, EnvRecipe, EnvSpec, JaxEnv, Tree

SHAPED = "shaped_reward"
"""Our own option: Overcooked pays for steps towards a soup, so many times JaxMARL's shaped rewards."""


class Moment(NamedTuple):
    """The state of one world."""

    state: Tree
    seen: Array | tuple[()]  # Hanabi alone: observations, which also tell of the last move


def jaxmarl_env(name: str, options: dict[str, Any]) -> JaxEnv:
    """JaxMARL's world of that name, by its own functions."""
    world, _, variant = name.partition("-")
    shaped = float(options.pop(SHAPED, 0.0)) if "overcooked" in world else 0.0
    with option_errors(f"jaxmarl:{name}", options), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Overcooked recommends its second version
        env = _library().make(world, **(_variants(world)[variant] if variant else {}), **options)
    _check_options(name, env, options)
    agents, in_smax, in_hanabi = agents_of(env), "SMAX" in world, world == "hanabi"
    endless = world.startswith(("MPE", "overcooked"))  # but for the clock
    limit = getattr(env, "max_steps", None)
    if limit and not endless:
        getattr(env, "_env", env).max_steps = NO_LIMIT  # the clock is ours
    late = in_smax or world.startswith("MPE")  # their clocks are read before they move
    limit = limit + late if limit else None

    def reset(key: Array, params: Tree) -> Moment:
        obs, state = env.reset(key)
        return Moment(jax.tree.map(jnp.asarray, state), agents.stack(obs) if in_hanabi else ())

    def step(key: Array, moment: Moment, action: Array, params: Tree) -> tuple[Moment, Array, Array]:
        obs, state, rewards, dones, info = env.step_env(key, moment.state, agents.act(action))
        state = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), state, moment.state)
        reward = jnp.stack([jnp.float32(rewards[agent]) for agent in agents.names])
        if shaped:
            reward += shaped * jnp.stack([info["shaped_reward"][agent] for agent in agents.names])
        terminated = jnp.bool_(False) if endless else dones["__all__"]
        return Moment(state, agents.stack(obs) if in_hanabi else ()), reward, terminated

    def observe(moment: Moment, params: Tree) -> Tree:
        state = moment.state
        parts = {"obs": moment.seen if in_hanabi else agents.stack(env.get_obs(state))}
        if in_smax:
            units = state.state if hasattr(state, "state") else state
            parts["alive"] = units.unit_alive[: len(agents.names)].astype(jnp.float32)
            parts["state"] = jnp.tile(env.get_world_state(state), (len(agents.names), 1))
        if in_smax or in_hanabi:
            allowed = env.get_avail_actions(state) if in_smax else env.get_legal_moves(state)
            parts[ACTION_MASK] = agents.stack(allowed)
        elif agents.unequal:
            parts[ACTION_MASK] = agents.choices()
        return parts if len(parts) > 1 else parts["obs"]

    spec = EnvSpec(
        name=f"jaxmarl:{name}",
        backend="jaxmarl",
        observation=_boxes(jax.eval_shape(lambda key: observe(reset(key, ()), ()), jax.random.key(0))),
        action=agents.action,
        max_episode_steps=limit,
        agents=len(agents.names),
        teams=agents.teams,
        shortest=limit if limit and endless else 1,
    )
    return JaxEnv(spec, reset, step, observe, painter(env, world))


def _check_options(name: str, env: Any, options: dict[str, Any]) -> None:
    """Raise where a world does not know an option: some of JaxMARL's pass over them in silence."""
    makers = [vars(kind)["__init__"] for kind in type(env).__mro__[:-1] if "__init__" in vars(kind)]
    known = {parameter for maker in makers for parameter in inspect.signature(maker).parameters}
    if unknown := [key for key in options if key not in known and not hasattr(env, key)]:
        raise UnknownOptions(f"jaxmarl:{name} does not take these options: {', '.join(unknown)}")


def _boxes(obs: Tree) -> Box | dict[str, Box]:
    """The spaces of an agent's observations, from their shapes with the axis of agents."""
    box = lambda name, x: Box(x.shape[1:], *((0.0, 1.0) if name in ("alive", ACTION_MASK) else ()))
    return {name: box(name, x) for name, x in obs.items()} if isinstance(obs, dict) else box("obs", obs)


def _library() -> ModuleType:
    """The package. Its import prints, and leaves Python's first streams in the place of the present ones."""
    if "jaxmarl" in sys.modules:
        return sys.modules["jaxmarl"]
    before = {name: getattr(sys, name) for name in ("stdout", "stderr", "__stdout__", "__stderr__")}
    try:
        for name in before:
            setattr(sys, name, io.StringIO())
        return import_user_module("jaxmarl", "jaxmarl")
    finally:
        for name, stream in before.items():
            setattr(sys, name, stream)


def _variants(world: str) -> dict[str, dict[str, Any]]:
    """The options of a world's maps or layouts."""
    environments = f"{_library().__name__}.environments"
    match world:
        case "SMAX" | "HeuristicEnemySMAX":
            maps = import_user_module(f"{environments}.smax.smax_env", world).MAP_NAME_TO_SCENARIO
            return {name: {"scenario": scenario} for name, scenario in maps.items()}
        case "overcooked":
            layouts = import_user_module(environments, world).overcooked_layouts
            return {name: {"layout": layout} for name, layout in layouts.items()}
        case "overcooked_v2":
            return {
                name: {"layout": name}
                for name in import_user_module(environments, world).overcooked_v2_layouts
            }
    return {}


def _names() -> Collection[str]:
    worlds = ("SMAX", "HeuristicEnemySMAX", "overcooked", "overcooked_v2")
    particles = [name for name in _library().registration.registered_envs if name.startswith("MPE_")]
    variants = [f"{world}-{variant}" for world in worlds for variant in _variants(world)]
    return [*particles, *worlds, *variants, "hanabi", "switch_riddle"]


def _recipe(name: str, options: dict[str, Any]) -> EnvRecipe:
    ours = {key: value for key, value in options.items() if key == "max_episode_steps"}
    env = jaxmarl_env(name, {key: value for key, value in options.items() if key not in ours})
    return from_jax(env._replace(spec=replace(env.spec, **ours)))


SUITE = Suite(_recipe, _names, library="jaxmarl")
