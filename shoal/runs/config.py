"""A run's settings: presets, the yaml file that repeats it, and what two runs differ in."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path
from textwrap import shorten
from typing import Any, get_args, get_type_hints

import numpy as np

from shoal.errors import ShoalError
from shoal.exchanges.make import ExchangeConfig
from shoal.learners.registry import ALGORITHMS, name_of
from shoal.runs.files import disk_errors, read_json, write_text
from shoal.training.config import TrainConfig

TUPLES = {"hidden": int, "critic_hidden": int, "split_hidden": int, "split_keys": str, "freeze": int}
"""Settings that are several numbers or names; one may stand by itself."""
LISTS = {
    "evolve": "names, each with or without =PRIOR",
    "schedules": "NAME=SHAPE(END) or NAME=SHAPE(END, N steps)",
}
"""Settings that are lists of texts, and how these are written."""
EXCHANGE_NAMES = {f.name for f in fields(ExchangeConfig)}
EXCHANGE_KINDS = get_args(get_type_hints(ExchangeConfig)["exchange"])


def preset(env: str, param_name: str | None = None, **settings) -> TrainConfig:
    """The settings known to work for an environment, or those of a named preset, some of them changed.

    >>> config = preset("CartPole-v1", steps=1000, learning_rate=0.002)
    >>> config.steps, config.algo.num_envs, config.algo.learning_rate
    (1000, 8, 0.002)
    >>> preset("BigfishEasy-v0", param_name="easy-200").algo.num_envs
    128
    """
    algo = settings.get("algo", "ppo")
    known = named_settings(env, param_name, algo) if param_name else preset_settings(env, algo)
    return from_settings({"env": env} | known | settings)


def preset_settings(env: str, algo: str = "ppo") -> dict[str, Any]:
    """What the presets say of an environment: of its id, or of the first pattern that fits."""
    name = env.split(":")[-1]
    presets = _presets()[algo] if algo in ALGORITHMS else {}
    match = name if name in presets else next((p for p in presets if fnmatchcase(name, p)), None)
    return {} if match is None else _only_settings(presets[match])


def named_settings(env: str, param_name: str, algo: str = "ppo") -> dict[str, Any]:
    """What the preset of that name says, if it is for such an environment and algorithm."""
    name, named = env.split(":")[-1], _presets()["named"]
    if param_name not in named:
        raise ShoalError(f"no preset is named {param_name!r}; choose from {', '.join(named)}")
    if algo != named[param_name]["algo"]:
        raise ShoalError(f"preset {param_name} is for {named[param_name]['algo']}, not for {algo}")
    if not fnmatchcase(name, named[param_name]["for"]):
        fitting = [other for other, entry in named.items() if fnmatchcase(name, entry["for"])]
        question = f"; for {env} there is {' and '.join(fitting)}" if fitting else ""
        raise ShoalError(f"preset {param_name} is for {named[param_name]['for']}, not for {env}{question}")
    return _only_settings(named[param_name])


def _only_settings(entry: dict[str, Any]) -> dict[str, Any]:
    """A preset without what is said about it."""
    return {key: value for key, value in entry.items() if key not in ("source", "for")}


def from_settings(settings: Mapping[str, Any]) -> TrainConfig:
    """A configuration from one flat mapping of names to values; several exchanges are a list of mappings."""
    settings = dict(settings)
    name = settings.pop("algo", "ppo")
    if name not in ALGORITHMS:
        raise ShoalError(f"unknown algorithm {name!r}; choose from {', '.join(ALGORITHMS)}")
    algo = ALGORITHMS[name].config
    inner = {f.name for f in fields(algo)}
    outer = {f.name for f in fields(TrainConfig)} - {"algo", "exchanges"}
    _refuse_unknown(settings.keys() - inner - outer - EXCHANGE_NAMES)
    if "env" not in settings:
        raise ShoalError("no environment is named")
    for name, one in TUPLES.items():
        if isinstance(settings.get(name), list | one):
            settings[name] = tuple(np.atleast_1d(settings[name]).tolist())
    for name, form in LISTS.items():
        if settings.get(name) is not None:
            settings[name] = _listed(name, settings[name], form)
    if isinstance(settings.get("env_params"), str | Path):
        settings["env_params"] = read_json(settings["env_params"])
    try:
        exchanges = read_exchanges({k: v for k, v in settings.items() if k in EXCHANGE_NAMES})
        learner = algo(**{k: v for k, v in settings.items() if k in inner})
        train = {k: v for k, v in settings.items() if k in outer}
        return TrainConfig(algo=learner, exchanges=exchanges, **train)
    except TypeError as error:
        raise ShoalError(f"a setting has the wrong kind of value: {error}") from error


def _listed(name: str, texts: Any, form: str) -> tuple[str, ...]:
    """Several texts, or one alone."""
    if not isinstance(texts, list | tuple | str):
        raise ShoalError(f"{name} must be a list of {form}")
    return (texts,) if isinstance(texts, str) else tuple(str(text) for text in texts)


def to_settings(config: TrainConfig) -> dict[str, Any]:
    """The flat mapping that `from_settings` reads back."""
    name = name_of(config.algo)
    outer = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in ("algo", "exchanges")}
    inner = {f.name: getattr(config.algo, f.name) for f in fields(config.algo)}
    return {"env": outer.pop("env"), "algo": name} | outer | inner | _exchange_settings(config.exchanges)


def _exchange_settings(exchanges: tuple[ExchangeConfig, ...]) -> dict[str, Any]:
    if len(exchanges) == 1:
        return {f.name: getattr(exchanges[0], f.name) for f in fields(ExchangeConfig)}
    return {"exchange": [exchange.changed() for exchange in exchanges] or "none"}


def read_exchanges(settings: dict[str, Any]) -> tuple[ExchangeConfig, ...]:
    """One exchange from flat names, or several from a list under `exchange`."""
    several = settings.get("exchange", "none")
    if isinstance(several, str):
        one = _exchange(settings)
        return () if one.exchange == "none" else (one,)
    if not isinstance(several, list | tuple) or not all(isinstance(item, dict) for item in several):
        raise ShoalError("exchange must be a name or a list of mappings, each with `exchange: NAME`")
    if beside := settings.keys() - {"exchange"}:
        raise ShoalError(f"{', '.join(sorted(beside))}: put it into one of the exchanges listed")
    listed = tuple(_exchange(item) for item in several)
    if any(one.exchange == "none" for one in listed):
        raise ShoalError("an exchange in the list has no name: say which, e.g. `exchange: average`")
    return listed


def _exchange(settings: dict[str, Any]) -> ExchangeConfig:
    _refuse_unknown(settings.keys() - EXCHANGE_NAMES)
    names = EXCHANGE_KINDS
    if (kind := settings.get("exchange", "none")) not in names:
        raise ShoalError(f"unknown exchange {kind!r}; choose from {', '.join(names)}")
    matrix, parts = settings.get("comm_matrix"), settings.get("parts", ())
    matrix = read_json(matrix) if isinstance(matrix, str | Path) else matrix
    parts = (parts,) if isinstance(parts, str) else tuple(parts)
    return ExchangeConfig(**settings | {"comm_matrix": matrix, "parts": parts})


def _refuse_unknown(names: Collection[str]) -> None:
    if names:
        raise ShoalError(f"unknown setting {', '.join(sorted(names))}; shoal train ENV --help lists them")


def write_config(path: Path, config: TrainConfig) -> None:
    """Everything needed to run it again: shoal train --config FILE."""
    import yaml

    write_text(path, yaml.safe_dump(_plain(to_settings(config)), sort_keys=False))


def _plain(value: Any) -> Any:
    """The same in lists and mappings, which every reader of yaml knows."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def read_settings(path: Path) -> dict[str, Any]:
    """The flat mapping in a yaml file."""
    import yaml

    if not Path(path).is_file():
        raise ShoalError(f"{path} is not there; a run's folder holds config.yaml and checkpoints/")
    with disk_errors("read", Path(path)):
        text = Path(path).read_text(encoding="utf-8")
    try:
        settings = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ShoalError(f"{path} is not yaml: {' '.join(str(error).split())}") from error
    if not isinstance(settings, dict):
        raise ShoalError(f"{path} holds no settings; each line should be `name: value`")
    return settings


