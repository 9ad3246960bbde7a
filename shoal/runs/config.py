"""A run's settings as mappings and as a yaml file, and the differences of two runs."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import shoal.settings as groups
from shoal.errors import ShoalError
from shoal.exchanges.config import ExchangeConfig
from shoal.exchanges.registry import check_exchange, selects
from shoal.learners.registry import ALGORITHMS, name_of
from shoal.runs.files import disk_errors, read_json, write_text
from shoal.training.config import TrainConfig

RUN = groups.types(TrainConfig).keys() - {"algo", "exchanges"}
EXCHANGE = groups.types(ExchangeConfig).keys()


def from_settings(settings: Mapping[str, Any]) -> TrainConfig:
    """A configuration from names to values: nested, dotted (`memory.size`) or by short names.

    >>> from_settings({"env": "CartPole-v1", "memory": {"kind": "gru", "size": 8}}).algo.memory.size
    8
    """
    name = settings.get("algo", "ppo")
    given = expanded(settings, name)
    if "env" not in given:
        raise ShoalError("the settings have no environment; add one, such as env: CartPole-v1")
    if isinstance(given.get("env_params"), str | Path):
        given["env_params"] = read_json(given["env_params"])
    pick = lambda names: {key: value for key, value in given.items() if key in names}
    algo = ALGORITHMS[name].config
    learner = groups.build(algo, pick(groups.types(algo)))
    exchanges = read_exchanges(pick(EXCHANGE))
    return groups.build(TrainConfig, pick(RUN) | {"algo": learner, "exchanges": exchanges})


def expanded(settings: Mapping[str, Any], algo: str) -> dict[str, Any]:
    """The settings by dotted name; a name that this algorithm and the exchanges do not have is refused."""
    if algo not in ALGORITHMS:
        raise ShoalError(f"unknown algorithm {algo!r}; choose from {', '.join(ALGORITHMS)}")
    known = {"algo", *RUN, *groups.types(ALGORITHMS[algo].config), *EXCHANGE}
    for name in settings:
        if not groups.is_known(name, known) and (others := _algorithms_with(name)):
            raise ShoalError(f"{name} is a setting of {', '.join(others)}, not of {algo}")
    return groups.expand(settings, known)


def _algorithms_with(name: str) -> list[str]:
    return [algo for algo, entry in ALGORITHMS.items() if groups.is_known(name, groups.types(entry.config))]


def read_exchanges(settings: dict[str, Any]) -> tuple[ExchangeConfig, ...]:
    """One exchange from names and values, or several from a list under `exchange`."""
    several = settings.get("exchange", "none")
    if isinstance(several, str):
        one = _exchange(settings)
        check_exchange(one)
        return () if one.exchange == "none" else (one,)
    if not isinstance(several, list | tuple) or not all(isinstance(item, dict) for item in several):
        raise ShoalError(f"exchange must be a name, or a list with an `exchange: NAME` each, not {several!r}")
    if beside := settings.keys() - {"exchange"}:
        raise ShoalError(f"{', '.join(sorted(beside))} must be inside one of the exchanges in the list")
    listed = tuple(_exchange(item) for item in several)
    if any(one.exchange == "none" for one in listed):
        raise ShoalError("an exchange in the list has no name; add one, such as `exchange: average`")
    return listed


def _exchange(settings: Mapping[str, Any]) -> ExchangeConfig:
    given = groups.expand(settings, EXCHANGE)
    if isinstance(given.get("comm_matrix"), str | Path):
        given["comm_matrix"] = read_json(given["comm_matrix"])
    return groups.build(ExchangeConfig, given)


def to_settings(config: TrainConfig) -> dict[str, Any]:
    """Every setting by dotted name, as `from_settings` reads it back."""
    run = {name: getattr(config, name) for name in groups.types(TrainConfig) if name in RUN}
    head = {"env": run.pop("env"), "algo": name_of(config.algo)}
    return head | run | groups.flatten(config.algo) | _exchange_settings(config.exchanges)


def _exchange_settings(exchanges: tuple[ExchangeConfig, ...]) -> dict[str, Any]:
    if len(exchanges) == 1:
        return groups.flatten(exchanges[0])
    return {"exchange": [groups.nest(groups.changed(exchange)) for exchange in exchanges] or "none"}


def write_config(path: Path, config: TrainConfig) -> None:
    """Everything needed to run it again: shoal train --config FILE."""
    import yaml

    write_text(path, yaml.safe_dump(_plain(groups.nest(to_settings(config))), sort_keys=False))


def _plain(value: Any) -> Any:
    """The same value in lists and dictionaries, which every yaml library reads."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def read_settings(path: Path) -> dict[str, Any]:
    """The mapping in a yaml file."""
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
    """The differences of two configurations, as `name: old -> new`; `steps` is none."""
    before, after = to_settings(old), to_settings(new)
    names = (k for k in before | after if k != "steps" and before.get(k) != after.get(k))
    brief = lambda value: shorten(str(value), 60, placeholder=" ...")
    return [f"{name}: {brief(before.get(name))} -> {brief(after.get(name))}" for name in names]


def default_folder(config: TrainConfig) -> Path:
    """A run's folder unless one is given: the same settings give the same folder.

    >>> str(default_folder(TrainConfig("CartPole-v1", learners=8)))
    'runs/CartPole-v1__ppo__s1__L8'
    """
    settings = to_settings(config)
    parts = [config.env.replace(":", "-").replace("/", "-"), settings["algo"], f"s{config.seed}"]
    parts += [f"L{config.learners}"] if config.learners > 1 else []
    parts += [f"m{config.first_member}"] if config.first_member else []
    parts += [f"spread{config.env_spread:g}"] if config.env_spread else []
    parts += ["follow"] if config.hyper_plan else []
    parts += ["evolve"] if config.evolve and not any(map(selects, config.exchanges)) else []
    parts += [_title(exchange) for exchange in config.exchanges]
    return Path("runs") / "__".join(parts)


def _title(exchange: ExchangeConfig) -> str:
    """An exchange in the name of a folder."""
    changed = groups.changed(exchange)
    name = exchange.exchange.replace(":", "-")
    parts = [name, *([exchange.topology] if "topology" in changed else [])]
    return "-".join([*parts, *([f"k{exchange.local_updates}"] if "local_updates" in changed else [])])
