"""The grammar of exchanges: nothing, one after another, now and then, some learners, some parameters."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from shoal.errors import ShoalError
from shoal.ops import trees
from shoal.types import Exchange, ExchangeState, LearnerState, Rollout, Scores, Tree

UNITS = ("returns", "targets")
"""Running statistics of what critics learn."""


def none() -> Exchange:
    """Learners that never meet."""
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
        memories = []
        for exchange in exchanges:
            state, cohort = exchange.init(cohort)
            memories.append(state)
        return _join(memories), cohort

    def apply(key, state, cohort, scores):
        memories, total = [], {}
        for index, (exchange, part) in enumerate(zip(exchanges, _parts(state), strict=True)):
            part, cohort, metrics = exchange.apply(jax.random.fold_in(key, index), part, cohort, scores)
            memories.append(part)
            total |= {name: total[name] + x if name in total else x for name, x in metrics.items()}
        return _join(memories), cohort, total

    def add_peer_targets(state: ExchangeState, rollout: Rollout) -> Rollout:
        for exchange, part in zip(exchanges, _parts(state), strict=True):
            rollout = exchange.add_peer_targets(part, rollout)
        return rollout

    def derive_metrics(metrics):
        return {name: x for exchange in exchanges for name, x in exchange.derive_metrics(metrics).items()}

    return Exchange(init, apply, add_peer_targets, derive_metrics)


def every(updates: int, exchange: Exchange) -> Exchange:
    """Meet after every so many updates; in between, metrics stay those of the last meeting."""
    if updates < 1:
        raise ShoalError(f"local_updates must be at least 1, not {updates}")
    if updates == 1:
        return exchange

    def init(cohort: LearnerState):
        inner, cohort = exchange.init(cohort)
        nobody = absent(trees.num_rows(cohort))
        _, _, metrics = jax.eval_shape(exchange.apply, jax.random.key(0), inner, cohort, nobody)
        before = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics)
        rows, whole = (inner.per_learner, before, nobody.samples), (inner.shared, jnp.int32(0))
        return ExchangeState(rows, whole), cohort

    def apply(key, state, cohort, scores):
        (rows, before, samples), (whole, waited) = state
        scores = scores._replace(samples=samples + scores.samples)
        waited = waited + 1

        def meet():
            inner, met, metrics = exchange.apply(key, ExchangeState(rows, whole), cohort, scores)
            state = ExchangeState(
                (inner.per_learner, metrics, jnp.zeros_like(samples)), (inner.shared, waited * 0)
            )
            return state, met, metrics

        def wait():
            state = ExchangeState((rows, before, scores.samples), (whole, waited))
            return state, cohort, before

        return jax.lax.cond(waited == updates, meet, wait)

    def add_peer_targets(state: ExchangeState, rollout: Rollout) -> Rollout:
        return exchange.add_peer_targets(ExchangeState(state.per_learner[0], state.shared[0]), rollout)

    return Exchange(init, apply, add_peer_targets, exchange.derive_metrics)


def participate(fraction: float, exchange: Exchange) -> Exchange:
    """Only so large a part of the learners meets, drawn anew each time; the others go on alone."""
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


def select(parts: Sequence[str], exchange: Exchange) -> Exchange:
    """Exchange only the named parts of the parameters; an actor's `log_std` goes with it.

    Names are those of the network's fields: `actor`, `critic`, `encoder` in PPO's; of a learner that has more
    than a policy, those of its `policy`'s and of what is beside it: `curiosity`. Of an anchor, where there is
    one, the same parts are seen. The moments that a critic's numbers are measured by go with the critic.
    """
    names = {*parts, *(["log_std"] if "actor" in parts else [])}

    def divide(params: Tree) -> tuple[dict[int, jax.Array], list[jax.Array], Any]:
        paths, structure = jax.tree_util.tree_flatten_with_path(params)
        first = [_name(path) for path, _ in paths]
        if unknown := {*parts} - {*first}:
            there = ", ".join(dict.fromkeys(first))
            raise ShoalError(f"no parameters are called {', '.join(sorted(unknown))}; there are {there}")
        leaves = [leaf for _, leaf in paths]
        chosen = {i: leaf for i, leaf in enumerate(leaves) if first[i] in names}
        return chosen, leaves, structure

    def part(cohort: LearnerState) -> LearnerState:
        anchor = divide(cohort.anchor)[0] if cohort.anchor else ()
        return cohort._replace(params=divide(cohort.params)[0], anchor=anchor)

    def whole(changed: LearnerState, before: LearnerState) -> LearnerState:
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
        state, changed = exchange.init(part(cohort))
        return state, whole(changed, cohort)

    def apply(key, state, cohort, scores):
        state, changed, metrics = exchange.apply(key, state, part(cohort), scores)
        return state, whole(changed, cohort), metrics

    return exchange._replace(init=init, apply=apply)


def choose_statistics(
    policies: set[str], parts: set[str], path: tuple[Any, ...], merged: jax.Array, own: jax.Array
) -> jax.Array:
    """Merged statistics where their part is exchanged, else a learner's own.

    Statistics of several policies lie under the policies' names. The moments of returns and targets go with
    the critic, whose numbers are measured in them.
    """
    keys = {jax.tree_util.keystr((key,), simple=True) for key in path}
    if owners := keys & policies:
        return merged if owners & parts else own
    return own if keys & {*UNITS} and "critic" not in parts else merged


def common_start(exchange: Exchange) -> Exchange:
    """Everyone begins with the parameters of the first learner, as clients of a server do."""

    def init(cohort: LearnerState):
        first = jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), cohort.params)
        return exchange.init(cohort._replace(params=first, anchor=first if cohort.anchor else ()))

    return exchange._replace(init=init)


def part_names(params: Tree) -> set[str]:
    """The parts that parameters have."""
    return {_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]}


def _name(path: tuple[Any, ...]) -> str:
    """The part of the parameters that a leaf belongs to."""
    outer, *inner = (jax.tree_util.keystr((key,), simple=True) for key in path[:2])
    return inner[0] if outer == "policy" and inner else outer


def absent(num_learners: int) -> Scores:
    """The standing of learners who have done nothing and are not there."""
    zeros = jnp.zeros(num_learners)
    return Scores(zeros, zeros, jnp.zeros(num_learners, jnp.int32), jnp.zeros(num_learners, bool))


def _join(memories: Sequence[ExchangeState]) -> ExchangeState:
    return ExchangeState(tuple(m.per_learner for m in memories), tuple(m.shared for m in memories))


def _parts(state: ExchangeState) -> list[ExchangeState]:
    return [ExchangeState(*part) for part in zip(state.per_learner, state.shared, strict=True)]
