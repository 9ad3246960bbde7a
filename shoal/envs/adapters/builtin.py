"""Environments written in JAX: the built-in ones, and those that users register."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from shoal.envs import multi_agent
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
    others = sorted(options.keys() - {"max_episode_steps"})
    if others:
        raise UnknownOptions(f"jax:{name} takes only the option max_episode_steps, not {', '.join(others)}")
    return from_jax(env._replace(spec=replace(env.spec, **options)))


SUITE = Suite(
    _recipe,
    _names,
    knows=lambda name: _find(name) is not None,
    needs_prefix=lambda name: False,
)
