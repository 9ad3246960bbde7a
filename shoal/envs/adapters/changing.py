"""Worlds that change over time: physical parameters drawn anew after every few episodes of an environment."""

from numbers import Integral
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from shoal.envs.adapters.jax_env import BatchState, Noise, from_jax
from shoal.envs.worlds.parameters import named
from shoal.errors import ShoalError
from shoal.ops import trees
from shoal.ops.dependence import used_arguments
from shoal.types import Env, EnvRecipe, EnvSpec, JaxEnv, TimeStep, Tree

OPTIONS = ("change_every", "change_spread")
"""Options of the environments here."""
DRAWS = 17
"""Folded into an environment's key for its new worlds."""


class Changing(NamedTuple):
    """N environments whose worlds change."""

    batch: BatchState
    home: Tree  # (N,) per leaf: the world that others are drawn around, and the first one
    episodes: Array  # (N,) int32: finished so far


class Draws(NamedTuple):
    """The random numbers of T steps."""

    noise: Noise
    worlds: Array  # (T, N, number of parameters that change), standard normal


def change_worlds(env: JaxEnv, every: int, spread: float = 1.0) -> EnvRecipe:
    """An environment in which every `every` episodes another world begins:

    clip(home + scale spread N(0, 1), low, high) for each parameter in `EnvSpec.spread`, home being the world
    that the learner was given. Each environment draws its own worlds.

    >>> import numpy as np
    >>> from shoal.envs.classic import CARTPOLE
    >>> change_worlds(CARTPOLE, 5, spread=0.3).spec.name
    'CartPole-v1'
    """
    check_options(env.spec, every, spread)
    recipe = from_jax(env)
    resets_differ = _reset_reads_params(env)

    def build(seeds, rendering: bool) -> Env:
        inner = recipe.build(seeds, rendering)
        assert inner.restart is not None
        assert inner.abandon is not None
        restart, abandon = inner.restart, inner.abandon

        def reset(keys: Array, params: Tree) -> tuple[Changing, TimeStep]:
            batch, step = inner.reset(keys, params)
            return Changing(batch, batch.params, jnp.zeros(keys.shape, jnp.int32)), step

        def draw(keys: Array, state: Changing, num_steps: int) -> Draws:
            keys_worlds = jax.vmap(jax.random.fold_in, (0, None))(keys, DRAWS)
            normal = lambda key: jax.random.normal(key, (num_steps, len(env.spec.spread)))
            worlds = jax.vmap(normal, out_axes=1)(keys_worlds)
            return Draws(inner.draw(keys, state.batch, num_steps), worlds)

        def step(state: Changing, action: Tree, draws: Draws) -> tuple[Changing, TimeStep]:
            batch, home, noise = state.batch, state.home, draws.noise
            episodes = state.episodes + batch.over
            due = batch.over & (episodes % every == 0)
            params = trees.where_rows(due, _drawn(env.spec, home, draws.worlds, spread), batch.params)
            if resets_differ:  # the first state was drawn before its world: a reset's step has a key to spare
                fresh = jax.vmap(env.reset)(noise.key, params)
                noise = noise._replace(fresh=trees.where_rows(due, fresh, noise.fresh))
            batch, seen = inner.step(batch._replace(params=params), action, noise)
            return Changing(batch, home, episodes), seen

        def begin_again(keys: Array, state: Changing) -> tuple[Changing, TimeStep]:
            batch, seen = restart(keys, state.batch)
            return state._replace(batch=batch), seen

        return inner._replace(
            reset=reset,
            draw=draw,
            step=step,
            render=lambda state, row: inner.render(state.batch, row),
            restart=begin_again,
            abandon=lambda state, rows: state._replace(batch=abandon(state.batch, rows)),
        )

    return EnvRecipe(recipe.spec, build)


def check_options(spec: EnvSpec, every: Any, spread: Any) -> None:
    """Raise where worlds of an environment cannot change so."""
    if not spec.spread:
        raise ShoalError(
            f"{spec.name} does not say how its parameters may differ, so its world cannot change"
        )
    if isinstance(every, bool) or not isinstance(every, Integral) or every < 1:
        raise ShoalError(f"change_every must be a number of episodes, at least 1, not {every!r}")
    if isinstance(spread, bool) or not isinstance(spread, int | float) or not 0 <= spread < float("inf"):
        raise ShoalError(f"change_spread must be a number of at least 0, not {spread!r}")


def _drawn(spec: EnvSpec, home: Tree, normal: Array, spread: float) -> Tree:
    """Worlds around these, (N,) per leaf, from normal numbers (N, number of parameters that change)."""
    values = dict(named(home))
    for column, name in enumerate(sorted(spec.spread)):
        scale, low, high = spec.spread[name]
        values[name] = jnp.clip(values[name] + scale * spread * normal[:, column], low, high)
    return type(home)(**values)


def _reset_reads_params(env: JaxEnv) -> bool:
    """Whether an episode's first state depends on the world."""
    params = jax.tree.map(jnp.asarray, env.spec.params)
    _, used = used_arguments(env.reset, jax.random.key(0), params)
    return any(jax.tree.leaves(used))
