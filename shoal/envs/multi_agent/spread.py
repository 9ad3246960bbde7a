"""simple_spread: three agents cover three landmarks without touching each other.

All are one team. In `simple_spread_v3` an agent's reward is half the team's distance to the landmarks, half
its own collisions. In `simple_spread_shared_v3` all receive an equal share of the team's reward, as in the
first versions of this environment: published team returns of -120 to -135 are on that scale.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.envs.multi_agent import particles
from shoal.envs.multi_agent.marks import BLUE, GREY
from shoal.envs.multi_agent.particles import Particles


class SpreadParams(NamedTuple):
    """Physical parameters, and how the reward is divided."""

    time_step: float = 0.1
    damping: float = 0.25
    acceleration: float = 5.0
    contact_force: float = 100.0
    contact_margin: float = 1e-3
    size: float = 0.15
    landmark_range: float = 1.0
    local_ratio: float = 0.5  # the share of an agent's own collisions in its reward; none in the shared one


def reset(key: Array, params: SpreadParams) -> Particles:
    """Three agents, three landmarks."""
    return particles.scatter(key, 3, 3, params.landmark_range)


def step(key: Array, state: Particles, action: Array, params: SpreadParams) -> tuple[Particles, Array, Array]:
    """r_i = - (1 - q) sum_m min_j |x_j - l_m| - q (collisions of i), with q = local_ratio."""
    state = advance(state, action, params)
    far, collisions = far_and_collisions(state, params)
    reward = -(1 - params.local_ratio) * far - params.local_ratio * collisions
    return state, reward, jnp.bool_(False)


def step_shared(
    key: Array, state: Particles, action: Array, params: SpreadParams
) -> tuple[Particles, Array, Array]:
    """r = - 1/3 sum_i (sum_m min_j |x_j - l_m| + collisions of i + 1), the same for all.

    The 1 is each agent's collision with itself, which the first versions counted
    (github.com/openai/multiagent-particle-envs/issues/67): 75 of the team's return.
    """
    state = advance(state, action, params)
    far, collisions = far_and_collisions(state, params)
    return state, jnp.full(3, -jnp.mean(far + collisions + 1)), jnp.bool_(False)


def advance(state: Particles, action: Array, params: SpreadParams) -> Particles:
    """Agents collide with each other; landmarks do not collide."""
    sizes = jnp.full(3, params.size)
    pushes = params.acceleration * particles.push(action)
    force = pushes + particles.contact(state.position, state.position, sizes, params)
    return particles.move(state, force, jnp.inf, params)


def far_and_collisions(state: Particles, params: SpreadParams) -> tuple[Array, Array]:
    """The sum of the landmarks' distances to the nearest agent (); how many others each touches (3,)."""
    far = jnp.sum(jnp.min(particles.distances(state.position, state.landmarks), axis=0))
    touches = (particles.distances(state.position, state.position) < 2 * params.size) & ~np.eye(3, dtype=bool)
    return far, jnp.sum(touches, axis=1).astype(far.dtype)


def observe(state: Particles, params: SpreadParams) -> Array:
    """[own velocity, own position, landmarks, others, 4 zeros]; the zeros stand for messages."""
    position = state.position
    seen_things = [
        particles.seen(position, state.landmarks),
        particles.seen_others(position),
        jnp.zeros((3, 4)),
    ]
    return jnp.concatenate([state.velocity, position, *seen_things], axis=1)  # (3, 18)


def render(state: Particles, params: SpreadParams) -> np.ndarray:
    """Blue agents, and grey landmarks on top of them."""
    return particles.paint_discs(state, [float(params.size)] * 3 + [0.05] * 3, [BLUE] * 3 + [GREY] * 3)


SPREAD = {"damping": (0.2, 0.05, 0.75), "acceleration": (2.0, 1.0, 10.0), "size": (0.05, 0.05, 0.3)}
"""How drawn worlds differ: in damping, and in the agents' strength and size."""

_SHARED = (18, SpreadParams(), SPREAD, 3)
SIMPLE_SPREAD = (
    *particles.environments("simple_spread_v3", (reset, step, observe, render), *_SHARED),
    *particles.environments("simple_spread_shared_v3", (reset, step_shared, observe, render), *_SHARED),
)
