"""The name of a run's folder: environment, algorithm, seed, and what differs from the preset."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError
from shoal.exchanges.config import ExchangeConfig
from shoal.exchanges.registry import selects
from shoal.learners.registry import name_of
from shoal.runs.config import (
    EXCHANGE,
    NOT_DECIDING,
    differences,
    from_settings,
    read_settings,
    to_settings,
)
from shoal.runs.presets import named_settings, names_of_presets, preset_settings
from shoal.runs.trust import other_exchange
from shoal.setting_names import SWITCHES
from shoal.settings import changed, flatten
from shoal.training.config import TrainConfig

ROOT = Path("runs")
"""Where runs are unless they are given a folder."""
LONGEST = 100
"""The most characters of a name; longer ones end in a hash."""
NO_PRESET = "no-preset"
NOT_NAMED = ("env", "algo", *NOT_DECIDING)
"""Settings that every name begins with, and those in which runs of the same name may differ."""
MARKS = {"learners": "L", "first_member": "m", "env_spread": "spread"}
"""Settings that are a letter or a word before their value."""
SHORT = {name: group for group, name in SWITCHES.items()}


def find_folder(config: TrainConfig) -> Path:
    """The folder of the run with these settings; a new one where there is none.

    A run under the name that version 0.1 gave it is found. Where a run with other settings has the name, as
    after a change of the preset, a hash of all settings is added.
    """
    name = folder_name(config)
    settings = {key: value for key, value in to_settings(config).items() if key not in NOT_DECIDING}
    named, other = ROOT / name, ROOT / f"{name}__{digest(settings)}"
    same = {folder: _holds(folder, config) for folder in (named, other, ROOT / _name_of_version_0_1(config))}
    found = next((folder for folder, is_same in same.items() if is_same), None)
    return found or (other if same[named] is False else named)


def _holds(folder: Path, config: TrainConfig) -> bool | None:
    """Whether the run in a folder has these settings; None where there is none, or it cannot be read."""
    try:
        settings = read_settings(folder / "config.yaml")
        return not (other_exchange(settings, config) or differences(from_settings(settings), config))
    except ShoalError:
        return None


def folder_name(config: TrainConfig) -> str:
    """A name that runs share if they differ in their steps alone; a long one ends in a hash.

    >>> from shoal.runs.presets import preset
    >>> folder_name(preset("CartPole-v1", learners=8, learning_rate=0.002, memory="gru"))
    'CartPole-v1__ppo__s1__L8__learning_rate-0.002__memory-gru'
    """
    return _shortened(full_name(config))


def full_name(config: TrainConfig) -> str:
    """The same without a limit."""
    base, settings = from_preset(config)
    own = {name: value for name, value in settings.items() if name not in EXCHANGE | {"seed"}}
    parts = [config.env, name_of(config.algo), f"s{config.seed}"]
    parts += [part for name in MARKS if name in own for part in _parts(name, own.pop(name))]
    parts += [f"follow-{digest(own.pop('hyper_plan'))}"] if "hyper_plan" in own else []
    parts += [part for exchange in config.exchanges for part in _exchange_parts(exchange)]
    parts += [base if base == NO_PRESET else f"{base}-preset"] if base else []
    parts += [part for name, value in own.items() for part in _parts(name, value)]
    return "__".join(map(plain, parts))


def from_preset(config: TrainConfig) -> tuple[str | None, dict[str, Any]]:
    """The nearest preset, and the settings that differ from it.

    The preset is None for the environment's own, else a named one, or `no-preset` for the defaults.

    >>> from_preset(TrainConfig("CartPole-v1", learners=8))
    ('no-preset', {'learners': 8})
    """
    algo = name_of(config.algo)
    names = (None, *names_of_presets(config.env, algo), NO_PRESET)
    found = [(name, _changes(config, _fitted(config, _preset(config.env, algo, name)))) for name in names]
    return min(found, key=lambda pair: len(pair[1]) + (pair[0] is not None))


def describe_preset(config: TrainConfig) -> str | None:
    """What the settings come from, in words; None where they are the defaults.

    >>> from shoal.runs.presets import preset
    >>> describe_preset(preset("CartPole-v1", learners=8, gamma=0.9))
    'settings of its preset, but for gamma 0.9'
    """
    name, changes = from_preset(config)
    known = preset_settings(config.env, name_of(config.algo)) if name is None else name != NO_PRESET
    own = [f"{key} {_text(value)}" for key, value in changes.items() if key not in MARKS]
    but = f", but for {', '.join(own)}" if own else ""
    return f"settings of {'its preset' if name is None else f'the preset {name}'}{but}" if known else None


@cache
def _preset(env: str, algo: str, name: str | None) -> dict[str, Any]:
    """Every setting of a preset."""
    said: dict[str, Any] = {}
    if name is None:
        said = preset_settings(env, algo)
    elif name != NO_PRESET:
        said = named_settings(env, name, algo)
    return flatten(ExchangeConfig()) | to_settings(from_settings({"env": env, "algo": algo} | said))


def _fitted(config: TrainConfig, base: Mapping[str, Any]) -> Mapping[str, Any]:
    """A preset with the number of minibatches that is taken where its own does not divide the samples."""
    if "num_minibatches" not in base:
        return base
    whole = replace(config.algo, num_minibatches=1)
    return {**base, "num_minibatches": whole.most_minibatches(base["num_minibatches"])}


def _changes(config: TrainConfig, base: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that differ from others, but for those that do not distinguish runs."""
    own = to_settings(config)
    different = {name: own[name] for name in own if name not in NOT_NAMED and own[name] != base[name]}
    if "env_options" in different:
        options, others = own["env_options"], base["env_options"]
        names = [name for name in options | others if options.get(name) != others.get(name)]
        different["env_options"] = {name: options.get(name) for name in names}
    return different


