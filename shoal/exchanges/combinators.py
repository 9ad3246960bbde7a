"""Exchanges made from exchanges: none, chain, every, participate, only_parts, common_start."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from shoal.errors import ShoalError
from shoal.exchanges.merging import is_running
from shoal.ops import trees
from shoal.types import Exchange, ExchangeState, LearnerState, Rollout, Scores, Tree

Path: TypeAlias = tuple[Any, ...]
"""The keys of a leaf, as `jax.tree_util` gives them."""
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
    is divided in the same way, running statistics by `belongs_to_parts`.
    """
    names = {*parts, *(["log_std"] if "actor" in parts else [])}
    is_named = lambda path: _part_name(path) in names

    def take_parts(cohort: LearnerState) -> LearnerState:
        known = part_names(cohort.params)
        if unknown := {*parts} - known:
            there = ", ".join(sorted(known))
            raise ShoalError(f"no parameters are called {', '.join(sorted(unknown))}; there are {there}")
        return cohort._replace(
            params=_take(is_named, cohort.params),
            anchor=_take(is_named, cohort.anchor),
            statistics=_take(partial(belongs_to_parts, known, names), cohort.statistics),
        )

    def put_back(taken: LearnerState, cohort: LearnerState) -> LearnerState:
        return taken._replace(
            params=_put(taken.params, cohort.params),
            anchor=_put(taken.anchor, cohort.anchor),
            statistics=_put(taken.statistics, cohort.statistics),
        )

    def init(cohort: LearnerState):
        state, taken = exchange.init(take_parts(cohort))
        return state, put_back(taken, cohort)

    def apply(key, state, cohort, scores):
        state, taken, metrics = exchange.apply(key, state, take_parts(cohort), scores)
        return state, put_back(taken, cohort), metrics

    return exchange._replace(init=init, apply=apply)


def belongs_to_parts(policies: set[str], parts: set[str], path: Path) -> bool:
    """Whether running statistics at a path are exchanged with these parts.

    The statistics of several policies have the policies' names. Those of returns and targets belong to the
    critic, whose outputs are normalised by them.
    """
    keys = {jax.tree_util.keystr((key,), simple=True) for key in path}
    if owners := keys & policies:
        return bool(owners & parts)
    return "critic" in parts or not keys & {*UNITS}


def common_start(exchange: Exchange) -> Exchange:
    """All learners start with the parameters of the first."""

    def init(cohort: LearnerState):
        first = jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), cohort.params)
        return exchange.init(cohort._replace(params=first, anchor=first if cohort.anchor else ()))

    return exchange._replace(init=init)


def part_names(params: Tree) -> set[str]:
    """The names of the parts of the parameters."""
    return {_part_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]}


def _part_name(path: Path) -> str:
    """The part of the parameters that a leaf belongs to."""
    outer, *inner = (jax.tree_util.keystr((key,), simple=True) for key in path[:2])
    return inner[0] if outer == "policy" and inner else outer


def _take(is_taken: Callable[[Path], bool], tree: Tree) -> dict[int, Tree]:
    """Some leaves of a tree by their index; running statistics are a leaf."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_running)
    return {index: leaf for index, (path, leaf) in enumerate(leaves) if is_taken(path)}


def _put(taken: dict[int, Tree], tree: Tree) -> Tree:
    """The tree with the leaves of `_take` replaced."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_running)
    return jax.tree.unflatten(structure, [taken.get(index, leaf) for index, leaf in enumerate(leaves)])


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
