"""Environments of the user's own, as objects: a `JaxEnv`, or a Gymnasium class, factory or instance."""

import copy
import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shoal.envs.adapters.gymnasium import gym_recipe, import_gymnasium
from shoal.envs.adapters.host import one_line_errors
from shoal.envs.adapters.jax_env import from_jax
from shoal.envs.adapters.suite import UnknownOptions, option_errors
from shoal.envs.adapters.workers import WORKERS
from shoal.errors import ShoalError
from shoal.types import EnvRecipe, JaxEnv


def own_recipe(env: Any, name: str, options: dict[str, Any]) -> EnvRecipe:
    """The environment `env`; a class or a factory is called with the options, an instance is copied."""
    ours = {key: value for key, value in options.items() if key in ("max_episode_steps", WORKERS)}
    theirs = {key: value for key, value in options.items() if key not in ours}
    if theirs and not callable(env):
        listed = ", ".join(theirs)
        raise UnknownOptions(f"{name} is made already and takes no {listed}: give its class or a factory")
    with one_line_errors(name), option_errors(name, theirs):
        made: Any = env(**theirs) if callable(env) else env
    if isinstance(made, JaxEnv):
        if WORKERS in ours:
            raise UnknownOptions(f"{name} is compiled and has no Python to share out: leave {WORKERS} out")
        return from_jax(made._replace(spec=replace(made.spec, **ours)))
    if not isinstance(made, import_gymnasium().Env):
        raise ShoalError(
            f"{made!r} is no environment; give a JaxEnv, or a gymnasium.Env, its class or a function "
            "that makes it"
        )
    if callable(env):
        made.close()
    create = _creator(env) if callable(env) else _copier(env, name)
    identifier = re.sub(r"[^\w:.-]", "-", name)  # what Gymnasium allows
    entry = import_gymnasium().envs.registration.EnvSpec(identifier, entry_point=create)
    return gym_recipe(name, options, registered=entry)


def _creator(factory: Callable[..., Any]) -> Callable[..., Any]:
    """A class or a factory that is asked for pictures only where it knows of them."""
    parameters = inspect.signature(factory).parameters.values()
    draws = any(one.name == "render_mode" or one.kind is one.VAR_KEYWORD for one in parameters)

    def create(render_mode: str | None = None, **options: Any) -> Any:
        return factory(**options, **({"render_mode": render_mode} if render_mode and draws else {}))

    return create


def _copier(env: Any, name: str) -> Callable[..., Any]:
    """A factory of copies: the environments of a cohort must not share a state."""

    def create(render_mode: str | None = None) -> Any:
        try:
            return copy.deepcopy(env)
        except Exception as error:
            raise ShoalError(
                f"{name} cannot be copied, and several are needed: give its class or a factory"
            ) from error

    return create
