"""Replay buffer: the last transitions of one learner, in a ring on its device.

A transition spans n steps of one episode, or fewer at the episode's end. Its rewards are stored one by one
and discounted when they are sampled, because gamma is a hyperparameter that may change.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from shoal.ops import trees
from shoal.types import EnvSpec, ObservationSpace, Rollout, Tree


class Transition(NamedTuple):
    """Up to n consecutive steps: where they began, what was earned, where they led."""

    obs: Tree  # (...)
    action: Tree  # (...) the first
    reward: Array  # (n,), 0 after the episode's end
    steps: Array  # () int32, how many steps, at most n
    next_obs: Tree  # (...) after those steps; at an episode's end the true final observation
    terminated: Array  # () bool: no value follows


class Ring(NamedTuple):
    """The last transitions; the next one is written at `count` modulo the capacity."""

    data: Transition  # (capacity, ...)
    count: Array  # () int32, written so far


Tail = Rollout | tuple[()]
"""The last n - 1 steps, whose n-step returns are not known yet. It is empty for n = 1, rather than arrays
without steps: compiling those for several devices crashes jaxlib 0.11.2."""


class ReplayBuffer(NamedTuple):
    """The ring, the steps that are not in it yet, and the progress of the warm-up."""

    ring: Ring
    tail: Tail
    num_steps: Array  # () int32, environment steps so far
    warming_up: Array  # () bool: before learning starts; actions are random


def empty_buffer(
    spec: EnvSpec, action: jax.ShapeDtypeStruct, capacity: int, num_envs: int, n: int, warming_up: bool
) -> ReplayBuffer:
    """A buffer without transitions; `action` is the shape and type of one action."""
    tail = empty_tail(spec, action, num_envs, n)
    return ReplayBuffer(empty_ring(spec, action, capacity, n), tail, jnp.int32(0), jnp.bool_(warming_up))


def add(buffer: ReplayBuffer, rollout: Rollout, n: int, learning_starts: int) -> ReplayBuffer:
    """The buffer with a rollout's transitions in it, but for those with a number that is not finite."""
    transitions, valid, tail = make_transitions(buffer.tail, rollout, n)
    num_steps = buffer.num_steps + rollout.reward.size
    transitions, valid = trees.merge_axes((transitions, valid))
    ring = write(buffer.ring, transitions, valid & trees.finite_rows(transitions))
    return ReplayBuffer(ring, tail, num_steps, num_steps < learning_starts)


def on_restart(buffer: ReplayBuffer) -> ReplayBuffer:
    """The buffer before new episodes: the steps in the tail are dropped, because nothing follows them."""
    if not buffer.tail:
        return buffer
    return buffer._replace(tail=buffer.tail._replace(valid=jnp.zeros_like(buffer.tail.valid)))


def empty_ring(spec: EnvSpec, action: jax.ShapeDtypeStruct, capacity: int, n: int = 1) -> Ring:
    """Space for `capacity` transitions of an environment."""
    obs = zeros_like_space(spec.observation, (capacity,))
    data = Transition(
        obs=obs,
        action=jnp.zeros((capacity, *action.shape), action.dtype),
        reward=jnp.zeros((capacity, n)),
        steps=jnp.zeros(capacity, jnp.int32),
        next_obs=jax.tree.map(jnp.zeros_like, obs),
        terminated=jnp.zeros(capacity, bool),
    )
    return Ring(data, jnp.int32(0))


def size(ring: Ring) -> Array:
    """How many transitions there are to sample from."""
    return jnp.minimum(ring.count, ring.data.steps.shape[0])


def write(ring: Ring, transitions: Transition, valid: Array) -> Ring:
    """Append the valid ones of (B, ...) transitions, in their order; they overwrite the oldest."""
    capacity = ring.data.steps.shape[0]
    number = ring.count + jnp.cumsum(valid)  # counted from 1
    count = number[-1]
    kept = valid & (number > count - capacity)  # so that no index is written twice
    index = jnp.where(kept, (number - 1) % capacity, capacity)
    put = lambda old, new: old.at[index].set(new.astype(old.dtype), mode="drop")
    return Ring(jax.tree.map(put, ring.data, transitions), count)


def sample(ring: Ring, key: Array, shape: tuple[int, ...]) -> Transition:
    """Transitions drawn uniformly, with replacement."""
    index = jax.random.randint(key, shape, 0, jnp.maximum(size(ring), 1))
    return jax.tree.map(lambda x: x[index], ring.data)


def empty_tail(spec: EnvSpec, action: jax.ShapeDtypeStruct, num_envs: int, n: int) -> Tail:
    """The tail before the first step: none of its steps is valid."""
    if n == 1:
        return ()
    shape = (n - 1, num_envs)
    never = jnp.zeros(shape, bool)
    return Rollout(
        obs=zeros_like_space(spec.observation, shape),
        action=jnp.zeros((*shape, *action.shape), action.dtype),
        reward=jnp.zeros(shape),
        terminated=never,
        truncated=never,
        valid=never,
        last_obs=(),
    )


def make_transitions(tail: Tail, rollout: Rollout, n: int) -> tuple[Transition, Array, Tail]:
    """Transitions (T, E, ...) of T steps, which of them are valid (T, E), and the next tail.

    A transition begins at each of the tail's steps and of the rollout's, except the last n - 1 of them: these
    are the next tail.
    """
    num_steps = rollout.reward.shape[0]
    new = rollout._replace(last_obs=(), peer_targets=(), episode_starts=())
    join = lambda old, new: jnp.concatenate([old, new])
    whole = jax.tree.map(join, tail, new) if tail else new  # (T + n - 1, E, ...)
    after = jax.tree.map(lambda x, last: jnp.concatenate([x[1:], last[None]]), whole.obs, rollout.last_obs)
    window = lambda tree, k: jax.tree.map(lambda x: x[k : k + num_steps], tree)
    first = window(whole, 0)
    continues, rewards = first.valid, []
    steps = jnp.zeros(continues.shape, jnp.int32)
    next_obs, terminated = window(after, 0), first.terminated
    for k in range(n):
        step = window(whole, k)
        rewards.append(jnp.where(continues, step.reward, 0.0))
        steps = steps + continues
        next_obs = trees.where_rows(continues, window(after, k), next_obs)
        terminated = jnp.where(continues, step.terminated, terminated)
        continues = continues & ~(step.terminated | step.truncated)
    transitions = Transition(first.obs, first.action, jnp.stack(rewards, -1), steps, next_obs, terminated)
    next_tail = jax.tree.map(lambda x: x[num_steps:], whole) if tail else ()
    return transitions, first.valid, next_tail


def n_step_return(batch: Transition, gamma: Array) -> tuple[Array, Array]:
    """sum_k gamma^k r_k, and gamma^steps, the discount of what follows: 0 after a termination."""
    powers = gamma ** jnp.arange(batch.reward.shape[-1])
    following = gamma**batch.steps * ~batch.terminated
    return batch.reward @ powers, following


def zeros_like_space(space: ObservationSpace, shape: tuple[int, ...]) -> Tree:
    """Observations of a space, all zeros, with leading axes `shape`."""
    if isinstance(space, dict):
        return {name: zeros_like_space(box, shape) for name, box in space.items()}
    return jnp.zeros((*shape, *space.shape), space.dtype)
