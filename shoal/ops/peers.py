"""Peers: the KL to many policies as the KL to one, so that its cost does not grow with their number.

sum_j w_j KL(p_j || q) = W KL(m || q) + gap,  m with the mean moments of the p_j, W = sum_j w_j
sum_j w_j KL(q || p_j) = W KL(q || g) + gap,  g with the mean natural parameters of the p_j
KL(mixture || q)       ~ KL(m || q), exact for one discrete choice; the gradient is always exact
KL(q || mixture)       ~ KL(q || m), exact for one discrete choice; else m approximates the mixture
"""

from typing import Literal, NamedTuple, TypeAlias

import jax.numpy as jnp
from jax import Array

from shoal.ops.distributions import Distribution
from shoal.types import PeerTargets

Direction: TypeAlias = Literal["forward", "reverse"]
Form: TypeAlias = Literal["sum", "mixture"]


class PeerPolicy(NamedTuple):
    """All peers as one policy: the penalty is weight KL + gap."""

    outputs: Array  # (..., num_outputs)
    weight: Array  # (...)
    gap: Array  # (...) the peers' distance from their average, constant for the learner


def policy_terms(distribution: Distribution, direction: Direction, form: Form, outputs: Array):
    """The terms of a policy that are summed over peers: moments and -entropy, or natural parameters and
    log-partition.
    """
    if averages_logarithms(direction, form):
        return distribution.natural(outputs), distribution.log_partition(outputs)
    return distribution.moments(outputs), -distribution.entropy(outputs)


def aggregate(
    distribution: Distribution, direction: Direction, form: Form, targets: PeerTargets
) -> PeerPolicy:
    """All peers as one policy; without peers, its weight is 0."""
    some = targets.weight > 0
    total = jnp.where(some, targets.weight, 1.0)
    terms, constant = targets.terms
    neutral, _ = policy_terms(distribution, direction, form, jnp.zeros_like(terms))
    average = jnp.where(some[..., None], terms / total[..., None], neutral)
    if averages_logarithms(direction, form):
        outputs = distribution.from_natural(average)
        gap = constant - targets.weight * distribution.log_partition(outputs)
    else:
        outputs = distribution.from_moments(average)
        gap = constant + targets.weight * distribution.entropy(outputs)
    if form == "mixture":
        return PeerPolicy(outputs, some.astype(jnp.float32), jnp.zeros_like(gap))
    return PeerPolicy(outputs, targets.weight, jnp.where(some, gap, 0.0))


def penalty(distribution: Distribution, direction: Direction, peers: PeerPolicy, outputs: Array) -> Array:
    """weight KL + gap between the learner's policy and its peers', per sample."""
    theirs = peers.outputs
    kl = distribution.kl(theirs, outputs) if direction == "forward" else distribution.kl(outputs, theirs)
    return peers.weight * kl + peers.gap


def output_terms(outputs: Array) -> tuple[Array, Array]:
    """The terms of sum_j w_j ||x - x_j||^2 that are summed over peers: x_j and its squared length."""
    return outputs, jnp.sum(outputs**2, -1)


def squared_distance(outputs: Array, targets: PeerTargets) -> Array:
    """sum_j w_j ||x - x_j||^2 at each sample."""
    theirs, squares = targets.terms
    return targets.weight * jnp.sum(outputs**2, -1) - 2 * jnp.sum(outputs * theirs, -1) + squares


def averages_logarithms(direction: Direction, form: Form) -> bool:
    """Whether policies are averaged by their natural parameters."""
    return direction == "reverse" and form == "sum"
