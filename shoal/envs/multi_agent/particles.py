"""Particle environments: discs that move on a plane. Their physics, observations and pictures.

The rules are those of the package `mpe2` 1.1 with its defaults, after Lowe et al., "Multi-Agent Actor-Critic
for Mixed Cooperative-Competitive Environments", 2017. The scenarios are `spread`, `adversary` and `tag`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.envs.multi_agent.marks import WHITE, Colour, Mark, paint
from shoal.types import Box, Discrete, EnvSpec, JaxEnv

EPISODE = 25
"""Steps of an episode; nothing ends one earlier."""

_WIDTH = 350
"""Pixels of a picture's side."""

PUSHES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.float32)
"""The five actions: nothing, left, right, down, up."""


class Particles(NamedTuple):
    """Positions and velocities."""

    position: Array  # (A, 2)
    velocity: Array  # (A, 2)
    landmarks: Array  # (M, 2)
    goal: Any = ()  # (1, 2) the position of the landmark that is the goal, if any


def environments(
    name: str,
    functions: tuple[Callable, Callable, Callable, Callable],
    size: int,
    params: Any,
    spread: dict[str, tuple[float, float, float]],
    agents: int,
    teams: tuple[int, ...] = (),
) -> tuple[JaxEnv, JaxEnv]:
    """The environment with five actions, and with pushes of any strength, `..._continuous_v3`.

    `functions` are reset, step, observe and render; `size` is that of an agent's observation.
    """
    spec = EnvSpec(
        name=name,
        backend="jax",
        observation=Box((size,)),
        action=Discrete(5),
        max_episode_steps=EPISODE,
        params=params,
        spread=spread,
        agents=agents,
        teams=teams,
        shortest=EPISODE,
    )
    stem, version = name.rsplit("_", 1)
    continuous = replace(spec, name=f"{stem}_continuous_{version}", action=Box((5,), 0.0, 1.0))
    return JaxEnv(spec, *functions), JaxEnv(continuous, *functions)


def scatter(key: Array, num_agents: int, num_landmarks: int, landmark_range: float) -> Particles:
    """Agents at rest, uniform in [-1, 1]^2; landmarks uniform in a square of their own size."""
    key_agents, key_landmarks = jax.random.split(key)
    position = jax.random.uniform(key_agents, (num_agents, 2), minval=-1.0)
    landmarks = landmark_range * jax.random.uniform(key_landmarks, (num_landmarks, 2), minval=-1.0)
    return Particles(position, jnp.zeros((num_agents, 2)), landmarks)


def push(action: Array) -> Array:
    """The direction (A, 2) of choices (A,), or of five strengths (A, 5): right minus left, up minus down.

    >>> push(jnp.array([1, 4])).tolist()
    [[-1.0, 0.0], [0.0, 1.0]]
    >>> push(jnp.array([[0.5, 0.25, 1.0, 0.0, 0.5]])).tolist()
    [[0.75, 0.5]]
    """
    if action.ndim == 1:
        return jnp.asarray(PUSHES)[action]
    return jnp.stack([action[:, 2] - action[:, 1], action[:, 4] - action[:, 3]], axis=1)


def contact(position: Array, bodies: Array, sizes: Array, params: Any) -> Array:
    """Forces (A, 2) on agents from all bodies (B, 2), the agents themselves being the first A of them.

    F_i = sum_j c k log(1 + exp((r_i + r_j - d_ij) / k)) (x_i - x_j) / d_ij, with c = contact_force and
    k = contact_margin: a stiff spring where they overlap, nearly 0 where they do not.
    """
    apart = position[:, None] - bodies[None]  # (A, B, 2)
    distance = jnp.maximum(norm(apart), 1e-9)  # (A, B)
    overlap = sizes[: len(position), None] + sizes[None] - distance
    depth = params.contact_margin * jax.nn.softplus(overlap / params.contact_margin)
    itself = np.eye(*distance.shape, dtype=bool)
    strength = jnp.where(itself, 0.0, params.contact_force * depth / distance)
    return jnp.sum(strength[:, :, None] * apart, axis=1)


def move(state: Particles, force: Array, max_speed: Array | float, params: Any) -> Particles:
    """x' = x + v dt;  v' = (1 - damping) v + F dt, limited to `max_speed`; every mass is 1."""
    position = state.position + params.time_step * state.velocity
    velocity = (1 - params.damping) * state.velocity + params.time_step * force
    excess = jnp.maximum(norm(velocity) / max_speed, 1.0)
    return state._replace(position=position, velocity=velocity / excess[:, None])


def norm(x: Array) -> Array:
    """Lengths of vectors."""
    return jnp.sqrt(jnp.sum(jnp.square(x), axis=-1))


def distances(left: Array, right: Array) -> Array:
    """Distances between all pairs of points: (A, 2), (B, 2) -> (A, B)."""
    return norm(left[:, None] - right[None])


def seen(position: Array, points: Array) -> Array:
    """All points relative to each agent, concatenated: (A, 2), (B, 2) -> (A, 2 B)."""
    return (points[None] - position[:, None]).reshape(len(position), -1)


def seen_others(position: Array) -> Array:
    """The other agents relative to each agent, in their order: (A, 2) -> (A, 2 (A - 1))."""
    num = len(position)
    numbers = np.array([[j for j in range(num) if j != i] for i in range(num)])
    others = position[numbers]  # (A, A - 1, 2)
    return (others - position[:, None]).reshape(len(position), -1)


def paint_discs(
    state: Particles, sizes: Sequence[float] | np.ndarray, colours: Sequence[Colour]
) -> np.ndarray:
    """Agents and landmarks as discs of these radii, the last one on top, on [-1.3, 1.3]^2 or wider."""
    positions = np.concatenate([state.position, state.landmarks])
    reach = max(1.3, float(np.max(np.abs(positions) + np.reshape(sizes, (-1, 1)))))
    unit = _WIDTH / (2 * reach)
    discs = [
        Mark(unit * (reach - y), unit * (reach + x), "disc", colour, 2 * unit * size)
        for (x, y), size, colour in zip(positions, sizes, colours, strict=True)
    ]
    return paint(_WIDTH, _WIDTH, discs, cell=1, ground=WHITE)
