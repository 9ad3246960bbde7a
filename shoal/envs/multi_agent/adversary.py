"""simple_adversary: two good agents go to the goal, one of two landmarks, and hide which one it is.

The adversary (agent 0, team 0) goes there too, without observing which landmark is the goal. The good agents
are team 1. There are no collisions.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.envs.multi_agent import particles
from shoal.envs.multi_agent.marks import BLUE, GREEN, GREY, RED
from shoal.envs.multi_agent.particles import Particles


class AdversaryParams(NamedTuple):
    """Physical parameters."""

    time_step: float = 0.1
    damping: float = 0.25
    acceleration: float = 5.0
    landmark_range: float = 1.0


def reset(key: Array, params: AdversaryParams) -> Particles:
    """The goal is one of the landmarks."""
    key_positions, key_goal = jax.random.split(key)
    state = particles.scatter(key_positions, 3, 2, params.landmark_range)
    return state._replace(goal=state.landmarks[jax.random.randint(key_goal, (1,), 0, 2)])


def step(
    key: Array, state: Particles, action: Array, params: AdversaryParams
) -> tuple[Particles, Array, Array]:
    """With d_i = |x_i - goal|: r_0 = -d_0, and for the good agents r = d_0 - min(d_1, d_2)."""
    state = particles.move(state, params.acceleration * particles.push(action), jnp.inf, params)
    far = particles.norm(state.position - state.goal)  # (3,)
    good = far[0] - jnp.minimum(far[1], far[2])
    return state, jnp.stack([-far[0], good, good]), jnp.bool_(False)


def observe(state: Particles, params: AdversaryParams) -> Array:
    """[goal, landmarks, others] for the good; [landmarks, others, 0, 0] for the adversary."""
    position = state.position
    landmarks, others = particles.seen(position, state.landmarks), particles.seen_others(position)
    common = jnp.concatenate([landmarks, others], axis=1)
    adversary = jnp.concatenate([common[:1], jnp.zeros((1, 2))], axis=1)
    good = jnp.concatenate([state.goal - position[1:], common[1:]], axis=1)
    return jnp.concatenate([adversary, good])  # (3, 10)


def render(state: Particles, params: AdversaryParams) -> np.ndarray:
    """A red adversary and blue agents; the goal is green."""
    is_goal = np.all(np.asarray(state.landmarks) == np.asarray(state.goal), axis=1)
    colours = [RED, BLUE, BLUE] + [GREEN if goal else GREY for goal in is_goal]
    return particles.paint_discs(state, [0.15] * 3 + [0.08] * 2, colours)


SPREAD = {"damping": (0.2, 0.05, 0.75), "acceleration": (2.0, 1.0, 10.0)}
"""How drawn worlds differ: in damping, and in the agents' strength."""

SIMPLE_ADVERSARY = particles.environments(
    "simple_adversary_v3", (reset, step, observe, render), 10, AdversaryParams(), SPREAD, 3, (0, 1, 1)
)
