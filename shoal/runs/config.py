"""A run's settings as mappings and as a yaml file, and the differences of two runs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

from annotated_types import MaxLen

import shoal.settings as groups
from shoal.envs.procgen import by_id
from shoal.errors import ShoalError
from shoal.exchanges.config import ExchangeConfig
from shoal.exchanges.registry import check_exchange
from shoal.foreign_names import CALLED, INSTEAD
from shoal.learners.registry import ALGORITHMS, name_of
from shoal.range_words import shown
from shoal.ranges import Count
from shoal.runs.files import disk_errors, read_json, write_text
from shoal.schema import convert, fit, is_plain
from shoal.training.config import AlgorithmConfig, TrainConfig

NOTHING: Mapping[str, Any] = MappingProxyType({})
RUN = groups.types(TrainConfig).keys() - {"algo", "exchanges"}
EXCHANGE = groups.types(ExchangeConfig).keys()
MOST_EXCHANGES = 64
Listed: TypeAlias = Annotated[tuple[dict, ...], MaxLen(MOST_EXCHANGES)]
"""Several exchanges as a file lists them."""
NOT_DECIDING = ("steps", "anneal_to", "reports", "env_timeout")
"""Settings of a run that may change when it resumes."""


def from_settings(settings: Mapping[str, Any], start: Mapping[str, Any] = NOTHING) -> TrainConfig:
    """A configuration from names to values: nested, dotted (`memory.size`) or by short names.

    What `settings` leave out is as in `start`, which is a preset, else by default. Where they leave out
    num_minibatches, it is the largest number up to that which divides the samples.

    >>> from_settings({"env": "CartPole-v1", "memory": {"kind": "gru", "size": 8}}).algo.memory.size
    8
    >>> from_settings({"env": "CartPole-v1", "memory": "gru"}, {"num_envs": 6}).algo.num_minibatches
    3
    """
    name = algorithm_of(settings)
    own = expanded(settings, name)
    given = expanded(start, name) | own
    if "env" not in given:
        raise ShoalError("the settings have no environment; add one, such as env: CartPole-v1")
    given["env"], given["env_options"] = by_id(convert("env", given["env"], str), options_of(given))
    given |= read_tables(given, "env_params")
    pick = lambda names: {key: value for key, value in given.items() if key in names}
    algo = ALGORITHMS[name].config
    learner = _algorithm(algo, pick(groups.types(algo)), chosen="num_minibatches" in own)
    exchanges = read_exchanges(pick(EXCHANGE))
    config = groups.build(TrainConfig, pick(RUN) | {"algo": learner, "exchanges": exchanges})
    return with_seeds(config, given["seeds"]) if given.get("seeds") is not None else config


def with_seeds(config: TrainConfig, seeds: Any) -> TrainConfig:
    """The run of so many learners that differ in nothing but their seeds.

    >>> with_seeds(TrainConfig("CartPole-v1"), 5).learners
    5
    """
    number = convert("seeds", seeds, Count)
    others = {"learners": config.learners not in (1, number), "exchange": config.exchanges}
    others |= {"evolve": config.evolve, "env_spread": config.env_spread, "env_params": config.env_params}
    if beside := [name for name, given in others.items() if given]:
        raise ShoalError(
            f"seeds {number} means learners that differ in their seeds alone; leave out {beside[0]}, or use "
            f"learners {number} instead of seeds"
        )
    return replace(config, learners=number)


def _algorithm(cls: type, settings: dict[str, Any], chosen: bool) -> AlgorithmConfig:
    """The learner's settings; unless minibatches are `chosen`, as many as divide the samples."""
    if chosen or "num_minibatches" not in groups.types(cls):
        return groups.build(cls, settings)
    most = convert("num_minibatches", settings.get("num_minibatches", cls.num_minibatches), Count)
    whole = groups.build(cls, settings | {"num_minibatches": 1})
    return replace(whole, num_minibatches=whole.most_minibatches(most))


def algorithm_of(settings: Mapping[str, Any]) -> str:
    """The name of the algorithm that settings choose."""
    name = settings.get("algo", "ppo")
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise ShoalError(f"unknown algorithm {shown(name)}; choose from {', '.join(ALGORITHMS)}")
    return name


def options_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the environment that settings give."""
    return convert("env_options", settings.get("env_options") or {}, groups.hints(TrainConfig)["env_options"])


def read_tables(settings: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The content of JSON files that settings name."""
    files = {name: settings[name] for name in names if isinstance(settings.get(name), str | Path)}
    return {name: read_json(convert(name, str(path), str)) for name, path in files.items()}


def expanded(settings: Mapping[str, Any], algo: str) -> dict[str, Any]:
    """The settings by dotted name; a name that this algorithm and the exchanges do not have is refused."""
    algo = algorithm_of({"algo": algo})
    known = {"algo", "seeds", *RUN, *groups.types(ALGORITHMS[algo].config), *EXCHANGE}
    for name in settings:
        if not groups.is_known(name, known):
            refuse_of_others(name, algo)
    return groups.expand(settings, known)


