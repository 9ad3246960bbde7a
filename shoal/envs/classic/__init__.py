"""Environments written in JAX, with their physical parameters as data."""

from shoal.envs.classic.acrobot import ACROBOT
from shoal.envs.classic.cartpole import CARTPOLE, CARTPOLE_CONTINUOUS, CARTPOLE_NO_VELOCITY
from shoal.envs.classic.mountain_car import MOUNTAIN_CAR, MOUNTAIN_CAR_CONTINUOUS
from shoal.envs.classic.pendulum import PENDULUM, PENDULUM_NO_VELOCITY, PENDULUM_SPARSE
from shoal.types import JaxEnv

BUILTIN: dict[str, JaxEnv] = {
    env.spec.name: env
    for env in (
        CARTPOLE,
        CARTPOLE_CONTINUOUS,
        CARTPOLE_NO_VELOCITY,
        PENDULUM,
        PENDULUM_SPARSE,
        PENDULUM_NO_VELOCITY,
        ACROBOT,
        MOUNTAIN_CAR,
        MOUNTAIN_CAR_CONTINUOUS,
    )
}
"""Every built-in environment by its id; a Gymnasium id means exactly Gymnasium's environment."""
