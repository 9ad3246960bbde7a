"""Evaluation: greedy returns of every learner, one whole episode per environment."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding

from shoal import trees
from shoal.collect import Worlds, begin, outcome, score
from shoal.envs.host import raise_crash
from shoal.mesh import ROWS, WHOLE, make_mesh, on_each_device
from shoal.types import Env, EnvRecipe, Learner, LearnerState, ShoalError

CHUNK = 64
"""Steps between two looks at whether everyone is done."""
PATIENCE = 1_000_000
"""Steps after which an episode that has no limit of its own is given up."""


class Tally(NamedTuple):
    """The first episode of every environment, (L, E)."""

    done: Array
    returns: Array
    lengths: Array


class Evaluation(NamedTuple):
    """Raw returns of one learner."""

    learner: int | str
    episodes: int
    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    length_mean: float
    world: str


def greedy(learner: Learner) -> Learner:
    """The same learner without exploration."""

    def silence(key, shape):
        like = jax.eval_shape(lambda key: learner.draw(key, shape), key)
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)

    return learner._replace(draw=silence)


def evaluate(
    recipe: EnvRecipe, learner: Learner, cohort: LearnerState, episodes: int = 100, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Returns and lengths, (L, episodes) each, of a cohort's greedy policies.

    Every environment plays exactly one episode, so short episodes do not count more than long ones.
    """
    num_learners = jax.tree.leaves(cohort)[0].shape[0]
    mesh = make_mesh(num_learners, recipe.spec.parallel)
    seeds = np.random.SeedSequence([seed, 7]).generate_state(num_learners * episodes)
    env = recipe.build(seeds.reshape(mesh.shape["learners"], -1), False)
    keys = jax.random.split(jax.random.key(seed), (num_learners, episodes))
    reset = on_each_device(mesh, partial(_begin, env), ROWS, ROWS)
    play = on_each_device(mesh, partial(_play, env, greedy(learner)), (WHOLE, ROWS, ROWS, ROWS), ROWS)
    cohort = jax.device_put(cohort, NamedSharding(mesh, ROWS))  # it may come from more devices, or from none
    worlds, tally = jax.jit(reset)(keys)
    play = jax.jit(play)
    for chunk in range(PATIENCE // CHUNK):
        worlds, tally = play(jax.random.fold_in(jax.random.key(seed), chunk), cohort, worlds, tally)
        done = np.all(tally.done)
        raise_crash()
        if done:
            return np.asarray(tally.returns), np.asarray(tally.lengths)
    raise ShoalError(f"an episode of {recipe.spec.name} did not end within {PATIENCE:,} steps")


def summarise(
    name: int | str, returns: np.ndarray, lengths: np.ndarray, world: str = "default"
) -> Evaluation:
    """The row that is printed for one learner's episodes, (episodes,) each."""
    return Evaluation(
        learner=name,
        episodes=len(returns),
        return_mean=float(returns.mean()),
        return_std=float(returns.std()),
        return_min=float(returns.min()),
        return_max=float(returns.max()),
        length_mean=float(lengths.mean()),
        world=world,
    )


def episode(
    recipe: EnvRecipe, learner: Learner, cohort: LearnerState, seed: int = 0, max_steps: int = 1000
) -> Iterator[tuple[np.ndarray, float]]:
    """Pictures and raw rewards of one greedy episode of a cohort of one, step by step."""
    seeds = np.random.SeedSequence([seed, 11]).generate_state(1)
    env = recipe.build(seeds[None], True)
    key_reset, key_play = jax.random.split(jax.random.key(seed))
    params = jax.tree.map(lambda x: jnp.full(1, x, jnp.float32), recipe.spec.params)
    state, step = jax.jit(env.reset)(jax.random.split(key_reset, 1), params)
    yield env.render(state, 0), 0.0
    one = trees.take(cohort, 0)
    noise = trees.take(greedy(learner).draw(key_play, (1, 1)), 0)

    @jax.jit
    def advance(key, memory, state, obs):
        chance = trees.take(env.draw(jax.random.split(key, 1), state, 1), 0)
        action, memory = learner.act(one._replace(memory=memory), obs, noise)
        return memory, *env.step(state, action, chance)

    memory = one.memory
    for t in range(max_steps):
        memory, state, step = advance(jax.random.fold_in(key_play, t), memory, state, step.obs)
        reward, _, over = outcome(step, step.info)
        raise_crash()
        yield env.render(state, 0), float(reward[0])
        if over[0]:
            return


def _begin(env: Env, keys: Array) -> tuple[Worlds, Tally]:
    params = jax.tree.map(lambda x: jnp.full(keys.shape, x, jnp.float32), env.spec.params)
    tally = Tally(jnp.zeros(keys.shape, bool), jnp.zeros(keys.shape), jnp.zeros(keys.shape, jnp.int32))
    return begin(env, keys, params), tally


def _play(
    env: Env, learner: Learner, key: Array, cohort: LearnerState, worlds: Worlds, tally: Tally
) -> tuple[Worlds, Tally]:
    num_learners, num_envs = tally.done.shape
    key = jax.random.fold_in(key, jax.lax.axis_index("learners"))
    chance = env.draw(jax.random.split(key, num_learners * num_envs), worlds.state, CHUNK)
    noise = jax.vmap(lambda key: learner.draw(key, (CHUNK, num_envs)), out_axes=1)(
        jax.random.split(key, num_learners)
    )

    def advance(carry, randomness):
        memory, state, obs, running, tally = carry
        noise, chance = randomness
        action, memory = jax.vmap(learner.act)(cohort._replace(memory=memory), obs, noise)
        state, rows = env.step(state, trees.merge_axes(action), chance)
        step = trees.split_axis(rows, num_learners)
        running, (over, total, length) = score(running, outcome(step, step.info))
        first = over & ~tally.done
        tally = Tally(
            tally.done | over,
            jnp.where(first, total, tally.returns),
            jnp.where(first, length, tally.lengths),
        )
        return (memory, state, step.obs, running, tally), None

    episodes = worlds.episodes
    running = (episodes.running_return, episodes.running_length)
    start = (cohort.memory, worlds.state, worlds.step.obs, running, tally)
    (_, state, obs, running, tally), _ = jax.lax.scan(advance, start, (noise, chance))
    episodes = episodes._replace(running_return=running[0], running_length=running[1])
    return Worlds(state, worlds.step._replace(obs=obs), episodes), tally
