"""Targets: the rewards and values that PPO's critic learns from, bounded and standardised as configured."""

import jax
import jax.numpy as jnp
from jax import Array

from shoal.learners.ppo_config import Hypers, PPOConfig
from shoal.ops import statistics
from shoal.ops.statistics import Running


def clip_rewards(config: PPOConfig, hypers: Hypers, reward: Array) -> Array:
    """Rewards no larger than `clip_reward` and no smaller than `reward_floor`, where these are set."""
    if config.inputs.clip_reward is None and config.inputs.reward_floor is None:
        return reward
    low = -hypers.clip_reward if config.inputs.reward_floor is None else hypers.reward_floor
    return jnp.clip(reward, low, hypers.clip_reward)


def clip_bootstrap(config: PPOConfig, hypers: Hypers, reward_range: Array, value: Array) -> Array:
    """Values within the bounds of what may stand for the rewards that a rollout does not show."""
    if config.value.bootstrap_clip == "dynamic":
        return jnp.clip(value, reward_range[0], reward_range[1])
    low = -hypers.bootstrap_clip if config.value.bootstrap_floor is None else hypers.bootstrap_floor
    return jnp.clip(value, low, hypers.bootstrap_clip)


def empty_reward_range() -> Array:
    """The least and the largest of no rewards."""
    return jnp.array([jnp.inf, -jnp.inf], jnp.float32)


def update_reward_range(
    reward_range: Array, reward: Array, valid: Array, axes: tuple[str, ...] = ()
) -> Array:
    """The least and the largest reward so far (2,), of all devices that share the learner.

    >>> rewards, valid = jnp.array([3.0, -1.0, 9.0]), jnp.array([True, True, False])
    >>> update_reward_range(empty_reward_range(), rewards, valid).tolist()
    [-1.0, 3.0]
    """
    least = jnp.min(reward, where=valid, initial=jnp.inf)
    largest = jnp.max(reward, where=valid, initial=-jnp.inf)
    sign = jnp.array([-1.0, 1.0])
    fresh = jnp.stack([-least, largest])
    fresh = jax.lax.pmax(fresh, axes) if axes else fresh
    return sign * jnp.maximum(sign * reward_range, fresh)


def deviation(moments: Running) -> Array:
    """The spread of what was counted; 1 before the second sample."""
    return jnp.sqrt(statistics.variance(moments) + 1e-8)


def normalise(x: Array, moments: Running) -> Array:
    """(x - mean) / deviation, as the critic says it."""
    return (x - moments.mean) / deviation(moments)


def denormalise(x: Array, moments: Running) -> Array:
    """mean + deviation x, the way back from `normalise`."""
    return moments.mean + deviation(moments) * x
