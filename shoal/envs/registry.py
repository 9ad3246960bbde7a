"""Environments: "CartPole-v1", "gym:CartPole-v1", "gymnax:CartPole-v1", "module:Name", objects.

A bare name picks the fastest implementation of exactly that environment: built in, then EnvPool's, then
Gymnasium's. A new suite is an adapter in `envs/adapters` and a line in `SUITES`. In "module:Name" the name is
one that the module registers, or that of a class, a factory or a `JaxEnv` in it.
"""

import difflib
import fnmatch
import importlib.util
import re
import sys
from typing import Any

from shoal.envs.adapters import (
    brax,
    builtin,
    craftax,
    envpool,
    gymnasium,
    gymnax,
    jaxmarl,
    jumanji,
    pettingzoo,
    pgx,
    playground,
    xminigrid,
)
from shoal.envs.adapters.builtin import register as register
from shoal.envs.adapters.own import own_recipe
from shoal.envs.adapters.suite import Suite, UnknownOptions
from shoal.envs.frame_stack import stack_frames
from shoal.envs.procgen import by_id
from shoal.errors import NotFound, ShoalError
from shoal.imports import MissingPackage, import_path, import_user_module, needs
from shoal.types import EnvRecipe, JaxEnv

SUITES: dict[str, Suite] = {
    "jax": builtin.SUITE,
    "envpool": envpool.SUITE,
    "gym": gymnasium.SUITE,
    "pettingzoo": pettingzoo.SUITE,
    "gymnax": gymnax.SUITE,
    "jaxmarl": jaxmarl.SUITE,
    "pgx": pgx.SUITE,
    "brax": brax.SUITE,
    "jumanji": jumanji.SUITE,
    "craftax": craftax.SUITE,
    "xminigrid": xminigrid.SUITE,
    "playground": playground.SUITE,
}
"""The suites by their prefixes, fastest first."""


def make(env: Any, **options: Any) -> EnvRecipe:
    """The environment of that name, ready to be built for a cohort.

    Instead of a name it may be an environment of your own: a `JaxEnv`, a Gymnasium environment or its class,
    or a function that makes one of these.

    `options` are the implementation's own (`episodic_life=True` for EnvPool's Atari, `is_slippery=False` for
    Gymnasium's FrozenLake). `max_episode_steps` and `frame_stack`, which joins that many observations into
    one, work everywhere. A bare name skips implementations that do not have these options.

    >>> recipe = make("CartPole-v1")
    >>> recipe.spec.backend, recipe.spec.observation.shape, recipe.spec.max_episode_steps
    ('jax', (4,), 500)
    >>> make("CartPole-v1", max_episode_steps=50).spec.max_episode_steps
    50
    >>> make("CartPole-v1", frame_stack=4).spec.observation.shape
    (16,)
    """
    num_frames = options.pop("frame_stack", 1)
    if not isinstance(env, str):
        return stack_frames(own_recipe(env, env_name(env), options), num_frames)
    env, options = by_id(env, options)
    prefixes, identifier = _resolve(env)
    refusal = None
    for prefix in prefixes:
        suite = SUITES[prefix]
        if _is_installed(suite) and suite.has(identifier):
            try:
                return stack_frames(suite.recipe(identifier, options), num_frames)
            except UnknownOptions as error:
                refusal = error
    if refusal is None and (found := _attribute(env)) is not None:
        return stack_frames(own_recipe(found, env, options), num_frames)
    raise refusal or _unknown(env, identifier, prefixes)


def env_name(env: Any) -> str:
    """The name of an environment of your own: its import path, or `NAME()` where it has none.

    >>> from shoal.envs.classic import CARTPOLE
    >>> env_name("CartPole-v1"), env_name(CARTPOLE._replace(render=None))
    ('CartPole-v1', 'CartPole-v1()')
    """
    path = env if isinstance(env, str) else import_path(env)
    return f"{env.spec.name}()" if isinstance(env, JaxEnv) and path.endswith("()") else path


