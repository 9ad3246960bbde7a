"""Random numbers that differ from each other, and random free cells of a board."""

import jax
import jax.numpy as jnp
from jax import Array


def distinct(key: Array, below: int, num: int) -> Array:
    """`num` different whole numbers from 0 to `below` - 1, all equally likely.

    >>> sorted(distinct(jax.random.key(0), 4, 4).tolist())
    [0, 1, 2, 3]
    """
    ranks = jnp.int32(jax.random.uniform(key, (num,)) * (below - jnp.arange(num)))
    drawn = ranks[:1]
    for rank in ranks[1:]:
        drawn = jnp.append(drawn, nth_remaining(rank, drawn))
    return drawn  # (num,)


def nth_remaining(rank: Array, taken: Array) -> Array:
    """The number of this rank among those that are not taken, counted from 0.

    n = rank + #{t in taken: t <= n}, the smallest solution

    >>> [int(nth_remaining(rank, jnp.array([3, 0, 1]))) for rank in range(3)]
    [2, 4, 5]
    """
    number = rank
    for _ in range(taken.size):
        number = rank + jnp.sum(taken <= number)
    return number


def free_cell(uniform: Array, free: Array) -> tuple[Array, Array]:
    """Row and column of a random free cell of a board (H, W), from a uniform number in [0, 1).

    >>> board = jnp.array([[0, 1, 0], [1, 0, 1]], bool)
    >>> [tuple(map(int, free_cell(u, board))) for u in (0.0, 0.5, 0.9)]
    [(0, 1), (1, 0), (1, 2)]
    """
    until = jnp.cumsum(jnp.sum(free, axis=1))  # free cells in the first rows
    rank = jnp.int32(uniform * until[-1])
    row = jnp.sum(until <= rank)
    within = rank - jnp.sum(jnp.where(jnp.arange(len(free)) < row, jnp.sum(free, axis=1), 0))
    col = jnp.sum(jnp.cumsum(free[row]) <= within)
    return row, col
