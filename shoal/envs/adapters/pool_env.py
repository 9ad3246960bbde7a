"""The steps of EnvPool's environments inside compiled code.

A pool's address is compiled into its functions. So every device has a pool of its own, chosen by a
`lax.switch` on the device's index. The state carries the pool's handle, which orders the steps, and which
episodes have just ended: their next step is a reset.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import io_callback

from shoal.distributed.mesh import local_device_index
from shoal.errors import ShoalError
from shoal.ops.masks import ACTION_MASK
from shoal.types import Env, EnvSpec, TimeStep, Tree

PGX_MASK = "legal_action_mask"
"""The mask in the `info` of EnvPool's Pgx environments."""


class PoolState(NamedTuple):
    """The state of one device; across devices the handle's first axis is the devices'."""

    handle: Array  # (1, K) uint8
    over: Array  # (N,) bool: the last step ended an episode, so the next one is a reset


class PoolAdapter(NamedTuple):
    """Converts between a pool's arrays and ours."""

    spec: EnvSpec
    family: str
    observe: Callable[[Tree], Tree]
    act: Callable[[Array], Array]
    scored: bool
    """Whether `info` has the unclipped reward and the true end of the game (Atari)."""
    restarts: bool
    """Whether a reset starts a new episode at any time; under `episodic_life` the game continues."""
    masked: bool
    """Whether `info` has a mask of the allowed actions (Pgx)."""


def pool_env(adapter: PoolAdapter, pools: list[Any], num_envs: int) -> Env:
    """The environment that steps `pools`, one for each device, of N environments each."""
    with jax.enable_x64(True):  # MuJoCo's pools use float64; nothing else does
        functions = [pool.xla() for pool in pools]
    handles = [np.asarray(handle) for handle, *_ in functions]
    receive = _on_this_device([_with_time_step(adapter, recv) for _, recv, _, _ in functions])
    advance = _on_this_device([_with_time_step(adapter, step) for _, _, _, step in functions])

    def host_reset(index, *handle):
        pools[int(index)].async_reset()
        return handles[int(index)]

    def start(*handle):
        """New episodes; the handle orders them after earlier steps."""
        shape = jax.ShapeDtypeStruct(handles[0].shape, np.uint8)
        fresh = io_callback(host_reset, shape, local_device_index(len(pools)), *handle)
        fresh, first = receive(fresh, jnp.ones(num_envs, bool))
        return PoolState(fresh[None], jnp.zeros(num_envs, bool)), first

    reset = lambda keys, params: start()  # the pool has the seeds
    restart = lambda keys, state: start(state.handle)

    def step(state, action, noise):
        del noise
        handle, after = advance(state.handle[0], state.over, action)
        return PoolState(handle[None], after.terminated | after.truncated), after

    def render(state, index):
        jax.block_until_ready(state)
        return render_pool(pools[index // num_envs], index % num_envs, adapter.spec.name)

    no_noise = lambda keys, state, num_steps: ()
    return Env(adapter.spec, reset, no_noise, step, render, restart if adapter.restarts else None)


def _on_this_device(branches: list[Callable]) -> Callable:
    if len(branches) == 1:
        return branches[0]
    return lambda *args: lax.switch(local_device_index(len(branches)), branches, *args)


def _with_time_step(adapter: PoolAdapter, function: Callable) -> Callable:
    """A function of a pool, with our actions in and a time step out."""

    def call(handle, over, *actions):
        with jax.enable_x64(True):
            handle, raw = function(handle, *map(adapter.act, actions))
            return handle, time_step(adapter, raw, over)

    return call


def time_step(adapter: PoolAdapter, raw: tuple, over: Array) -> TimeStep:
    """The pool's output as a time step; where `over`, it is the first of a new episode."""
    obs, reward, terminated, truncated, info = raw
    obs = {"obs": obs, ACTION_MASK: info[PGX_MASK]} if adapter.masked else obs
    valid = ~over
    ended = terminated | truncated
    no_reward = jnp.zeros(reward.shape, jnp.float32)
    score = {}
    if adapter.scored:
        # Under `episodic_life` a lost life ends the learner's episode, but not the game that is scored; and
        # where the game ends on its last permitted frame, the pool reports only a truncation.
        game_over = info["terminated"] > 0
        terminated = ended & (terminated | game_over)
        score = {
            "raw_reward": jnp.where(valid, info["reward"].astype(jnp.float32), no_reward),
            "episode_over": ended & (truncated | game_over) & valid,
        }
    reward = jnp.where(valid, reward.astype(jnp.float32), no_reward)
    if agents := adapter.spec.agents:
        reward = jnp.repeat(reward[:, None] / agents, agents, axis=1)  # equal shares of the team's
    return TimeStep(
        obs=adapter.observe(obs),
        reward=reward,
        terminated=terminated & valid,
        truncated=truncated & valid,
        valid=valid,
        info=score,
    )


def render_pool(pool: Any, index: int, name: str) -> np.ndarray:
    """The picture of one environment of a pool."""
    try:
        frames = pool.render(env_ids=index)
    except RuntimeError as error:
        remedy = "apt-get install libegl1" if "EGL" in str(error) else f"try gym:{name}"
        raise ShoalError(f"{name}: EnvPool cannot render it: {first_line(error)}; {remedy}") from error
    return np.asarray(frames[0], np.uint8)


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its type."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
