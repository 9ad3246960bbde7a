"""Exchanges made from exchanges: none, chain, every, participate, only_parts, common_start."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from shoal.errors import ShoalError
from shoal.ops import trees
from shoal.types import Exchange, ExchangeState, LearnerState, Rollout, Scores, Tree

UNITS = ("returns", "targets")
"""Running statistics that a critic's outputs are normalised by."""


def none() -> Exchange:
    """No exchange."""
    return Exchange(
        init=lambda cohort: (ExchangeState(), cohort),
        apply=lambda key, state, cohort, scores: (state, cohort, {}),
    )


def chain(*exchanges: Exchange) -> Exchange:
    """One exchange after another; metrics of the same name are added.

    >>> from shoal.exchanges.mixing import average, gossip
    >>> from shoal.exchanges.topology import metropolis, ring
    >>> federation = chain(every(4, gossip(metropolis(ring(8)))), every(64, average()))
    """

    def init(cohort: LearnerState):
        states = []
        for exchange in exchanges:
            state, cohort = exchange.init(cohort)
            states.append(state)
        return _join(states), cohort

    def apply(key, state, cohort, scores):
        states, total = [], {}
        for index, (exchange, own) in enumerate(zip(exchanges, _split(state), strict=True)):
            own, cohort, metrics = exchange.apply(jax.random.fold_in(key, index), own, cohort, scores)
            states.append(own)
            total |= {name: total[name] + x if name in total else x for name, x in metrics.items()}
        return _join(states), cohort, total

    def add_peer_targets(state: ExchangeState, rollout: Rollout) -> Rollout:
        for exchange, own in zip(exchanges, _split(state), strict=True):
            rollout = exchange.add_peer_targets(own, rollout)
        return rollout

    def derive_metrics(metrics):
        return {name: x for exchange in exchanges for name, x in exchange.derive_metrics(metrics).items()}

    return Exchange(init, apply, add_peer_targets, derive_metrics)


def every(updates: int, exchange: Exchange) -> Exchange:
    """Apply the exchange after every `updates` updates; in between, metrics are those of the last time."""
    if updates < 1:
        raise ShoalError(f"local_updates must be at least 1, not {updates}")
    if updates == 1:
        return exchange

    def init(cohort: LearnerState):
        inner, cohort = exchange.init(cohort)
        scores = empty_scores(trees.num_rows(cohort))
        _, _, metrics = jax.eval_shape(exchange.apply, jax.random.key(0), inner, cohort, scores)
        latest = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics)
        per_learner, shared = (inner.per_learner, latest, scores.samples), (inner.shared, jnp.int32(0))
        return ExchangeState(per_learner, shared), cohort

    def apply(key, state, cohort, scores):
        (per_learner, latest, samples), (shared, waited) = state
        scores = scores._replace(samples=samples + scores.samples)
        waited = waited + 1

        def meet():
            inner, met, metrics = exchange.apply(key, ExchangeState(per_learner, shared), cohort, scores)
            state = ExchangeState(
                (inner.per_learner, metrics, jnp.zeros_like(samples)), (inner.shared, waited * 0)
            )
            return state, met, metrics

        def wait():
            return ExchangeState((per_learner, latest, scores.samples), (shared, waited)), cohort, latest

        return jax.lax.cond(waited == updates, meet, wait)

    def add_peer_targets(state: ExchangeState, rollout: Rollout) -> Rollout:
        return exchange.add_peer_targets(ExchangeState(state.per_learner[0], state.shared[0]), rollout)

    return Exchange(init, apply, add_peer_targets, exchange.derive_metrics)


def participate(fraction: float, exchange: Exchange) -> Exchange:
    """A fraction of the learners takes part, drawn anew each time; the others do not change."""
    if not 0 < fraction <= 1:
        raise ShoalError(f"participation must be above 0 and at most 1, not {fraction}")
    if fraction == 1:
        return exchange

    def apply(key, state, cohort, scores):
        key_draw, key_inner = jax.random.split(key)
        num_learners = scores.present.shape[0]
        rank = jnp.argsort(jnp.argsort(jax.random.bits(key_draw, (num_learners,))))
        drawn = rank < max(1, round(fraction * num_learners))
        scores = scores._replace(present=scores.present & drawn)
        return exchange.apply(key_inner, state, cohort, scores)

    return exchange._replace(apply=apply)


