"""Types, ranges and values of settings in words, for messages and help."""

import reprlib
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from shoal.ranges import is_union, limits_of


def describe(hint: Any) -> str:
    """A type and its range in words.

    >>> from shoal.ranges import Layers, NonNegative
    >>> describe(NonNegative | Literal["dynamic"] | None)
    'a number of at least 0, dynamic or none'
    >>> describe(Layers)
    'a list of at most 64 whole numbers from 1 to 16,384'
    """
    kind, limits = limits_of(hint)
    origin, inner = get_origin(kind), get_args(kind)
    if is_union(kind):
        *words, last = map(describe, inner)
        return f"{', '.join(words)} or {last}"
    if origin is Literal:
        return str(inner[0]) if len(inner) == 1 else f"one of {', '.join(map(str, inner))}"
    if origin is tuple and inner[-1] is not Ellipsis:
        return f"a pair of {' and '.join(map(describe, inner))}"
    if origin in (tuple, list):
        size = _words(limits.shortest or None, None, limits.longest, None, "{} to {}")
        return " ".join(filter(None, ["a list of", size, _described(inner[0], 1)]))
    if origin is dict:
        return f"a mapping from names to {_described(inner[1], 1)}"
    return _described(hint, 0)


def _described(hint: Any, plural: int) -> str:
    """A type without types inside it, as one value (0) or several (1)."""
    kind, limits = limits_of(hint)
    noun = _NOUNS.get(get_origin(kind) or kind, _ANYTHING)[plural]
    if kind is float and not limits.infinite and not limits.bounded:
        noun = ("a finite number", "finite numbers")[plural]
    words = _words(limits.ge, limits.gt, limits.le, limits.lt, "from {} to {}")
    return " ".join(filter(None, [noun, "of" * words.startswith("at "), words]))


_NOUNS = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "values that are true or false"),
    str: ("a text on one line", "texts"),
    NoneType: ("none", "nothing"),
    dict: ("a mapping", "mappings"),
    list: ("a list", "lists"),
    tuple: ("a pair", "pairs"),
}
_ANYTHING = ("a value that a file can hold", "values that a file can hold")


def is_bounded(hint: Any) -> bool:
    """Whether a type, or what is inside it, has a range.

    >>> from shoal.ranges import ZeroToOne
    >>> is_bounded(tuple[ZeroToOne, ...] | None), is_bounded(float | None)
    (True, False)
    """
    kind, limits = limits_of(hint)
    return limits.bounded or any(map(is_bounded, get_args(kind)))


def _words(ge: Any, gt: Any, le: Any, lt: Any, closed: str) -> str:
    """Bounds in words.

    >>> _words(1, None, 4, None, "{} to {}"), _words(None, 0, 1, None, "{} to {}")
    ('1 to 4', 'above 0 and at most 1')
    """
    if ge is not None and le is not None:
        return closed.format(_number(ge), _number(le))
    bounds = [("at least", ge), ("above", gt), ("at most", le), ("below", lt)]
    return " and ".join(f"{word} {_number(bound)}" for word, bound in bounds if bound is not None)


def _number(x: float) -> str:
    return f"{x:,}" if isinstance(x, int) else f"{x:g}"


_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxstring, _BRIEF.maxlong, _BRIEF.maxother = 3, 60, 40, 60


def shown(value: Any) -> str:
    """A value in a message: on one line, and short however large it is.

    >>> shown("many"), shown([1, 2]), len(shown("long" * 100)), shown(10**9999)
    ("'many'", '[1, 2]', 60, 'a value of type int that is too large to show')
    """
    try:
        text = _BRIEF.repr(value)
    except (ValueError, RecursionError):
        return f"a value of type {type(value).__name__} that is too large to show"
    return " ".join(text.split())
