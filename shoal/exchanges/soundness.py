"""Lost learners, whose numbers are no longer finite: they take no part in exchanges."""

import jax
import jax.numpy as jnp
from jax import Array

from shoal.ops import trees
from shoal.types import Exchange, LearnerState


def is_sound(cohort: LearnerState) -> Array:
    """Which learners are not lost, (L,): their numbers are finite, and so are their parameters' squares.

    A mean with such large parameters would ruin the others.

    >>> params = {"w": jnp.array([[1.0, 2.0], [1.0, jnp.nan], [1e30, 0.0]])}
    >>> is_sound(LearnerState(params, {}, (), (), ())).tolist()
    [True, False, False]
    """
    squares = jax.tree.map(jnp.square, cohort.params)
    return trees.finite_rows((squares, cohort.statistics, cohort.opt_state))


def leave_out_lost(exchange: Exchange) -> Exchange:
    """The exchange without lost learners: they are absent and have no return."""

    def apply(key, state, cohort, scores):
        sound = is_sound(cohort)
        returns = jnp.where(sound, scores.returns, jnp.nan)
        scores = scores._replace(present=scores.present & sound, returns=returns)
        return exchange.apply(key, state, cohort, scores)

    return exchange._replace(apply=apply)
