"""Minibatches: a rollout in a new order, which does not depend on how its environments are divided.

The samples of one moment in neighbouring environments are a block, which stays together: fewer, longer
pieces are quicker to put in an order and to copy. Environments fall into strata, each shuffled by a key of
its own, and every minibatch takes equally much from each. So a device that holds some of the environments
can make its share of every minibatch by itself, and the shares of all devices make up the same minibatches
as one's.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from shoal.distributed.mesh import DATA, own_shard
from shoal.errors import ShoalError
from shoal.types import Tree

VARIETY = 32
"""Blocks that a minibatch joins at least, where there are as many samples in it."""
FEW = 512
"""Up to so many are put in an order by counting."""


class Strata(NamedTuple):
    """How environments fall into parts: E = block * width * count."""

    block: int  # neighbouring environments whose samples of a moment stay together
    width: int  # blocks side by side in a stratum
    count: int  # strata


def stratify(num_steps: int, num_envs: int, num_minibatches: int, shards: int = 1) -> Strata:
    """The parts that environments are shuffled in; the same for most numbers of devices that share them.

    >>> stratify(num_steps=128, num_envs=4, num_minibatches=4)
    Strata(block=4, width=1, count=1)
    >>> stratify(num_steps=5, num_envs=16, num_minibatches=4)
    Strata(block=1, width=4, count=4)
    """
    rows = num_steps * num_envs // num_minibatches
    varied = lambda n: n == 1 or (rows % n == 0 and rows // n >= VARIETY)
    block = max(n for n in _divisors(num_envs) if varied(n))
    blocks = num_envs // block
    width = min(n for n in _divisors(blocks) if num_steps * n % num_minibatches == 0)
    count = blocks // width
    if count % shards == 0 or (width == 1 and shards % count == 0):
        return Strata(block, width, count)
    share = num_envs // shards
    if num_steps * share % num_minibatches:
        raise ShoalError(
            f"{num_minibatches} minibatches do not divide the {num_steps} steps x {share} environments of "
            f"each of {shards} devices that share a learner"
        )
    return Strata(1, share, shards)


def shuffles(
    key: Array, num_epochs: int, num_steps: int, strata: Strata, num_minibatches: int, shards: int = 1
) -> Array:
    """Which blocks each minibatch of each epoch has, (num_epochs, num_minibatches, K), of this device's."""
    keys = jax.random.split(key, strata.count)
    if strata.count >= shards:
        keys = own_shard(keys, 0, shards)
    else:  # several devices have a part of every block of one stratum
        keys = keys[jax.lax.axis_index(DATA) * strata.count // shards][None]
    size = num_steps * strata.width
    order = permutations(jax.vmap(lambda key: jax.random.bits(key, (num_epochs, size)))(keys))
    num_strata = order.shape[0]
    first = strata.width * jnp.arange(num_strata, dtype=order.dtype)[:, None, None]
    moment, place = order // strata.width, order % strata.width
    blocks = moment * (num_strata * strata.width) + first + place  # as they lie in (T, E)
    blocks = blocks.reshape(num_strata, num_epochs, num_minibatches, -1)
    return jnp.moveaxis(blocks, 0, 2).reshape(num_epochs, num_minibatches, -1)


def draw_orders(
    key: Array, num_epochs: int, num_steps: int, num_envs: int, num_minibatches: int, shards: int = 1
) -> Array:
    """Which blocks each minibatch of each epoch has, of a rollout of T steps in E environments."""
    strata = stratify(num_steps, num_envs, num_minibatches, shards)
    return shuffles(key, num_epochs, num_steps, strata, num_minibatches, shards)


def permutations(bits: Array) -> Array:
    """Random permutations along the last axis, from random bits.

    On a CPU a few are sooner counted than sorted: the place that each has among all. An accelerator sorts:
    there the comparisons of thousands of learners take minutes to compile.
    """
    if bits.shape[-1] > FEW:
        return jnp.argsort(bits)
    return jax.lax.platform_dependent(bits, cpu=_counted, default=jnp.argsort)


def _counted(bits: Array) -> Array:
    """How many come before each, along the last axis."""

    @partial(jnp.vectorize, signature="(n)->(n)")
    def places(bits):
        own, others, place = bits[:, None], bits[None], jnp.arange(bits.size)
        first = place[:, None] > place[None]  # comes before it among equals
        return jnp.sum((own > others) | ((own == others) & first), 1)

    return places(bits)


def arrange(batch: Tree, blocks: Array) -> Tree:
    """The samples (T * E, ...) of this device as minibatches, (num_minibatches, B, ...)."""

    def gather(x):
        return x.reshape(blocks.size, -1, *x.shape[1:])[blocks].reshape(blocks.shape[0], -1, *x.shape[1:])

    return jax.tree.map(gather, batch)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
