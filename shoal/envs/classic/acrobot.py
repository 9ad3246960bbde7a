"""Acrobot-v1: two links and one motor between them; swing the free end above the line."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.envs.classic.render import picture
from shoal.types import Box, Discrete, EnvSpec, JaxEnv


class AcrobotParams(NamedTuple):
    """Physical parameters, in SI units."""

    gravity: float = 9.8
    mass_1: float = 1.0
    mass_2: float = 1.0
    length_1: float = 1.0
    length_2: float = 1.0  # in the picture only: the dynamics use the centre of mass
    centre_1: float = 0.5  # from the joint to the link's centre of mass
    centre_2: float = 0.5
    inertia: float = 1.0  # of either link
    torque: float = 1.0
    max_speed_1: float = 4 * np.pi
    max_speed_2: float = 9 * np.pi
    time_step: float = 0.2


class AcrobotState(NamedTuple):
    """The angles of the links; every field is ()."""

    theta_1: Array  # 0 hangs down
    theta_2: Array  # relative to the first link
    dtheta_1: Array
    dtheta_2: Array


def reset(key: Array, params: AcrobotParams) -> AcrobotState:
    """All four uniform in [-0.1, 0.1]."""
    return AcrobotState(*jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1))


def step(
    key: Array, state: AcrobotState, action: Array, params: AcrobotParams
) -> tuple[AcrobotState, Array, Array]:
    """One Runge-Kutta step of order 4; reward -1, and 0 for the last step.

    Terminated when the free end is above the line: -cos theta_1 - cos(theta_1 + theta_2) > 1.
    """
    torque = params.torque * (action - 1)
    dt = params.time_step
    k1 = derivative(state, torque, params)
    k2 = derivative(advance(state, k1, dt / 2), torque, params)
    k3 = derivative(advance(state, k2, dt / 2), torque, params)
    k4 = derivative(advance(state, k3, dt), torque, params)
    slope = jax.tree.map(lambda a, b, c, d: a + 2 * b + 2 * c + d, k1, k2, k3, k4)
    theta_1, theta_2, dtheta_1, dtheta_2 = advance(state, slope, dt / 6)
    state = AcrobotState(
        wrap(theta_1),
        wrap(theta_2),
        jnp.clip(dtheta_1, -params.max_speed_1, params.max_speed_1),
        jnp.clip(dtheta_2, -params.max_speed_2, params.max_speed_2),
    )
    terminated = -jnp.cos(state.theta_1) - jnp.cos(state.theta_1 + state.theta_2) > 1
    return state, jnp.where(terminated, jnp.float32(0), -1), terminated


def derivative(state: AcrobotState, torque: Array, params: AcrobotParams) -> AcrobotState:
    """The time derivative of the state, with Sutton and Barto's equations (the book's, not the paper's).

    d1    = m1 c1^2 + m2 (l1^2 + c2^2 + 2 l1 c2 cos t2) + 2 I
    d2    = m2 (c2^2 + l1 c2 cos t2) + I
    phi2  = m2 c2 g sin(t1 + t2)
    phi1  = -m2 l1 c2 (t2'^2 + 2 t1' t2') sin t2 + (m1 c1 + m2 l1) g sin t1 + phi2
    t2''  = (u + d2/d1 phi1 - m2 l1 c2 t1'^2 sin t2 - phi2) / (m2 c2^2 + I - d2^2/d1)
    t1''  = -(d2 t2'' + phi1) / d1
    """
    t1, t2, dt1, dt2 = state
    g, m1, m2, l1, _, c1, c2, inertia, *_ = params
    sin_2, cos_2 = jnp.sin(t2), jnp.cos(t2)
    coupling = m2 * l1 * c2
    d1 = m1 * c1**2 + m2 * (l1**2 + c2**2) + 2 * coupling * cos_2 + 2 * inertia
    d2 = m2 * c2**2 + coupling * cos_2 + inertia
    phi2 = m2 * c2 * g * jnp.sin(t1 + t2)
    phi1 = -coupling * (dt2**2 + 2 * dt1 * dt2) * sin_2 + (m1 * c1 + m2 * l1) * g * jnp.sin(t1) + phi2
    effort = torque + d2 / d1 * phi1 - coupling * dt1**2 * sin_2 - phi2
    ddt2 = effort / (m2 * c2**2 + inertia - d2**2 / d1)
    ddt1 = -(d2 * ddt2 + phi1) / d1
    return AcrobotState(dt1, dt2, ddt1, ddt2)


def advance(state: AcrobotState, slope: AcrobotState, dt: float | Array) -> AcrobotState:
    """state + dt * slope."""
    return jax.tree.map(lambda x, dx: x + dt * dx, state, slope)


def wrap(angle: Array) -> Array:
    """The same angle in [-pi, pi]."""
    return angle - 2 * jnp.pi * jnp.round(angle / (2 * jnp.pi))


def observe(state: AcrobotState, params: AcrobotParams) -> Array:
    """[cos theta_1, sin theta_1, cos theta_2, sin theta_2, theta_1', theta_2']."""
    t1, t2, dt1, dt2 = state
    return jnp.stack([jnp.cos(t1), jnp.sin(t1), jnp.cos(t2), jnp.sin(t2), dt1, dt2])  # (6,)


def render(state: AcrobotState, params: AcrobotParams) -> np.ndarray:
    """Gymnasium's picture, (500, 500, 3), with the links as long as they are."""
    lengths = {"LINK_LENGTH_1": float(params.length_1), "LINK_LENGTH_2": float(params.length_2)}
    return picture("Acrobot-v1", state=np.array(state), **lengths)


# The values are drawn independently, so the bounds keep each centre of mass inside its link: the first link
# is at least 0.5 long, with its centre at 0.5. The dynamics use only the centre of the second link, so the
# centre differs, as in a uniform link 0.5 to 1.5 long.
SPREAD = {
    "mass_1": (1.0, 0.5, 1.5),
    "mass_2": (1.0, 0.5, 1.5),
    "length_1": (1.0, 0.5, 1.5),
    "centre_2": (0.5, 0.25, 0.75),
}
"""How drawn worlds differ."""

_BOUND = np.array([1, 1, 1, 1, 4 * np.pi, 9 * np.pi], np.float32)

ACROBOT = JaxEnv(
    EnvSpec("Acrobot-v1", "jax", Box((6,), -_BOUND, _BOUND), Discrete(3), 500, AcrobotParams(), SPREAD),
    reset,
    step,
    observe,
    render,
)
