"""CartPole-v1, CartPoleContinuous-v0 and CartPoleNoVel-v1: balance a pole on a cart."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.envs.classic.render import picture
from shoal.types import Box, Discrete, EnvSpec, JaxEnv


class CartPoleParams(NamedTuple):
    """Physical parameters, in SI units."""

    gravity: float = 9.8
    mass_cart: float = 1.0
    mass_pole: float = 0.1
    length: float = 0.5  # from the axle to the pole's centre: half the pole
    force: float = 10.0
    time_step: float = 0.02
    max_position: float = 2.4
    max_angle: float = 12 * np.pi / 180


def reset(key: Array, params: CartPoleParams) -> Array:
    """The state is [x, x', theta, theta'], upright at theta = 0; all uniform in [-0.05, 0.05]."""
    return jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)


def step(key: Array, state: Array, action: Array, params: CartPoleParams) -> tuple[Array, Array, Array]:
    """Push left or right with the full force; reward 1 at every step, the last one included."""
    return balance(state, jnp.where(action == 1, params.force, -params.force), params)


def step_continuous(
    key: Array, state: Array, action: Array, params: CartPoleParams
) -> tuple[Array, Array, Array]:
    """Push with a share of the force in [-1, 1]; reward 1 at every step, the last one included."""
    return balance(state, action[0] * params.force, params)


def balance(state: Array, push: Array, params: CartPoleParams) -> tuple[Array, Array, Array]:
    """One explicit Euler step of Florian's cart-pole under the force F.

    f       = (F + m_p l theta'^2 sin theta) / m
    theta'' = (g sin theta - f cos theta) / (l (4/3 - m_p cos^2 theta / m))
    x''     = f - m_p l theta'' cos theta / m                    (m = m_cart + m_pole)

    Florian, "Correct equations for the dynamics of the cart-pole system", 2007.
    """
    x, x_dot, theta, theta_dot = state
    g, m_cart, m_pole, length, _, dt, max_position, max_angle = params
    cos, sin = jnp.cos(theta), jnp.sin(theta)
    m = m_cart + m_pole
    f = (push + m_pole * length * theta_dot**2 * sin) / m
    theta_acc = (g * sin - f * cos) / (length * (4 / 3 - m_pole * cos**2 / m))
    x_acc = f - m_pole * length * theta_acc * cos / m
    x, theta = x + dt * x_dot, theta + dt * theta_dot
    state = jnp.stack([x, x_dot + dt * x_acc, theta, theta_dot + dt * theta_acc])
    terminated = (jnp.abs(x) > max_position) | (jnp.abs(theta) > max_angle)
    return state, jnp.float32(1), terminated


def observe(state: Array, params: CartPoleParams) -> Array:
    """[x, x', theta, theta']."""
    return state  # (4,)


def observe_positions(state: Array, params: CartPoleParams) -> Array:
    """[x, theta], without the velocities."""
    return state[jnp.array([0, 2])]  # (2,)


def render(state: Array, params: CartPoleParams) -> np.ndarray:
    """Gymnasium's picture, (400, 600, 3), with the pole as long as it is."""
    return picture(
        "CartPole-v1",
        state=np.asarray(state),
        length=float(params.length),
        x_threshold=float(params.max_position),
    )


SPREAD = {
    "gravity": (1.0, 0.1, np.inf),
    "mass_cart": (1.0, 0.2, 2.0),
    "mass_pole": (1.0, 0.01, 1.0),
    "length": (1.0, 0.3, 2.0),
}
"""How drawn worlds differ: the ranges of github.com/WaimenMak/FRL, with gravity above 0."""

_BOUND = np.array([4.8, np.inf, 24 * np.pi / 180, np.inf], np.float32)

CARTPOLE = JaxEnv(
    EnvSpec("CartPole-v1", "jax", Box((4,), -_BOUND, _BOUND), Discrete(2), 500, CartPoleParams(), SPREAD),
    reset,
    step,
    observe,
    render,
)
_POSITIONS = Box((2,), -_BOUND[[0, 2]], _BOUND[[0, 2]])
CARTPOLE_NO_VELOCITY = CARTPOLE._replace(
    spec=replace(CARTPOLE.spec, name="CartPoleNoVel-v1", observation=_POSITIONS), observe=observe_positions
)
_CONTINUOUS = {"action": Box((1,), -1.0, 1.0), "params": CartPoleParams(force=30.0)}  # as in WaimenMak/FRL
CARTPOLE_CONTINUOUS = CARTPOLE._replace(
    spec=replace(CARTPOLE.spec, name="CartPoleContinuous-v0", **_CONTINUOUS), step=step_continuous
)
