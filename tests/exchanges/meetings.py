"""Learners without environments, for tests of exchanges: rows of numbers that meet."""

import jax
import jax.numpy as jnp
import numpy as np

from shoal.types import LearnerState, Scores

KEY = jax.random.key(2)


def rows(*values):
    """Learners' parameters (L, D): a number each, or a list each."""
    x = jnp.array(values, jnp.float32)
    return x if x.ndim == 2 else x[:, None]


def cohort_of(x, statistics=(), opt_state=()):
    return LearnerState({"w": x}, statistics, opt_state, (), ())


def scores(num_learners, **changes):
    zeros, everyone = jnp.zeros(num_learners), jnp.ones(num_learners, bool)
    changes = {name: jnp.array(x) for name, x in changes.items()}
    return Scores(zeros, zeros, zeros.astype(jnp.int32), everyone)._replace(**changes)


def meet(exchange, x, **changes):
    """The parameters (L, D) after one meeting."""
    state, cohort = exchange.init(cohort_of(x))
    _, cohort, _ = jax.jit(exchange.apply)(KEY, state, cohort, scores(len(x), **changes))
    return np.asarray(cohort.params["w"])


class Federation:
    """Learners that meet again and again; what they do in between is written to `x`."""

    def __init__(self, exchange, x):
        self.apply, self.rounds = jax.jit(exchange.apply), 0
        self.private, cohort = exchange.init(cohort_of(x))
        self.x = cohort.params["w"]

    def meet(self, **changes):
        self.rounds += 1
        key, now = jax.random.fold_in(KEY, self.rounds), scores(len(self.x), **changes)
        self.private, cohort, self.metrics = self.apply(key, self.private, cohort_of(self.x), now)
        self.x = cohort.params["w"]
        return np.asarray(self.x)


def random_rows(num_learners, size, seed=0):
    return jax.random.normal(jax.random.key(seed), (num_learners, size))