def only_parts(parts: Sequence[str], exchange: Exchange) -> Exchange:
    """Exchange only the named parts of the parameters; `actor` includes its `log_std`.

    The names are the fields of the network: `actor`, `critic`, `encoder` for PPO. Where a learner has more
    than a policy, they are the fields of its `policy` and the other models, such as `curiosity`. The anchor
    is divided in the same way. Running statistics of other parts stay as they are (`choose_statistics`).
    """
    names = {*parts, *(["log_std"] if "actor" in parts else [])}

    def divide(params: Tree) -> tuple[dict[int, jax.Array], list[jax.Array], Any]:
        paths, structure = jax.tree_util.tree_flatten_with_path(params)
        owners = [_part_name(path) for path, _ in paths]
        if unknown := {*parts} - {*owners}:
            known = ", ".join(dict.fromkeys(owners))
            raise ShoalError(f"no parameters are called {', '.join(sorted(unknown))}; there are {known}")
        leaves = [leaf for _, leaf in paths]
        chosen = {i: leaf for i, leaf in enumerate(leaves) if owners[i] in names}
        return chosen, leaves, structure

    def take_parts(cohort: LearnerState) -> LearnerState:
        anchor = divide(cohort.anchor)[0] if cohort.anchor else ()
        return cohort._replace(params=divide(cohort.params)[0], anchor=anchor)

    def put_back(changed: LearnerState, before: LearnerState) -> LearnerState:
        def restore(chosen: dict[int, jax.Array], params: Tree) -> Tree:
            _, leaves, structure = divide(params)
            leaves = [chosen.get(i, leaf) for i, leaf in enumerate(leaves)]
            return jax.tree_util.tree_unflatten(structure, leaves)

        anchor = restore(changed.anchor, before.anchor) if before.anchor else ()
        changed = changed._replace(params=restore(changed.params, before.params), anchor=anchor)
        policies = part_names(before.params)
        statistics = jax.tree_util.tree_map_with_path(
            partial(choose_statistics, policies, names), changed.statistics, before.statistics
        )
        return changed._replace(statistics=statistics)

    def init(cohort: LearnerState):
        state, changed = exchange.init(take_parts(cohort))
        return state, put_back(changed, cohort)

    def apply(key, state, cohort, scores):
        state, changed, metrics = exchange.apply(key, state, take_parts(cohort), scores)
        return state, put_back(changed, cohort), metrics

    return exchange._replace(init=init, apply=apply)


def choose_statistics(
    policies: set[str], parts: set[str], path: tuple[Any, ...], merged: jax.Array, own: jax.Array
) -> jax.Array:
    """Merged statistics where their part is exchanged, else a learner's own.

    The statistics of several policies have the policies' names. Those of returns and targets belong to the
    critic, whose outputs are normalised by them.
    """
    keys = {jax.tree_util.keystr((key,), simple=True) for key in path}
    if owners := keys & policies:
        return merged if owners & parts else own
    return own if keys & {*UNITS} and "critic" not in parts else merged


def common_start(exchange: Exchange) -> Exchange:
    """All learners start with the parameters of the first."""

    def init(cohort: LearnerState):
        first = jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), cohort.params)
        return exchange.init(cohort._replace(params=first, anchor=first if cohort.anchor else ()))

    return exchange._replace(init=init)


def part_names(params: Tree) -> set[str]:
    """The names of the parts of the parameters."""
    return {_part_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]}


def _part_name(path: tuple[Any, ...]) -> str:
    """The part of the parameters that a leaf belongs to."""
    outer, *inner = (jax.tree_util.keystr((key,), simple=True) for key in path[:2])
    return inner[0] if outer == "policy" and inner else outer


def empty_scores(num_learners: int) -> Scores:
    """The scores of learners that have done nothing and are not present."""
    zeros = jnp.zeros(num_learners)
    return Scores(zeros, zeros, jnp.zeros(num_learners, jnp.int32), jnp.zeros(num_learners, bool))


def _join(states: Sequence[ExchangeState]) -> ExchangeState:
    """The states of several exchanges as one."""
    return ExchangeState(tuple(s.per_learner for s in states), tuple(s.shared for s in states))


def _split(state: ExchangeState) -> list[ExchangeState]:
    """The reverse of `_join`."""
    return [ExchangeState(*own) for own in zip(state.per_learner, state.shared, strict=True)]
