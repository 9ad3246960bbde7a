"""Epochs: a batch cut into minibatches, whose advantages are standardised and whose weights add up to 1.

A batch is a named tuple of samples with `value`, `advantage`, `target` and `weight` among its fields.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from shoal.distributed.mesh import psum
from shoal.learners.minibatches import arrange
from shoal.ops import trees
from shoal.ops.advantages import standardise_advantages
from shoal.types import Tree

Cut: TypeAlias = Callable[[Tree, Tree], Tree]
"""An epoch's minibatches, along a leading axis, from the parameters it begins with and what it is given."""
Weigh: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]


def weigh(norm_adv: str, axes: tuple[str, ...], advantage: Array, weight: Array) -> tuple[Array, Array]:
    """A minibatch's advantages, standardised as configured, and its weights, adding up to 1."""
    if norm_adv == "minibatch":
        advantage = standardise_advantages(advantage, weight, axes)
    num_valid = psum(jnp.sum(weight), axes)
    return advantage, weight / jnp.maximum(num_valid, 1.0)


def minibatches_once(weigh: Weigh, batch: Tree, orders: Array) -> tuple[Cut, Tree]:
    """How minibatches are made of a batch that stays as it is, and what is given to each epoch.

    `orders` says which blocks each minibatch of each epoch has (see `minibatches.shuffles`).
    """
    # For all epochs at once: where devices share a learner, they meet for it once and not each time.
    weighed = jax.vmap(jax.vmap(weigh))(*jax.vmap(partial(arrange, (batch.advantage, batch.weight)))(orders))
    rest = batch._replace(advantage=(), weight=())

    def cut(params: Tree, given: Tree) -> Tree:
        blocks, (advantage, weight) = given
        return arrange(rest, blocks)._replace(advantage=advantage, weight=weight)

    return cut, (orders, weighed)


def minibatches_recomputed(
    weigh: Weigh, batch: Tree, orders: Array, assess: Callable[[Tree], Tree]
) -> tuple[Cut, Tree]:
    """The same where every epoch but the first has the values, advantages and targets of its parameters.

    All else stays as it was, the probabilities of the policy that acted among it.
    """
    judged = lambda batch: (batch.value, batch.advantage, batch.target)

    def cut(params: Tree, given: Tree) -> Tree:
        blocks, first = given
        value, advantage, target = trees.where(first, judged(batch), judged(assess(params)))
        parts = arrange(batch._replace(value=value, advantage=advantage, target=target), blocks)
        advantage, weight = jax.vmap(weigh)(parts.advantage, parts.weight)
        return parts._replace(advantage=advantage, weight=weight)

    return cut, (orders, jnp.arange(len(orders)) == 0)
