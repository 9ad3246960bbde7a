"""Mixing: parameters averaged along the learner axis, statistics merged by their counts."""

import jax
import jax.numpy as jnp

from shoal import trees
from shoal.ops.statistics import Running, pool
from shoal.types import LearnerState


def average(cohort: LearnerState) -> LearnerState:
    """A cohort of one: the mean of all parameters, all statistics together, the rest of the first."""
    is_running = lambda x: isinstance(x, Running)
    params = jax.tree.map(lambda x: jnp.mean(x, 0, keepdims=True), cohort.params)
    statistics = jax.tree.map(lambda s: trees.stack([pool(s)]), cohort.statistics, is_leaf=is_running)
    return trees.take(cohort, jnp.array([0]))._replace(params=params, statistics=statistics)
