"""Learners without environments, for tests of exchanges: rows of numbers that meet."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from shoal.types import LearnerState, Scores

KEY = jax.random.key(2)


def rows(*values):
    """Learners' parameters (L, D): a number each, or a list each."""
    x = np.array(values, np.float32)
    return x if x.ndim == 2 else x[:, None]


def cohort_of(x, statistics=(), opt_state=()):
    return LearnerState({"w": x}, statistics, opt_state, (), ())


def scores(num_learners, **changes):
    zeros, everyone = np.zeros(num_learners, np.float32), np.ones(num_learners, bool)
    now = Scores(zeros, zeros, zeros.astype(np.int32), everyone)
    return now._replace(**{name: np.asarray(x, getattr(now, name).dtype) for name, x in changes.items()})


def meet(exchange, x, **changes):
    """The parameters (L, D) after one meeting."""
    return met(exchange, cohort_of(x), **changes)[0].params["w"]


def met(exchange, cohort, **changes):
    """The cohort and the metrics after one meeting."""
    now = scores(len(jax.tree.leaves(cohort)[0]), **changes)
    return jax.device_get(first_meeting(exchange)(cohort, now))


@cache
def first_meeting(exchange):
    """(cohort, scores) -> the cohort and the metrics after one meeting: from the start on one program."""

    @jax.jit
    def run(cohort, scores):
        state, cohort = exchange.init(cohort)
        return exchange.apply(KEY, state, cohort, scores)[1:]

    return run


class Federation:
    """Learners that meet again and again; what they do in between is written to `x` and `statistics`."""

    def __init__(self, exchange, x):
        self.exchange, self.rounds, self.x, self.statistics = exchange, 0, np.asarray(x), ()
        self.private = jax.device_get(jax.jit(lambda x: exchange.init(cohort_of(x))[0])(self.x))

    def meet(self, **changes):
        self.rounds += 1
        now = scores(len(self.x), **changes)
        cohort = cohort_of(self.x, self.statistics)
        found = meeting(self.exchange)(self.rounds, self.private, cohort, now)
        self.private, cohort, self.metrics = jax.device_get(found)
        self.x, self.statistics = cohort.params["w"], cohort.statistics
        return self.x


@cache
def meeting(exchange):
    """A meeting with a key for each round, compiled once for all federations of an exchange."""
    return jax.jit(lambda round, *arguments: exchange.apply(jax.random.fold_in(KEY, round), *arguments))


def made_up(learner, num_learners):
    """Learners of the shapes and types that `init` gives them, all different; nothing is compiled."""
    shapes = jax.eval_shape(jax.vmap(learner.init), jax.random.split(KEY, num_learners))
    return drawn(jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes), 99)


def drawn(tree, seed):
    """Every real number of a tree drawn anew; counts, M2 and second moments stay positive."""
    leaves, structure = jax.tree.flatten(tree)
    rng = np.random.default_rng(seed)
    real = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
    draw = lambda x: rng.uniform(0.5, 2.0, x.shape).astype(x.dtype)
    return jax.tree.unflatten(structure, [draw(x) if real(x) else x for x in leaves])


def random_rows(num_learners, size, seed=0):
    return np.random.default_rng(seed).normal(size=(num_learners, size)).astype(np.float32)
