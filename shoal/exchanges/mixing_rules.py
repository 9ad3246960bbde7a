"""Mixing rules: how the messages of learners are combined, by a server or by neighbours."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.errors import ShoalError
from shoal.exchanges.merging import median_statistics, mix_statistics, pool_statistics
from shoal.exchanges.products import linear, times
from shoal.exchanges.robust import Aggregator
from shoal.exchanges.routing import ONE_DEVICE, Transport, take_dynamic
from shoal.ops import trees
from shoal.ops.statistics import Running
from shoal.types import Tree


class MixingRule(NamedTuple):
    """How learners combine their messages.

    combine(key, own, messages, weight) -> (L, D)     own, messages (L, D); weight (L,), 0 for absent learners
    merge(key, statistics, weight) -> statistics      `Running` with leading L
    count_messages(key, weight, changes) -> (L,)      how often each learner sends its message

    `broadcast`: all learners receive the same result. `changes`: messages are changes instead of parameters,
    so every learner that may receive from the sender later needs each of them.
    """

    combine: Callable[[Array, Array, Array, Array], Array]
    merge: Callable[[Array, Running, Array], Running]
    count_messages: Callable[[Array, Array, bool], Array]
    broadcast: bool


Operator: TypeAlias = Callable[[Tree, Tree], Tree]
"""(own, messages) -> mixed: the same linear function along the learner axis for every leaf (L, n)."""


def from_server(aggregate: Aggregator, robust: bool = False) -> MixingRule:
    """All learners receive one aggregate of all messages."""

    def combine(key, own, messages, weight):
        return jnp.broadcast_to(aggregate(messages, weight), own.shape)

    def merge(key, statistics, weight):
        merged = median_statistics(statistics, weight) if robust else pool_statistics(statistics, weight)
        return jax.tree.map(lambda one, like: jnp.broadcast_to(one, like.shape), merged, statistics)

    def count_messages(key, weight, changes):
        return jnp.ones_like(weight, jnp.int32)

    return MixingRule(combine, merge, count_messages, broadcast=True)


def from_neighbours(matrix: np.ndarray, transport: Transport = ONE_DEVICE) -> MixingRule:
    """x_i <- W_ii x_i + sum_j W_ij m_j; the weight of an absent neighbour goes to x_i.

    The cost of a sparse W is proportional to its edges (`linear`).
    """
    matrix = np.asarray(matrix, np.float32)
    if not np.allclose(matrix.sum(1), 1, atol=1e-5):
        raise ShoalError("each row of a gossip matrix must sum to 1")
    others = matrix * (1 - np.eye(len(matrix), dtype=np.float32))
    product, whole_product = linear(others, transport), linear(others)

    def operator(weight: Array, product: Callable[[Tree], Tree]) -> Operator:
        present = (weight > 0).astype(jnp.float32)[:, None]

        def apply(own: Tree, messages: Tree) -> Tree:
            sent = jax.tree.map(lambda x: jnp.where(present > 0, x, 0.0), messages)
            from_others, received = product((present, sent))
            from_others = jnp.minimum(from_others, 1.0)
            return jax.tree.map(lambda x, new: times(1 - from_others, x) + new, own, received)

        return apply

    def combine(key, own, messages, weight):
        return operator(weight, product)(own, messages)

    def merge(key, statistics, weight):
        mixed = operator(weight, whole_product)
        return mix_statistics(lambda sums: mixed(sums, sums), statistics)

    receives = others != 0  # (L, L): i from j
    count = transport.replicated(lambda weight: jnp.sum(jnp.asarray(receives) & (weight > 0)[:, None], 0))

    def count_messages(key, weight, changes):
        return jnp.asarray(receives.sum(0), jnp.int32) if changes else count(weight)

    return MixingRule(combine, transport.replicated(merge), count_messages, broadcast=False)


def from_partner(transport: Transport = ONE_DEVICE) -> MixingRule:
    """x_i <- (x_i + m_j) / 2 with a random partner j, drawn anew each time; one of an odd number has none."""

    def draw_partners(key: Array, weight: Array) -> tuple[Array, Array]:
        """Each learner's partner, and whether it has one."""
        num_learners = weight.shape[0]
        # Present learners come first, in random order; two that are next to each other are partners.
        order = jnp.argsort(jnp.where(weight > 0, jax.random.uniform(key, (num_learners,)), 2.0))
        other = jnp.argsort(order) ^ 1
        partner = order[jnp.minimum(other, num_learners - 1)]
        return partner, (other < num_learners) & (weight > 0) & (weight[partner] > 0)

    def average_pairs(paired: Array, own: Tree, messages: Tree) -> Tree:
        return jax.tree.map(lambda x, new: jnp.where(paired[:, None], (x + new) / 2, x), own, messages)

    def combine(key, own, messages, weight):
        partner, paired = transport.replicated(draw_partners)(key, weight)
        return average_pairs(paired, own, take_dynamic(messages, partner, len(weight), transport))

    def merge(key, statistics, weight):
        partner, paired = draw_partners(key, weight)
        return mix_statistics(lambda sums: average_pairs(paired, sums, trees.take(sums, partner)), statistics)

    def count_messages(key, weight, changes):
        if changes:
            return jnp.full_like(weight, len(weight) - 1, jnp.int32)
        _, paired = transport.replicated(draw_partners)(key, weight)
        return jnp.int32(paired)

    return MixingRule(combine, transport.replicated(merge), count_messages, broadcast=False)
