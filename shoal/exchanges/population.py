"""Populations: the worst learners become copies of the best and change their hyperparameters."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from shoal.errors import ShoalError
from shoal.exchanges import exploration
from shoal.exchanges.exploration import Prior
from shoal.exchanges.routing import ONE_DEVICE, Transport
from shoal.exchanges.selection import (
    Migrated,
    SelectionRule,
    copy_parents,
    num_donors,
    replace_lost,
    subpopulations,
)
from shoal.exchanges.soundness import is_sound
from shoal.ops import trees
from shoal.types import Exchange, ExchangeState, LearnerState, Tree


def population(
    rule: SelectionRule,
    priors: Mapping[str, Prior],
    *,
    min_episodes: int = 20,
    warm_up: int = 0,
    resample: float = 0.25,
    groups: int = 1,
    migrate_every: int = 1,
    transport: Transport = ONE_DEVICE,
) -> Exchange:
    """Population-based training (Jaderberg et al. 2017), ranked by raw returns.

    A learner that has finished fewer than `min_episodes` since it was replaced is neither copied nor
    replaced. There is no selection at the first `warm_up` meetings. With `groups`, selection is within
    groups, with migration between them (`selection.subpopulations`). Lost learners become copies of the best.

    >>> from shoal.exchanges.combinators import every
    >>> from shoal.exchanges.selection import truncation
    >>> exchange = every(10, population(truncation(0.25), {"learning_rate": Prior("log", 1e-5, 1e-2)}))
    """

    among_sound = subpopulations(groups, rule, migrate_every)

    def select(key: Array, score: Array, eligible: Array, lost: Array, call: Array) -> Migrated:
        return replace_lost(among_sound(key, score, eligible & ~lost, call), score, eligible, lost)

    def init(cohort: LearnerState):
        num_learners = trees.num_rows(cohort)
        if num_learners % groups:
            raise ShoalError(f"{groups} groups do not divide {num_learners} learners")
        replaced_at = jnp.zeros(num_learners, jnp.int32)  # episodes finished when a learner was last replaced
        return ExchangeState(replaced_at, jnp.int32(0)), cohort

    def apply(key, state, cohort, scores):
        replaced_at, meetings = state
        meetings = meetings + 1
        key_select, key_explore = jax.random.split(key)
        enough = scores.episodes - replaced_at >= min_episodes
        eligible = scores.present & enough & (meetings > warm_up)
        arguments = (key_select, scores.returns, eligible, ~is_sound(cohort), meetings)
        parent, mutate, hypers_parent = transport.replicated(select)(*arguments)
        donors = num_donors(groups, rule, parent.shape[0])
        cohort = copy_parents(cohort, parent, hypers_parent, donors, transport)
        explore = lambda key, hypers, mutate: exploration.explore(priors, key, hypers, mutate, resample)
        hypers = transport.replicated(explore)(key_explore, cohort.hypers, mutate)
        replaced = parent != jnp.arange(parent.shape[0])
        state = ExchangeState(jnp.where(replaced, scores.episodes, replaced_at), meetings)
        metrics = {"population/parent": parent.astype(jnp.float32), "population/score": scores.returns}
        return state, cohort._replace(hypers=hypers), metrics

    return Exchange(init, apply)


def follow_hyper_plan(plan: Sequence[tuple[int, Mapping[str, float]]]) -> Exchange:
    """Hyperparameters set by a plan: (number of updates, values from then on), beginning at 0 updates."""
    starts = jnp.array([updates for updates, _ in plan])
    columns = {name: jnp.array([values[name] for _, values in plan]) for name in plan[0][1]}

    def planned(cohort: LearnerState, updates: Array) -> LearnerState:
        entry = jnp.sum(starts <= updates) - 1
        values = {
            name: jnp.broadcast_to(column[entry], getattr(cohort.hypers, name).shape)
            for name, column in columns.items()
        }
        return cohort._replace(hypers=cohort.hypers._replace(**values))

    def apply(key, state, cohort, scores):
        updates = state.shared + 1
        return ExchangeState((), updates), planned(cohort, updates), {}

    return Exchange(lambda cohort: (ExchangeState((), jnp.int32(0)), planned(cohort, jnp.int32(0))), apply)


def check_hyper_plan(plan: Sequence[tuple[int, Mapping[str, float]]]) -> list[str]:
    """The hyperparameters that a plan sets; raises where its entries do not fit each other."""
    steps = [step for step, _ in plan]
    names = list(plan[0][1]) if plan else []
    same = all(list(values) == names for _, values in plan)
    if not names or not same or steps[0] != 0 or steps != sorted(steps):
        raise ShoalError(
            "hyper_plan is a list of [step, {name: number}], steps rising from 0, the same names each time"
        )
    return names


def draw_hypers(priors: Mapping[str, Prior], keys: Array, hypers: Tree) -> Tree:
    """Hyperparameters drawn from their priors, a key per learner: keys (L,), hypers (L,) per leaf."""
    fresh = {
        name: jax.vmap(lambda key, name=name: _draw(priors[name], key, hypers._fields.index(name)))(keys)
        for name in priors
    }
    return hypers._replace(**fresh)


def _draw(prior: Prior, key: Array, index: int) -> Array:
    return exploration.draw(prior, jax.random.fold_in(key, index))
