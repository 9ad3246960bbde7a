"""The axes of a sweep: settings, each with the values or the prior that its trials take."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple, TypeAlias, get_origin

import jax
import numpy as np
from yaml import YAMLError

import shoal.settings as groups
from shoal.errors import ShoalError
from shoal.exchanges.exploration import PRIORS, Prior, draw, read_prior
from shoal.learners.registry import ALGORITHMS
from shoal.ranges import options, without_ranges
from shoal.runs.config import expanded, parse_yaml
from shoal.schema import convert
from shoal.setting_names import SHORT_NAMES
from shoal.training.config import TrainConfig

OF_THE_RUN = ("frame_stack", "hard_resets", "env_spread")
"""Settings of the run, beside those of the algorithm, that a sweep can vary."""
MOST_TRIALS = 10_000
"""The most settings that a sweep tries."""
HYPERS = 7
"""Folded into the seed for the values that are drawn."""


class Values(NamedTuple):
    """The values of a setting, one after the other."""

    values: tuple[Any, ...]


Axis: TypeAlias = Values | Prior


def read_axes(algo: str, grid: Mapping[str, Sequence[Any]], priors: Iterable[str]) -> dict[str, Axis]:
    """The axes by the settings' dotted names; a setting that there is not, or a value it cannot have, raises.

    >>> axes = read_axes("ppo", {"num_steps": [32, "64"]}, ["learning_rate=log 1e-4 1e-2"])
    >>> axes["num_steps"].values, axes["learning_rate"].high
    ((32, 64), 0.01)
    """
    known = groups.hints(ALGORITHMS[algo].config) | _of_the_run()
    axes: dict[str, Axis] = {}
    for name, values in grid.items():
        if not values:
            raise ShoalError(f"the grid has no values of {name}; give one or more")
        full = _full_name(name, algo, known)
        _add(axes, full, Values(tuple(dict.fromkeys(read_value(full, x, known[full]) for x in values))))
    for text in priors:
        name, equals, prior = str(text).partition("=")
        short = next((old for old, new in SHORT_NAMES.items() if new == name and old in PRIORS), name)
        full = _full_name(name.strip(), algo, known)
        if not equals and short not in PRIORS:
            raise ShoalError(f"{name} has no default prior; {_advice(name, known[full])}")
        found = read_prior(prior) if equals else PRIORS[short]
        if not _takes(known[full], float) and not found.choices:
            raise ShoalError(f"{name} cannot be drawn from {prior!r}; {_advice(name, known[full])}")
        _add(axes, full, found)
    return axes


def _advice(name: str, hint: Any) -> str:
    """How a sweep can vary a setting of this type.

    >>> _advice("update_epochs", int), _advice("norm_obs", bool)
    ('give one, e.g. update_epochs=choice 1 2 4', 'list its values instead: --grid norm_obs=VALUE,VALUE')
    """
    if _takes(hint, float):
        return f"give one, e.g. {name}=log 1e-5 1e-2"
    if _takes(hint, int):
        return f"give one, e.g. {name}=choice 1 2 4"
    return f"list its values instead: --grid {name}=VALUE,VALUE"


def _takes(hint: Any, kind: type) -> bool:
    """Whether a setting of this type can be of a kind."""
    return kind in options(without_ranges(hint))


def read_grid(texts: Iterable[str]) -> dict[str, list[str]]:
    """Lists of values as they are typed, by the settings' names.

    >>> read_grid(["learning_rate=1e-4,3e-4", "network.hidden=64-64,256"])
    {'learning_rate': ['1e-4', '3e-4'], 'network.hidden': ['64-64', '256']}
    """
    grid = {}
    for text in texts:
        name, equals, values = text.partition("=")
        found = [value for value in values.split(",") if value]
        if not equals or not found:
            raise ShoalError(f"--grid takes NAME=VALUE,VALUE,..., not {text!r}")
        if name in grid:
            raise ShoalError(f"--grid has {name} twice; give all of its values in one list")
        grid[name.replace("-", "_")] = found
    return grid


def read_value(name: str, value: Any, hint: Any) -> Any:
    """A value as it is typed or given in Python, in the type of its setting; a list has - in between.

    >>> read_value("hidden", "64-64", tuple[int, ...]), read_value("kl.limit", "none", float | None)
    ((64, 64), None)
    """
    if isinstance(value, str):
        several = any(get_origin(option) is tuple for option in options(without_ranges(hint)))
        value = value.split("-") if several else None if value == "none" else typed(value)
    return convert(name, value, hint)


def typed(text: str) -> Any:
    """A value as yaml reads it; the text itself where yaml cannot.

    >>> typed("true"), typed("[")
    (True, '[')
    """
    try:
        return parse_yaml(text)
    except (YAMLError, ValueError, RecursionError):
        return text


def combinations(axes: Mapping[str, Axis]) -> list[dict[str, Any]]:
    """Every combination of the values of all axes; the last axis changes fastest.

    >>> combinations({"a": Values((1, 2)), "b": Values((3, 4))})[1]
    {'a': 1, 'b': 4}
    """
    lists = [axis.values for axis in axes.values() if isinstance(axis, Values)]
    if (number := prod(map(len, lists))) > MOST_TRIALS:
        raise ShoalError(f"the grid has {number:,} combinations; at most {MOST_TRIALS:,} are tried")
    return [dict(zip(axes, values, strict=True)) for values in product(*lists)]


def draw_trials(axes: Mapping[str, Axis], number: int, seed: int, algo: str) -> list[dict[str, Any]]:
    """So many trials, each value drawn on its own: from its prior, or evenly from the axis's values."""
    key = jax.random.fold_in(jax.random.key(seed), HYPERS)
    columns = {}
    for index, (name, axis) in enumerate(axes.items()):
        key_axis = jax.random.fold_in(key, index)
        if isinstance(axis, Prior):
            drawn = np.asarray(draw(axis, key_axis, (number,)))
            columns[name] = [as_setting(name, float(x), algo) for x in drawn]
        else:
            chosen = np.asarray(jax.random.randint(key_axis, (number,), 0, len(axis.values)))
            columns[name] = [axis.values[index] for index in chosen]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def as_setting(name: str, number: float, algo: str) -> Any:
    """A number that was drawn, with six digits, in the type of its setting.

    >>> as_setting("learning_rate", 0.00012345678, "ppo"), as_setting("num_steps", 64.0, "ppo")
    (0.000123457, 64)
    """
    known = groups.hints(ALGORITHMS[algo].config) | _of_the_run()
    return convert(name, float(f"{number:.6g}"), known[name])


def write_axis(axis: Axis) -> Any:
    """An axis as sweep.yaml has it; `read_axes` reads it back."""
    if isinstance(axis, Values):
        return list(axis.values)
    numbers = axis.choices or (axis.low, axis.high)
    return " ".join([axis.kind, *(f"{x:g}" for x in numbers)])


def _of_the_run() -> dict[str, Any]:
    return {name: groups.hints(TrainConfig)[name] for name in OF_THE_RUN}


def _full_name(name: str, algo: str, known: Mapping[str, Any]) -> str:
    """The dotted name of a setting that a sweep can vary."""
    if name in ("seed", "seeds", "learners"):
        raise ShoalError(f"a sweep does not vary {name}: --seeds N trains N learners of each setting")
    full = next(iter(expanded({name: None}, algo)))
    if full not in known:
        raise ShoalError(
            f"a sweep cannot vary {name}; it varies settings of {algo} and {', '.join(OF_THE_RUN)}"
        )
    return full


def _add(axes: dict[str, Axis], name: str, axis: Axis) -> None:
    if name in axes:
        raise ShoalError(f"{name} is given twice; give it values or a prior")
    axes[name] = axis
