"""Collection: one scan, every environment, every learner of a device at once."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from shoal.distributed.mesh import all_shares, own_share
from shoal.ops import trees
from shoal.types import Env, Learner, LearnerState, Rollout, TimeStep, Tree

WINDOW = 100
"""Finished episodes over which scores are averaged."""


class Episodes(NamedTuple):
    """Raw scores, per learner: episodes under way, and the last `WINDOW` finished ones.

    Where an environment has agents, each has a return of its own.
    """

    running_return: Array  # (L, E) or (L, E, A)
    running_length: Array  # (L, E) int32
    returns: Array  # (L, WINDOW) or (L, WINDOW, A), NaN until an episode has filled the place
    lengths: Array  # (L, WINDOW)
    finished: Array  # (L,) int32, how many so far


class Worlds(NamedTuple):
    """Where every environment stands: its own state, the last time step, the scores."""

    state: Tree
    step: TimeStep  # (L, E)
    episodes: Episodes


def begin(env: Env, keys: Array, params: Tree, shards: int = 1) -> Worlds:
    """Reset every environment. keys (L, E); params (L, E) per leaf, of all `shards` devices' environments."""
    keys, params = jax.tree.map(lambda x: own_share(x, 1, shards), (keys, params))
    num_learners, num_envs = keys.shape
    state, step = env.reset(keys.reshape(-1), trees.merge_axes(params))
    agents = step.reward.shape[1:]
    episodes = Episodes(
        running_return=jnp.zeros((num_learners, num_envs, *agents)),
        running_length=jnp.zeros((num_learners, num_envs), jnp.int32),
        returns=jnp.full((num_learners, WINDOW, *agents), jnp.nan, jnp.float32),
        lengths=jnp.full((num_learners, WINDOW), jnp.nan, jnp.float32),
        finished=jnp.zeros(num_learners, jnp.int32),
    )
    return Worlds(state, trees.split_axis(step, num_learners), episodes)


def begin_anew(
    env: Env, learner: Learner, keys: Array, cohort: LearnerState, worlds: Worlds, shards: int = 1
) -> tuple[LearnerState, Worlds]:
    """Every environment in a new episode of its world, keys (L,); the episodes under way count nowhere."""
    assert env.restart is not None, "`make_trainer` asks for it"
    num_learners, num_envs = worlds.step.valid.shape
    row_keys = jax.vmap(lambda key: jax.random.split(key, num_envs * shards))(keys)
    state, step = env.restart(own_share(row_keys, 1, shards).reshape(-1), worlds.state)
    begun = {
        name: jnp.zeros_like(getattr(worlds.episodes, name)) for name in ("running_return", "running_length")
    }
    worlds = Worlds(state, trees.split_axis(step, num_learners), worlds.episodes._replace(**begun))
    return jax.vmap(learner.abandon)(cohort), worlds


def collect(
    env: Env,
    learner: Learner,
    num_steps: int,
    keys: Array,
    cohort: LearnerState,
    worlds: Worlds,
    shards: int = 1,
) -> tuple[Worlds, LearnerState, Rollout]:
    """Let every learner act for `num_steps` steps in its environments.

    keys (L,). Returns rollouts time-major, (T, L, E, ...), with `last_obs` (L, E, ...). Where `shards`
    devices share the learners, E are this device's environments; they see what they would see on one.
    """
    num_learners, num_envs = worlds.step.valid.shape
    key_act, key_env = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
    shape = (num_steps, num_envs * shards)
    noise = jax.vmap(lambda key: learner.draw(key, shape), out_axes=1)(key_act)
    noise = jax.tree.map(lambda x: own_share(x, 2, shards), noise)  # (T, L, E, ...)
    row_keys = jax.vmap(lambda key: jax.random.split(key, num_envs * shards))(key_env)
    row_keys = own_share(row_keys, 1, shards).reshape(-1)
    chance = env.draw(row_keys, worlds.state, num_steps)  # (T, N, ...)

    def advance(carry, randomness):
        memory, state, obs, begins = carry
        noise, chance = randomness
        action, memory = jax.vmap(learner.act)(cohort._replace(memory=memory), obs, noise, begins)
        state, rows = env.step(state, trees.merge_axes(action), chance)
        step = trees.split_axis(rows, num_learners)
        seen = Rollout(obs, action, step.reward, step.terminated, step.truncated, step.valid, ())
        return (memory, state, step.obs, ~step.valid), (seen, step.info)

    begins = ~worlds.step.valid
    start = (cohort.memory, worlds.state, worlds.step.obs, begins)
    (memory, state, obs, _), (rollout, info) = jax.lax.scan(advance, start, (noise, chance))
    # Scores are counted afterwards: in the loop above each operation costs time, whatever its size.
    episodes = worlds.episodes
    running = (episodes.running_return, episodes.running_length)
    running, finished = jax.lax.scan(score, running, outcome(rollout, info), unroll=4)
    finished = jax.tree.map(lambda x: all_shares(x, 2, shards), finished)
    ring = (episodes.returns, episodes.lengths, episodes.finished)
    ring = jax.vmap(remember, in_axes=(0, 1))(ring, finished)
    last = worlds.step._replace(obs=obs, valid=rollout.valid[-1])
    worlds = Worlds(state, last, Episodes(*running, *ring))
    begins = jnp.concatenate([begins[None], ~rollout.valid[:-1]])
    return worlds, cohort._replace(memory=memory), rollout._replace(last_obs=obs, begins=begins)


def outcome(seen: Rollout | TimeStep, info: dict[str, Array]) -> tuple[Array, Array, Array]:
    """What a score is made of: the raw reward, whether it counts, whether the episode is over.

    An environment that shows its learner other rewards or other ends than its own says so in `info`.
    """
    raw_reward = info.get("raw_reward", seen.reward)
    over = info.get("episode_over", seen.terminated | seen.truncated)
    return raw_reward, seen.valid, over


def score(
    running: tuple[Array, Array], step: tuple[Array, Array, Array]
) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
    """Add a step's outcome to the running returns and lengths; where an episode ends, hand them over."""
    (total, length), (reward, valid, over) = running, step
    total = total + jnp.where(trees.align(valid, reward), reward, 0.0)
    length = length + valid
    over = over & valid
    running = (jnp.where(trees.align(over, total), 0.0, total), jnp.where(over, 0, length))
    return running, (over, total, length)


def remember(
    ring: tuple[Array, Array, Array], finished: tuple[Array, Array, Array]
) -> tuple[Array, Array, Array]:
    """Write a rollout's finished episodes, (T, E), into one learner's ring of the last `WINDOW`."""
    returns, lengths, count = ring
    over, total, length = (x.reshape(-1, *x.shape[2:]) for x in finished)
    place = count + jnp.cumsum(over)  # counted from 1
    end = place[-1]
    kept = over & (place > end - WINDOW)  # so that no place is written twice
    place = jnp.where(kept, (place - 1) % WINDOW, WINDOW)
    returns = returns.at[place].set(total, mode="drop")
    return returns, lengths.at[place].set(length.astype(jnp.float32), mode="drop"), end
