"""Rollouts: learners act in their environments, one step at a time, in one scan."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from shoal.distributed.mesh import gather_shards, own_shard
from shoal.ops import trees
from shoal.types import Env, Learner, LearnerState, Rollout, TimeStep, Tree

WINDOW = 100
"""The number of finished episodes over which scores are averaged."""


class Episodes(NamedTuple):
    """Raw returns and lengths per learner, of episodes under way and of the last `WINDOW` finished ones.

    Where an environment has agents, each has a return of its own.
    """

    running_return: Array  # (L, E) or (L, E, A)
    running_length: Array  # (L, E) int32
    returns: Array  # (L, WINDOW) or (L, WINDOW, A), NaN until there are as many
    lengths: Array  # (L, WINDOW)
    finished: Array  # (L,) int32, how many so far


class EnvStates(NamedTuple):
    """All environments of a cohort: their own state, their last time step, their scores."""

    state: Tree
    step: TimeStep  # (L, E)
    episodes: Episodes


class Acting(NamedTuple):
    """The carry of the acting loop."""

    private: Tree  # the learners', leading L
    state: Tree  # the environments'
    obs: Tree  # (L, E, ...)
    episode_starts: Array  # (L, E)


def reset_envs(env: Env, keys: Array, params: Tree, shards: int = 1) -> EnvStates:
    """Reset every environment. keys (L, E); params (L, E) per leaf, of all `shards` devices' environments."""
    keys, params = jax.tree.map(lambda x: own_shard(x, 1, shards), (keys, params))
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
    return EnvStates(state, trees.split_axis(step, num_learners), episodes)


def restart_envs(
    env: Env, learner: Learner, keys: Array, cohort: LearnerState, envs: EnvStates, shards: int = 1
) -> tuple[LearnerState, EnvStates]:
    """New episodes in every environment, in the same worlds; keys (L,). Unfinished episodes do not count."""
    assert env.restart is not None, "`make_trainer` checks it"
    num_learners, num_envs = envs.step.valid.shape
    env_keys = jax.vmap(lambda key: jax.random.split(key, num_envs * shards))(keys)
    state, step = env.restart(own_shard(env_keys, 1, shards).reshape(-1), envs.state)
    episodes = envs.episodes._replace(
        running_return=jnp.zeros_like(envs.episodes.running_return),
        running_length=jnp.zeros_like(envs.episodes.running_length),
    )
    envs = EnvStates(state, trees.split_axis(step, num_learners), episodes)
    return jax.vmap(learner.on_restart)(cohort), envs


def draw_noise(
    env: Env, learner: Learner, num_steps: int, keys: Array, envs: EnvStates, shards: int = 1
) -> tuple[Tree, Tree]:
    """The noise of T steps, from keys (L,): of actions (T, L, E, ...), of environments (T, N, ...).

    A learner's noise is the same on any number of devices: each draws it for all `shards` and keeps its part.
    """
    num_envs = envs.step.valid.shape[1] * shards
    key_act, key_env = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
    action_noise = jax.vmap(lambda key: learner.draw(key, (num_steps, num_envs)), out_axes=1)(key_act)
    action_noise = jax.tree.map(lambda x: own_shard(x, 2, shards), action_noise)
    env_keys = jax.vmap(lambda key: jax.random.split(key, num_envs))(key_env)
    return action_noise, env.draw(own_shard(env_keys, 1, shards).reshape(-1), envs.state, num_steps)


def begin_acting(cohort: LearnerState, envs: EnvStates) -> Acting:
    """The carry before the first step."""
    return Acting(cohort.private, envs.state, envs.step.obs, ~envs.step.valid)


