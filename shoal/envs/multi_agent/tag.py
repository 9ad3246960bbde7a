"""simple_tag: three slow chasers (agents 0 to 2, team 0) chase one fast prey (agent 3, team 1)."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.envs.multi_agent import particles
from shoal.envs.multi_agent.marks import GREEN, GREY, RED
from shoal.envs.multi_agent.particles import Particles

IS_CHASER = np.array([True, True, True, False])


class TagParams(NamedTuple):
    """Physical parameters."""

    time_step: float = 0.1
    damping: float = 0.25
    contact_force: float = 100.0
    contact_margin: float = 1e-3
    chaser_acceleration: float = 3.0
    chaser_speed: float = 1.0
    chaser_size: float = 0.075
    prey_acceleration: float = 4.0
    prey_speed: float = 1.3
    prey_size: float = 0.05
    obstacle_size: float = 0.2
    landmark_range: float = 0.9


def reset(key: Array, params: TagParams) -> Particles:
    """Three chasers, then the prey; two obstacles."""
    return particles.scatter(key, 4, 2, params.landmark_range)


def step(key: Array, state: Particles, action: Array, params: TagParams) -> tuple[Particles, Array, Array]:
    """Every chaser gets 10 for each chaser that touches the prey; the prey loses as much, and `penalty`."""
    acceleration = jnp.where(IS_CHASER, params.chaser_acceleration, params.prey_acceleration)
    max_speed = jnp.where(IS_CHASER, params.chaser_speed, params.prey_speed)
    bodies = jnp.concatenate([state.position, state.landmarks])
    pushes = acceleration[:, None] * particles.push(action)
    force = pushes + particles.contact(state.position, bodies, sizes(params), params)
    state = particles.move(state, force, max_speed, params)
    touches = particles.norm(state.position[:3] - state.position[3:]) < params.chaser_size + params.prey_size
    caught = jnp.sum(jnp.where(touches, 10.0, 0.0))
    return state, jnp.where(IS_CHASER, caught, -caught - penalty(state.position[3])), jnp.bool_(False)


def sizes(params: TagParams) -> Array:
    """The radius of each chaser, of the prey, of each obstacle (6,)."""
    return jnp.stack([params.chaser_size] * 3 + [params.prey_size] + [params.obstacle_size] * 2)


def penalty(position: Array) -> Array:
    """For being far out: on each axis 0 up to 0.9, linear up to 1, then exp(2 |x| - 2), at most 10.

    >>> [round(float(penalty(jnp.array([x, 0.0]))), 3) for x in (0.5, -0.95, 1.5, 9.0)]
    [0.0, 0.5, 2.718, 10.0]
    """
    far = jnp.abs(position)
    beyond = jnp.exp(jnp.minimum(2 * far - 2, np.log(10)))
    return jnp.sum(jnp.where(far < 0.9, 0.0, jnp.where(far < 1, 10 * (far - 0.9), beyond)))


def observe(state: Particles, params: TagParams) -> Array:
    """[own velocity, own position, obstacles, others, the prey's velocity]; for the prey the last is zero."""
    position, velocity = state.position, state.velocity
    prey = jnp.where(IS_CHASER[:, None], velocity[3:], 0.0)
    seen_things = [particles.seen(position, state.landmarks), particles.seen_others(position), prey]
    return jnp.concatenate([velocity, position, *seen_things], axis=1)  # (4, 16)


def render(state: Particles, params: TagParams) -> np.ndarray:
    """Red chasers, a green prey, grey obstacles."""
    return particles.paint_discs(state, np.asarray(sizes(params)), [RED] * 3 + [GREEN] + [GREY] * 2)


SPREAD = {"damping": (0.2, 0.05, 0.75), "chaser_speed": (0.3, 0.4, 2.0), "prey_speed": (0.3, 0.4, 2.0)}
"""How drawn worlds differ: in damping, and in the speeds of chasers and prey."""

SIMPLE_TAG = particles.environments(
    "simple_tag_v3", (reset, step, observe, render), 16, TagParams(), SPREAD, 4, (0, 0, 0, 1)
)
