"""Settings: frozen dataclasses in groups, each setting known by a dotted name such as `memory.size`."""

import ast
import difflib
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, get_type_hints

from shoal.errors import ShoalError
from shoal.foreign_names import explain
from shoal.range_words import shown
from shoal.ranges import without_ranges
from shoal.schema import convert
from shoal.setting_names import REMOVED, SHORT_NAMES

LONGEST_NAME = 80
"""Longer names of settings are not repeated in messages."""


def long_name(name: str, known: Collection[str]) -> str:
    """The name among `known` that a name stands for; itself where there is none."""
    return name if name in known else SHORT_NAMES.get(name, name)


def is_known(name: str, known: Collection[str]) -> bool:
    """Whether a name, short or long, is that of a setting or of a group."""
    return long_name(name, known) in known or any(other.startswith(f"{name}.") for other in known)


@cache
def hints(cls: type) -> dict[str, Any]:
    """The type of every setting of a class with its range, by dotted name, groups opened."""
    found = {}
    for field, hint in _fields(cls):
        if is_dataclass(hint):
            found |= {f"{field.name}.{name}": inner for name, inner in hints(hint).items()}
        else:
            found[field.name] = hint
    return found


@cache
def types(cls: type) -> dict[str, Any]:
    """The same without ranges."""
    return {name: without_ranges(hint) for name, hint in hints(cls).items()}


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
    if not isinstance(name, str) or not name.isprintable() or len(name) > LONGEST_NAME:
        return ShoalError(f"unknown setting {shown(name)}; shoal train ENV --help all lists them")
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
    known = hints(cls)
    given = nest({name: convert(name, value, known[name]) for name, value in settings.items()})
    for name, value in given.items():
        if name not in known:
            given[name] = replace(_default(defaults[name]), **value)
    return cls(**given)


def read_record(cls: type, content: Any, path: Any) -> Any:
    """What a file holds, as an instance of a class of settings; errors begin with the file's name."""
    if not isinstance(content, Mapping):
        raise ShoalError(f"{path}: it holds {shown(content)}, not a mapping from names to values")
    try:
        return build(cls, expand(content, hints(cls)))
    except ShoalError as error:
        raise ShoalError(f"{path}: {error}") from error


def with_settings(config: Any, **settings: Any) -> Any:
    """The configuration with some settings changed, by short names or groups.

    >>> from shoal.learners.ppo_config import PPOConfig
    >>> with_settings(PPOConfig(), memory="gru", memory_size=8).memory
    MemoryConfig(kind='gru', size=8)
    """
    given = expand(settings, types(type(config)))
    return build(type(config), flatten(config) | given)


def check(settings: Any, group: str = "") -> None:
    """Bring every setting of a new configuration into its type; raise where it is not in its range."""
    for field, hint in _fields(type(settings)):
        name = f"{group}.{field.name}" if group else field.name
        object.__setattr__(settings, field.name, convert(name, getattr(settings, field.name), hint))


@cache
def _fields(cls: type) -> list[tuple[Field, Any]]:
    found = get_type_hints(cls, include_extras=True)
    return [(field, found[field.name]) for field in fields(cls)]


def _default(field: Field) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default
