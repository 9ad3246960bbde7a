"""Environments written in JAX: the built-in ones, and those that users register."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from shoal.envs import multi_agent
from shoal.envs.adapters.changing import OPTIONS, change_worlds
from shoal.envs.adapters.jax_env import from_jax
from shoal.envs.adapters.suite import Suite, UnknownOptions
from shoal.envs.classic import BUILTIN
from shoal.errors import ShoalError
from shoal.types import EnvRecipe, JaxEnv

_registered: dict[str, JaxEnv] = {}


def register(name: str, env: JaxEnv) -> None:
    """Add an environment of your own under `name`, for this process.

    For the command line, register it in a module and write `module:Name`.

    >>> import shoal
    >>> from shoal.envs.classic import CARTPOLE
    >>> register("HeavyCart-v0", CARTPOLE._replace(spec=replace(CARTPOLE.spec, max_episode_steps=200)))
    >>> shoal.make("HeavyCart-v0").spec.max_episode_steps
    200
    """
    if name in BUILTIN or multi_agent.find(name):
        raise ShoalError(f"{name} is built in; register your environment by another name")
    if ":" in name:
        raise ShoalError(f"cannot register {name!r}: a colon follows a module or a suite; use another name")
    _registered[name] = env._replace(spec=replace(env.spec, name=name))


def _find(name: str) -> JaxEnv | None:
    return BUILTIN.get(name) or _registered.get(name) or multi_agent.find(name)


def _names() -> Collection[str]:
    return [*BUILTIN, *multi_agent.ENVIRONMENTS, *_registered]


def _recipe(name: str, options: dict[str, Any]) -> EnvRecipe:
    env = _find(name)
    assert env is not None
    changes = {key: value for key, value in options.items() if key in OPTIONS}
    others = sorted(options.keys() - {"max_episode_steps", *changes})
    if others:
        known = f"max_episode_steps, {' and '.join(OPTIONS)}" if env.spec.spread else "max_episode_steps"
        raise UnknownOptions(f"jax:{name} takes {known}, not {', '.join(others)}")
    rest = {key: value for key, value in options.items() if key not in changes}
    env = env._replace(spec=replace(env.spec, **rest))
    if not changes:
        return from_jax(env)
    if "change_every" not in changes:
        raise ShoalError("change_spread needs change_every, the episodes between two worlds")
    return change_worlds(env, changes["change_every"], changes.get("change_spread", 1.0))


SUITE = Suite(
    _recipe,
    _names,
    knows=lambda name: _find(name) is not None,
    needs_prefix=lambda name: False,
)
