"""Minibatches: the samples of a rollout in random order, the same on any number of devices.

The samples of one step in neighbouring environments form a block, which stays together: fewer, longer
blocks are faster to shuffle and to copy. Environments are divided into strata. Each stratum is shuffled with
a key of its own, and every minibatch takes the same number of samples from each. So a device that holds some
of the environments makes its part of every minibatch by itself, and all parts together are the minibatches
that one device would make.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from shoal.distributed.mesh import DATA, own_shard
from shoal.errors import ShoalError
from shoal.types import Tree

MIN_BLOCKS = 32
"""The least number of blocks in a minibatch, where it has that many samples."""
MAX_COUNTED = 512
"""Permutations of up to this many are found by counting on a CPU."""


class Strata(NamedTuple):
    """A division of environments: E = block * width * count."""

    block: int  # neighbouring environments whose samples of one step stay together
    width: int  # blocks of one step in a stratum
    count: int  # number of strata


def stratify(num_steps: int, num_envs: int, num_minibatches: int, shards: int = 1) -> Strata:
    """The strata of environments; the same for most numbers of devices that share a learner.

    >>> stratify(num_steps=128, num_envs=4, num_minibatches=4)
    Strata(block=4, width=1, count=1)
    >>> stratify(num_steps=5, num_envs=16, num_minibatches=4)
    Strata(block=1, width=4, count=4)
    """
    minibatch_size = num_steps * num_envs // num_minibatches
    varied = lambda n: n == 1 or (minibatch_size % n == 0 and minibatch_size // n >= MIN_BLOCKS)
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


def shuffle_blocks(
    key: Array, num_epochs: int, num_steps: int, strata: Strata, num_minibatches: int, shards: int = 1
) -> Array:
    """The blocks of each minibatch of each epoch on this device, (num_epochs, num_minibatches, K)."""
    keys = jax.random.split(key, strata.count)
    if strata.count >= shards:
        keys = own_shard(keys, 0, shards)
    else:  # several devices share a stratum: each has a part of its blocks
        keys = keys[jax.lax.axis_index(DATA) * strata.count // shards][None]
    size = num_steps * strata.width
    order = random_permutations(jax.vmap(lambda key: jax.random.bits(key, (num_epochs, size)))(keys))
    num_strata = order.shape[0]
    first = strata.width * jnp.arange(num_strata, dtype=order.dtype)[:, None, None]
    step, column = order // strata.width, order % strata.width
    blocks = step * (num_strata * strata.width) + first + column  # in the order of (T, E)
    blocks = blocks.reshape(num_strata, num_epochs, num_minibatches, -1)
    return jnp.moveaxis(blocks, 0, 2).reshape(num_epochs, num_minibatches, -1)


def draw_orders(
    key: Array, num_epochs: int, num_steps: int, num_envs: int, num_minibatches: int, shards: int = 1
) -> Array:
    """The blocks of each minibatch of each epoch, of a rollout of T steps in E environments."""
    strata = stratify(num_steps, num_envs, num_minibatches, shards)
    return shuffle_blocks(key, num_epochs, num_steps, strata, num_minibatches, shards)


def random_permutations(bits: Array) -> Array:
    """Random permutations along the last axis, from random bits.

    On a CPU, short permutations are faster by counting than by sorting. An accelerator sorts: there the
    comparisons of thousands of learners take minutes to compile.
    """
    if bits.shape[-1] > MAX_COUNTED:
        return jnp.argsort(bits)
    return jax.lax.platform_dependent(bits, cpu=_rank_by_counting, default=jnp.argsort)


def _rank_by_counting(bits: Array) -> Array:
    """The rank of each, along the last axis: how many come before it."""

    @partial(jnp.vectorize, signature="(n)->(n)")
    def ranks(bits):
        own, others, index = bits[:, None], bits[None], jnp.arange(bits.size)
        first = index[:, None] > index[None]  # comes before it among equals
        return jnp.sum((own > others) | ((own == others) & first), 1)

    return ranks(bits)


def gather_minibatches(batch: Tree, blocks: Array) -> Tree:
    """The samples (T * E, ...) of this device as minibatches (num_minibatches, B, ...)."""

    def gather(x):
        return x.reshape(blocks.size, -1, *x.shape[1:])[blocks].reshape(blocks.shape[0], -1, *x.shape[1:])

    return jax.tree.map(gather, batch)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
