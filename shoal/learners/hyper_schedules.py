"""Schedules: hyperparameters that change over a run, each by a factor on its current value.

    linear(END, N steps)    linearly from the setting's value to END, and END from there on
    log(END, N steps)       the same with a linear logarithm
    step(END, N steps)      the setting's value for N steps, then END

A schedule is a factor because hyperparameters are data: it also applies to a value that a population has
changed.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
from jax import Array

from shoal.errors import ShoalError

SHAPES = ("linear", "log", "step")
FRACTIONS = ("gamma", "gae_lambda")
"""Hyperparameters that stay between 0 and 1, also where a population has changed them."""
FORM = re.compile(r"\s*(\w+)\s*=\s*(\w+)\s*\(([^,()]+)(?:,([^,()]+?)\s(steps|iterations)\s*)?\)\s*")

Hypers = TypeVar("Hypers", bound=NamedTuple)


class Schedule(NamedTuple):
    """The schedule of one hyperparameter."""

    name: str
    shape: str
    ratio: float  # of its last value to its first
    updates: float | None = None  # until the last value; None is as many as annealing takes


def parse_schedule(text: str, starts: Mapping[str, Any], rollout_size: int) -> Schedule:
    """A schedule from `NAME=SHAPE(END)`, `NAME=SHAPE(END, N steps)` or `NAME=SHAPE(END, N iterations)`.

    >>> parse_schedule("gae_lambda=linear(0.4, 200 iterations)", {"gae_lambda": 0.8}, rollout_size=512)
    Schedule(name='gae_lambda', shape='linear', ratio=0.5, updates=200.0)
    >>> parse_schedule("ent_coef=log(0.01, 5120 steps)", {"ent_coef": 0.04}, rollout_size=512)
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
    if mistake := _find_mistake(name, shape, end, span, starts):
        raise ShoalError(f"schedule {text!r}: {mistake}")
    updates = span / rollout_size if span and unit == "steps" else span
    return Schedule(name, shape, end / starts[name], updates)


def steps_to_iterations(text: str, rollout_size: int) -> str:
    """A schedule's text with its steps as iterations of `rollout_size` steps.

    >>> steps_to_iterations("ent_coef=log(0.01, 5120 steps)", 512)
    'ent_coef=log(0.01, 10.0 iterations)'
    """
    return re.sub(r"([^,()]+?)\s+steps", lambda found: f" {float(found[1]) / rollout_size} iterations", text)


def check_unique(plan: Iterable[Schedule], switches: Mapping[str, str]) -> None:
    """Raise where a hyperparameter has two schedules; `switches` are settings that give one, by its name."""
    names = [schedule.name for schedule in plan]
    for name in names:
        if names.count(name) > 1:
            remedy = f"; --no-{switches[name].replace('_', '-')} leaves one out" if name in switches else ""
            raise ShoalError(f"{name} has two schedules{remedy}")


def apply_schedules(
    plan: Iterable[Schedule], hypers: Hypers, updates: Array, num_updates: int | Array
) -> Hypers:
    """The hyperparameters after `updates` of `num_updates` updates: x f(updates).

    A run that goes on after those keeps the values of the last one.
    """
    of_all = jnp.minimum(updates, num_updates - 1) / num_updates
    changed = {}
    for schedule in plan:
        progress = updates / schedule.updates if schedule.updates else of_all
        value = getattr(hypers, schedule.name) * factor(schedule, progress)
        changed[schedule.name] = jnp.minimum(value, 1.0) if schedule.name in FRACTIONS else value
    return hypers._replace(**changed)


def factor(schedule: Schedule, progress: Array) -> Array:
    """Of progress p and ratio r: linear is r + (1 - r)(1 - p), log is r^p, step is 1; r for p >= 1.

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


def _find_mistake(name: str, shape: str, end: float, span: float | None, starts: Mapping[str, Any]) -> str:
    """What is wrong with a schedule; empty where it is valid."""
    if name not in starts:
        return f"no hyperparameter is called {name}; there are {', '.join(starts)}"
    if shape not in SHAPES:
        return f"the shape is one of {', '.join(SHAPES)}, not {shape}"
    start = starts[name]
    if not isinstance(start, int | float) or start == 0:
        return f"{name} must be a number other than 0, not {start}"
    if not math.isfinite(end) or end * start < 0:
        return f"END must be finite, and 0 or of the same sign as {name} {start:g}"
    if shape == "log" and end == 0:
        return "log never reaches 0: choose another END, or linear"
    if name in FRACTIONS and end > 1:
        return f"{name} stays between 0 and 1"
    if span is None and shape == "step":
        return "step needs a number of steps or iterations, e.g. step(1e-4, 400 iterations)"
    if span is not None and not 0 < span < math.inf:
        return "N must be above 0"
    return ""
