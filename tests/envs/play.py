"""Random play through an adapter, with all that is needed to repeat it by the suite's own functions."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.ops.masks import ACTION_MASK
from shoal.types import Box

ROWS = 3


class Played(NamedTuple):
    """T steps of some rows."""

    first: object  # the time step of the reset
    action: np.ndarray  # (T, N, ...)
    steps: object  # the time steps, (T, N, ...)
    noise: object  # what each step drew, (T, N, ...)
    keys: jax.Array  # (N,) of the reset


def play(recipe, num_steps=200, seed=0):
    """Random actions, among those that a mask allows."""
    spec = recipe.spec
    env = recipe.build(np.zeros((1, ROWS), np.uint32), False)
    key_reset, key_noise, key_act = jax.random.split(jax.random.key(seed), 3)
    keys = jax.random.split(key_reset, ROWS)
    state, first = jax.jit(env.reset)(keys, ())
    noise = jax.jit(lambda keys, state: env.draw(keys, state, num_steps))(
        jax.random.split(key_noise, ROWS), state
    )

    def choose(key, obs):
        shape = (ROWS, *spec.agent_axis)
        if isinstance(spec.action, Box):
            return jax.random.uniform(key, (*shape, *spec.action.shape))
        if isinstance(obs, dict) and ACTION_MASK in obs:
            return jax.random.categorical(key, jnp.where(obs[ACTION_MASK] > 0, 0.0, -jnp.inf))
        return jax.random.randint(key, shape, 0, spec.action.num)

    def step(carry, now):
        state, obs = carry
        key, drawn = now
        action = choose(key, obs)
        state, seen = env.step(state, action, drawn)
        return (state, seen.obs), (action, seen)

    inputs = (jax.random.split(key_act, num_steps), noise)
    _, (action, steps) = jax.jit(lambda *x: jax.lax.scan(step, *x))((state, first.obs), inputs)
    return Played(jax.device_get(first), jax.device_get(action), jax.device_get(steps), noise, keys)
