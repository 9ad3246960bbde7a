"""Epochs of minibatches: advantages standardised, weights that sum to 1, an early stop by the KL.

A batch is a named tuple of samples with `value`, `advantage`, `target` and `weight` among its fields.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from shoal.distributed.mesh import psum
from shoal.learners.gradients import pmean
from shoal.learners.minibatches import gather_minibatches
from shoal.ops import trees
from shoal.ops.advantages import standardise_advantages
from shoal.types import Tree

Normalise: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]
"""normalise(advantage, weight) of a minibatch -> both normalised."""
Minibatches: TypeAlias = tuple[Callable[[Tree, Tree], Tree], Tree]
"""make(params, data) -> an epoch's minibatches along a leading axis; and the data of each epoch."""


def normalise_minibatch(
    norm_adv: str, axes: tuple[str, ...], advantage: Array, weight: Array
) -> tuple[Array, Array]:
    """A minibatch's advantages, standardised as configured, and its weights, which then sum to 1."""
    if norm_adv == "minibatch":
        advantage = standardise_advantages(advantage, weight, axes)
    num_valid = psum(jnp.sum(weight), axes)
    return advantage, weight / jnp.maximum(num_valid, 1.0)


def fixed_minibatches(normalise: Normalise, batch: Tree, orders: Array) -> Minibatches:
    """Minibatches of a batch that is the same in all epochs.

    `orders` says which blocks each minibatch of each epoch has (see `minibatches.shuffle_blocks`).
    """
    # For all epochs at once: devices that share a learner communicate once, not in every epoch.
    parts = jax.vmap(partial(gather_minibatches, (batch.advantage, batch.weight)))(orders)
    normalised = jax.vmap(jax.vmap(normalise))(*parts)
    rest = batch._replace(advantage=(), weight=())

    def make(params: Tree, data: Tree) -> Tree:
        blocks, (advantage, weight) = data
        return gather_minibatches(rest, blocks)._replace(advantage=advantage, weight=weight)

    return make, (orders, normalised)


def recomputed_minibatches(
    normalise: Normalise, batch: Tree, orders: Array, recompute: Callable[[Tree], Tree], later: bool = False
) -> Minibatches:
    """Minibatches of a batch whose values, advantages and targets every epoch but the first recomputes.

    `recompute(params)` is the batch by an epoch's first parameters. All else stays as it was, also the
    log-probabilities of the policy that acted. `later` says that the first epoch was before these.
    """
    estimates = lambda batch: (batch.value, batch.advantage, batch.target)

    def make(params: Tree, data: Tree) -> Tree:
        blocks, first = data
        value, advantage, target = trees.where(first, estimates(batch), estimates(recompute(params)))
        parts = gather_minibatches(batch._replace(value=value, advantage=advantage, target=target), blocks)
        advantage, weight = jax.vmap(normalise)(parts.advantage, parts.weight)
        return parts._replace(advantage=advantage, weight=weight)

    return make, (orders, jnp.arange(len(orders)) == (-1 if later else 0))


def run_epochs(
    take_step: Callable[[tuple[Tree, Tree], Tree], tuple[tuple[Tree, Tree], dict[str, Array]]],
    minibatches: Minibatches,
    start: tuple[Tree, Tree],
    kl_limit: Array | None,
    axes: tuple[str, ...],
) -> tuple[tuple[Tree, Tree], dict[str, Array], Array]:
    """A step on each minibatch, from `start` (parameters, optimiser): the end, mean metrics, the last KL.

    After an epoch whose mean `approx_kl` exceeds `kl_limit`, the remaining ones change and count nothing.
    """
    make, data = minibatches

    def epoch(carry, data):
        before, running = carry
        after, metrics = jax.lax.scan(take_step, before, make(before[0], data))
        metrics = jax.tree.map(jnp.mean, metrics)
        if kl_limit is None:
            return (after, running), (metrics, running)
        after = trees.where(running, after, before)
        kl = pmean(metrics["approx_kl"], axes)
        return (after, running & (kl <= kl_limit)), (metrics, running)

    (end, _), (metrics, ran) = jax.lax.scan(epoch, (start, jnp.bool_(True)), data)
    last_kl = pmean(metrics["approx_kl"][jnp.sum(ran) - 1], axes)
    return end, jax.tree.map(lambda x: jnp.mean(x, where=ran), metrics), last_kl
