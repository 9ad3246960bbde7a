"""Neighbours' policies as a penalty: frozen snapshots, evaluated once per rollout."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.errors import ShoalError
from shoal.exchanges import topology
from shoal.exchanges.routing import ONE_DEVICE, Transport, make_take, take_dynamic
from shoal.ops import trees
from shoal.ops.dependence import used_arguments
from shoal.ops.trees import ByDevice
from shoal.types import (
    EnvSpec,
    Exchange,
    ExchangeState,
    Learner,
    LearnerState,
    PeerTargets,
    Rollout,
    Tree,
)


class Snapshots(NamedTuple):
    """The policies that learners receive, one per edge of the graph, on the receiver's device."""

    params: Tree  # (M, ...) None for what the policy does not read
    statistics: Tree  # (M, ...) None for what the policy does not read
    target: Array  # (M,) int32: the receiver
    weight: Array  # (M,) W_ij; 0 until the two learners have met


class Counters(NamedTuple):
    """Named, because checkpoints of version 0.1 do not have them."""

    rounds: Array  # (L,) int32


@dataclass(frozen=True)
class PolicyInputs:
    """What `Learner.policy_terms` or `sequence_terms` reads of a learner: a part of (params, statistics)."""

    terms: Callable[[Tree, Tree, Tree], Tree]
    """(params, statistics, what it reads of a rollout) -> the terms."""
    seen: Callable[[Rollout], Tree]
    """What it reads of a rollout: observations, and of sequences where episodes start."""
    shapes: Tree
    """(params, statistics) of one learner."""
    is_read: Tree
    """True or False for each of their leaves."""

    @property
    def num_bytes(self) -> int:
        """The bytes of one learner's part."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.take(*self.shapes)))

    def take(self, params: Tree, statistics: Tree) -> tuple[Tree, Tree]:
        """The part: other leaves are None."""
        return jax.tree.map(lambda read, x: x if read else None, self.is_read, (params, statistics))

    def evaluate(self, params: Tree, statistics: Tree, seen: Tree) -> Tree:
        """The terms from the part; the compiler removes the zeros in place of the other leaves."""
        fill = lambda like, x: jnp.zeros(like.shape, like.dtype) if x is None else x
        params, statistics = jax.tree.map(fill, self.shapes, (params, statistics))
        return self.terms(params, statistics, seen)


def policy_inputs(learner: Learner, spec: EnvSpec) -> PolicyInputs:
    """What a learner's policy reads, found by tracing it; raises where it has no terms."""
    policy_terms, sequence_terms = learner.policy_terms, learner.sequence_terms
    if policy_terms is None and sequence_terms is None:
        raise ShoalError(
            "neighbours' policies cannot be a penalty for this learner: its policy cannot be evaluated at "
            "the observations of others (teams with memory cannot)"
        )

    def terms(params: Tree, statistics: Tree, seen: Tree) -> Tree:
        state = LearnerState(params, statistics, (), (), ())
        if policy_terms is not None:
            return policy_terms(state, seen)
        assert sequence_terms is not None
        return sequence_terms(state, *seen)

    def seen(rollout: Rollout) -> Tree:
        return rollout.obs if policy_terms else (rollout.obs, rollout.episode_starts)

    state = jax.eval_shape(learner.init, jax.random.key(0))
    shaped = lambda box: jax.ShapeDtypeStruct((1, 1, *spec.agent_axis, *box.shape), box.dtype)
    obs, start = jax.tree.map(shaped, spec.observation), jax.ShapeDtypeStruct((1, 1), bool)
    example = Rollout(obs, *[()] * 6, episode_starts=start)
    params, statistics, _ = used_arguments(terms, state.params, state.statistics, seen(example))
    return PolicyInputs(terms, seen, (state.params, state.statistics), (params, statistics))


def neighbours(
    learner: Learner, spec: EnvSpec, matrix: np.ndarray, transport: Transport = ONE_DEVICE, group: int = 4
) -> Exchange:
    """Learner i receives learner j's policy with weight W_ij; `update` reads it in `rollout.peer_targets`.

    For each edge a policy is copied when the two meet and evaluated once per rollout, so the cost is
    proportional to the edges. W is any matrix (L, L); W_ii is for a learner's own policy at the last meeting.
    """
    laid_out = topology.by_device(matrix, transport.num_devices)
    take = make_take(laid_out.sources, len(matrix), transport)
    draw = lambda key: jnp.asarray(laid_out.sources)
    policy = policy_inputs(learner, spec)
    return _neighbours(
        policy, laid_out, len(matrix), transport, group, draw, lambda rows, sources: take(rows)
    )


