"""The command that trains a run again."""

import shlex
from pathlib import Path
from typing import Any

from shoal.learners.registry import name_of
from shoal.runs.config import NOT_DECIDING, to_settings
from shoal.runs.naming import NO_PRESET, from_preset
from shoal.runs.presets import preset
from shoal.training.config import TrainConfig

IN_FILES = ("env_params", "comm_matrix", "exchange", "hyper_plan", "learner_hypers", "distinct_seeds")
"""Settings that no flag can spell where their value is not a word."""


def command_of(config: TrainConfig, folder: Path) -> str:
    """`shoal train` with the settings that differ from the preset as flags, or with the run's file."""
    base, changed = from_preset(config)
    if any(not isinstance(changed.get(name, ""), str) for name in IN_FILES):
        return f"shoal train --config {shlex.quote(str(folder / 'config.yaml'))}"
    named = {} if base in (None, NO_PRESET) else {"param_name": base}
    start = to_settings(preset(config.env, algo=name_of(config.algo), **named))
    own = to_settings(config)
    changed |= {name: own[name] for name in NOT_DECIDING if own[name] != start[name]}
    words = ["shoal", "train", config.env]
    words += ["--algo", name_of(config.algo)] if name_of(config.algo) != "ppo" else []
    words += ["--no-preset"] if base == NO_PRESET else ["--param-name", base] if base else []
    options = changed.pop("env_options", {})
    words += ["--env-options", *(f"{name}={value}" for name, value in options.items())] if options else []
    for name, value in changed.items():
        words += flag_words(name, value)
    return shlex.join(words)


def flag_words(name: str, value: Any) -> list[str]:
    """A setting as it is typed.

    >>> flag_words("curiosity.enabled", False), flag_words("network.hidden", (64, 64))
    (['--curiosity.no-enabled'], ['--network.hidden', '64', '64'])
    """
    group, dot, last = name.replace("_", "-").rpartition(".")
    if isinstance(value, bool):
        return [f"--{group}{dot}{'' if value else 'no-'}{last}"]
    values = map(str, value) if isinstance(value, tuple | list) else [str(value)]
    return [f"--{group}{dot}{last}", *values]