def differences(old: TrainConfig, new: TrainConfig) -> list[str]:
    """What two configurations differ in, as `name: old -> new`; a longer run is no difference."""
    before, after = to_settings(old), to_settings(new)
    names = (k for k in before | after if k != "steps" and before.get(k) != after.get(k))
    brief = lambda value: shorten(str(value), 60, placeholder=" ...")
    return [f"{name}: {brief(before.get(name))} -> {brief(after.get(name))}" for name in names]


def default_folder(config: TrainConfig) -> Path:
    """Where a run goes unless told otherwise: the same settings, the same folder.

    >>> str(default_folder(TrainConfig("CartPole-v1", learners=8)))
    'runs/CartPole-v1__ppo__s1__L8'
    """
    settings = to_settings(config)
    parts = [config.env.replace(":", "-").replace("/", "-"), settings["algo"], f"s{config.seed}"]
    parts += [f"L{config.learners}"] if config.learners > 1 else []
    parts += [f"m{config.first_member}"] if config.first_member else []
    parts += [f"spread{config.env_spread:g}"] if config.env_spread else []
    parts += ["replay"] if config.schedule else []
    parts += ["evolve"] if config.evolve and not any(e.selects for e in config.exchanges) else []
    parts += [_title(exchange) for exchange in config.exchanges]
    return Path("runs") / "__".join(parts)


def _title(exchange: ExchangeConfig) -> str:
    """What sets exchanges apart in the name of a folder."""
    changed = exchange.changed()
    parts = [exchange.exchange, *([exchange.topology] if "topology" in changed else [])]
    return "-".join([*parts, *([f"k{exchange.local_updates}"] if "local_updates" in changed else [])])


@cache
def _presets() -> dict[str, dict[str, dict[str, Any]]]:
    import yaml

    text = files("shoal.runs").joinpath("presets.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)
