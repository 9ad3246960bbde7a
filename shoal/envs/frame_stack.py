"""Frame stacking: the last few observations as one, for every kind of environment.

The oldest comes first. At the beginning of an episode its first observation fills the whole stack.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.errors import ShoalError
from shoal.ops.masks import ACTION_MASK
from shoal.types import Augmentation, Box, Env, EnvRecipe, ObservationSpace, TimeStep, Tree

NOT_STACKED = (ACTION_MASK, "alive")
"""Parts of an observation that stay single."""


class Stacked(NamedTuple):
    """The state of N environments whose observations are stacked."""

    inner: Tree
    frames: Tree  # (N, ...) the stacked observations


def stack_frames(recipe: EnvRecipe, num_frames: int) -> EnvRecipe:
    """The same environment, each observation with the `num_frames` - 1 before it.

    Vectors (D,) become (num_frames * D,), images (H, W, C) and (H, W) become (H, W, num_frames * C). Named
    parts are stacked one by one; an action mask, and whether an agent is alive, are not stacked.

    >>> import shoal
    >>> stack_frames(shoal.make("CartPole-v1"), 4).spec.observation.shape
    (16,)
    """
    if not isinstance(num_frames, int) or isinstance(num_frames, bool) or num_frames < 1:
        raise ShoalError(f"frame_stack must be a whole number of at least 1, not {num_frames!r}")
    if num_frames == 1:
        return recipe
    space, augment = recipe.spec.observation, recipe.spec.augment
    spec = replace(
        recipe.spec,
        observation=stacked_space(space, num_frames),
        augment=augment and Augmentation(augment.copies, partial(_variants, augment, space, num_frames)),
    )

    def build(seeds: np.ndarray, rendering: bool) -> Env:
        env = recipe.build(seeds, rendering)

        def start(state: Tree, step: TimeStep) -> tuple[Stacked, TimeStep]:
            frames = fill(step.obs, num_frames)
            return Stacked(state, frames), step._replace(obs=frames)

        def reset(keys: Array, params: Tree) -> tuple[Stacked, TimeStep]:
            return start(*env.reset(keys, params))

        def step(state: Stacked, action: Tree, noise: Tree) -> tuple[Stacked, TimeStep]:
            inner, step = env.step(state.inner, action, noise)
            frames = append(state.frames, step.obs, ~step.valid, num_frames)
            return Stacked(inner, frames), step._replace(obs=frames)

        return env._replace(
            spec=spec,
            reset=reset,
            draw=lambda keys, state, num_steps: env.draw(keys, state.inner, num_steps),
            step=step,
            render=lambda state, row: env.render(state.inner, row),
            restart=(inner_restart := env.restart)
            and (lambda keys, state: start(*inner_restart(keys, state.inner))),
            abandon=(inner_abandon := env.abandon)
            and (lambda state, rows: state._replace(inner=inner_abandon(state.inner, rows))),
        )

    return recipe._replace(spec=spec, build=build)


def stacked_space(space: ObservationSpace, num_frames: int) -> ObservationSpace:
    """The space of stacked observations."""
    if isinstance(space, dict):
        return {
            name: box if name in NOT_STACKED else _stacked_box(box, num_frames) for name, box in space.items()
        }
    return _stacked_box(space, num_frames)


def fill(obs: Tree, num_frames: int) -> Tree:
    """Stacks (N, ...) of one observation repeated, as at the beginning of an episode."""
    return _each_part(lambda x: jnp.concatenate([_with_channels(x)] * num_frames, -1), obs)


def append(frames: Tree, obs: Tree, episode_starts: Array, num_frames: int) -> Tree:
    """The stacks with one observation more and the oldest dropped; full of that one where an episode starts.

    >>> frames = jnp.array([[1, 2, 3], [4, 5, 6]])
    >>> append(frames, jnp.array([[7], [8]]), jnp.array([False, True]), 3).tolist()
    [[2, 3, 7], [8, 8, 8]]
    """

    def append_part(new: Array, old: Array) -> Array:
        new = _with_channels(new)
        later = jnp.concatenate([old[..., new.shape[-1] :], new], -1)
        fresh = jnp.concatenate([new] * num_frames, -1)
        return jnp.where(episode_starts.reshape(-1, *[1] * (new.ndim - 1)), fresh, later)

    return _each_part(append_part, obs, frames)


def _variants(augment: Augmentation, space: ObservationSpace, num_frames: int, stacks: Tree) -> Tree:
    """Variants of stacks (B, ...): variant k stacks the k-th variants of the frames, (B, K, ...)."""

    def frame(k: int, box: Box, x: Array) -> Array:
        size = x.shape[-1] // num_frames
        return x[..., k * size : (k + 1) * size].reshape(len(x), *box.shape)

    def join(box: Box, *frames: Array) -> Array:
        shape = (*frames[0].shape[:2], *_stacked_box(box, 1).shape)
        return jnp.concatenate([x.reshape(shape) for x in frames], -1)

    def part(function: Callable[..., Array], *trees: Tree) -> Tree:
        if not isinstance(space, dict):
            return function(space, *trees)
        named = {name: [tree[name] for tree in trees] for name in space}
        return {
            name: named[name][-1] if name in NOT_STACKED else function(space[name], *named[name])
            for name in space
        }

    return part(join, *(augment.apply(part(partial(frame, k), stacks)) for k in range(num_frames)))


def _each_part(function: Callable[..., Array], obs: Tree, *others: Tree) -> Tree:
    if not isinstance(obs, dict):
        return function(obs, *others)
    return {
        name: x if name in NOT_STACKED else function(x, *(other[name] for other in others))
        for name, x in obs.items()
    }


def _with_channels(x: Array) -> Array:
    """Grey images (N, H, W) as (N, H, W, 1), everything else unchanged."""
    return x[..., None] if is_grey(x.shape[1:], x.dtype) else x


def is_grey(shape: tuple[int, ...], dtype: str | np.dtype) -> bool:
    """Whether this is an image without an axis for its channels."""
    return len(shape) == 2 and str(dtype) == "uint8"


def _stacked_box(box: Box, num_frames: int) -> Box:
    shape = (*box.shape, 1) if is_grey(box.shape, box.dtype) else box.shape
    bound = partial(_stacked_bound, box.shape, shape, num_frames)
    return Box((*shape[:-1], shape[-1] * num_frames), bound(box.low), bound(box.high), box.dtype)


def _stacked_bound(before: tuple[int, ...], shape: tuple[int, ...], num_frames: int, bound: Any) -> Any:
    """The bound of a stack: a scalar unchanged, an array once per frame."""
    if np.ndim(bound) == 0:
        return bound
    return np.concatenate([np.broadcast_to(bound, before).reshape(shape)] * num_frames, -1)
