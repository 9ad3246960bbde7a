"""Strategies of Hypothesis made from the schema: settings, and the files that hold them, right and wrong."""

import json
import math
from typing import Any, Literal, get_args, get_origin

import yaml
from hypothesis import strategies as st

from shoal.envs.classic import BUILTIN
from shoal.exchanges.config import ExchangeConfig
from shoal.exchanges.registry import EXCHANGES
from shoal.learners.registry import ALGORITHMS
from shoal.ranges import Limits, is_union, limits_of
from shoal.runs.milestones import Milestones
from shoal.setting_names import SHORT_NAMES
from shoal.settings import hints
from shoal.training.config import TrainConfig

HUGE = (2**31, 2**32, 2**53 + 1, 2**63, 10**18, 10**400, 1e30, 1e300, 1.8e308)
NUMBERS = (0, 1, -1, 2, 0.5, -0.0, 1e-320, 1.5, math.nan, math.inf, -math.inf, *HUGE, *(-x for x in HUGE))
NUMERALS = ("nan", "inf", "1e-3", "1e6", "1_000", "0x10")
TEXTS = ("", " ", "none", "true", *NUMERALS, "a\nb", "\ud800", "\x00", "é", "a" * 5000)
PRIORS = (
    "gamma",
    "learning_rate",
    "gamma=log 0.1 0.9",
    "gamma=uniform 0 2",
    "learning_rate=choice 1e-3 1e30",
)
SCHEDULES = (
    "ent_coef=linear(0)",
    "learning_rate=linear(1e-4, 1e400 steps)",
    "learning_rate=log(1e-300, 1 steps)",
    "gamma=step(0.5, 3 iterations)",
)
PARTS = ("actor", "actor:5", "critic:0", "0,0,1")
ELSEWHERE = ("../..", "/dev/zero", "os:system", "math:pi", "nowhere:nothing", "=", "a=")
WORDS = (*PRIORS, *SCHEDULES, *PARTS, *ELSEWHERE)
"""Texts that mean something in one setting or another."""
odd = st.sampled_from((None, True, False, *NUMBERS, *TEXTS, *WORDS))
scalars = st.one_of(odd, st.integers(), st.floats(), st.text())
names = st.text(max_size=8) | st.integers()
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
"""Any value that a file can hold, with the ones that break programs among them."""


def allowed(hint: Any) -> st.SearchStrategy:
    """The values that a type and its range allow."""
    kind, limits = limits_of(hint)
    if is_union(kind):
        return st.one_of(*map(allowed, get_args(kind)))
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is tuple and get_args(kind)[-1] is Ellipsis:
        size = {"min_size": limits.shortest, "max_size": min(limits.longest or 3, max(3, limits.shortest))}
        return st.lists(allowed(get_args(kind)[0]), **size)
    if get_origin(kind) is tuple:
        return st.tuples(*map(allowed, get_args(kind))).map(list)
    if get_origin(kind) is list:
        return st.lists(allowed(get_args(kind)[0]), max_size=3)
    if get_origin(kind) is dict:
        return st.dictionaries(st.sampled_from(("gamma", "learning_rate", "x")), allowed(get_args(kind)[1]))
    simple = {bool: st.booleans(), type(None): st.none(), str: st.sampled_from(WORDS)}
    if kind in simple:
        return simple[kind]
    return numbers(kind, limits) if kind in (int, float) else anything


def numbers(kind: type, limits: Limits) -> st.SearchStrategy:
    """The numbers within bounds; small ones, and both ends, more often than others."""
    low, high = limits.ge if limits.gt is None else limits.gt, limits.le if limits.lt is None else limits.lt
    if kind is int:
        first, last = int(low or 0), int(10**12 if high is None else high)
        return (
            st.integers(first, min(last, first + 8))
            | st.sampled_from((first, last))
            | st.integers(first, last)
        )
    ends = {"exclude_min": limits.gt is not None, "exclude_max": limits.lt is not None}
    ends = {"min_value": low, "max_value": high} | {k: v for k, v in ends.items() if v}
    return st.floats(
        width=32, allow_nan=False, allow_infinity=limits.infinite and None in (low, high), **ends
    )