def suite_of(name: str) -> str | None:
    """The prefix of the suite that a name picks; None where no suite has it.

    >>> suite_of("CartPole-v1"), suite_of("gym:CartPole-v1"), suite_of("jax:Nothing-v0")
    ('jax', 'gym', None)
    """
    prefixes, identifier = _resolve(name)
    known = (
        prefix for prefix in prefixes if _is_installed(SUITES[prefix]) and SUITES[prefix].has(identifier)
    )
    return next(known, None)


def list_environments(pattern: str | None = None) -> list[tuple[str, str]]:
    """Every known name with the prefix of a suite that has it; `pattern` is a part of the name or a glob.

    A name in several suites comes once for each, the fastest first.

    >>> list_environments("cartpole-v1")[0]
    ('CartPole-v1', 'jax')
    """
    pairs = [
        (name, prefix) for prefix, suite in SUITES.items() if _is_installed(suite) for name in suite.names()
    ]
    pairs.sort(key=lambda pair: pair[0].lower())
    if pattern is None:
        return pairs
    glob = pattern if any(letter in pattern for letter in "*?[") else f"*{pattern}*"
    return [pair for pair in pairs if fnmatch.fnmatch(pair[0].lower(), glob.lower())]


def absent_suites() -> dict[str, MissingPackage]:
    """The suites that are not installed, each with an error that says how to install it."""
    absent = {prefix: suite.library for prefix, suite in SUITES.items() if not _is_installed(suite)}
    return {prefix: needs(prefix, str(library)) for prefix, library in absent.items()}


def _resolve(name: str) -> tuple[list[str], str]:
    """The prefixes of the suites to try, in order, and the name to look for there. Imports `module:`."""
    prefix, colon, rest = name.partition(":")
    if not colon or prefix not in SUITES:
        prefix, rest = "", name
    module, _, identifier = rest.rpartition(":")
    if module:
        import_user_module(module, name)
    if prefix:
        return [prefix], identifier
    return [prefix for prefix, suite in SUITES.items() if not suite.needs_prefix(rest)], identifier


def _attribute(name: str) -> Any:
    """What "module:Name" names in an imported module; None where it names nothing."""
    module, _, attribute = name.rpartition(":")
    found = sys.modules.get(module) if name.partition(":")[0] not in SUITES else None
    return vars(found).get(attribute) if found else None


def _is_installed(suite: Suite) -> bool:
    return suite.library is None or importlib.util.find_spec(suite.library) is not None


def _unknown(name: str, identifier: str, prefixes: list[str]) -> ShoalError:
    absent = [suite.library for suite in (SUITES[prefix] for prefix in prefixes) if not _is_installed(suite)]
    if absent and len(prefixes) == 1:
        return needs(name, str(absent[0]))
    everything = list_environments()
    elsewhere = [f"{prefix}:{known}" for known, prefix in everything if known == identifier]
    start = name.removesuffix(identifier)
    candidates = [known for known, prefix in everything if prefix in prefixes]
    guesses = elsewhere or [start + guess for guess in _guesses(identifier, candidates)]
    question = f"; did you mean {' or '.join(guesses)}?" if guesses else ""
    more = f"; for more: pip install {' '.join(map(str, absent))}" if absent else ""
    return NotFound(f"unknown environment {name!r}{question} (shoal envs lists them{more})")


def _guesses(identifier: str, names: list[str]) -> list[str]:
    """Other versions of the same environment, else the name most like it."""
    stem = identifier.lower().rpartition("-v")[0] or identifier.lower()
    versions = [name for name in names if name.lower().rpartition("-v")[0] == stem]
    if versions:
        return list(dict.fromkeys(versions))
    modes = [name for name in names if re.fullmatch(rf"{re.escape(stem)}(easy|hard)-v\d+", name.lower())]
    if modes:  # a Procgen game by its bare name
        return list(dict.fromkeys(modes))
    by_lower = {name.lower(): name for name in names}
    return [
        by_lower[near] for near in difflib.get_close_matches(identifier.lower(), by_lower, n=1, cutoff=0.75)
    ]
