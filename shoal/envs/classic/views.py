"""How to plot environments: the names of their numbers, and a plane through their states."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shoal.envs.classic.cartpole import CartPoleParams
from shoal.envs.classic.mountain_car import MAX_POSITION, MIN_POSITION, MountainCarParams


class Axis(NamedTuple):
    """A coordinate of a plane."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...] = ()  # (value, label), where numbers alone say less
    periodic: bool = False  # the two ends are the same point


class View(NamedTuple):
    """A plane through an environment's states: two coordinates x and y; the other numbers are 0.

    observe(x, y) -> the numbers of the observation there
    locate(*numbers of an observation) -> (x, y)
    """

    observation: tuple[str, ...]
    action: str
    choices: tuple[str, ...]  # the names of discrete actions; () for real ones
    axes: tuple[Axis, Axis]
    observe: Callable[[np.ndarray, np.ndarray], tuple[Any, ...]]
    locate: Callable[..., tuple[np.ndarray, np.ndarray]]
    elsewhere: str = ""  # what the numbers at 0 mean


_MINUS = "\N{MINUS SIGN}"
_TURN = {
    "low": -np.pi,
    "high": np.pi,
    "ticks": tuple(
        (k * np.pi / 2, name) for k, name in enumerate((f"{_MINUS}π", f"{_MINUS}π/2", "0", "π/2", "π"), -2)
    ),
    "periodic": True,
}
"""The coordinate of an angle."""

_PENDULUM = View(
    observation=("cos θ", "sin θ", "speed θ' (rad/s)"),
    action="torque (N m)",
    choices=(),
    axes=(Axis("angle θ (rad), 0 is upright", **_TURN), Axis("speed θ' (rad/s)", -8, 8)),
    observe=lambda angle, speed: (np.cos(angle), np.sin(angle), speed),
    locate=lambda cos, sin, speed: (np.arctan2(sin, cos), speed),
)

_CARTPOLE = View(
    observation=("position (m)", "speed (m/s)", "pole's angle (rad)", "pole's speed (rad/s)"),
    action="push",
    choices=("left", "right"),
    axes=(
        Axis("pole's angle (rad), 0 is upright", -CartPoleParams().max_angle, CartPoleParams().max_angle),
        Axis("pole's speed (rad/s)", -1, 1),
    ),
    observe=lambda angle, speed: (0, 0, angle, speed),
    locate=lambda _, __, angle, speed: (angle, speed),
    elsewhere="the cart at rest in the middle",
)

_ACROBOT = View(
    observation=("cos θ₁", "sin θ₁", "cos θ₂", "sin θ₂", "speed θ₁' (rad/s)", "speed θ₂' (rad/s)"),
    action="torque (N m)",
    choices=(f"{_MINUS}1", "0", "+1"),
    axes=(
        Axis("first link's angle θ₁ (rad), 0 hangs down", **_TURN),
        Axis("speed θ₁' (rad/s)", -6, 6),
    ),
    observe=lambda angle, speed: (np.cos(angle), np.sin(angle), 1, 0, speed, 0),
    locate=lambda cos, sin, _, __, speed, ___: (np.arctan2(sin, cos), speed),
    elsewhere="the second link straight and at rest",
)

_MOUNTAIN_CAR = View(
    observation=("position", "speed per step"),
    action="push",
    choices=("left", "none", "right"),
    axes=(
        Axis("position", MIN_POSITION, MAX_POSITION),
        Axis("speed per step", -MountainCarParams().max_speed, MountainCarParams().max_speed),
    ),
    observe=lambda position, speed: (position, speed),
    locate=lambda position, speed: (position, speed),
)

VIEWS: dict[str, View] = {
    "Pendulum-v1": _PENDULUM,
    "PendulumSparse-v1": _PENDULUM,
    "CartPole-v1": _CARTPOLE,
    "CartPoleContinuous-v0": _CARTPOLE._replace(choices=()),
    "Acrobot-v1": _ACROBOT,
    "MountainCar-v0": _MOUNTAIN_CAR,
    "MountainCarContinuous-v0": _MOUNTAIN_CAR._replace(choices=()),
}
"""By the environment's id, for every implementation of it."""
