"""The door of all settings: whether a value has a setting's type and range, and the value in that type."""

import math
import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from numbers import Integral, Real
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from shoal.errors import ShoalError
from shoal.range_words import describe, shown
from shoal.ranges import is_union, limits_of

LARGEST = (2 - 2**-23) * 2.0**127
"""The largest number in single precision, which is what programs compute with."""
LONGEST_TEXT = 4096
"""Letters of a text."""
MOST_VALUES = 2 * 10**7
"""Values in a setting that is a table, such as a communication matrix."""
SURROGATES = re.compile("[\ud800-\udfff]")
"""Halves of letters, which no file can hold."""
DEEPEST = 64
"""Lists in lists, or mappings in mappings."""


def convert(name: str, value: Any, hint: Any) -> Any:
    """A value as files, keyword arguments and people write it, in the type of its setting.

    >>> from shoal.ranges import Layers, Steps, ZeroToOne
    >>> convert("gamma", "9e-1", ZeroToOne), convert("steps", 1e6, Steps), convert("hidden", 32, Layers)
    (0.9, 1000000, (32,))
    >>> convert("gamma", 7, ZeroToOne)
    Traceback (most recent call last):
    shoal.errors.ShoalError: gamma must be a number from 0 to 1, not 7
    """
    fits, converted = fit(value, hint)
    if not fits:
        raise ShoalError(f"{name} must be {describe(hint)}, not {shown(value)}")
    return converted


def fit(value: Any, hint: Any) -> tuple[bool, Any]:
    """Whether a value has a type and is in its range, and the value in that type."""
    kind, limits = limits_of(hint)
    fits, found = _fit(value, kind, limits.infinite)
    return fits and limits.allow(found), found


def _fit(value: Any, kind: Any, infinite: bool) -> tuple[bool, Any]:
    """Whether a value has a type without constraints, and the value in that type."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_union(kind):
        found = (fit(value, option) for option in inner)
        return next((pair for pair in found if pair[0]), (False, value))
    if origin is Literal:
        return isinstance(value, str) and value in inner, value
    if origin is tuple and inner[-1] is not Ellipsis:
        return _fit_pair(value, inner)
    if origin in (tuple, list):
        return _fit_items(value, inner[0], origin)
    if origin is dict:
        return _fit_entries(value, *inner)
    if kind is float:
        return _fit_float(value, infinite)
    if kind is int:
        return _fit_int(value)
    if kind is str:
        return isinstance(value, str) and value.isprintable() and len(value) <= LONGEST_TEXT, value
    if kind in (bool, NoneType, dict, list) or is_dataclass(kind):
        return isinstance(value, kind), value
    return is_plain(value), value


def _fit_items(value: Any, item: Any, kind: type) -> tuple[bool, Any]:
    """A list of any length; one value may stand for a tuple of it."""
    if not isinstance(value, list | tuple):
        if kind is list:
            return False, value
        value = [value]
    fitted = [fit(one, item) for one in value]
    return all(fits for fits, _ in fitted), kind(one for _, one in fitted)


def _fit_pair(value: Any, items: tuple[Any, ...]) -> tuple[bool, Any]:
    """A list, or a tuple, of items that have a type each."""
    if not isinstance(value, list | tuple) or len(value) != len(items):
        return False, value
    fitted = [fit(one, item) for one, item in zip(value, items, strict=True)]
    return all(fits for fits, _ in fitted), type(value)(one for _, one in fitted)


def _fit_entries(value: Any, key: Any, item: Any) -> tuple[bool, Any]:
    if not isinstance(value, Mapping):
        return False, value
    fitted = [(fit(name, key), fit(one, item)) for name, one in value.items()]
    return all(a and b for (a, _), (b, _) in fitted), {name: one for (_, name), (_, one) in fitted}


def _fit_float(value: Any, infinite: bool) -> tuple[bool, Any]:
    if isinstance(value, bool) or not isinstance(value, Real | str):
        return False, value
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return False, value
    return abs(number) <= LARGEST or (infinite and math.isinf(number)), number


def _fit_int(value: Any) -> tuple[bool, Any]:
    if isinstance(value, str):
        try:
            return True, int(value)
        except ValueError:
            _, value = _fit_float(value, False)  # 1e6
    if isinstance(value, bool) or not isinstance(value, Real):
        return False, value
    if isinstance(value, Integral):
        return True, int(value)
    whole = math.isfinite(value) and value == math.floor(value)
    return whole, int(value) if whole else value


def is_plain(value: Any) -> bool:
    """Whether a file can hold a value: it can be written, and is not too deep, too large or in a circle.

    >>> is_plain({"a": [1, "b"]}), is_plain({"a": chr(0xD800)})
    (True, False)
    """
    return _size(value, {}, DEEPEST) <= MOST_VALUES


def _size(value: Any, known: dict[int, float], depth: int) -> float:
    """How many values there are, as often as they would be written; infinite for what is not plain."""
    if isinstance(value, str):
        return 1 if value.isascii() or not SURROGATES.search(value) else math.inf
    if not isinstance(value, Mapping | list | tuple):
        return 1
    if depth == 0:
        return math.inf
    if id(value) not in known:
        known[id(value)] = math.inf  # while it is under way: what contains itself has no end
        items = value
        if isinstance(value, Mapping):
            if len(set(map(type, value)) | {str}) > 1 and set(map(type, value)) != {int}:
                return math.inf  # names that have no order
            items = [*value.keys(), *value.values()]
        known[id(value)] = 1 + sum(_size(item, known, depth - 1) for item in items)
    return known[id(value)]
