"""Neighbours' policies as a penalty: frozen snapshots, asked once per rollout what they think of it."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.errors import ShoalError
from shoal.exchanges import topology
from shoal.exchanges.routing import HERE, Transport, take_drawn, taker
from shoal.ops import trees
from shoal.ops.trees import ByDevice
from shoal.types import Exchange, ExchangeState, Learner, LearnerState, PeerTargets, Rollout, Tree

PolicyTerms: TypeAlias = Callable[[LearnerState, Tree], Tree]
"""`Learner.policy_terms`."""


class Snapshots(NamedTuple):
    """The policies learners listen to, one per edge of the graph, laid out by the listener's device."""

    params: Tree  # (M, ...)
    statistics: Tree  # (M, ...)
    target: Array  # (M,) int32: who listens
    weight: Array  # (M,) how much; 0 until the two have met


def neighbours(learner: Learner, matrix: np.ndarray, transport: Transport = HERE, group: int = 4) -> Exchange:
    """Learner i hears learner j's policy with weight W_ij: `update` finds it in `rollout.peer_targets`.

    An edge is a policy copied when the two meet and evaluated once per rollout, so a sparse graph costs
    what its edges cost. W is any matrix (L, L); its diagonal is a learner's own policy as it was.
    """
    laid_out = topology.by_device(matrix, transport.num_devices)
    take = taker(laid_out.sources, len(matrix), transport)
    draw = lambda key: jnp.asarray(laid_out.sources)
    return _neighbours(
        learner, laid_out, len(matrix), transport, group, draw, lambda rows, sources: take(rows)
    )


def neighbours_in_pairs(
    learner: Learner, num_learners: int, transport: Transport = HERE, group: int = 4
) -> Exchange:
    """Each learner hears one other, drawn anew each time they meet, with weight 1."""
    everyone = np.arange(num_learners, dtype=np.int32)
    block = num_learners // transport.num_devices
    laid_out = topology.Edges(everyone % block, everyone, np.ones(num_learners, np.float32))

    def partners(key: Array) -> Array:
        order = jax.random.permutation(key, num_learners)
        beside = jnp.arange(num_learners) ^ 1
        beside = jnp.where(beside < num_learners, beside, 0)  # of an odd number, the last hears the first
        return jnp.zeros_like(order).at[order].set(order[beside])

    take = partial(take_drawn, most=num_learners, transport=transport)
    return _neighbours(learner, laid_out, num_learners, transport, group, partners, take)


def _neighbours(
    learner: Learner,
    laid_out: topology.Edges,
    num_learners: int,
    transport: Transport,
    group: int,
    draw_sources: Callable[[Array], Array],
    take: Callable[[Tree, Array], Tree],
) -> Exchange:
    policy_terms = learner.policy_terms
    if policy_terms is None:
        raise ShoalError(
            "this learner gives no opinions on single observations (with memory it needs those before them), "
            "so its neighbours' policies cannot be a penalty"
        )
    local, weights = laid_out.targets, laid_out.weights
    num = transport.num_devices
    first = np.repeat(np.arange(num) * (num_learners // num), len(local) // num)
    listener = np.asarray(first + local, np.int32)  # (M,)
    slots = tuple(np.flatnonzero(weights).tolist())

    def init(cohort: LearnerState):
        own = taker(listener, num_learners, transport)
        params, statistics = own((cohort.params, cohort.statistics))
        snapshots = Snapshots(params, statistics, jnp.asarray(listener), jnp.zeros(len(local)))
        sent = jnp.zeros(num_learners, jnp.float32)
        return ExchangeState((ByDevice(snapshots, slots), sent)), cohort

    def meet(key: Array, present: Array) -> tuple[Array, Array, Array]:
        """Who is heard on each edge and whether the two meet, (M,) each; how often each is heard, (L,)."""
        sources = draw_sources(key)
        met = present[sources] & present[listener] & (weights > 0)
        return sources, met, jnp.zeros(num_learners).at[sources].add(met & (sources != listener))

    def apply(key, state, cohort, scores):
        before, sent = state.per_learner
        sources, met, times = transport.on_all(meet)(key, scores.present)
        params, statistics = take((cohort.params, cohort.statistics), sources)
        fresh = Snapshots(params, statistics, before.rows.target, jnp.asarray(weights))
        size = 4 * (trees.size(cohort.params) + trees.size(cohort.statistics)) // num_learners
        sent = sent + size * times
        snapshots = ByDevice(trees.where_rows(met, fresh, before.rows), slots)
        return ExchangeState((snapshots, sent)), cohort, {"exchange/bytes": sent}

    return Exchange(init, apply, partial(add_peer_targets, policy_terms, group))


def add_peer_targets(
    policy_terms: PolicyTerms, group: int, state: ExchangeState, rollout: Rollout
) -> Rollout:
    """sum_j w_ij opinion_j(obs_i) for every learner of a device; rollout (T, L, E, ...)."""
    snapshots = state.per_learner[0].rows
    num_learners = rollout.reward.shape[1]
    snapshots = snapshots._replace(target=snapshots.target % num_learners)  # counted on this device
    obs = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), rollout.obs)  # (L, T, E, ...)

    def edge(params, statistics, target, weight):
        state = LearnerState(params, statistics, (), (), ())
        return jax.tree.map(lambda x: weight * x, policy_terms(state, trees.take(obs, target)))  # (T, E, ...)

    opinions = trees.vmap_in_groups(_group_for(snapshots, group), edge, (0, 0, 0, 0))(
        *snapshots
    )  # (M, T, E, ...)
    add = lambda x: jnp.moveaxis(jax.ops.segment_sum(x, snapshots.target, num_learners), 0, 1)
    total = jax.ops.segment_sum(snapshots.weight, snapshots.target, num_learners)  # (L,)
    weight = jnp.broadcast_to(total[None, :, None], rollout.valid.shape)
    return rollout._replace(
        peer_targets=(*rollout.peer_targets, PeerTargets(weight, jax.tree.map(add, opinions)))
    )


def anchor() -> Exchange:
    """Lets learners that stay near an anchor (FedProx) stay near what they hold now."""

    def init(cohort: LearnerState):
        return ExchangeState(), cohort._replace(anchor=cohort.params)

    def apply(key, state, cohort, scores):
        anchor = trees.where_rows(scores.present, cohort.params, cohort.anchor)
        return state, cohort._replace(anchor=anchor), {}

    return Exchange(init, apply)


def _group_for(snapshots: Snapshots, group: int) -> int:
    """As many edges at a time as asked, or the next smaller number that divides them."""
    num_edges = snapshots.target.shape[0]
    return max(n for n in range(1, min(group, num_edges) + 1) if num_edges % n == 0)
