"""MountainCar-v0 and MountainCarContinuous-v0: drive a weak car out of a valley, up to the flag."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.envs.classic.render import picture
from shoal.types import Box, Discrete, EnvSpec, JaxEnv

MIN_POSITION, MAX_POSITION = -1.2, 0.6


class MountainCarParams(NamedTuple):
    """Physical parameters, per step. The valley is sin(3 position)."""

    gravity: float = 0.0025
    force: float = 0.001
    max_speed: float = 0.07
    goal_position: float = 0.5
    goal_velocity: float = 0.0


class MountainCarState(NamedTuple):
    """The state of the car; every field is ()."""

    position: Array
    velocity: Array


def reset(key: Array, params: MountainCarParams) -> MountainCarState:
    """position uniform in [-0.6, -0.4], at rest."""
    return MountainCarState(jax.random.uniform(key, minval=-0.6, maxval=-0.4), jnp.float32(0))


def step(
    key: Array, state: MountainCarState, action: Array, params: MountainCarParams
) -> tuple[MountainCarState, Array, Array]:
    """Push -1, 0 or +1 with action 0, 1 or 2; reward -1 at every step, the last one included."""
    state, arrived = drive(state, (action - 1) * params.force, params)
    return state, jnp.float32(-1), arrived


def step_continuous(
    key: Array, state: MountainCarState, action: Array, params: MountainCarParams
) -> tuple[MountainCarState, Array, Array]:
    """Push a in [-1, 1]; reward = 100 [arrived] - 0.1 a^2.

    a is the action after clipping; Gymnasium also counts the part outside the bounds.
    """
    state, arrived = drive(state, action[0] * params.force, params)
    return state, jnp.where(arrived, jnp.float32(100), 0) - 0.1 * action[0] ** 2, arrived


def drive(state: MountainCarState, push: Array, params: MountainCarParams) -> tuple[MountainCarState, Array]:
    """velocity <- velocity + push - g cos(3 position), position <- position + velocity, both bounded.

    The wall on the left stops the car. Arrived: at the goal or beyond, at the goal's velocity or faster.
    """
    velocity = state.velocity + push - params.gravity * jnp.cos(3 * state.position)
    velocity = jnp.clip(velocity, -params.max_speed, params.max_speed)
    position = jnp.clip(state.position + velocity, MIN_POSITION, MAX_POSITION)
    velocity = jnp.where((position <= MIN_POSITION) & (velocity < 0), 0, velocity)
    arrived = (position >= params.goal_position) & (velocity >= params.goal_velocity)
    return MountainCarState(position, velocity), arrived


def observe(state: MountainCarState, params: MountainCarParams) -> Array:
    """[position, velocity]."""
    return jnp.stack(state)  # (2,)


def render(state: MountainCarState, params: MountainCarParams) -> np.ndarray:
    """Gymnasium's picture, (400, 600, 3), with the flag where the goal is."""
    return picture("MountainCar-v0", state=np.array(state), goal_position=float(params.goal_position))


# A spread of 1 is a tenth of each value. What matters is force / gravity: above 0.65 some starts reach the
# flag by pushing right all the time; below 0.3 rocking takes longer than the limit of 200 steps. The
# continuous car is already close to the first (0.6), so its bounds differ.
SPREAD = {"gravity": (0.00025, 0.002, 0.003), "force": (0.0001, 0.0009, 0.0012)}
SPREAD_CONTINUOUS = {"gravity": (0.00025, 0.0024, 0.003), "force": (0.00015, 0.0012, 0.00155)}

_OBSERVATION = Box(
    (2,), np.array([MIN_POSITION, -0.07], np.float32), np.array([MAX_POSITION, 0.07], np.float32)
)

MOUNTAIN_CAR = JaxEnv(
    EnvSpec("MountainCar-v0", "jax", _OBSERVATION, Discrete(3), 200, MountainCarParams(), SPREAD),
    reset,
    step,
    observe,
    render,
)
_PUSHES, _PARAMS = Box((1,), -1.0, 1.0), MountainCarParams(force=0.0015, goal_position=0.45)
_SPEC = EnvSpec("MountainCarContinuous-v0", "jax", _OBSERVATION, _PUSHES, 999, _PARAMS, SPREAD_CONTINUOUS)
MOUNTAIN_CAR_CONTINUOUS = MOUNTAIN_CAR._replace(spec=_SPEC, step=step_continuous)
