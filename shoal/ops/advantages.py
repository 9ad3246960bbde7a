"""Advantages: how much better an action was than the critic expected."""

import jax
import jax.numpy as jnp
from jax import Array

from shoal.ops.statistics import weighted_mean


def generalised_advantages(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    gamma: Array | float,
    gae_lambda: Array | float,
) -> Array:
    """Generalised advantage estimates (Schulman et al. 2016), all arguments (T, E).

    d_t = r_t + gamma (1 - terminated_t) V(o_{t+1}) - V(o_t)
    A_t = d_t + gamma lambda (1 - terminated_t or truncated_t) A_{t+1}

    `next_value[t]` is V(o_{t+1}), which at an episode's end is the value of the true final
    observation: a truncated episode bootstraps from it, a terminated one does not. The reset step
    that follows an end is not valid and gets an advantage of 0.

    >>> import jax.numpy as jnp
    >>> one = jnp.ones((3, 1))
    >>> no, yes = one < 0, one > 0
    >>> generalised_advantages(one, 0 * one, 0 * one, no, no, yes, 0.5, 1.0)[:, 0].tolist()
    [1.75, 1.5, 1.0]
    """
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    decay = gamma * gae_lambda * jnp.where(terminated | truncated, 0.0, 1.0)

    def backwards(advantage, step):
        delta, decay, valid = step
        advantage = jnp.where(valid, delta + decay * advantage, 0.0)
        return advantage, advantage

    last = jnp.zeros_like(reward[0])
    _, advantages = jax.lax.scan(backwards, last, (delta, decay, valid), reverse=True, unroll=4)
    return advantages


def discounted_returns(start: Array, reward: Array, over: Array, gamma: Array | float) -> tuple[Array, Array]:
    """Running discounted returns R_t = gamma R_{t-1} + r_t, reset to 0 after each end.

    start (E,), reward and over (T, E) -> the value to start the next rollout from (E,), all R (T, E).
    """

    def forwards(running, step):
        reward, over = step
        running = gamma * running + reward
        return jnp.where(over, 0.0, running), running

    return jax.lax.scan(forwards, start, (reward, over), unroll=4)


def rewards_to_go(
    reward: Array,
    bootstrap: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    gamma: Array | float,
) -> Array:
    """Discounted rewards up to the end of the episode or of the rollout, all arguments (T, E).

    G_t = r_t + gamma G_{t+1}, where the episode and the rollout continue
    G_t = r_t + gamma b_t,     at a truncation and at the rollout's last step
    G_t = r_t,                 at a termination

    `bootstrap[t]` is b_t, the value of the observation after step t.

    >>> import jax.numpy as jnp
    >>> one = jnp.ones((3, 1))
    >>> no, yes = one < 0, one > 0
    >>> rewards_to_go(one, 4 * one, no, no, yes, 0.5)[:, 0].tolist()
    [2.25, 2.5, 3.0]
    """

    def backwards(following, step):
        reward, bootstrap, terminated, truncated, valid = step
        following = jnp.where(truncated, bootstrap, following)
        sum_to_go = reward + gamma * jnp.where(terminated, 0.0, following)
        sum_to_go = jnp.where(valid, sum_to_go, 0.0)
        return sum_to_go, sum_to_go

    steps = (reward, bootstrap, terminated, truncated, valid)
    _, sums = jax.lax.scan(backwards, bootstrap[-1], steps, reverse=True, unroll=4)
    return sums


def standardise_advantages(advantage: Array, weight: Array, axes: tuple[str, ...] = ()) -> Array:
    """(A - mean) / deviation over the valid samples; finite for a single sample too."""
    centred = advantage - weighted_mean(advantage, weight, axes)
    return centred / (jnp.sqrt(weighted_mean(centred**2, weight, axes)) + 1e-8)