def at_the_bounds(hint: Any) -> st.SearchStrategy:
    """The bounds of a number, and what lies just outside."""
    kind, limits = limits_of(hint)
    inner = [limits, *(limits_of(option)[1] for option in get_args(kind) if option is not Ellipsis)]
    ends = [x for one in inner for x in (one.ge, one.gt, one.le, one.lt) if x is not None]
    near = [
        y for x in ends for y in (x, x - 1, x + 1, math.nextafter(x, -math.inf), math.nextafter(x, math.inf))
    ]
    return st.sampled_from(near) if near else anything


def value_of(hint: Any) -> st.SearchStrategy:
    """A value of a setting: allowed, at the bounds, or anything."""
    return st.one_of(allowed(hint), allowed(hint), at_the_bounds(hint), anything)


@st.composite
def settings_of(draw: st.DrawFn, known: dict[str, Any], most: int = 4) -> dict[str, Any]:
    """A few settings by dotted and by short names, in groups, or by names that there are not."""
    names = draw(st.lists(st.sampled_from(sorted(known)), max_size=most, unique=True))
    found: dict[str, Any] = {}
    short = {long: name for name, long in SHORT_NAMES.items()}
    for name in names:
        value = draw(value_of(known[name]))
        group, dot, last = name.partition(".")
        way = draw(st.integers(0, 9))
        if dot and way < 4 and isinstance(found.get(group, {}), dict):
            found.setdefault(group, {})[last] = value
        elif way < 6 and name in short:
            found[short[name]] = value
        elif way == 6:
            found[draw(st.text(max_size=6) | st.integers() | st.just(group))] = value
        else:
            found[name] = value
    return found


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """The settings of a run, with a few wrong ones."""
    algo = draw(st.sampled_from(sorted(ALGORITHMS)))
    discrete = draw(st.booleans()) if algo == "ppo" else algo == "dqn"
    base: dict[str, Any] = {"env": "CartPole-v1" if discrete else "Pendulum-v1", "algo": algo, "steps": 1000}
    if draw(st.booleans()):
        base |= {"learners": draw(st.integers(1, 6)), "exchange": draw(st.sampled_from(sorted(EXCHANGES)))}
    known = hints(TrainConfig) | hints(ALGORITHMS[algo].config) | hints(ExchangeConfig)
    known = {name: hint for name, hint in known.items() if name not in ("algo", "exchanges")}
    if draw(st.integers(0, 3)) == 0:
        one = settings_of(hints(ExchangeConfig), 3)
        base["exchange"] = draw(st.lists(one | anything, max_size=3))
    return base | draw(settings_of(known))


