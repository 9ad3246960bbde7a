"""Environments by name: "CartPole-v1", "jax:...", "envpool:...", "gym:...", "pettingzoo:...", "module:Name".

A bare name picks the fastest implementation of exactly that environment: built in, then EnvPool's, then
Gymnasium's. EnvPool and Gymnasium are imported when a name needs them, never before.
"""

import difflib
import fnmatch
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, NamedTuple

from shoal.envs.adapters.envpool import UnknownOptions, envpool_recipe, import_envpool
from shoal.envs.adapters.gymnasium import gym_recipe, import_gymnasium
from shoal.envs.adapters.jax_env import from_jax
from shoal.envs.classic import BUILTIN
from shoal.envs.frame_stack import stack_frames
from shoal.envs.multi_agent import TEAMS, team
from shoal.errors import ShoalError
from shoal.types import EnvRecipe, JaxEnv

_PLUGINS = {
    "ALE/*": ("ale_py", "ale-py"),
    "MiniGrid-*": ("minigrid",) * 2,
    "BabyAI-*": ("minigrid",) * 2,
    "*BulletEnv-v*": ("pybullet_envs_gymnasium",) * 2,
}
"""Names that Gymnasium knows once another package is imported: its module, what pip calls it."""

_RECODED = {"Blackjack-v1", "tabular/Blackjack-v0"}
"""Ids that EnvPool shares with Gymnasium while it observes them otherwise: only a prefix picks EnvPool's."""

_registered: dict[str, JaxEnv] = {}


def make(name: str, **options: Any) -> EnvRecipe:
    """The environment called `name`, ready to be built for a cohort.

    `options` are the implementation's own (`episodic_life=True` for EnvPool's Atari, `is_slippery=False` for
    Gymnasium's FrozenLake...). `max_episode_steps` works everywhere, and so does `frame_stack`, which shows
    the last so many observations as one. A bare name passes over an implementation that does not have these
    options.

    >>> recipe = make("CartPole-v1")
    >>> recipe.spec.backend, recipe.spec.observation.shape, recipe.spec.max_episode_steps
    ('jax', (4,), 500)
    >>> make("CartPole-v1", max_episode_steps=50).spec.max_episode_steps
    50
    >>> make("CartPole-v1", frame_stack=4).spec.observation.shape
    (16,)
    """
    backends, identifier = _read(name)
    num_frames = options.pop("frame_stack", 1)
    refusal = None
    for backend in backends:
        if _BACKENDS[backend].knows(identifier):
            try:
                return stack_frames(_BACKENDS[backend].recipe(identifier, options), num_frames)
            except UnknownOptions as error:
                refusal = error
    raise refusal or _unknown(name, identifier, backends)


def register(name: str, env: JaxEnv) -> None:
    """Make an environment of your own known by `name`, to this process.

    For the command line, register it in a module and call it `module:Name`.

    >>> from shoal.envs.probes import counter
    >>> register("Counting-v0", counter(limit=3))
    >>> make("Counting-v0").spec.max_episode_steps
    3
    """
    if name in BUILTIN or team(name):
        raise ShoalError(f"{name} is built in; register your environment by another name")
    if ":" in name:
        raise ShoalError(
            f"cannot register {name!r}: a colon separates a module or an implementation from the name"
        )
    _registered[name] = env._replace(spec=replace(env.spec, name=name))


def list_environments(pattern: str | None = None) -> list[tuple[str, str]]:
    """Every known name and an implementation of it, the fastest first; `pattern` is a part of it or a glob.

    >>> list_environments("cartpole-v1")[0]
    ('CartPole-v1', 'jax')
    """
    pairs = [(name, key) for key, backend in _BACKENDS.items() for name in backend.names()]
    pairs.sort(key=lambda pair: pair[0].lower())
    if pattern is None:
        return pairs
    glob = pattern if any(letter in pattern for letter in "*?[") else f"*{pattern}*"
    return [pair for pair in pairs if fnmatch.fnmatch(pair[0].lower(), glob.lower())]


def _read(name: str) -> tuple[list[str], str]:
    """The implementations to ask, in order, and what to ask them for."""
    forced, colon, identifier = name.partition(":")
    if not colon or forced not in _BACKENDS:
        forced, identifier = "", name
    module, _, identifier = identifier.rpartition(":")
    if module:
        _import_module(module, name)
    if forced:
        return [forced], identifier
    unasked = {"pettingzoo"} | ({"envpool"} if module or identifier in _RECODED else set())
    return [backend for backend in _BACKENDS if backend not in unasked], identifier