def neighbours_in_pairs(
    learner: Learner, spec: EnvSpec, num_learners: int, transport: Transport = ONE_DEVICE, group: int = 4
) -> Exchange:
    """Each learner receives the policy of one other, drawn anew at each meeting, with weight 1."""
    learners = np.arange(num_learners, dtype=np.int32)
    block = num_learners // transport.num_devices
    laid_out = topology.Edges(learners % block, learners, np.ones(num_learners, np.float32))

    def partners(key: Array) -> Array:
        order = jax.random.permutation(key, num_learners)
        other = jnp.arange(num_learners) ^ 1
        other = jnp.where(other < num_learners, other, 0)  # the last of an odd number receives from the first
        return jnp.zeros_like(order).at[order].set(order[other])

    policy = policy_inputs(learner, spec)
    take = partial(take_dynamic, most=num_learners, transport=transport)
    return _neighbours(policy, laid_out, num_learners, transport, group, partners, take)


def _neighbours(
    policy: PolicyInputs,
    laid_out: topology.Edges,
    num_learners: int,
    transport: Transport,
    group: int,
    draw_sources: Callable[[Array], Array],
    take: Callable[[Tree, Array], Tree],
) -> Exchange:
    local, weights = laid_out.targets, laid_out.weights
    num = transport.num_devices
    first = np.repeat(np.arange(num) * (num_learners // num), len(local) // num)
    receivers = np.asarray(first + local, np.int32)  # (M,)
    slots = tuple(np.flatnonzero(weights).tolist())

    def init(cohort: LearnerState):
        own = make_take(receivers, num_learners, transport)
        params, statistics = own(policy.take(cohort.params, cohort.statistics))
        snapshots = Snapshots(params, statistics, jnp.asarray(receivers), jnp.zeros(len(local)))
        sent, rounds = jnp.zeros(num_learners, jnp.float32), jnp.zeros(num_learners, jnp.int32)
        return ExchangeState((ByDevice(snapshots, slots), sent, Counters(rounds))), cohort

    def meet(key: Array, present: Array) -> tuple[Array, Array, Array, Array]:
        """Each edge's sender and whether the two meet, (M,).

        Of each learner, the messages it sends, and whether it sends or receives any, (L,).
        """
        sources = draw_sources(key)
        met = present[sources] & present[receivers] & (weights > 0)
        moved = met & (sources != receivers)
        takes_part = jnp.zeros(num_learners, bool).at[sources].max(moved).at[receivers].max(moved)
        return sources, met, jnp.zeros(num_learners).at[sources].add(moved), takes_part

    def apply(key, state, cohort, scores):
        before, sent, (rounds,) = state.per_learner
        sources, met, times, takes_part = transport.replicated(meet)(key, scores.present)
        params, statistics = take(policy.take(cohort.params, cohort.statistics), sources)
        fresh = Snapshots(params, statistics, before.rows.target, jnp.asarray(weights))
        snapshots = ByDevice(trees.where_rows(met, fresh, before.rows), slots)
        sent, rounds = sent + policy.num_bytes * times, rounds + takes_part
        metrics = {"exchange/bytes": sent, "exchange/rounds": jnp.float32(rounds)}
        return ExchangeState((snapshots, sent, Counters(rounds))), cohort, metrics

    return Exchange(init, apply, partial(add_peer_targets, policy, group))


def add_peer_targets(policy: PolicyInputs, group: int, state: ExchangeState, rollout: Rollout) -> Rollout:
    """sum_j w_ij terms_j(rollout_i) for every learner i of a device; rollout (T, L, E, ...)."""
    snapshots = state.per_learner[0].rows
    num_learners = rollout.reward.shape[1]
    snapshots = snapshots._replace(target=snapshots.target % num_learners)  # counted on this device
    seen = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), policy.seen(rollout))  # (L, T, E, ...)

    def edge(params, statistics, target, weight):
        terms = policy.evaluate(params, statistics, trees.take(seen, target))  # (T, E, ...)
        return jax.tree.map(lambda x: weight * x, terms)

    edges = trees.vmap_in_groups(_group_for(snapshots, group), edge, (0, 0, 0, 0))
    terms = edges(*snapshots)  # (M, T, E, ...)
    add = lambda x: jnp.moveaxis(jax.ops.segment_sum(x, snapshots.target, num_learners), 0, 1)
    total = jax.ops.segment_sum(snapshots.weight, snapshots.target, num_learners)  # (L,)
    weight = jnp.broadcast_to(total[None, :, None], rollout.valid.shape)
    return rollout._replace(
        peer_targets=(*rollout.peer_targets, PeerTargets(weight, jax.tree.map(add, terms)))
    )


def anchor() -> Exchange:
    """Set the anchor of FedProx to the present parameters."""

    def init(cohort: LearnerState):
        return ExchangeState(), cohort._replace(anchor=cohort.params)

    def apply(key, state, cohort, scores):
        anchor = trees.where_rows(scores.present, cohort.params, cohort.anchor)
        return state, cohort._replace(anchor=anchor), {}

    return Exchange(init, apply)


def _group_for(snapshots: Snapshots, group: int) -> int:
    """The number of edges to evaluate at a time: the largest divisor of their number up to `group`."""
    num_edges = snapshots.target.shape[0]
    return max(n for n in range(1, min(group, num_edges) + 1) if num_edges % n == 0)
