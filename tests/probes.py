"""Environments with known answers: if a learner fails on one of these, the name says what is broken."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.types import Box, Discrete, EnvSpec, JaxEnv, Tree


def counter(limit: int | None = 5) -> JaxEnv:
    """obs = [t], reward 1, truncated after `limit` steps: V = 1 / (1 - gamma) everywhere."""
    return _count(EnvSpec("counter", "jax", Box((1,)), Discrete(2), limit), length=None)


def ending_counter(length: int = 5) -> JaxEnv:
    """obs = [t], reward 1, terminated after `length` steps: V(t) = (1 - gamma^(length - t)) / (1 - gamma)."""
    return _count(EnvSpec("ending_counter", "jax", Box((1,)), Discrete(2)), length)


def one_step() -> JaxEnv:
    """obs = [0], reward 1, terminated at once: V = 1. Tests the value loss."""
    step = lambda key, state, action, params: (state, jnp.float32(1), jnp.bool_(True))
    return JaxEnv(_spec("one_step", Discrete(2)), _reset_zero, step, _observe_scalar)


def two_choices() -> JaxEnv:
    """obs = [0], one step: action 1 gives 1, action 0 gives 0. Tests the policy loss."""
    step = lambda key, state, action, params: (state, jnp.float32(action), jnp.bool_(True))
    return JaxEnv(_spec("two_choices", Discrete(2)), _reset_zero, step, _observe_scalar)


def observation_choice() -> JaxEnv:
    """obs = [-1] or [+1] by a fair coin, one step: reward 1 if action = (obs > 0), else 0.

    Tests that observations reach the policy, and in the right order.
    """
    step = lambda key, state, action, params: (state, jnp.float32(action == (state > 0)), jnp.bool_(True))
    return JaxEnv(_spec("observation_choice", Discrete(2)), _reset_coin, step, _observe_scalar)


def continuous_target() -> JaxEnv:
    """obs = [o], o uniform in [-1, 1], one step: reward -(a - o / 2)^2, so the best action is o / 2."""

    def step(key: Array, state: Array, action: Array, params: Tree) -> tuple[Array, Array, Array]:
        return state, -((action[0] - state / 2) ** 2), jnp.bool_(True)

    reset = lambda key, params: jax.random.uniform(key, minval=-1, maxval=1)
    return JaxEnv(_spec("continuous_target", Box((1,), -1.0, 1.0)), reset, step, _observe_scalar)


def masked_choice() -> JaxEnv:
    """obs = [0] and a mask, one step: action k pays k, but one of the three, drawn at random, is forbidden.

    Taking the forbidden one would pay 10; the best policy earns 5/3 on average. Tests action masks.
    """

    def step(key: Array, state: Array, action: Array, params: Tree) -> tuple[Array, Array, Array]:
        return state, jnp.where(action == state, 10.0, action), jnp.bool_(True)

    def observe(state: Array, params: Tree) -> dict[str, Array]:
        return {"obs": jnp.zeros(1), "action_mask": jnp.arange(3) != state}

    reset = lambda key, params: jax.random.randint(key, (), 0, 3)
    boxes = {"obs": Box((1,)), "action_mask": Box((3,), 0, 1, "bool")}
    return JaxEnv(EnvSpec("masked_choice", "jax", boxes, Discrete(3)), reset, step, observe)


class Delayed(NamedTuple):
    """The state of `delayed_reward`."""

    coin: Array  # () float32, -1 or +1
    steps: Array  # () int32
    matched: Array  # () bool: the first action was (coin > 0)


def delayed_reward() -> JaxEnv:
    """obs = [coin, 0], then [0, 1]; two steps: the second pays 1 if the FIRST action was (coin > 0), else 0.

    V([coin, 0]) = gamma under the best policy. Tests discounting and the credit of earlier actions: what
    the second step sees and does changes nothing.
    """

    def reset(key: Array, params: Tree) -> Delayed:
        return Delayed(_reset_coin(key, params), jnp.int32(0), jnp.bool_(False))

    def step(key: Array, state: Delayed, action: Array, params: Tree) -> tuple[Delayed, Array, Array]:
        last = state.steps == 1
        matched = jnp.where(last, state.matched, action == (state.coin > 0))
        return Delayed(state.coin, state.steps + 1, matched), jnp.float32(last & matched), last

    def observe(state: Delayed, params: Tree) -> Array:
        return jnp.stack([jnp.where(state.steps == 0, state.coin, 0), jnp.float32(state.steps)])

    return JaxEnv(EnvSpec("delayed_reward", "jax", Box((2,)), Discrete(2)), reset, step, observe)


class Recalled(NamedTuple):
    """The state of `recall`."""

    coin: Array  # () float32, -1 or +1
    left: Array  # () int32: steps to come after this one
    steps: Array  # () int32


def recall(longest: int = 16, shortest: int = 2) -> JaxEnv:
    """obs = [coin, 0], then [0, 0] and at last [0, 1]: that step pays 1 if action = (coin > 0), else 0.

    Episodes have `shortest` to `longest` steps, evenly. A policy without memory earns 1/2 on average at most.
    Short episodes teach what to remember. Episodes longer than a rollout test that the carry continues in the
    next rollout. New coins test that it is reset at an episode's end.
    """

    def reset(key: Array, params: Tree) -> Recalled:
        key_coin, key_length = jax.random.split(key)
        left = jax.random.randint(key_length, (), shortest - 1, longest)
        return Recalled(_reset_coin(key_coin, params), left, jnp.int32(0))

    def step(key: Array, state: Recalled, action: Array, params: Tree) -> tuple[Recalled, Array, Array]:
        last, right = state.left == 0, action == (state.coin > 0)
        return Recalled(state.coin, state.left - 1, state.steps + 1), jnp.float32(last & right), last

    def observe(state: Recalled, params: Tree) -> Array:
        return jnp.stack([jnp.where(state.steps == 0, state.coin, 0), jnp.float32(state.left <= 0)])

    return JaxEnv(EnvSpec("recall", "jax", Box((2,)), Discrete(2)), reset, step, observe)


def corridor(length: int = 32) -> JaxEnv:
    """obs = the cell, one-hot: one action leads on, the other back; the far end pays 1 and ends the episode.

    Which of them it is differs from cell to cell, and the limit is twice the length: a random policy reaches
    the end in one episode of 8,000. Tests that a learner explores.
    """
    leads_on = jnp.asarray(np.random.default_rng(0).integers(2, size=length))

    def step(key: Array, state: Array, action: Array, params: Tree) -> tuple[Array, Array, Array]:
        cell = jnp.maximum(state + jnp.where(action == leads_on[state], 1, -1), 0)
        arrived = cell == length - 1
        return cell, jnp.float32(arrived), arrived

    reset = lambda key, params: jnp.int32(0)
    observe = lambda state, params: jax.nn.one_hot(state, length)
    spec = EnvSpec("corridor", "jax", Box((length,), 0.0, 1.0), Discrete(2), 2 * length)
    return JaxEnv(spec, reset, step, observe)


def _count(spec: EnvSpec, length: int | None) -> JaxEnv:
    def step(key: Array, state: Array, action: Array, params: Tree) -> tuple[Array, Array, Array]:
        terminated = jnp.bool_(False) if length is None else state + 1 >= length
        return state + 1, jnp.float32(1), terminated

    return JaxEnv(spec, _reset_zero, step, _observe_scalar)


def _spec(name: str, action: Box | Discrete) -> EnvSpec:
    return EnvSpec(name, "jax", Box((1,)), action)


def _reset_zero(key: Array, params: Tree) -> Array:
    return jnp.float32(0)


def _reset_coin(key: Array, params: Tree) -> Array:
    return jax.random.rademacher(key, (), jnp.float32)


def _observe_scalar(state: Array, params: Tree) -> Array:
    return state[None]
