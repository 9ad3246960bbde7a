"""Presets: the settings known to work for an environment."""

from collections.abc import Collection
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any

from shoal.envs.procgen import by_id
from shoal.envs.registry import SUITES, suite_of
from shoal.errors import ShoalError
from shoal.runs.config import algorithm_of, expanded, from_settings, options_of, parse_yaml
from shoal.schema import convert
from shoal.training.config import TrainConfig


def preset(env: str, param_name: str | None = None, **settings) -> TrainConfig:
    """The settings known to work for an environment, or those of a named preset, some of them changed.

    >>> config = preset("CartPole-v1", steps=1000, learning_rate=0.002)
    >>> config.steps, config.algo.num_envs, config.algo.learning_rate
    (1000, 8, 0.002)
    >>> preset("BigfishEasy-v0", param_name="easy-200").algo.num_envs
    128

    Where the preset's number of minibatches does not divide the samples, the next smaller one that does is
    taken; a number that is given stays.

    >>> preset("Acrobot-v1").algo.num_minibatches, preset("Acrobot-v1", memory="gru").algo.num_minibatches
    (64, 16)
    """
    env, options = by_id(convert("env", env, str), options_of(settings))
    settings |= {"env_options": options} if "env_options" in settings else {}
    algo = algorithm_of(settings)
    known = named_settings(env, param_name, algo) if param_name else preset_settings(env, algo)
    return from_settings({"env": env} | expanded(settings, algo), start=known)


def preset_settings(env: str, algo: str = "ppo") -> dict[str, Any]:
    """The preset of an environment: that of its id, or of the first pattern that matches."""
    match = find(env, _presets()[algo]) if algo in _presets() else None
    return {} if match is None else _only_settings(_presets()[algo][match])


def find(env: str, patterns: Collection[str]) -> str | None:
    """The pattern for an environment; one with a prefix (`envpool:*-v5`) matches that suite alone."""
    name = env.split(":")[-1]
    if name in patterns:
        return name
    for pattern in patterns:
        prefix, _, rest = pattern.rpartition(":")
        if fnmatchcase(name, rest) and (not prefix or _is_of(env, prefix)):
            return pattern
    return None


def _is_of(env: str, prefix: str) -> bool:
    """Whether an environment is of that suite: because its name says so, or because it picks that suite."""
    written = env.partition(":")[0] if ":" in env else ""
    if written in SUITES:
        return written == prefix
    return not SUITES[prefix].needs_prefix(env) and suite_of(env) == prefix


def named_settings(env: str, param_name: str, algo: str = "ppo") -> dict[str, Any]:
    """The preset with that name; raises where it is for other environments or algorithms."""
    name, named = env.split(":")[-1], _presets()["named"]
    if not isinstance(param_name, str) or param_name not in named:
        raise ShoalError(f"no preset is named {param_name!r}; choose from {', '.join(named)}")
    if algo != named[param_name]["algo"]:
        raise ShoalError(f"preset {param_name} is for {named[param_name]['algo']}, not for {algo}")
    if not fnmatchcase(name, named[param_name]["for"]):
        fitting = names_of_presets(env)
        question = f"; for {env} there is {' and '.join(fitting)}" if fitting else ""
        raise ShoalError(f"preset {param_name} is for {named[param_name]['for']}, not for {env}{question}")
    return _only_settings(named[param_name])


def names_of_presets(env: str, algo: str | None = None) -> list[str]:
    """The named presets of an environment, of all algorithms or of one.

    >>> names_of_presets("MountainCar-v0")
    ['curiosity']
    """
    name, named = env.split(":")[-1], _presets()["named"]
    fits = lambda entry: fnmatchcase(name, entry["for"]) and algo in (None, entry["algo"])
    return [preset for preset, entry in named.items() if fits(entry)]


def _only_settings(entry: dict[str, Any]) -> dict[str, Any]:
    """A preset without its description."""
    return {key: value for key, value in entry.items() if key not in ("source", "for")}


@cache
def _presets() -> dict[str, dict[str, dict[str, Any]]]:
    return parse_yaml(files("shoal.runs").joinpath("presets.yaml").read_text(encoding="utf-8"))