def _import_module(module: str, name: str) -> None:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ShoalError(f"{name}: module {module} needs {error.name}, which is not installed") from error
        raise ShoalError(f"{name}: no module {module!r} here or among the installed packages") from error
    except Exception as error:
        raise ShoalError(
            f"{name}: importing {module} raised {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error


def _jax_names() -> Collection[str]:
    return [*BUILTIN, *TEAMS, *_registered]


def _jax_env(name: str) -> JaxEnv | None:
    """The environment in JAX called `name`, built in or registered."""
    return BUILTIN.get(name) or _registered.get(name) or team(name)


def _jax_recipe(name: str, options: dict[str, Any]) -> EnvRecipe:
    env = _jax_env(name)
    assert env is not None
    others = sorted(options.keys() - {"max_episode_steps"})
    if others:
        raise UnknownOptions(f"jax:{name} takes only the option max_episode_steps, not {', '.join(others)}")
    return from_jax(env._replace(spec=replace(env.spec, **options)))


def _envpool_names() -> Collection[str]:
    """Nothing where EnvPool cannot run inside compiled code: its wheels can on Linux alone."""
    if sys.platform != "linux" or importlib.util.find_spec("envpool") is None:
        return []
    return import_envpool().list_all_envs()


def _gym_names() -> Collection[str]:
    if importlib.util.find_spec("gymnasium") is None:
        return []
    for module, _ in _PLUGINS.values():
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module)
    return [
        name for name in import_gymnasium().registry if not name.startswith("GymV")
    ]  # older APIs' adapters


def _gym_recipe(name: str, options: dict[str, Any]) -> EnvRecipe:
    if not name.startswith("ALE/"):
        return gym_recipe(name, options)
    game, ram = _without_ram(name)
    ale = {key: value for key, value in (ram | options).items() if key != "episodic_life"}
    recipe = gym_recipe(game, ale, options.get("episodic_life", False))
    return recipe._replace(spec=replace(recipe.spec, name=name))


def _without_ram(name: str) -> tuple[str, dict[str, Any]]:
    """ale-py 0.11 turned the ids with "-ram" into an option of the others."""
    if not name.startswith("ALE/"):
        return name, {}
    return name.replace("-ram-", "-"), {"obs_type": "ram"} if "-ram-" in name else {}


def _knows_gym(name: str) -> bool:
    if importlib.util.find_spec("gymnasium") is None:
        return False
    name, _ = _without_ram(name)
    if name in import_gymnasium().registry:
        return True
    for pattern, (module, package) in _PLUGINS.items():
        if fnmatch.fnmatchcase(name, pattern) and importlib.util.find_spec(module) is None:
            raise ShoalError(f"{name} needs {package}: pip install {package}")
    return name in _gym_names()


def _pettingzoo_recipe(name: str, options: dict[str, Any]) -> EnvRecipe:
    from shoal.envs.adapters.pettingzoo import pettingzoo_recipe

    _import_module(name, f"pettingzoo:{name}")
    return pettingzoo_recipe(sys.modules[name], options)


class _Backend(NamedTuple):
    names: Callable[[], Collection[str]]
    knows: Callable[[str], bool]
    recipe: Callable[[str, dict[str, Any]], EnvRecipe]


_BACKENDS = {
    "jax": _Backend(_jax_names, lambda name: _jax_env(name) is not None, _jax_recipe),
    "envpool": _Backend(_envpool_names, lambda name: name in _envpool_names(), envpool_recipe),
    "gym": _Backend(_gym_names, _knows_gym, _gym_recipe),
    "pettingzoo": _Backend(list, lambda name: True, _pettingzoo_recipe),
}
"""The implementations, fastest first."""


def _unknown(name: str, identifier: str, backends: list[str]) -> ShoalError:
    everything = list_environments()
    prefix = name.removesuffix(identifier)
    guesses = _guesses(identifier, [known for known, backend in everything if backend in backends])
    guesses = [prefix + guess for guess in guesses] or [
        f"{b}:{known}" for known, b in everything if known == identifier
    ]
    question = f"; did you mean {' or '.join(guesses)}?" if guesses else ""
    missing = [module for module in ("envpool", "gymnasium") if importlib.util.find_spec(module) is None]
    more = f"; for more: pip install {' '.join(missing)}" if missing else ""
    return ShoalError(f"unknown environment {name!r}{question} (shoal envs lists them{more})")


def _guesses(identifier: str, names: list[str]) -> list[str]:
    """Other versions of the same environment, else the name most like it."""
    stem = identifier.lower().rpartition("-v")[0] or identifier.lower()
    versions = [name for name in names if name.lower().rpartition("-v")[0] == stem]
    if versions:
        return list(dict.fromkeys(versions))
    by_lower = {name.lower(): name for name in names}
    return [by_lower[near] for near in difflib.get_close_matches(identifier.lower(), by_lower, n=1)]