def damaged(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """A text as it is, or with a piece cut out, doubled or replaced."""

    @st.composite
    def change(draw: st.DrawFn) -> str:
        text = draw(texts)
        if draw(st.integers(0, 3)):
            return text
        at, length = draw(st.integers(0, len(text))), draw(st.integers(0, 8))
        piece = draw(
            st.sampled_from(
                ("", text[at : at + length] * 2, "[", "{", "&a *a", "\t", ": ", "!!", '"', "\x00")
            )
        )
        return text[:at] + piece + text[at + length :]

    return change()


def as_yaml(value: Any) -> str:
    """A value in a yaml file."""
    return yaml.safe_dump(value, sort_keys=False)


def as_json(value: Any) -> str:
    """A value in a JSON file."""
    return json.dumps(value, default=str)


learners = st.sampled_from(("0", "1", "2", "3"))
indices = learners | st.sampled_from(("01", "-1", "4", "x", "", "1.5", "9" * 30))
weights = st.floats(0, 10) | st.integers(0, 3)
edges = st.dictionaries(learners, st.dictionaries(learners, weights, max_size=3), min_size=1, max_size=4)
odd_edges = st.dictionaries(indices, st.dictionaries(indices, weights | scalars, max_size=3), max_size=4)
rows = st.lists(st.lists(weights, min_size=4, max_size=4), min_size=4, max_size=4)
odd_rows = st.lists(st.lists(weights | scalars, min_size=3, max_size=4) | anything, min_size=4, max_size=4)
matrices = st.one_of(edges, rows, odd_edges, odd_rows, anything)
parameters = st.sampled_from(BUILTIN["CartPole-v1"].spec.params._fields)
world = st.dictionaries(parameters, st.floats(0.1, 10), max_size=3)
odd_world = st.dictionaries(parameters | st.sampled_from(("masscart", "colour", "")), scalars, max_size=3)
worlds = st.one_of(
    st.fixed_dictionaries({"0": world, "1": world, "2": world, "3": world | odd_world}),
    st.lists(world, min_size=4, max_size=4),
    st.lists(world | odd_world, max_size=5),
    st.dictionaries(indices, world | anything, max_size=4),
    anything,
)
"""Learners' physical parameters; four learners train in them."""


@st.composite
def sweeps(draw: st.DrawFn) -> dict[str, Any]:
    """What a sweep is asked for: a grid, priors, how it searches."""
    run = {name: hints(TrainConfig)[name] for name in ("frame_stack", "seed")}
    known = hints(ALGORITHMS["ppo"].config) | run
    names = draw(st.lists(st.sampled_from(sorted(known)), max_size=2, unique=True))
    right = {name: st.lists(allowed(known[name]), min_size=1, max_size=3) for name in names}
    values = {name: right[name] | right[name] | st.lists(value_of(known[name]), max_size=3) for name in names}
    count = st.integers(1, 4) | scalars
    found: dict[str, Any] = {
        "grid": {name: draw(values[name]) for name in names} if draw(st.integers(0, 9)) else draw(anything)
    }
    if way := draw(st.sampled_from(("", "random", "tpe"))):
        found[way] = draw(count)
    options = {"seeds": count, "halving": st.booleans() | scalars, "batch": st.none() | count}
    options["priors"] = st.lists(st.sampled_from(PRIORS), max_size=2) | anything
    return found | {name: draw(one) for name, one in options.items() if draw(st.integers(0, 3)) == 0}


@st.composite
def flags(draw: st.DrawFn) -> list[str]:
    """The words of `shoal train`."""
    known = hints(TrainConfig) | hints(ALGORITHMS["ppo"].config) | hints(ExchangeConfig) | hints(Milestones)
    words = draw(st.sampled_from((["CartPole-v1"], ["CartPole-v1"], ["Pendulum-v1", "--learners", "4"], [])))
    for name in draw(st.lists(st.sampled_from(sorted(known)), max_size=3, unique=True)):
        value = draw(value_of(known[name]))
        typed = [f"--{name.replace('_', '-')}", *map(as_word, value if isinstance(value, list) else [value])]
        words = [*words, *typed]
    return words


def as_word(value: Any) -> str:
    """A value as it is typed; no shell passes on what cannot be written, or zeros."""
    try:
        return str(value).encode("utf-8", "replace").decode().replace("\x00", "")
    except ValueError:  # it has too many digits
        return "9" * 400


def milestones() -> st.SearchStrategy[dict[str, Any]]:
    """The milestones that a run keeps."""
    return settings_of(hints(Milestones)) | anything


CASES: dict[str, st.SearchStrategy[str]] = {
    "config": damaged(configs().map(as_yaml)),
    "preset": configs().map(as_json),
    "flags": flags().map(as_json),
    "matrix": damaged(matrices.map(lambda x: {"comm_matrix": x}).map(as_json) | matrices.map(as_json)),
    "worlds": damaged(worlds.map(as_json)),
    "sweep": sweeps().map(as_json),
    "milestones": damaged(milestones().map(as_json)),
}
"""The content of a file for each door."""
