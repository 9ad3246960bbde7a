"""Neighbours' policies as a penalty: frozen snapshots, asked once per rollout what they think of it."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal import trees
from shoal.exchange import topology
from shoal.types import Advice, Exchange, ExchangeMemory, Learner, LearnerState, Rollout, ShoalError, Tree

Opinion: TypeAlias = Callable[[LearnerState, Tree], Tree]
"""`Learner.opinion`."""


class Snapshots(NamedTuple):
    """The policies learners listen to, one per edge of the graph, laid out by the listener's device."""

    params: Tree  # (M, ...)
    statistics: Tree  # (M, ...)
    target: Array  # (M,) int32: who listens, counted from the first learner of the device
    weight: Array  # (M,) how much; 0 until the two have met


def neighbours(learner: Learner, matrix: np.ndarray, num_devices: int = 1, group: int = 4) -> Exchange:
    """Learner i hears learner j's policy with weight W_ij: `update` finds it in `rollout.advice`.

    An edge is a policy copied when the two meet and evaluated once per rollout, so a sparse graph costs
    what its edges cost. W is any matrix (L, L); its diagonal is a learner's own policy as it was.
    """
    laid_out = topology.by_device(matrix, num_devices)
    return _neighbours(learner, laid_out, len(matrix), num_devices, group, lambda key: laid_out.sources)


def neighbours_in_pairs(
    learner: Learner, num_learners: int, num_devices: int = 1, group: int = 4
) -> Exchange:
    """Each learner hears one other, drawn anew each time they meet, with weight 1."""
    everyone = np.arange(num_learners, dtype=np.int32)
    block = num_learners // num_devices
    laid_out = topology.Edges(everyone % block, everyone, np.ones(num_learners, np.float32))

    def partners(key: Array) -> Array:
        order = jax.random.permutation(key, num_learners)
        beside = jnp.arange(num_learners) ^ 1
        beside = jnp.where(beside < num_learners, beside, 0)  # of an odd number, the last hears the first
        return jnp.zeros_like(order).at[order].set(order[beside])

    return _neighbours(learner, laid_out, num_learners, num_devices, group, partners)


def _neighbours(
    learner: Learner,
    laid_out: topology.Edges,
    num_learners: int,
    num_devices: int,
    group: int,
    draw_sources: Callable[[Array], Array],
) -> Exchange:
    opinion = learner.opinion
    if opinion is None:
        raise ShoalError(
            "this learner gives no opinions on single observations (with memory it needs those before them), "
            "so its neighbours' policies cannot be a penalty"
        )
    local, weights = laid_out.targets, laid_out.weights
    width = len(local) // num_devices
    listener = np.repeat(np.arange(num_devices), width) * (num_learners // num_devices) + local  # (M,)

    def init(cohort: LearnerState):
        params, statistics = trees.take((cohort.params, cohort.statistics), listener)
        snapshots = Snapshots(params, statistics, jnp.asarray(local), jnp.zeros(len(local)))
        return ExchangeMemory((snapshots, jnp.zeros(num_learners, jnp.float32))), cohort

    def apply(key, memory, cohort, standing):
        snapshots, sent = memory.rows
        sources = draw_sources(key)
        met = standing.present[sources] & standing.present[listener] & (weights > 0)
        params, statistics = trees.take((cohort.params, cohort.statistics), sources)
        fresh = Snapshots(params, statistics, snapshots.target, weights)
        size = 4 * (trees.size(cohort.params) + trees.size(cohort.statistics)) // num_learners
        sent = sent.at[sources].add(size * (met & (sources != listener)))
        snapshots = trees.where_rows(met, fresh, snapshots)
        return ExchangeMemory((snapshots, sent)), cohort, {"exchange/bytes": sent}

    return Exchange(init, apply, partial(advise, opinion, group))


def advise(opinion: Opinion, group: int, memory: ExchangeMemory, rollout: Rollout) -> Rollout:
    """sum_j w_ij opinion_j(obs_i) for every learner of a device; rollout (T, L, E, ...)."""
    snapshots, _ = memory.rows
    num_learners = rollout.reward.shape[1]
    obs = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), rollout.obs)  # (L, T, E, ...)

    def edge(params, statistics, target, weight):
        state = LearnerState(params, statistics, (), (), ())
        return jax.tree.map(lambda x: weight * x, opinion(state, trees.take(obs, target)))  # (T, E, ...)

    opinions = trees.in_groups(_group_for(snapshots, group), edge, (0, 0, 0, 0))(*snapshots)  # (M, T, E, ...)
    add = lambda x: jnp.moveaxis(jax.ops.segment_sum(x, snapshots.target, num_learners), 0, 1)
    total = jax.ops.segment_sum(snapshots.weight, snapshots.target, num_learners)  # (L,)
    weight = jnp.broadcast_to(total[None, :, None], rollout.reward.shape)
    return rollout._replace(advice=(*rollout.advice, Advice(weight, jax.tree.map(add, opinions))))


def anchor() -> Exchange:
    """Lets learners that stay near an anchor (FedProx) stay near what they hold now."""

    def init(cohort: LearnerState):
        return ExchangeMemory(), cohort._replace(anchor=cohort.params)

    def apply(key, memory, cohort, standing):
        anchor = trees.where_rows(standing.present, cohort.params, cohort.anchor)
        return memory, cohort._replace(anchor=anchor), {}

    return Exchange(init, apply)


def _group_for(snapshots: Snapshots, group: int) -> int:
    """As many edges at a time as asked, or the next smaller number that divides them."""
    num_edges = snapshots.target.shape[0]
    return max(n for n in range(1, min(group, num_edges) + 1) if num_edges % n == 0)