def refuse_of_others(name: str, algo: str, spell: Callable[[str], str] = str) -> None:
    """Raise where a name, ours or that of another library, is a setting of other algorithms alone."""
    here = CALLED.get(name, name)
    users = [other for other, one in ALGORITHMS.items() if groups.is_known(here, groups.types(one.config))]
    if users and algo not in users and name not in INSTEAD:
        called = f"called {spell(here)} here, " if here != name else ""
        raise ShoalError(f"{spell(name)} is {called}a setting of {', '.join(users)}, not of {algo}")


def read_exchanges(settings: dict[str, Any]) -> tuple[ExchangeConfig, ...]:
    """One exchange from names and values, or several from a list under `exchange`."""
    several = settings.get("exchange", "none")
    if isinstance(several, str):
        one = _exchange(settings)
        check_exchange(one)
        return () if one.exchange == "none" else (one,)
    fits, several = fit(several, Listed)
    if not fits:
        raise ShoalError(
            f"exchange must be a name, or a list of at most {MOST_EXCHANGES} with an `exchange: NAME` each, "
            f"not {shown(several)}"
        )
    if beside := settings.keys() - {"exchange"}:
        raise ShoalError(f"{', '.join(sorted(beside))} must be inside one of the exchanges in the list")
    listed = tuple(_listed(number, item) for number, item in enumerate(several, 1))
    if any(one.exchange == "none" for one in listed):
        raise ShoalError("an exchange in the list has no name; add one, such as `exchange: average`")
    return listed


def _exchange(settings: Mapping[str, Any]) -> ExchangeConfig:
    given = groups.expand(settings, EXCHANGE)
    return groups.build(ExchangeConfig, given | read_tables(given, "comm_matrix"))


def _listed(number: int, settings: Mapping[str, Any]) -> ExchangeConfig:
    """An exchange in a list; errors say which."""
    try:
        return _exchange(settings)
    except ShoalError as error:
        raise ShoalError(f"exchange {number} of the list: {error}") from error


def to_settings(config: TrainConfig) -> dict[str, Any]:
    """Every setting by dotted name, as `from_settings` reads it back."""
    run = {name: groups.get(config, name) for name in groups.types(TrainConfig) if name in RUN}
    head = {"env": run.pop("env"), "algo": name_of(config.algo)}
    return head | run | groups.flatten(config.algo) | _exchange_settings(config.exchanges)


def _exchange_settings(exchanges: tuple[ExchangeConfig, ...]) -> dict[str, Any]:
    if len(exchanges) == 1:
        return groups.flatten(exchanges[0])
    return {"exchange": [groups.nest(groups.changed(exchange)) for exchange in exchanges] or "none"}


def write_config(path: Path, config: TrainConfig) -> None:
    """Everything needed to run it again: shoal train --config FILE."""
    write_text(path, to_yaml(config))


def to_yaml(config: TrainConfig) -> str:
    """Every setting, as config.yaml holds them."""
    import yaml

    return yaml.safe_dump(_plain(groups.nest(to_settings(config))), sort_keys=False)


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
        content = Path(path).read_bytes()
    try:
        settings = parse_yaml(content.decode("utf-8-sig"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ShoalError(f"{path} is not yaml: {shorten(str(error), 200)}") from error
    if not isinstance(settings, dict):
        raise ShoalError(f"{path} holds no settings; each line should be `name: value`")
    if not is_plain(list(settings.values())):
        raise ShoalError(
            f"{path} holds more than settings: a value is too large, too deep, contains itself, has letters "
            "that cannot be written, or names of two kinds"
        )
    return settings


def load_config(path: Path) -> TrainConfig:
    """The configuration in a yaml file; errors begin with the file's name."""
    settings = read_settings(path)
    with errors_in(path):
        return from_settings(settings)


@contextmanager
def errors_in(path: Path | None) -> Iterator[None]:
    """Mistakes found in the block are in this file, where there is one: they begin with its name."""
    try:
        yield
    except ShoalError as error:
        if path is None or str(error).startswith(str(path)):
            raise
        raise type(error)(f"{path}: {error}") from error


def parse_yaml(text: str) -> Any:
    """The content of a yaml file; with libyaml, where it is installed, in an eighth of the time."""
    import yaml

    return yaml.load(text, Loader=yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader)


def differences(old: TrainConfig, new: TrainConfig) -> list[str]:
    """The differences of two configurations, as `name: old -> new`, of what decides a run's numbers."""
    before, after = to_settings(old), to_settings(new)
    names = (k for k in before | after if k not in NOT_DECIDING and before.get(k) != after.get(k))
    brief = lambda value: shorten(str(value), 60, placeholder=" ...")
    return [f"{name}: {brief(before.get(name))} -> {brief(after.get(name))}" for name in names]
