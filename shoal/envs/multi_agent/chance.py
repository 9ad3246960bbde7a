"""Drawing lots: numbers that differ, and cells of a board."""

import jax
import jax.numpy as jnp
from jax import Array


def distinct(key: Array, among: int, num: int) -> Array:
    """`num` different numbers below `among`, one after the other, all equally likely.

    >>> sorted(distinct(jax.random.key(0), 4, 4).tolist())
    [0, 1, 2, 3]
    """
    ranks = jnp.int32(jax.random.uniform(key, (num,)) * (among - jnp.arange(num)))
    drawn = ranks[:1]
    for rank in ranks[1:]:
        drawn = jnp.append(drawn, left_over(rank, drawn))
    return drawn  # (num,)


def left_over(rank: Array, taken: Array) -> Array:
    """The number that is not taken and has `rank` smaller ones that are not taken either.

    n = rank + #{t in taken: t <= n},   the smallest solution, found from below

    >>> [int(left_over(rank, jnp.array([3, 0, 1]))) for rank in range(3)]
    [2, 4, 5]
    """
    number = rank
    for _ in range(taken.size):
        number = rank + jnp.sum(taken <= number)
    return number


def cell_among(lot: Array, free: Array) -> tuple[Array, Array]:
    """Row and column of one of the free cells (H, W) of a board, all equally likely for `lot` in [0, 1).

    >>> board = jnp.array([[0, 1, 0], [1, 0, 1]], bool)
    >>> [tuple(map(int, cell_among(lot, board))) for lot in (0.0, 0.5, 0.9)]
    [(0, 1), (1, 0), (1, 2)]
    """
    until = jnp.cumsum(jnp.sum(free, axis=1))  # free cells in the first rows
    rank = jnp.int32(lot * until[-1])
    row = jnp.sum(until <= rank)
    within = rank - jnp.sum(jnp.where(jnp.arange(len(free)) < row, jnp.sum(free, axis=1), 0))
    col = jnp.sum(jnp.cumsum(free[row]) <= within)
    return row, col
