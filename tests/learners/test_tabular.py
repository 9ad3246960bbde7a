"""Q-averaging, learned through the exchanges, against the answers published by Jin et al. 2022."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import trees
from shoal.envs.tabular import random_worlds, value, windy_cliff
from shoal.exchange.mixing import average
from shoal.exchange.schedule import absent, every, none
from shoal.learners.tabular import World, bellman, tabular
from shoal.types import Exchange

KAPPA = [0.0, 0.2, 0.4, 0.6, 0.8]
RANDOM, CLIFF = 0.9, 0.95  # the discounts of the two experiments


def learn(exchange: Exchange, gamma: float, num_updates: int, slowness: float, key, worlds: World):
    """The tables (L, S, A) of learners that meet after each update; the n-th has size 1 / (1 + n / slowness)."""
    make = lambda world: tabular(world, gamma, step_size=lambda n: 1 / (1 + n / slowness))
    num_learners = len(worlds.reward)
    standing = absent(num_learners)._replace(present=jnp.ones(num_learners, bool))
    update = jax.vmap(make(worlds).update, in_axes=(None, 0, None))

    def step(n, carry):
        memory, cohort = carry
        cohort, _ = update(key, cohort, None)
        memory, cohort, _ = exchange.apply(key, memory, cohort, standing)
        return memory, cohort

    cohort = jax.vmap(lambda world: make(world).init(key))(worlds)
    _, cohort = jax.lax.fori_loop(0, num_updates, step, exchange.init(cohort))
    return cohort.params


def optimum(world: World, gamma: float):
    """Q* by value iteration."""
    step = lambda n, table: bellman(world, gamma, table)
    return jax.lax.fori_loop(0, 500, step, jnp.zeros_like(world.reward))


def greedy(table):
    return jnp.argmax(table, -1)


def first(worlds: World) -> World:
    return trees.row(worlds, 0)


def mean(worlds: World) -> World:
    return jax.tree.map(lambda x: x.mean(0), worlds)


def objective(worlds: World, gamma: float, policy):
    """The value in every state, (S,), of one policy in all worlds."""
    return jax.vmap(lambda world: value(world, gamma, policy))(worlds).mean(0)


def keys(num: int):
    return jax.random.split(jax.random.key(0), num)


def cliffs(num: int):
    """Five winds each, (num, 5); the second half mirrors the first, which halves the error many times."""
    theta = jax.random.uniform(jax.random.key(1), (num // 2, 5))
    return jnp.concatenate([theta, 1 - theta])


def test_random_worlds():
    """Table 1: 10 (V - 0.5 / (1 - gamma)) at the centre, 16,000 worlds; the authors' errors are 0.05 to 0.06."""

    def score(key, kappa):
        worlds = random_worlds(key, kappa)
        tables = learn(every(4, average()), RANDOM, 128, 10, key, worlds)
        return 10 * (value(first(worlds), RANDOM, greedy(tables[0])).mean() - 0.5 / (1 - RANDOM))

    scores = jax.jit(jax.vmap(jax.vmap(score, (0, None)), (None, 0)))(keys(16_000), jnp.array(KAPPA))
    found = np.asarray(scores, np.float64).mean(1)
    np.testing.assert_allclose(found, [35.42, 35.23, 34.80, 34.14, 33.29], atol=0.3)
    np.testing.assert_allclose(found[0] - found[1:], [0.19, 0.62, 1.28, 2.13], atol=0.1)


def test_the_best_on_the_windy_cliff():
    """133.97 at kappa = 0, to the last digit."""
    worlds = jax.vmap(windy_cliff)(jnp.full(5, 0.5))
    tables = learn(every(4, average()), CLIFF, 200, 100, jax.random.key(0), worlds)
    assert round(float(value(first(worlds), CLIFF, greedy(tables[0]))[0]), 2) == 133.97
    assert round(float(optimum(first(worlds), CLIFF)[0].max()), 2) == 133.97


def test_the_windy_cliff_among_other_winds():
    """133.65 at the centre, where the others' winds are 0.1 + 0.8 u (their draws are not seeded)."""

    def score(key, theta):
        worlds = jax.vmap(windy_cliff)(jnp.append(0.5, 0.1 + 0.8 * theta[1:]))
        tables = learn(average(), CLIFF, 64, jnp.inf, key, worlds)
        return value(first(worlds), CLIFF, greedy(tables[0]))[0]

    scores = jax.jit(jax.vmap(score))(keys(8000), cliffs(8000))
    assert scores.mean() == pytest.approx(133.65, abs=0.15)


@pytest.mark.parametrize(("num_updates", "published"), [(8, 125.73), (16, 128.56), (32, 129.55)])
def test_the_speed_on_the_windy_cliff(num_updates, published):
    """The training objective after so many iterations; the authors' error is 0.17."""

    def score(key, theta):
        worlds = jax.vmap(windy_cliff)(theta)
        tables = learn(average(), CLIFF, num_updates, jnp.inf, key, worlds)
        return objective(worlds, CLIFF, greedy(tables[0]))[0]

    scores = jax.jit(jax.vmap(score))(keys(4000), cliffs(4000))
    assert scores.mean() == pytest.approx(published, abs=0.5)
