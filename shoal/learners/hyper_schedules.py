"""Schedules: hyperparameters that change over a run, each by a factor on what it is at the time.

    linear(END, N steps)    straight from the setting's value to END, where it stays
    log(END, N steps)       in equal ratios
    step(END, N steps)      the value for N steps, then END

A factor, because hyperparameters are data: what a population has made of one goes the same way.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
from jax import Array

from shoal.errors import ShoalError

SHAPES = ("linear", "log", "step")
SHARES = ("gamma", "gae_lambda")
"""Hyperparameters that stay between 0 and 1, whatever a population has made of them."""
FORM = re.compile(r"\s*(\w+)\s*=\s*(\w+)\s*\(([^,()]+)(?:,([^,()]+?)\s(steps|iterations)\s*)?\)\s*")

Hypers = TypeVar("Hypers", bound=NamedTuple)


class Schedule(NamedTuple):
    """How one hyperparameter changes."""

    name: str
    shape: str
    ratio: float  # of its last value to its first
    updates: float | None = None  # that it takes; None is the whole run


def read(text: str, starts: Mapping[str, Any], rollout_size: int) -> Schedule:
    """A schedule from `NAME=SHAPE(END)` or `NAME=SHAPE(END, N steps)`; every rollout is one of `iterations`.

    >>> read("learning_rate=linear(1e-4, 200 iterations)", {"learning_rate": 2e-4}, rollout_size=512)
    Schedule(name='learning_rate', shape='linear', ratio=0.5, updates=200.0)
    >>> read("ent_coef=log(0.01, 5120 steps)", {"ent_coef": 0.04}, rollout_size=512)
    Schedule(name='ent_coef', shape='log', ratio=0.25, updates=10.0)
    """
    match = FORM.fullmatch(text)
    if not match:
        raise ShoalError(
            f"schedule {text!r}: write NAME=SHAPE(END) or NAME=SHAPE(END, N steps), or N iterations, "
            'e.g. "learning_rate=linear(1e-4, 200 iterations)"'
        )
    name, shape, end, count, unit = match.groups()
    try:
        end, span = float(end), None if count is None else float(count)
    except ValueError:
        raise ShoalError(f"schedule {text!r}: END and N must be numbers") from None
    if mistake := _mistake(name, shape, end, span, starts):
        raise ShoalError(f"schedule {text!r}: {mistake}")
    updates = span / rollout_size if span and unit == "steps" else span
    return Schedule(name, shape, end / starts[name], updates)


def in_iterations(text: str, rollout_size: int) -> str:
    """A schedule with its steps in iterations of so many.

    >>> in_iterations("ent_coef=log(0.01, 5120 steps)", 512)
    'ent_coef=log(0.01, 10.0 iterations)'
    """
    return re.sub(r"([^,()]+?)\s+steps", lambda found: f" {float(found[1]) / rollout_size} iterations", text)


def check(plan: Iterable[Schedule], switches: Mapping[str, str]) -> None:
    """Raise where a hyperparameter has two schedules; `switches` are settings that give it one, by name."""
    names = [schedule.name for schedule in plan]
    for name in names:
        if names.count(name) > 1:
            mend = f"; --no-{switches[name].replace('_', '-')} leaves one out" if name in switches else ""
            raise ShoalError(f"{name} has two schedules{mend}")


def at(plan: Iterable[Schedule], hypers: Hypers, updates: Array, num_updates: int) -> Hypers:
    """The hyperparameters after so many updates of `num_updates`: x <- x f(updates)."""
    changed = {}
    for schedule in plan:
        value = getattr(hypers, schedule.name) * factor(schedule, updates / (schedule.updates or num_updates))
        changed[schedule.name] = jnp.minimum(value, 1.0) if schedule.name in SHARES else value
    return hypers._replace(**changed)


def factor(schedule: Schedule, progress: Array) -> Array:
    """1 at a progress p of 0, the ratio r from 1 on; between the two r + (1 - r)(1 - p), r^p, or 1.

    >>> half = jnp.float32(0.5)
    >>> [factor(Schedule("gamma", shape, 0.25), half).item() for shape in SHAPES]
    [0.625, 0.5, 1.0]
    """
    ratio = schedule.ratio
    match schedule.shape:
        case "linear":
            return ratio + (1.0 - ratio) * jnp.maximum(1.0 - progress, 0.0)
        case "log":
            return ratio ** jnp.minimum(progress, 1.0)
        case _:
            return jnp.where(progress < 1.0, 1.0, ratio)


def _mistake(name: str, shape: str, end: float, span: float | None, starts: Mapping[str, Any]) -> str:
    """What is wrong with a schedule; empty if nothing."""
    if name not in starts:
        return f"no hyperparameter is called {name}; there are {', '.join(starts)}"
    if shape not in SHAPES:
        return f"the shape is one of {', '.join(SHAPES)}, not {shape}"
    start = starts[name]
    if not isinstance(start, int | float) or start == 0:
        return f"{name} must be a number other than 0 to begin with, not {start}"
    if not math.isfinite(end) or end * start < 0:
        return f"END must be finite and not on the other side of 0 than {name} {start:g}"
    if shape == "log" and end == 0:
        return "equal ratios never reach 0: choose another END, or linear"
    if name in SHARES and end > 1:
        return f"{name} stays between 0 and 1"
    if span is None and shape == "step":
        return "say after how many steps or iterations, e.g. step(1e-4, 400 iterations)"
    if span is not None and not 0 < span < math.inf:
        return "N must be above 0"
    return ""
