"""Pendulum-v1, PendulumSparse-v1 and PendulumNoVel-v1: swing a rod up, with a motor too weak to lift it."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.envs.classic.render import picture
from shoal.types import Box, EnvSpec, JaxEnv

UPRIGHT = 0.1 * np.pi
"""The sparse reward is 1 where the rod is closer than this to upright: 18 degrees on either side."""


class PendulumParams(NamedTuple):
    """Physical parameters, in SI units. The torque is bounded by the action space, at 2."""

    gravity: float = 10.0
    mass: float = 1.0
    length: float = 1.0
    max_speed: float = 8.0
    time_step: float = 0.05


class PendulumState(NamedTuple):
    """The state of the rod; every field is ()."""

    theta: Array  # 0 is upright; not wrapped
    theta_dot: Array
    torque: Array  # the last one applied, for the picture


def reset(key: Array, params: PendulumParams) -> PendulumState:
    """theta uniform in [-pi, pi], theta' uniform in [-1, 1]."""
    theta, theta_dot = jax.random.uniform(key, (2,), minval=-1, maxval=1)
    return PendulumState(jnp.pi * theta, theta_dot, jnp.float32(0))


def step(
    key: Array, state: PendulumState, action: Array, params: PendulumParams
) -> tuple[PendulumState, Array, Array]:
    """One step of the rod; the reward is that of the state before it; no episode terminates.

    reward = -(theta^2 + 0.1 theta'^2 + 0.001 u^2),   theta in [-pi, pi)
    """
    torque = action[0]
    cost = wrap(state.theta) ** 2 + 0.1 * state.theta_dot**2 + 0.001 * torque**2
    return swing(state, torque, params), -cost, jnp.bool_(False)


def step_sparse(
    key: Array, state: PendulumState, action: Array, params: PendulumParams
) -> tuple[PendulumState, Array, Array]:
    """The same rod with a sparse reward: 1 if |theta| < 0.1 pi after the step, else 0."""
    state = swing(state, action[0], params)
    return state, jnp.float32(jnp.abs(wrap(state.theta)) < UPRIGHT), jnp.bool_(False)


def swing(state: PendulumState, torque: Array, params: PendulumParams) -> PendulumState:
    """One semi-implicit Euler step of a uniform rod.

    theta'' = 3 g / (2 l) sin theta + 3 / (m l^2) u
    """
    g, m, length, max_speed, dt = params
    theta_acc = 3 * g / (2 * length) * jnp.sin(state.theta) + 3 / (m * length**2) * torque
    theta_dot = jnp.clip(state.theta_dot + theta_acc * dt, -max_speed, max_speed)
    return PendulumState(state.theta + theta_dot * dt, theta_dot, torque)


def wrap(angle: Array) -> Array:
    """The same angle in [-pi, pi)."""
    return (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi


def observe(state: PendulumState, params: PendulumParams) -> Array:
    """[cos theta, sin theta, theta']."""
    return jnp.stack([jnp.cos(state.theta), jnp.sin(state.theta), state.theta_dot])  # (3,)


def observe_angle(state: PendulumState, params: PendulumParams) -> Array:
    """[cos theta, sin theta], without the velocity."""
    return jnp.stack([jnp.cos(state.theta), jnp.sin(state.theta)])  # (2,)


def render(state: PendulumState, params: PendulumParams) -> np.ndarray:
    """Gymnasium's picture, (500, 500, 3); its rod has one length whatever `params.length` is."""
    torque = float(state.torque)
    return picture("Pendulum-v1", state=np.array(state[:2]), last_u=torque if torque else None)


SPREAD = {"gravity": (1.0, 0.1, np.inf), "mass": (1.0, 0.2, 5.0), "length": (1.0, 0.5, 1.5)}
"""How drawn worlds differ: the ranges of github.com/WaimenMak/FRL, with gravity above 0."""

_BOUND = np.array([1.0, 1.0, 8.0], np.float32)
_SPACES = Box((3,), -_BOUND, _BOUND), Box((1,), -2.0, 2.0)

PENDULUM = JaxEnv(
    EnvSpec("Pendulum-v1", "jax", *_SPACES, 200, PendulumParams(), SPREAD), reset, step, observe, render
)
PENDULUM_SPARSE = PENDULUM._replace(spec=replace(PENDULUM.spec, name="PendulumSparse-v1"), step=step_sparse)
PENDULUM_NO_VELOCITY = PENDULUM._replace(
    spec=replace(PENDULUM.spec, name="PendulumNoVel-v1", observation=Box((2,), -1.0, 1.0)),
    observe=observe_angle,
)
