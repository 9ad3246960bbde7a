"""The exchanges by name. A new one is a file and a line here, or an import path."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from shoal.errors import ShoalError
from shoal.exchanges import builders
from shoal.exchanges.combinators import chain, common_start, every, participate
from shoal.exchanges.config import ExchangeConfig, ExchangeContext
from shoal.exchanges.soundness import leave_out_lost
from shoal.imports import import_attribute, import_path
from shoal.settings import changed
from shoal.types import Exchange

Builder: TypeAlias = Callable[[ExchangeConfig, ExchangeContext], Exchange]
"""(settings, context of the run) -> Exchange"""
EVERY = ("local_updates", "participation", "common_start")
"""Settings that `make_exchange` applies to every exchange."""
MIXING = ("parts", "privacy", "attack", "compress", "share_statistics", "share_moments")
"""Settings of exchanges that mix parameters."""
PENALTY = ("use_comm_penalty",)
GRAPH = ("topology", "degree", "comm_matrix", "symmetrise")
SERVER = (*EVERY, *MIXING, *PENALTY, "server")
GOSSIP = (*EVERY, *MIXING, *PENALTY, *GRAPH)
POPULATION = ("resample", "min_episodes", "warm_up", "groups", "migrate_every")
SELECTION = (*EVERY, *(f"population.{name}" for name in POPULATION))
TRUNCATION = (*SELECTION, "population.fraction", "population.middle")
ALWAYS, NEVER = (lambda config: True), (lambda config: False)


class ExchangeEntry(NamedTuple):
    """How an exchange is built, and the settings it reads: names, or whole groups. Others are an error."""

    build: Builder
    settings: tuple[str, ...] = EVERY
    mixes: Callable[[ExchangeConfig], bool] = NEVER  # whether parameters are mixed
    selects: bool = False  # whether learners are replaced by copies of others
    penalises: bool = False  # the default of `use_comm_penalty`


ROBUST = ExchangeEntry(builders.robust_average, (*SERVER, "bad"), ALWAYS)

EXCHANGES: dict[str, ExchangeEntry] = {
    "none": ExchangeEntry(builders.nothing, settings=()),
    "gradients": ExchangeEntry(builders.nothing, ("common_start",)),
    "average": ExchangeEntry(builders.average, (*SERVER, "weights"), ALWAYS),
    "gossip": ExchangeEntry(builders.gossip, GOSSIP, ALWAYS),
    "neighbours": ExchangeEntry(
        builders.neighbours_policies,
        (*GOSSIP, "average_weights"),
        mixes=lambda config: config.average_weights,
        penalises=True,
    ),
    "median": ROBUST,
    "trimmed-mean": ROBUST,
    "krum": ROBUST,
    "multi-krum": ROBUST,
    "geometric-median": ROBUST,
    "truncation": ExchangeEntry(builders.truncation, TRUNCATION, selects=True),
    "winner": ExchangeEntry(builders.winner, SELECTION, selects=True),
    "tournament": ExchangeEntry(builders.tournament, (*SELECTION, "population.rivals"), selects=True),
}
"""`--exchange` takes these names."""

_given: dict[str, ExchangeEntry] = {}
"""Builders that Python gave, by their import path: not every one can be imported."""


def give_exchange(builder: Builder | ExchangeEntry, name: str | None = None) -> str:
    """Make a builder known in this process; returns its name, its import path unless given."""
    name = name or import_path(builder)
    _given[name] = builder if isinstance(builder, ExchangeEntry) else ExchangeEntry(builder)
    return name


def find_exchange(name: str) -> ExchangeEntry:
    """The exchange of that name, or the one at the import path MODULE:FUNCTION.

    The imported object is a builder, or an `ExchangeEntry` if it reads settings of its own.
    """
    if known := EXCHANGES.get(name) or _given.get(name):
        return known
    if ":" not in name:
        names = ", ".join(EXCHANGES)
        raise ShoalError(f"unknown exchange {name!r}; choose from {names}, or give MODULE:FUNCTION")
    imported = import_attribute(name)
    return imported if isinstance(imported, ExchangeEntry) else ExchangeEntry(imported)


def mixes(config: ExchangeConfig) -> bool:
    """Whether parameters are mixed."""
    return find_exchange(config.exchange).mixes(config)


def selects(config: ExchangeConfig) -> bool:
    """Whether learners are replaced by copies of others."""
    return find_exchange(config.exchange).selects


def penalises(config: ExchangeConfig) -> bool:
    """Whether the distance from other policies is penalised."""
    given = config.use_comm_penalty
    return find_exchange(config.exchange).penalises if given is None else given


def check_exchange(config: ExchangeConfig) -> None:
    """Raise where a setting is given that the exchange does not read."""
    entry = find_exchange(config.exchange)
    given = [name for name in changed(config) if name != "exchange"]
    if config.exchange == "none" and given:
        raise ShoalError(f"{', '.join(given)} without an exchange: choose one, e.g. exchange average")
    for name in given:
        if not _is_among(name, entry.settings):
            users = [other for other, one in EXCHANGES.items() if _is_among(name, one.settings)]
            used_by = f" (used by {', '.join(users)})" if users else ""
            raise ShoalError(f"exchange {config.exchange} does not use {name}{used_by}")
        if config.exchange == "neighbours" and _is_among(name, MIXING) and not config.average_weights:
            raise ShoalError(f"exchange neighbours uses {name} only with average_weights")


def make_exchange(configs: Sequence[ExchangeConfig], context: ExchangeContext) -> Exchange:
    """The exchange of a run: all that its settings describe, one after another."""
    for config in configs:
        check_exchange(config)
        for line in config.without_effect():
            warnings.warn(line, RuntimeWarning)
    timed = [one for config in configs for one in split_by_interval(config)]
    exchange = chain(*(_make_one(one, context) for one in timed if one.exchange not in ("none", "gradients")))
    given = [config.common_start for config in configs if config.common_start is not None]
    starts_equal = any(mixes(config) or config.exchange == "gradients" for config in configs)
    return common_start(exchange) if (any(given) if given else starts_equal) else exchange


def _make_one(config: ExchangeConfig, context: ExchangeContext) -> Exchange:
    built = find_exchange(config.exchange).build(config, context)
    return every(config.local_updates, participate(config.participation, leave_out_lost(built)))


def split_by_interval(config: ExchangeConfig) -> list[ExchangeConfig]:
    """One exchange for each interval of `parts`; parts without an interval have `local_updates`.

    >>> config = ExchangeConfig("average", parts=("critic:50", "actor"))
    >>> [(one.parts, one.local_updates) for one in split_by_interval(config)]
    [(('critic',), 50), (('actor',), 4)]
    """
    intervals: dict[int, list[str]] = {}
    for text in config.parts:
        name, colon, updates = text.partition(":")
        if colon and not (updates.isdecimal() and int(updates)):
            raise ShoalError(f"parts {text}: after the colon comes a number of updates, e.g. critic:50")
        intervals.setdefault(int(updates) if colon else config.local_updates, []).append(name)
    if not intervals:
        return [config]
    return [replace(config, parts=tuple(names), local_updates=n) for n, names in intervals.items()]


def _is_among(name: str, settings: Sequence[str]) -> bool:
    """Whether a dotted name, or its group, is among the settings."""
    return name in settings or name.partition(".")[0] in settings
