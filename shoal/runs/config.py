"""A run's settings: presets, the yaml file that repeats it, and what two runs differ in."""

from collections.abc import Mapping
from dataclasses import fields
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from shoal.learners.ppo import PPOConfig
from shoal.runs.files import disk_errors, write_text
from shoal.train import TrainConfig
from shoal.types import ShoalError

ALGORITHMS = {"ppo": PPOConfig}
"""Settings by the name of the algorithm."""


def preset(env: str, **settings) -> TrainConfig:
    """The settings known to work for an environment, some of them changed.

    >>> config = preset("CartPole-v1", steps=1000, learning_rate=0.002)
    >>> config.steps, config.algo.num_envs, config.algo.learning_rate
    (1000, 8, 0.002)
    """
    return from_settings({"env": env} | preset_settings(env) | settings)


def preset_settings(env: str, algo: str = "ppo") -> dict[str, Any]:
    """What the presets say of an environment: of its id, or of the first pattern that fits."""
    name = env.split(":")[-1]
    presets = _presets()
    match = name if name in presets else next((p for p in presets if fnmatchcase(name, p)), None)
    return (
        {} if match is None or algo != "ppo" else {k: v for k, v in presets[match].items() if k != "source"}
    )


def from_settings(settings: Mapping[str, Any]) -> TrainConfig:
    """A configuration from one flat mapping of names to values."""
    settings = dict(settings)
    algo = ALGORITHMS.get(name := settings.pop("algo", "ppo"))
    if algo is None:
        raise ShoalError(f"unknown algorithm {name!r}; choose from {', '.join(ALGORITHMS)}")
    inner = {f.name for f in fields(algo)}
    outer = {f.name for f in fields(TrainConfig)} - {"algo"}
    if unknown := settings.keys() - inner - outer:
        raise ShoalError(f"unknown setting {', '.join(sorted(unknown))}; shoal train ENV --help lists them")
    if "env" not in settings:
        raise ShoalError("no environment is named")
    if "hidden" in settings:
        settings["hidden"] = tuple(settings["hidden"])
    try:
        learner = algo(**{k: v for k, v in settings.items() if k in inner})
        return TrainConfig(algo=learner, **{k: v for k, v in settings.items() if k in outer})
    except TypeError as error:
        raise ShoalError(f"a setting has the wrong kind of value: {error}") from error


def to_settings(config: TrainConfig) -> dict[str, Any]:
    """The flat mapping that `from_settings` reads back."""
    name = next(name for name, kind in ALGORITHMS.items() if isinstance(config.algo, kind))
    outer = {f.name: getattr(config, f.name) for f in fields(config) if f.name != "algo"}
    inner = {f.name: getattr(config.algo, f.name) for f in fields(config.algo)}
    return {"env": outer.pop("env"), "algo": name} | outer | inner


def write_config(path: Path, config: TrainConfig) -> None:
    """Everything needed to run it again: shoal train --config FILE."""
    import yaml

    settings = {k: list(v) if isinstance(v, tuple) else v for k, v in to_settings(config).items()}
    write_text(path, yaml.safe_dump(settings, sort_keys=False))


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
    return [f"{name}: {before.get(name)} -> {after.get(name)}" for name in names]


def default_folder(config: TrainConfig) -> Path:
    """Where a run goes unless told otherwise: the same settings, the same folder.

    >>> str(default_folder(TrainConfig("CartPole-v1", learners=8)))
    'runs/CartPole-v1__ppo__s1__L8'
    """
    settings = to_settings(config)
    parts = [config.env.replace(":", "-").replace("/", "-"), settings["algo"], f"s{config.seed}"]
    parts += [f"L{config.learners}"] if config.learners > 1 else []
    parts += [f"m{config.first_member}"] if config.first_member else []
    return Path("runs") / "__".join(parts)


@cache
def _presets() -> dict[str, dict[str, Any]]:
    import yaml

    text = files("shoal.runs").joinpath("presets.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)["presets"]
