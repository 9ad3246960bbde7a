"""Settings: frozen dataclasses in groups, each setting known by a dotted name such as `memory.size`."""

import ast
import difflib
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from functools import cache
from itertools import pairwise
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from shoal.errors import ShoalError
from shoal.foreign_names import explain
from shoal.setting_names import REMOVED, SHORT_NAMES


def long_name(name: str, known: Collection[str]) -> str:
    """The name among `known` that a name stands for; itself where there is none."""
    return name if name in known else SHORT_NAMES.get(name, name)


def is_known(name: str, known: Collection[str]) -> bool:
    """Whether a name, short or long, is that of a setting or of a group."""
    return long_name(name, known) in known or any(other.startswith(f"{name}.") for other in known)


@cache
def types(cls: type) -> dict[str, Any]:
    """The type of every setting of a class, by dotted name, groups opened."""
    found = {}
    for field, hint in _fields(cls):
        if is_dataclass(hint):
            found |= {f"{field.name}.{name}": inner for name, inner in types(hint).items()}
        else:
            found[field.name] = hint
    return found


@cache
def helps(cls: type) -> dict[str, str]:
    """The docstring of every setting of a class, by dotted name; of a group, its class's."""
    written = {}
    for base in reversed(cls.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                written[ast.unparse(field.target)] = " ".join(ast.literal_eval(text.value).split())
    found = {}
    for field, hint in _fields(cls):
        if is_dataclass(hint):
            found[field.name] = " ".join((hint.__doc__ or "").split())
            found |= {f"{field.name}.{name}": text for name, text in helps(hint).items()}
        else:
            found[field.name] = written.get(field.name, "")
    return found


def flatten(config: Any) -> dict[str, Any]:
    """Every setting by dotted name.

    >>> from shoal.learners.ppo_config import PPOConfig
    >>> flatten(PPOConfig())["memory.size"]
    64
    """
    return {name: get(config, name) for name in types(type(config))}


def get(config: Any, name: str) -> Any:
    """A setting by its dotted or short name."""
    for part in long_name(name, types(type(config))).split("."):
        config = getattr(config, part)
    return config


def changed(config: Any) -> dict[str, Any]:
    """The settings that differ from the defaults, by dotted name."""
    defaults = {}
    for field, hint in _fields(type(config)):
        if is_dataclass(hint):
            defaults |= {f"{field.name}.{name}": value for name, value in flatten(_default(field)).items()}
        else:
            defaults[field.name] = _default(field)
    return {name: value for name, value in flatten(config).items() if value != defaults[name]}


def nest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names as mappings in mappings.

    >>> nest({"gamma": 0.9, "memory.kind": "gru", "memory.size": 8})
    {'gamma': 0.9, 'memory': {'kind': 'gru', 'size': 8}}
    """
    nested: dict[str, Any] = {}
    for name, value in settings.items():
        group, dot, rest = name.partition(".")
        if dot:
            nested.setdefault(group, {})[rest] = value
        else:
            nested[name] = value
    return nested


def expand(settings: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Settings by dotted name, whether they are nested, dotted or by a short name; others are refused.

    >>> expand({"memory": {"size": 8}, "clip_vloss": True}, ["memory.kind", "memory.size", "value.clip"])
    {'memory.size': 8, 'value.clip': True}
    """
    return dict(pair for name, value in settings.items() for pair in _expand(name, value, known))


def _expand(name: str, value: Any, known: Collection[str]) -> Iterator[tuple[str, Any]]:
    if name in known:
        yield name, value
        return
    is_group = any(other.startswith(f"{name}.") for other in known)
    if is_group and is_dataclass(value):
        value = flatten(value)
    if is_group and isinstance(value, Mapping):
        for inner, item in value.items():
            yield from _expand(f"{name}.{inner}", item, known)
    elif long_name(name, known) in known:
        yield long_name(name, known), value
    elif name not in REMOVED:
        raise unknown(name, known)


def unknown(name: str, known: Collection[str], spell: Callable[[str], str] = str) -> ShoalError:
    """What to say of a name that no setting has; `spell` writes a name as it is typed."""
    if said := explain(name, spell):
        return ShoalError(said)
    short = [name for name, long in SHORT_NAMES.items() if long in known]
    near = difflib.get_close_matches(name, [*known, *short], n=1)
    return ShoalError(
        f"unknown setting {spell(name)}; did you mean {spell(near[0])}?"
        if near
        else f"unknown setting {spell(name)}; shoal train ENV --help all lists them"
    )


def build(cls: type, settings: Mapping[str, Any]) -> Any:
    """A configuration from dotted names; the defaults for what is not given."""
    defaults = {field.name: field for field in fields(cls)}
    hints = types(cls)
    given = nest({name: convert(name, value, hints[name]) for name, value in settings.items()})
    for name, value in given.items():
        if name not in hints:
            given[name] = replace(_default(defaults[name]), **value)
    return cls(**given)


def with_settings(config: Any, **settings: Any) -> Any:
    """The configuration with some settings changed, by short names or groups.

    >>> from shoal.learners.ppo_config import PPOConfig
    >>> with_settings(PPOConfig(), memory="gru", memory_size=8).memory
    MemoryConfig(kind='gru', size=8)
    """
    given = expand(settings, types(type(config)))
    return build(type(config), flatten(config) | given)


def convert(name: str, value: Any, hint: Any) -> Any:
    """A value as files, keyword arguments and people write it, in the type of its setting."""
    for option in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        fits, converted = _fit(value, option)
        if fits:
            return converted
    raise ShoalError(f"{name} must be {_described(hint)}, not {value!r}")


def _fit(value: Any, hint: Any) -> tuple[bool, Any]:
    """Whether a value fits a type, and the value in that type."""
    if get_origin(hint) is Literal:
        return value in get_args(hint), value
    if get_origin(hint) is tuple:
        items = list(value) if isinstance(value, list | tuple) else [value]
        fitted = [_fit(item, get_args(hint)[0]) for item in items]
        return all(fits for fits, _ in fitted), tuple(item for _, item in fitted)
    if hint in (int, float) and isinstance(value, str):  # yaml reads 1e-3 as text
        try:
            value = float(value)
        except ValueError:
            return False, value
    if hint is float:
        fits = isinstance(value, Real) and not isinstance(value, bool)
        return fits, float(value) if fits else value
    if hint is int:
        fits = isinstance(value, Integral | float) and not isinstance(value, bool) and value == value // 1
        return fits, int(value) if fits else value
    if hint in (bool, str, NoneType):
        return isinstance(value, hint), value
    return True, value


def _described(hint: Any) -> str:
    """A type in words.

    >>> _described(float | Literal["dynamic"] | None)
    'a number, dynamic or none'
    """
    if get_origin(hint) in (Union, UnionType):
        *words, last = [_described(option) for option in get_args(hint)]
        return f"{', '.join(words)} or {last}"
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        return str(choices[0]) if len(choices) == 1 else f"one of {', '.join(map(str, choices))}"
    if get_origin(hint) is tuple:
        plural = {int: "whole numbers", float: "numbers", str: "texts"}
        return f"a list of {plural.get(get_args(hint)[0], 'values')}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", NoneType: "none"}
    return names.get(hint, "a value")


def check_choices(settings: Any, group: str = "") -> None:
    """Raise where a setting that is one of several names is none of them."""
    prefix = f"{group}." if group else ""
    for name, hint in types(type(settings)).items():
        if get_origin(hint) is Literal and "." not in name:
            convert(prefix + name, getattr(settings, name), hint)


def check_at_least(settings: Any, least: float, *names: str, group: str = "") -> None:
    """Raise where a number is smaller than it may be."""
    for name in names:
        if (value := getattr(settings, name)) < least:
            limit = "must not be negative, but is" if least == 0 else f"must be at least {least}, not"
            raise ShoalError(f"{group}.{name} {limit} {value}" if group else f"{name} {limit} {value}")


@cache
def _fields(cls: type) -> list[tuple[Field, Any]]:
    hints = get_type_hints(cls)
    return [(field, hints[field.name]) for field in fields(cls)]


def _default(field: Field) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default
