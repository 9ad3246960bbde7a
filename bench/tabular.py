"""Q-averaging on tabular worlds: the numbers of Jin et al. 2022 beside ours."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from tabular_q import World, random_worlds, tabular, value, windy_cliff

from shoal.exchanges.combinators import empty_scores, every, none
from shoal.exchanges.mixing import average
from shoal.ops import trees
from shoal.types import Exchange

NUM_WORLDS = 16_000
RANDOM = {0.0: 35.42, 0.2: 35.23, 0.4: 34.80, 0.6: 34.14, 0.8: 33.29}
CLIFF = {0.0: 133.97, 0.8: 133.65}
TRAINING = {1: 129.55, 4: 129.55, 16: 129.55, None: 129.12}  # None: averaged only at the end


def learn(key: Array, worlds: World, exchange: Exchange, gamma: float) -> Array:
    """The mean table of five learners, one in each world, that meet after each update."""
    make = lambda world: tabular(world, gamma, step_size=lambda n: 1 / (1 + n / 20))
    scores = empty_scores(5)._replace(present=jnp.ones(5, bool))
    update = jax.vmap(make(worlds).update, in_axes=(None, 0, None))

    def step(n, carry):
        return exchange.apply(key, carry[0], update(key, carry[1], None)[0], scores)[:2]

    cohort = jax.vmap(lambda world: make(world).init(key))(worlds)
    return jax.lax.fori_loop(0, 192, step, exchange.init(cohort))[1].params.mean(0)


def on_random_worlds(key: Array, kappa: float) -> Array:
    """10 (V - 0.5 / (1 - gamma)) at the centre, from a uniform start."""
    worlds = random_worlds(key, kappa)
    policy = jnp.argmax(learn(key, worlds, every(4, average()), 0.9), -1)
    return 10 * (value(trees.take(worlds, 0), 0.9, policy).mean() - 0.5 / (1 - 0.9))


def on_the_cliff(key: Array, kappa: float) -> Array:
    """V(start) at the centre, theta = 0.5."""
    winds = jnp.append(0.5, 0.5 + kappa * (jax.random.uniform(key, (4,)) - 0.5))
    policy = jnp.argmax(learn(key, jax.vmap(windy_cliff)(winds), every(4, average()), 0.95), -1)
    return value(windy_cliff(0.5), 0.95, policy)[0]


def in_training(key: Array, local_updates: int | None) -> Array:
    """V(start), the mean over the five worlds learned in, of winds in [0, 1]."""
    worlds = jax.vmap(windy_cliff)(jax.random.uniform(key, (5,)))
    exchange = every(local_updates, average()) if local_updates else none()
    policy = jnp.argmax(learn(key, worlds, exchange, 0.95), -1)
    return jax.vmap(lambda world: value(world, 0.95, policy)[0])(worlds).mean()


def each(score: Callable, **options) -> Callable:
    """The scores of many worlds, a thousand at a time."""
    many = lambda keys, setting: jax.lax.map(lambda key: score(key, setting), keys, batch_size=1000)
    return jax.jit(many, **options)


def show(name: str, scores: Callable, published: dict, keys: Array) -> None:
    """One line per setting, over the same random numbers; the first one's seconds include compiling."""
    print(f"\n{name:30} published     ours +- error  seconds for {len(keys)} worlds")
    for setting, expected in published.items():
        began = time.perf_counter()
        x = np.asarray(scores(keys, setting), np.float64)
        error, seconds = x.std() / len(x) ** 0.5, time.perf_counter() - began
        print(f"{setting!s:>30} {expected:9.2f} {x.mean():8.2f} {error:8.3f} {seconds:8.1f}")


if __name__ == "__main__":
    keys = jax.random.split(jax.random.key(0), NUM_WORLDS)
    show("random worlds, by kappa", each(on_random_worlds), RANDOM, keys)
    show("windy cliff, by kappa", each(on_the_cliff), CLIFF, keys)
    show("windy cliff, by local updates", each(in_training, static_argnums=1), TRAINING, keys)
