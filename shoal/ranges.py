"""Ranges of settings, beside their types: constraints of `annotated_types`, and common ones by name.

`Annotated[float, Interval(ge=0, le=1)]` is a number from 0 to 1. Nothing else says what a setting may be,
apart from rules between several settings.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeAlias, Union, get_args, get_origin

from annotated_types import Ge, GroupedMetadata, Gt, Interval, Le, Lt, MaxLen, MinLen


@dataclass(frozen=True)
class MayBeInfinite:
    """Marks a number that may be infinite, such as a bound that is off."""


Positive: TypeAlias = Annotated[float, Gt(0)]
NonNegative: TypeAlias = Annotated[float, Ge(0)]
ZeroToOne: TypeAlias = Annotated[float, Interval(ge=0, le=1)]
Share: TypeAlias = Annotated[float, Interval(gt=0, le=1)]
Unbounded: TypeAlias = Annotated[float, MayBeInfinite()]
Bound: TypeAlias = Annotated[float, Gt(0), MayBeInfinite()]
Count: TypeAlias = Annotated[int, Interval(ge=1, le=2**20)]
"""How many of something that takes memory: learners, environments, samples."""
Number: TypeAlias = Annotated[int, Interval(ge=0, le=2**20)]
"""How many, or which, where 0 is one, too."""
Updates: TypeAlias = Annotated[int, Interval(ge=1, le=10**9)]
"""How many updates or meetings, which programs count."""
Steps: TypeAlias = Annotated[int, Interval(ge=1, le=10**12)]
"""How many steps of an environment."""
Width: TypeAlias = Annotated[int, Interval(ge=1, le=2**14)]
"""The size of a layer."""
Layers: TypeAlias = Annotated[tuple[Width, ...], MaxLen(64)]
"""The sizes of layers, one after the other."""


class Limits(NamedTuple):
    """What the constraints of a type say: bounds of a number, bounds of a length."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    shortest: int = 0
    longest: int | None = None
    infinite: bool = False

    @property
    def bounded(self) -> bool:
        """Whether a number has a bound."""
        return any(bound is not None for bound in (self.ge, self.gt, self.le, self.lt))

    def allow(self, value: Any) -> bool:
        """Whether a value of the right type is within."""
        if isinstance(value, tuple | list | dict):
            return self.shortest <= len(value) and (self.longest is None or len(value) <= self.longest)
        return (
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )


@cache
def limits_of(hint: Any) -> tuple[Any, Limits]:
    """A type without its constraints, and what they say.

    >>> limits_of(Annotated[float, Interval(ge=0, lt=1)])
    (<class 'float'>, Limits(ge=0, gt=None, le=None, lt=1, shortest=0, longest=None, infinite=False))
    """
    if get_origin(hint) is not Annotated:
        return hint, Limits()
    kind, *constraints = get_args(hint)
    found: dict[str, Any] = {}
    for constraint in _opened(constraints):
        match constraint:
            case Ge(ge=bound):
                found["ge"] = bound
            case Gt(gt=bound):
                found["gt"] = bound
            case Le(le=bound):
                found["le"] = bound
            case Lt(lt=bound):
                found["lt"] = bound
            case MinLen(min_length=length):
                found["shortest"] = length
            case MaxLen(max_length=length):
                found["longest"] = length
            case MayBeInfinite():
                found["infinite"] = True
            case _:
                raise TypeError(f"{constraint!r} is no constraint that settings have")
    return kind, Limits(**found)


def without_ranges(hint: Any) -> Any:
    """A type without its ranges, and those of what is inside it.

    >>> without_ranges(tuple[Width, ...] | None)
    tuple[int, ...] | None
    """
    kind, _ = limits_of(hint)
    if is_union(kind):
        return reduce(or_, map(without_ranges, get_args(kind)))
    if get_origin(kind) in (tuple, list, dict):
        return get_origin(kind)[tuple(map(without_ranges, get_args(kind)))]
    return kind


def options(hint: Any) -> tuple[Any, ...]:
    """The types of a union; of another type itself.

    >>> options(int | None), options(float)
    ((<class 'int'>, <class 'NoneType'>), (<class 'float'>,))
    """
    return get_args(hint) if is_union(hint) else (hint,)


def is_union(hint: Any) -> bool:
    """Whether a type is one of several."""
    return get_origin(hint) in (Union, UnionType)


def _opened(constraints: Iterable[Any]) -> Iterator[Any]:
    """Single constraints, in place of groups such as `Interval` and `Len`."""
    for constraint in constraints:
        if isinstance(constraint, GroupedMetadata):
            yield from constraint
        else:
            yield constraint
