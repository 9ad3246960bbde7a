"""Lost learners that go on, as copies of others or from before: what was lost with them begins anew."""

import jax
import jax.numpy as jnp
from jax import Array

from shoal.exchanges.soundness import is_sound
from shoal.ops import trees
from shoal.training.rollout import EnvStates
from shoal.types import Env, Learner, LearnerState


def undo_lost_updates(before: LearnerState, after: LearnerState) -> LearnerState:
    """The cohort after an update, without the updates that lose their learner."""
    models = lambda cohort: (cohort.params, cohort.statistics, cohort.opt_state)
    params, statistics, opt_state = trees.where_rows(is_sound(after), models(after), models(before))
    return after._replace(params=params, statistics=statistics, opt_state=opt_state)


def abandon_broken(
    env: Env, learner: Learner, cohort: LearnerState, envs: EnvStates
) -> tuple[LearnerState, EnvStates]:
    """New episodes where an observation is not finite; these, memories and sums become 0 there.

    Only environments in JAX can abandon an episode. Others keep theirs, or begin one at the next step because
    they have failed.
    """
    kept = lambda by_env, part: jax.tree.map(_finite_or_zero, part) if by_env else part
    cohort = cohort._replace(private=jax.tree.map(kept, learner.by_env, cohort.private))
    state = envs.state
    if env.abandon is not None:
        state = env.abandon(state, ~trees.finite_rows(trees.merge_axes(envs.step.obs)))
    obs = jax.tree.map(_finite_or_zero, envs.step.obs)
    running = _finite_or_zero(envs.episodes.running_return)
    episodes = envs.episodes._replace(running_return=running)
    return cohort, EnvStates(state, envs.step._replace(obs=obs), episodes)


def _finite_or_zero(x: Array) -> Array:
    """(L, E, ...): 0 in every environment where a number is not finite."""
    usable = jnp.isfinite(x).reshape(*x.shape[:2], -1).all(-1)
    return jnp.where(trees.align(usable, x), x, jnp.zeros_like(x))
