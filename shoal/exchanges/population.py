"""Populations: learners are ranked, the worst become copies of the best, and what they became is changed."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from shoal.errors import ShoalError
from shoal.exchanges import exploration
from shoal.exchanges.exploration import Prior
from shoal.exchanges.routing import HERE, Transport
from shoal.exchanges.selection import SelectionRule, copy_parents, num_donors, subpopulations
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
    transport: Transport = HERE,
) -> Exchange:
    """Population-based training (Jaderberg et al. 2017) by raw returns.

    A learner with fewer than `min_episodes` finished since it was last replaced is neither donor nor
    victim. The first `warm_up` meetings pass without a selection. With `groups`, selection is within each,
    at frequencies of their own, with migration (see `selection.subpopulations`).

    >>> from shoal.exchanges.combinators import every
    >>> from shoal.exchanges.selection import truncation
    >>> exchange = every(10, population(truncation(0.25), {"learning_rate": Prior("log", 1e-5, 1e-2)}))
    """

    select = subpopulations(groups, rule, migrate_every)

    def init(cohort: LearnerState):
        num_learners = trees.num_rows(cohort)
        if num_learners % groups:
            raise ShoalError(f"{groups} groups do not divide {num_learners} learners")
        rows = jnp.zeros(num_learners, jnp.int32)  # episodes finished when a learner was last replaced
        return ExchangeState(rows, jnp.int32(0)), cohort

    def apply(key, state, cohort, scores):
        replaced_at, meetings = state
        meetings = meetings + 1
        key_select, key_explore = jax.random.split(key)
        enough = scores.episodes - replaced_at >= min_episodes
        eligible = scores.present & enough & (meetings > warm_up)
        arguments = (key_select, scores.returns, eligible, meetings)
        parent, mutate, hypers_parent = transport.on_all(select)(*arguments)
        donors = num_donors(groups, rule, parent.shape[0])
        cohort = copy_parents(cohort, parent, hypers_parent, donors, transport)
        explore = lambda key, hypers, mutate: exploration.explore(priors, key, hypers, mutate, resample)
        hypers = transport.on_all(explore)(key_explore, cohort.hypers, mutate)
        replaced = parent != jnp.arange(parent.shape[0])
        state = ExchangeState(jnp.where(replaced, scores.episodes, replaced_at), meetings)
        metrics = {"population/parent": parent.astype(jnp.float32), "population/score": scores.returns}
        return state, cohort._replace(hypers=hypers), metrics

    return Exchange(init, apply)


def follow(schedule: Sequence[tuple[int, Mapping[str, float]]]) -> Exchange:
    """Hyperparameters by a plan: (updates done, values from then on), the first entry for the beginning."""
    starts = jnp.array([updates for updates, _ in schedule])
    columns = {name: jnp.array([values[name] for _, values in schedule]) for name in schedule[0][1]}

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


def check_schedule(schedule: Any) -> list[str]:
    """The names that a plan sets; raises where it is none."""
    entries = schedule if isinstance(schedule, list | tuple) else []
    pairs = [e for e in entries if isinstance(e, list | tuple) and len(e) == 2 and isinstance(e[1], dict)]
    steps = [step for step, _ in pairs]
    names = list(pairs[0][1]) if pairs else []
    whole = pairs and len(pairs) == len(entries) and all(list(values) == names for _, values in pairs)
    numbers = [*steps, *(x for _, values in pairs for x in values.values())]
    real = all(isinstance(x, int | float) and not isinstance(x, bool) for x in numbers)
    if not (whole and real and names) or steps[0] != 0 or steps != sorted(steps):
        raise ShoalError(
            "hyper_plan is a list of [step, {name: number}], steps rising from 0, the same names each time"
        )
    return names


def drawn(priors: Mapping[str, Prior], keys: Array, hypers: Tree) -> Tree:
    """Hyperparameters from their priors, a learner's by its own key: keys (L,), hypers (L,) per leaf."""
    fresh = {
        name: jax.vmap(lambda key, name=name: _draw(priors[name], key, hypers._fields.index(name)))(keys)
        for name in priors
    }
    return hypers._replace(**fresh)


def _draw(prior: Prior, key: Array, place: int) -> Array:
    return exploration.draw(prior, jax.random.fold_in(key, place))
