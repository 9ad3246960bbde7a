"""Random actions in a few environments, and what comes of them, as NumPy arrays."""

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.envs.adapters.host import raise_crash
from shoal.ops import masks
from shoal.ops.distributions import distribution_for
from shoal.types import ActionSpace, Box, Env, EnvSpec, TimeStep, Tree

CHUNK = 32
"""Steps per call of the compiled program."""


class Sample(NamedTuple):
    """T steps of N environments; the first time step is that of the reset."""

    obs: Tree  # (T + 1, N, ...)
    action: np.ndarray  # (T, N, ...)
    reward: np.ndarray  # (T + 1, N) or (T + 1, N, A)
    terminated: np.ndarray  # (T + 1, N)
    truncated: np.ndarray  # (T + 1, N)
    valid: np.ndarray  # (T + 1, N)
    steps_per_second: float  # of all environments

    @property
    def ended(self) -> np.ndarray:
        """Where an episode ends (T + 1, N)."""
        return self.terminated | self.truncated


class Player(NamedTuple):
    """Plays random episodes in N environments."""

    keys: Array  # (N,)
    reset: Callable[[Array, Tree], tuple[Tree, TimeStep]]  # compiled, like the next
    advance: Callable[[Array, np.int32, Tree, Tree], tuple[Tree, tuple[Array, TimeStep]]]


def make_player(env: Env, keys: Array, params: Tree) -> Player:
    """The player of N environments; equal keys of two rows give equal actions. params (N,) per leaf."""
    spec = env.spec

    def reset(keys, params):
        state, first = env.reset(keys, params)
        return state, first._replace(info={})

    def advance(keys, chunk, state, obs):
        keys = jax.vmap(jax.random.fold_in, (0, None))(keys, chunk)
        key_act, key_env = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        noise = env.draw(key_env, state, CHUNK)
        drawn = jax.vmap(lambda key: draw_actions(key, spec), out_axes=1)(key_act)

        def one(carry, now):
            state, obs = carry
            action = choose(spec.action, obs, now[0])
            state, step = env.step(state, action, now[1])
            return (state, step.obs), (action, step._replace(info={}))

        (state, _), seen = jax.lax.scan(one, (state, obs), (drawn, noise))
        return state, seen

    state, first = jax.eval_shape(reset, keys, params)
    programs = jax.jit(reset).lower(keys, params), jax.jit(advance).lower(keys, np.int32(0), state, first.obs)
    return Player(keys, *(program.compile() for program in programs))


def draw_actions(key: Array, spec: EnvSpec) -> Array:
    """The noise of one environment's actions over a chunk of steps, (T, ...)."""
    shape = (CHUNK, *spec.agent_axis)
    if isinstance(spec.action, Box):
        return jax.random.uniform(key, (*shape, *spec.action.shape))
    return distribution_for(spec.action).draw(key, shape)


def choose(space: ActionSpace, obs: Tree, noise: Array) -> Array:
    """Random actions (N, ...): uniform between the bounds, or among the choices that a mask allows."""
    if isinstance(space, Box):
        low, high = (jnp.broadcast_to(bound, noise.shape) for bound in sampled_bounds(space))
        return (low + noise * (high - low)).astype(space.dtype)
    distribution = distribution_for(space)
    return distribution.sample(masks.restrict(space, obs, jnp.zeros_like(noise)), noise)


def sampled_bounds(space: Box) -> tuple[np.ndarray, np.ndarray]:
    """The bounds that actions are drawn between: at most 1 from zero where there is none."""
    low, high = (np.broadcast_to(np.asarray(x, np.float32), space.shape) for x in (space.low, space.high))
    low = np.where(np.isfinite(low), low, np.minimum(-1.0, high - 2.0))
    return low, np.where(np.isfinite(high), high, np.maximum(1.0, low + 2.0))


def play(player: Player, params: Tree, steps: int, seconds: float = np.inf) -> Sample:
    """Play so many steps in each environment, or about so long."""
    state, first = jax.device_get(player.reset(player.keys, params))
    raise_crash()
    obs, actions, seen = first.obs, [], [jax.tree.map(lambda x: x[None], first)]
    spent = 0.0
    for chunk in range(-(-steps // CHUNK)):
        before = time.perf_counter()
        state, (action, step) = jax.block_until_ready(
            player.advance(player.keys, np.int32(chunk), state, obs)
        )
        spent += time.perf_counter() - before
        raise_crash()
        action, step = jax.device_get((action, step))
        obs = jax.tree.map(lambda x: x[-1], step.obs)
        actions.append(action)
        seen.append(step)
        if spent > seconds:
            break
    step = jax.tree.map(lambda *parts: np.concatenate(parts), *seen)
    action = np.concatenate(actions)
    rate = action.shape[0] * action.shape[1] / spent
    return Sample(step.obs, action, step.reward, step.terminated, step.truncated, step.valid, rate)
