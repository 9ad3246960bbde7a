"""From one environment to N: a `JaxEnv` as a batched environment with time limit and automatic reset."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.envs.adapters.host import one_line_errors
from shoal.errors import ShoalError
from shoal.types import (
    ActionSpace,
    Augmentation,
    Box,
    Discrete,
    Env,
    EnvRecipe,
    JaxEnv,
    MultiDiscrete,
    TimeStep,
    Tree,
)

NO_LIMIT = np.iinfo(np.int32).max


class BatchState(NamedTuple):
    """The state of N environments."""

    state: Tree  # (N, ...) the environment's own
    params: Tree  # (N,) per leaf
    steps: Array  # (N,) int32: steps taken in this episode
    over: Array  # (N,) bool: the episode has ended, the next step is the reset


class Noise(NamedTuple):
    """The random numbers of T steps of N environments, drawn ahead."""

    fresh: Tree  # (T, N, ...) the first state of a new episode, used if this step is a reset
    key: Array  # (T, N) for `env.step`; dropped by the compiler where it is not read


def from_jax(env: JaxEnv) -> EnvRecipe:
    """The batched environment of a single one; keys come with `reset`, so seeds are not used.

    The first time step, from `reset`, is like any reset step: reward 0 and `valid` False, because no action
    led to it.

    >>> from shoal import EnvSpec
    >>> count = JaxEnv(
    ...     spec=EnvSpec("Count-v0", "jax", Box((1,)), Discrete(2), max_episode_steps=2),
    ...     reset=lambda key, params: jnp.float32(0),
    ...     step=lambda key, state, action, params: (state + 1, jnp.float32(1), jnp.bool_(False)),
    ...     observe=lambda state, params: state[None],
    ... )
    >>> env = from_jax(count).build(np.zeros((1, 3), np.uint32), False)
    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> state, first = env.reset(keys, ())
    >>> noise = env.draw(keys, state, 2)  # two steps of three environments
    >>> for t in range(2):
    ...     state, now = env.step(state, jnp.zeros(3, int), jax.tree.map(lambda x: x[t], noise))
    >>> now.obs.tolist(), now.truncated.tolist()
    ([[2.0], [2.0], [2.0]], [True, True, True])
    """

    spec = env.spec if env.augment is None else replace(env.spec, augment=_augmentation(env, env.augment))

    def build(seeds: np.ndarray, rendering: bool) -> Env:
        _check(env)
        return Env(
            spec,
            reset=reset,
            draw=draw,
            step=jax.vmap(step),
            render=render,
            restart=lambda keys, batch: reset(keys, batch.params),
            renew=lambda seeds: None,
            abandon=lambda batch, rows: batch._replace(over=batch.over | rows),
        )

    def reset(keys: Array, params: Tree) -> tuple[BatchState, TimeStep]:
        params = jax.tree.map(strong, params)
        return jax.vmap(first)(jax.vmap(env.reset)(keys, params), params)

    def first(state: Tree, params: Tree) -> tuple[BatchState, TimeStep]:
        one = BatchState(jax.tree.map(strong, state), params, steps=jnp.int32(0), over=jnp.bool_(False))
        no, reward = jnp.bool_(False), jnp.zeros(env.spec.agent_axis)
        return one, _time_step(observe(one), reward, terminated=no, truncated=no, valid=no)

    def draw(keys: Array, batch: BatchState, num_steps: int) -> Noise:
        return jax.vmap(lambda key, params: draw_one(key, params, num_steps), out_axes=1)(keys, batch.params)

    def draw_one(key: Array, params: Tree, num_steps: int) -> Noise:
        key_reset, key_step = jax.random.split(key)
        # Resets are at least so many steps apart, so these steps share one fresh state.
        spacing = min(env.spec.shortest, env.spec.max_episode_steps or NO_LIMIT) + 1
        keys = jax.random.split(key_reset, -(-num_steps // spacing))
        fresh = jax.vmap(env.reset, in_axes=(0, None))(keys, params)
        fresh = jax.tree.map(lambda x: jnp.repeat(x, spacing, axis=0)[:num_steps], fresh)
        return Noise(fresh, jax.random.split(key_step, num_steps))

    def step(one: BatchState, action: Tree, noise: Noise) -> tuple[BatchState, TimeStep]:
        action = _clip(action, env.spec.action)
        state, reward, terminated = env.step(noise.key, one.state, action, one.params)
        state = jax.tree.map(lambda new, old: strong(jnp.where(one.over, new, old)), noise.fresh, state)
        steps = jnp.where(one.over, 0, one.steps + 1)
        reward = jnp.where(one.over, 0, jnp.asarray(reward, jnp.float32))
        terminated = ~one.over & terminated
        truncated = steps >= (env.spec.max_episode_steps or NO_LIMIT)
        if env.truncated is not None:
            truncated |= ~one.over & env.truncated(state, one.params)
        truncated &= ~terminated
        after = BatchState(state, one.params, steps, over=terminated | truncated)
        return after, _time_step(observe(after), reward, terminated, truncated, valid=~one.over)

    def observe(one: BatchState) -> Tree:
        return jax.tree.map(strong, env.observe(one.state, one.params))

    def render(batch: BatchState, index: int) -> np.ndarray:
        if env.render is None:
            raise ShoalError(f"{env.spec.name} has no pictures; give its JaxEnv a `render`")
        # On the host: an index of every leaf is a program of its own.
        state, params = jax.tree.map(lambda x: x[index], jax.device_get((batch.state, batch.params)))
        return env.render(state, params)

    return EnvRecipe(spec, build)


def _augmentation(env: JaxEnv, augment: Callable[[Tree], Tree]) -> Augmentation:
    """`augment` for a batch of observations; raises where it does not return observations."""
    boxes = jax.tree.map(lambda box: jax.ShapeDtypeStruct(box.shape, box.dtype), env.spec.observation)
    found = jax.eval_shape(augment, boxes)
    copies = min((x.shape[0] for x in jax.tree.leaves(found) if x.shape), default=0)
    expected = jax.tree.map(lambda x: jax.ShapeDtypeStruct((copies, *x.shape), x.dtype), boxes)
    _require_same(f"{env.spec.name}: `augment` must return observations", expected, found)
    return Augmentation(copies, jax.vmap(augment))


def _time_step(obs: Tree, reward: Array, terminated: Array, truncated: Array, valid: Array) -> TimeStep:
    return TimeStep(obs, reward, terminated, truncated, valid, info={})


def strong(x: Array) -> Array:
    """x with a strong dtype: a weak one would change in the loop and compile twice."""
    return jnp.asarray(x, jnp.result_type(x))


def _clip(action: Tree, space: ActionSpace) -> Tree:
    """Real actions clipped to their box, others unchanged."""
    if not isinstance(space, Box):
        return action
    return jnp.clip(action, jnp.asarray(space.low, space.dtype), jnp.asarray(space.high, space.dtype))


def _example(space: ActionSpace) -> Array:
    """An action of the right shape."""
    match space:
        case Box():
            return jnp.zeros(space.shape, space.dtype)
        case Discrete():
            return jnp.int32(0)
        case MultiDiscrete():
            return jnp.zeros(len(space.nums), jnp.int32)
        case _:
            return jnp.zeros(space.num, jnp.int32)


def _check(env: JaxEnv) -> None:
    """Raise where an environment's functions do not fit each other, without running them."""
    key, axis = jax.random.key(0), env.spec.agent_axis
    action = jnp.broadcast_to(example := _example(env.spec.action), (*axis, *example.shape))
    params = jax.tree.map(jnp.asarray, env.spec.params)
    with one_line_errors(env.spec.name):
        state = jax.eval_shape(env.reset, key, params)
        stepped, reward, terminated = jax.eval_shape(env.step, key, state, action, params)
        obs = jax.eval_shape(env.observe, state, params)
    shaped = lambda box: jax.ShapeDtypeStruct((*axis, *box.shape), box.dtype)
    boxes = jax.tree.map(shaped, env.spec.observation)
    _require_same(f"{env.spec.name}: `step` must return a state like that of `reset`", state, stepped)
    _require_same(f"{env.spec.name}: `observe` must return what `spec.observation` says", boxes, obs)
    if (reward.shape, terminated.shape) != (axis, ()):
        raise ShoalError(
            f"{env.spec.name}: `step` must return rewards of shape {axis} and one `terminated`, "
            f"not {reward.shape} and {terminated.shape}"
        )


def _require_same(demand: str, expected: Tree, found: Tree) -> None:
    expected, found = (
        jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", tree) for tree in (expected, found)
    )
    same_leaves = jax.tree.leaves(expected) == jax.tree.leaves(found)
    if jax.tree.structure(expected) != jax.tree.structure(found) or not same_leaves:
        raise ShoalError(f"{demand}: {expected}, not {found}")
