"""What agents see: their own observations; their critics also those of others."""

from math import prod

import jax.numpy as jnp
from jax import Array

from shoal.learners.observations import named
from shoal.learners.team_config import TeamConfig
from shoal.nets.encoders import JOINT
from shoal.ops.masks import ACTION_MASK
from shoal.types import Box, EnvSpec, ObservationSpace, Tree

ALIVE, STATE, AGENT_ID = "alive", "state", "agent_id"
"""Parts of an observation: whether the agent still plays, the environment's state, which agent this is."""


def agent_space(config: TeamConfig, spec: EnvSpec) -> ObservationSpace:
    """The space of an agent's observations: its own parts, and for its critic those of others."""
    boxes = {name: box for name, box in named(spec.observation).items() if name not in (ALIVE, STATE)}
    size = sum(prod(box.shape) for name, box in boxes.items() if name != ACTION_MASK)
    assert spec.agents is not None
    if config.agent_ids:
        boxes[AGENT_ID] = Box((spec.agents,), 0.0, 1.0)
    if config.critic_view != "local":
        if has_state(config, spec):
            size += prod(named(spec.observation)[STATE].shape)
        else:
            size *= max(len(others) for others in critic_views(config, spec))
        boxes[JOINT] = Box((size,))
    return boxes if set(boxes) != {"obs"} else boxes["obs"]


def observe_agents(config: TeamConfig, spec: EnvSpec, obs: Tree) -> Tree:
    """Observations (..., A, ...) as policies see them; only critics see `JOINT`.

    An agent's joint observation is its own, then those of the agents after it, in a cycle, of all agents or
    of its team, padded with zeros to the longest. Where the environment has a state and critics see it, it
    is that state, then the agent's own observation.
    """
    own = {name: x for name, x in named(obs).items() if name not in (ALIVE, STATE)}
    shape = next(iter(own.values())).shape[: agent_axis(spec, obs) + 1]
    flat = {name: x.reshape(*shape, -1).astype(jnp.float32) for name, x in own.items()}
    seen = jnp.concatenate([flat[name] for name in sorted(flat) if name != ACTION_MASK], -1)
    if config.agent_ids:
        own[AGENT_ID] = jnp.broadcast_to(jnp.eye(shape[-1]), (*shape, shape[-1]))
    if has_state(config, spec):
        own[JOINT] = jnp.concatenate([obs[STATE], seen], -1)
    elif config.critic_view != "local":
        own[JOINT] = jnp.stack([join_views(seen, view) for view in pad_views(critic_views(config, spec))], -2)
    return own if set(own) != {"obs"} else own["obs"]


def join_views(seen: Array, view: tuple[int | None, ...]) -> Array:
    """The observations of these agents, concatenated; zeros for None."""
    blank = jnp.zeros_like(seen[..., 0, :])
    return jnp.concatenate([blank if agent is None else seen[..., agent, :] for agent in view], -1)


def critic_views(config: TeamConfig, spec: EnvSpec) -> list[tuple[int, ...]]:
    """The agents whose observations each agent's critic sees, in order."""
    assert spec.agents is not None
    sides = spec.teams if config.critic_view == "team" and spec.teams else (0,) * spec.agents
    rounds = [[(agent + k) % spec.agents for k in range(spec.agents)] for agent in range(spec.agents)]
    return [tuple(other for other in others if sides[other] == sides[others[0]]) for others in rounds]


def pad_views(each: list[tuple[int, ...]]) -> list[tuple[int | None, ...]]:
    """Views padded with None to one length."""
    longest = max(map(len, each))
    return [(*view, *[None] * (longest - len(view))) for view in each]


def has_state(config: TeamConfig, spec: EnvSpec) -> bool:
    """Whether critics see the environment's state."""
    return config.critic_view == "global" and STATE in named(spec.observation)


def agent_axis(spec: EnvSpec, obs: Tree) -> int:
    """The index of the axis of agents in observations."""
    name, box = next(iter(named(spec.observation).items()))
    return named(obs)[name].ndim - len(box.shape) - 1