def _exchange_parts(exchange: ExchangeConfig) -> list[str]:
    """An exchange in a name: its title, and its other settings."""
    rest = {name: x for name, x in changed(exchange).items() if name not in _IN_TITLE}
    return [_title(exchange), *(part for name, value in rest.items() for part in _parts(name, value))]


_IN_TITLE = ("exchange", "topology", "local_updates")


def _title(exchange: ExchangeConfig) -> str:
    names = changed(exchange)
    parts = [exchange.exchange, *([exchange.topology] if "topology" in names else [])]
    return "-".join([*parts, *([f"k{exchange.local_updates}"] if "local_updates" in names else [])])


def _parts(name: str, value: Any) -> Iterator[str]:
    """A setting in a name; of options of the environment, each is a part."""
    short = SHORT.get(name, name)
    if name in MARKS:
        yield f"{MARKS[name]}{_text(value)}"
    elif name == "env_options":
        for option, item in value.items():
            yield from _parts(option, item)
    elif isinstance(value, bool):
        yield short if value else f"no-{short}"
    else:
        yield f"{short}-{_text(value)}"


def _text(value: Any) -> str:
    """A value in a name; a hash of what is long.

    >>> _text(0.001), _text((64, 64)), _text(1e-05), _text({"0": {"length": 0.5}})
    ('0.001', '64-64', '1e-05', '01ca3866')
    """
    if value is None or value == ():
        return "none"
    if isinstance(value, float):
        return short if float(short := f"{value:g}") == value else repr(value)
    if isinstance(value, dict | list):
        return digest(value)
    return "-".join(map(_text, value)) if isinstance(value, tuple) else str(value)


def plain(text: str) -> str:
    """A text without what shells and file systems do not like in names."""
    return re.sub(r"[^\w.+-]+", "-", text).strip("-")


def _shortened(name: str) -> str:
    """A name cut after a part, with a hash of the whole; itself where it is short."""
    if len(name) <= LONGEST:
        return name
    cut = name[: LONGEST - 10]
    return f"{cut.rpartition('__')[0] or cut}__{digest(name)}"


def digest(value: Any) -> str:
    """Eight characters that differ where the value does."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _name_of_version_0_1(config: TrainConfig) -> str:
    """The name that a run had when most settings were not in it."""
    parts = [config.env.replace(":", "-").replace("/", "-"), name_of(config.algo), f"s{config.seed}"]
    parts += [f"L{config.learners}"] if config.learners > 1 else []
    parts += [f"m{config.first_member}"] if config.first_member else []
    parts += [f"spread{config.env_spread:g}"] if config.env_spread else []
    parts += ["follow"] if config.hyper_plan else []
    parts += ["evolve"] if config.evolve and not any(map(selects, config.exchanges)) else []
    parts += [_title(exchange).replace(":", "-") for exchange in config.exchanges]
    return "__".join(parts)
