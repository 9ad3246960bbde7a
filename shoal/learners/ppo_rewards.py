"""Rewards as PPO learns from them: with the bonus, scaled, clipped; scores stay the environment's own."""

import jax
import jax.numpy as jnp
from jax import Array

from shoal.learners.ppo_config import Hypers, PPOConfig
from shoal.learners.ppo_setup import PPOSetup
from shoal.ops import statistics
from shoal.ops.advantages import discounted_returns
from shoal.ops.statistics import Running
from shoal.types import LearnerState, Rollout


def prepare_rewards(setup: PPOSetup, state: LearnerState, rollout: Rollout) -> tuple[LearnerState, Rollout]:
    """The rollout with the rewards to learn from, and the learner with what it has seen of them."""
    reward = setup.config.inputs.reward_scale * add_bonus(state.hypers, rollout)
    if setup.config.norm_reward:
        state, reward = scale_rewards(setup, state, rollout, reward)
    reward = clip_rewards(setup.config, state.hypers, reward)
    if setup.config.value.bootstrap_clip == "dynamic":
        seen = state.private.reward_range
        seen = update_reward_range(seen, reward, rollout.valid, setup.all_axes)
        state = state._replace(private=state.private._replace(reward_range=seen))
    return state, rollout._replace(reward=reward)


def add_bonus(hypers: Hypers, rollout: Rollout) -> Array:
    """The environment's rewards; with a bonus, extrinsic_coef reward + intrinsic_coef bonus."""
    if isinstance(rollout.bonus, tuple):
        return rollout.reward
    return hypers.extrinsic_coef * rollout.reward + hypers.intrinsic_coef * rollout.bonus


def scale_rewards(
    setup: PPOSetup, state: LearnerState, rollout: Rollout, reward: Array
) -> tuple[LearnerState, Array]:
    """Rewards divided by the running standard deviation of discounted returns."""
    ended = rollout.terminated | rollout.truncated
    start, returns = discounted_returns(state.private.discounted_return, reward, ended, state.hypers.gamma)
    fresh = statistics.summarise(returns, rollout.valid, setup.all_axes)
    moments = statistics.merge(state.statistics.returns, fresh)
    state = state._replace(
        statistics=state.statistics._replace(returns=moments),
        private=state.private._replace(discounted_return=start),
    )
    return state, reward / reward_scale(moments)


def reward_scale(returns: Running) -> Array:
    """What rewards are divided by where they are scaled."""
    return jnp.sqrt(statistics.variance(returns) + 1e-8)


def clip_rewards(config: PPOConfig, hypers: Hypers, reward: Array) -> Array:
    """Rewards between `reward_floor` and `clip_reward`, where these are set."""
    if config.inputs.clip_reward is None and config.inputs.reward_floor is None:
        return reward
    low = -hypers.clip_reward if config.inputs.reward_floor is None else hypers.reward_floor
    return jnp.clip(reward, low, hypers.clip_reward)


def empty_reward_range() -> Array:
    """The range before the first reward."""
    return jnp.array([jnp.inf, -jnp.inf], jnp.float32)


def update_reward_range(
    reward_range: Array, reward: Array, valid: Array, axes: tuple[str, ...] = ()
) -> Array:
    """The least and the largest reward so far (2,), of all devices that share the learner.

    >>> rewards, valid = jnp.array([3.0, -1.0, 9.0]), jnp.array([True, True, False])
    >>> update_reward_range(empty_reward_range(), rewards, valid).tolist()
    [-1.0, 3.0]
    """
    counts = valid & jnp.isfinite(reward)
    least = jnp.min(reward, where=counts, initial=jnp.inf)
    largest = jnp.max(reward, where=counts, initial=-jnp.inf)
    sign = jnp.array([-1.0, 1.0])
    fresh = jnp.stack([-least, largest])
    fresh = jax.lax.pmax(fresh, axes) if axes else fresh
    return sign * jnp.maximum(sign * reward_range, fresh)
