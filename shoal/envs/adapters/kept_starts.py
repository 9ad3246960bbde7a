"""Starts of episodes drawn now and then: for environments whose resets cost more than their steps."""

from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from shoal.envs.adapters.jax_env import BatchState, Noise, from_jax, strong
from shoal.types import Env, EnvRecipe, JaxEnv, TimeStep, Tree


class KeptState(NamedTuple):
    """The state of N environments, and where the next episode of each begins."""

    batch: BatchState
    starts: Tree  # (N, ...) the environment's own state
    age: Array  # (N,) int32, the same in all rows: steps since the starts were drawn


def from_jax_keeping_starts(env: JaxEnv, every: int) -> EnvRecipe:
    """The batched environment of a single one, like `from_jax`, with fewer resets.

    Each row draws a new start every so many steps. Its episodes that begin in between have the same start:
    only ones shorter than that can begin alike.
    """
    recipe = from_jax(env)

    def build(seeds: np.ndarray, rendering: bool) -> Env:
        inner = recipe.build(seeds, rendering)
        assert inner.abandon is not None
        abandon = inner.abandon

        def keep(batch: BatchState, now: TimeStep) -> tuple[KeptState, TimeStep]:
            return KeptState(batch, starts=batch.state, age=jax.numpy.zeros_like(batch.steps)), now

        def draw(keys: Array, kept: KeptState, num_steps: int) -> Noise:
            pairs = jax.vmap(lambda key: jax.random.split(key, (2, num_steps)), out_axes=2)(keys)
            return Noise(*pairs)  # `fresh` is a key here

        def step(kept: KeptState, action: Tree, noise: Noise) -> tuple[KeptState, TimeStep]:
            draw_starts = lambda: jax.tree.map(strong, jax.vmap(env.reset)(noise.fresh, kept.batch.params))
            starts = jax.lax.cond(kept.age[0] == 0, draw_starts, lambda: kept.starts)
            batch, now = inner.step(kept.batch, action, Noise(starts, noise.key))
            return KeptState(batch, starts, (kept.age + 1) % every), now

        return inner._replace(
            reset=lambda keys, params: keep(*inner.reset(keys, params)),
            restart=lambda keys, kept: keep(*inner.reset(keys, kept.batch.params)),
            draw=draw,
            step=step,
            render=lambda kept, row: inner.render(kept.batch, row),
            abandon=lambda kept, rows: kept._replace(batch=abandon(kept.batch, rows)),
        )

    return EnvRecipe(recipe.spec, build)