def act(
    env: Env, learner: Learner, cohort: LearnerState, acting: Acting, action_noise: Tree, env_noise: Tree
) -> tuple[Acting, Tree, TimeStep]:
    """One step of every learner in its environments; its actions and the time step, (L, E, ...)."""
    state = cohort._replace(private=acting.private)
    action, private = jax.vmap(learner.act)(state, acting.obs, action_noise, acting.episode_starts)
    env_state, step = env.step(acting.state, trees.merge_axes(action), env_noise)
    step = trees.split_axis(step, acting.episode_starts.shape[0])
    return Acting(private, env_state, step.obs, ~step.valid), action, step


def collect(
    env: Env,
    learner: Learner,
    num_steps: int,
    keys: Array,
    cohort: LearnerState,
    envs: EnvStates,
    shards: int = 1,
) -> tuple[EnvStates, LearnerState, Rollout]:
    """Every learner acts for `num_steps` steps in its environments.

    keys (L,). Returns rollouts time-major, (T, L, E, ...), with `last_obs` (L, E, ...). Where `shards`
    devices share the learners, E counts this device's environments; the rollouts are those of one device.
    """
    noise = draw_noise(env, learner, num_steps, keys, envs, shards)

    def advance(acting: Acting, noise: tuple[Tree, Tree]):
        after, action, step = act(env, learner, cohort, acting, *noise)
        seen = Rollout(acting.obs, action, step.reward, step.terminated, step.truncated, step.valid, ())
        return after, (seen, step.info)

    start = begin_acting(cohort, envs)
    last, (rollout, info) = jax.lax.scan(advance, start, noise)
    # Scores are counted afterwards: in the loop above every operation costs time, even a small one.
    episodes = envs.episodes
    running = (episodes.running_return, episodes.running_length)
    running, finished = jax.lax.scan(accumulate_scores, running, raw_outcome(rollout, info), unroll=4)
    finished = jax.tree.map(lambda x: gather_shards(x, 2, shards), finished)
    ring = (episodes.returns, episodes.lengths, episodes.finished)
    ring = jax.vmap(record_episodes, in_axes=(0, 1))(ring, finished)
    step = envs.step._replace(obs=last.obs, valid=rollout.valid[-1])
    episode_starts = jnp.concatenate([start.episode_starts[None], ~rollout.valid[:-1]])
    rollout = rollout._replace(last_obs=last.obs, episode_starts=episode_starts)
    return (
        EnvStates(last.state, step, Episodes(*running, *ring)),
        cohort._replace(private=last.private),
        rollout,
    )


def raw_outcome(seen: Rollout | TimeStep, info: dict[str, Array]) -> tuple[Array, Array, Array]:
    """The raw reward, whether the step is valid, whether the scored episode is over.

    `info` has the raw reward and end where the learner sees others (clipped rewards, lost lives).
    """
    raw_reward = info.get("raw_reward", seen.reward)
    over = info.get("episode_over", seen.terminated | seen.truncated)
    return raw_reward, seen.valid, over


def accumulate_scores(
    running: tuple[Array, Array], step: tuple[Array, Array, Array]
) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
    """Add a step to the running returns and lengths; returns them as finished where an episode ends."""
    (total, length), (reward, valid, over) = running, step
    total = total + jnp.where(trees.align(valid, reward), reward, 0.0)
    length = length + valid
    over = over & valid
    running = (jnp.where(trees.align(over, total), 0.0, total), jnp.where(over, 0, length))
    return running, (over, total, length)


def record_episodes(
    ring: tuple[Array, Array, Array], finished: tuple[Array, Array, Array]
) -> tuple[Array, Array, Array]:
    """Write a rollout's finished episodes, (T, E), into one learner's ring of the last `WINDOW`."""
    returns, lengths, count = ring
    over, total, length = (x.reshape(-1, *x.shape[2:]) for x in finished)
    number = count + jnp.cumsum(over)  # counted from 1
    end = number[-1]
    kept = over & (number > end - WINDOW)  # so that no index is written twice
    index = jnp.where(kept, (number - 1) % WINDOW, WINDOW)
    returns = returns.at[index].set(total, mode="drop")
    return returns, lengths.at[index].set(length.astype(jnp.float32), mode="drop"), end
