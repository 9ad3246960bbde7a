"""Topology: communication graphs and their matrices of weights.

In every matrix, W[i, j] is the weight with which learner i receives from learner j.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from shoal.errors import ShoalError

MOST_LEARNERS = 2**14
"""The most learners of a graph: its matrix has the square of that many entries."""

MOST_EDGES = 2**18
"""The most edges of a random graph, whose pairs are switched one after the other."""


def complete(n: int) -> np.ndarray:
    """Each learner has all others as neighbours.

    >>> complete(3).tolist()
    [[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    """
    _check_size(n)
    return np.ones((n, n), np.float32) - np.eye(n, dtype=np.float32)


def ring(n: int) -> np.ndarray:
    """Learner i has the neighbours i - 1 and i + 1, modulo n.

    >>> ring(4)[0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """
    _check_size(n)
    i = np.arange(n)
    return _undirected(n, i, (i + 1) % n)


def star(n: int) -> np.ndarray:
    """Learner 0 is the hub, the only neighbour of all others.

    >>> star(4).sum(1).tolist()
    [3.0, 1.0, 1.0, 1.0]
    """
    _check_size(n)
    return _undirected(n, np.zeros(n, int), np.arange(n))


def torus(n: int) -> np.ndarray:
    """A grid as square as n allows whose opposite sides are connected; row by row.

    A side of two gives one edge, not two. With a prime n it is the ring.

    >>> torus(12)[0].nonzero()[0].tolist()  # 3 rows of 4: right, left, below, above
    [1, 3, 4, 8]
    """
    _check_size(n)
    rows = max(d for d in range(1, math.isqrt(n) + 1) if n % d == 0)
    grid = np.arange(n).reshape(rows, n // rows)
    neighbours = np.stack([np.roll(grid, -1, axis=1), np.roll(grid, -1, axis=0)])
    return _undirected(n, np.broadcast_to(grid, neighbours.shape), neighbours)


def random_regular(n: int, degree: int, seed: int) -> np.ndarray:
    """A random connected graph in which each learner has `degree` neighbours.

    It begins with a circulant graph. Random pairs of edges a-b, c-d become a-d, c-b where that makes neither
    a loop nor a double edge, until the graph is connected. Enough such switches give every regular graph
    nearly the same probability (Cooper, Dyer and Greenhill 2007).

    >>> random_regular(10, 3, seed=0).sum(1).tolist() == [3.0] * 10
    True
    """
    _check_size(n)
    _check_degree(n, degree)
    offsets = [*range(1, degree // 2 + 1), *([n // 2] if degree % 2 else [])]
    adjacency = np.zeros((n, n), bool)
    for offset in offsets:
        adjacency |= _undirected(n, np.arange(n), (np.arange(n) + offset) % n) > 0
    pairs = np.argwhere(np.triu(adjacency)).tolist()  # n degree / 2 of them
    random = np.random.default_rng(seed)
    _switch(random, adjacency, pairs)
    while not _is_connected(adjacency):
        _switch(random, adjacency, pairs)
    return adjacency.astype(np.float32)


GRAPHS: dict[str, Callable[[int], np.ndarray]] = {
    "complete": complete,
    "ring": ring,
    "star": star,
    "torus": torus,
}
"""Graphs that depend on the number of learners alone, by their names on the command line."""


def components(matrix: np.ndarray) -> np.ndarray:
    """The component of the graph that each learner is in, counted from 0 in the order of their first, (L,).

    A link in either direction joins two learners.

    >>> components(np.array([[0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 5, 0, 0]])).tolist()
    [0, 1, 0, 1]
    """
    linked = (matrix != 0) | (matrix != 0).T
    found = np.full(len(matrix), -1)
    for first in range(len(matrix)):
        if found[first] < 0:
            reached, before = np.arange(len(matrix)) == first, 0
            while reached.sum() > before:
                before = reached.sum()
                reached |= linked[reached].any(0)
            found[reached] = found.max() + 1
    return found


def metropolis(adjacency: np.ndarray) -> np.ndarray:
    """Metropolis-Hastings weights, which keep the mean over all learners.

    W_ij = 1 / (1 + max(d_i, d_j)) on edges,  W_ii = 1 - sum_{j != i} W_ij

    W is symmetric and doubly stochastic (Xiao, Boyd and Lall 2006). Any nonzero entry is an edge; the
    diagonal is not read.

    >>> metropolis(star(3)).astype(float).round(3).tolist()
    [[0.333, 0.333, 0.333], [0.333, 0.667, 0.0], [0.333, 0.0, 0.667]]
    """
    connected = (adjacency != 0) & ~np.eye(len(adjacency), dtype=bool)
    if not np.array_equal(connected, connected.T):
        i, j = np.argwhere(connected & ~connected.T)[0]
        raise ShoalError(
            f"Metropolis weights need an undirected graph, but learner {i} receives from {j} and {j} "
            f"does not receive from {i}; give both edges, or symmetrise"
        )
    degree = connected.sum(1)
    weights = np.where(connected, 1 / (1 + np.maximum(degree[:, None], degree)), 0.0)
    return (weights + np.diag(1 - weights.sum(1))).astype(np.float32)


def row_stochastic(matrix: np.ndarray) -> np.ndarray:
    """W_ij / sum_k W_ik; a learner without neighbours has W_ii = 1.

    >>> row_stochastic(np.array([[1.0, 3.0], [0.0, 0.0]])).tolist()
    [[0.25, 0.75], [0.0, 1.0]]
    """
    alone = ~matrix.any(1, keepdims=True)
    return _divide_rows(np.where(alone, np.eye(len(matrix)), matrix))


def neighbour_weights(adjacency: np.ndarray) -> np.ndarray:
    """W_ij / sum_{k != i} W_ik for j != i, and W_ii = 0: the mean over neighbours, 0 without neighbours.

    >>> neighbour_weights(np.array([[9.0, 1.0, 3.0], [0.0, 5.0, 0.0], [2.0, 0.0, 0.0]])).tolist()
    [[0.0, 0.25, 0.75], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    """
    return _divide_rows(np.where(np.eye(len(adjacency), dtype=bool), 0.0, adjacency))


def spectral_gap(weights: np.ndarray) -> float:
    """1 - the second largest singular value: one mixing removes at least this fraction of the disagreement.

    1 is consensus after one mixing; 0 is a disconnected graph. The weights must be doubly stochastic, so that
    their largest singular value is 1.

    >>> round(spectral_gap(metropolis(ring(4))), 3)
    0.667
    """
    values = np.linalg.svd(np.asarray(weights, np.float64), compute_uv=False)  # largest first
    return float(1 - values[1]) if len(values) > 1 else 1.0


class Edges(NamedTuple):
    """The edges of a graph: receivers (`targets`), senders (`sources`), weights."""

    targets: np.ndarray  # int32
    sources: np.ndarray  # int32
    weights: np.ndarray  # float32


def edges(matrix: np.ndarray) -> Edges:
    """The nonzero entries of a matrix, by target and then by source.

    >>> targets, sources, weights = edges(np.array([[0.0, 5.0], [7.0, 1.0]]))
    >>> targets.tolist(), sources.tolist(), weights.tolist()
    ([0, 1, 1], [1, 0, 1], [5.0, 7.0, 1.0])
    """
    targets, sources = np.nonzero(matrix)
    weights = np.asarray(matrix)[targets, sources].astype(np.float32)
    return Edges(targets.astype(np.int32), sources.astype(np.int32), weights)


def by_device(matrix: np.ndarray, num_devices: int) -> Edges:
    """The edges divided over devices by their targets, (num_devices * width,) each.

    Device d holds the learners d * block to (d + 1) * block - 1 and the edges to them, by target. `targets`
    are counted from its first learner, `sources` from the first of all. Each device is padded to the same
    width with edges of weight 0 from its first learner to itself.

    >>> targets, sources, weights = by_device(np.array([[0.0, 5.0], [7.0, 1.0]]), 2)
    >>> targets.tolist(), sources.tolist(), weights.tolist()
    ([0, 0, 0, 0], [1, 0, 0, 1], [5.0, 0.0, 7.0, 1.0])
    """
    num_learners = len(matrix)
    if num_devices < 1 or num_learners % num_devices:
        raise ShoalError(f"{num_learners} learners cannot be divided equally over {num_devices} devices")
    block = num_learners // num_devices
    targets, sources, weights = edges(matrix)
    owner = targets // block
    counts = np.bincount(owner, minlength=num_devices)  # (D,)
    width = max(1, int(counts.max()))
    first = np.cumsum(counts) - counts
    slot = owner * width + np.arange(len(owner)) - first[owner]

    laid_out = Edges(
        targets=np.zeros(num_devices * width, np.int32),
        sources=np.repeat(np.arange(num_devices, dtype=np.int32) * block, width),
        weights=np.zeros(num_devices * width, np.float32),
    )
    for array, values in zip(laid_out, (targets % block, sources, weights), strict=True):
        array[slot] = values
    return laid_out


def _check_size(n: int) -> None:
    if n < 1:
        raise ShoalError(f"a graph needs at least 1 learner, not {n}")
    if n > MOST_LEARNERS:
        raise ShoalError(f"a graph of {n:,} learners is too large; at most {MOST_LEARNERS:,}")


def _check_degree(n: int, degree: int) -> None:
    wanted = f"a regular graph of {n} learners with degree {degree}"
    if not 1 <= degree < n:
        raise ShoalError(f"{wanted} does not exist; the degree must be at least 1 and below {n}")
    if n * degree > MOST_EDGES:
        raise ShoalError(f"{wanted} is too large; the product of both must be at most {MOST_EDGES:,}")
    if n * degree % 2:
        raise ShoalError(f"{wanted} does not exist; one of the two numbers must be even")
    if degree == 1 and n > 2:
        raise ShoalError(f"{wanted} is not connected; the degree must be at least 2")


def _undirected(n: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    """The adjacency matrix of the edges i-j, without loops."""
    adjacency = np.zeros((n, n), np.float32)
    adjacency[i, j] = adjacency[j, i] = 1
    np.fill_diagonal(adjacency, 0)
    return adjacency


def _switch(random: np.random.Generator, adjacency: np.ndarray, pairs: list[list[int]]) -> None:
    """Try ten switches per edge, in place; degrees do not change."""
    attempts = 10 * len(pairs)
    choices = random.integers(len(pairs), size=(attempts, 2)).tolist()
    directions = random.choice([1, -1], size=attempts).tolist()
    for (first, second), direction in zip(choices, directions, strict=True):
        (a, b), (c, d) = pairs[first], pairs[second][::direction]
        if len({a, b, c, d}) == 4 and not adjacency[a, d] and not adjacency[c, b]:
            adjacency[[a, b, c, d], [b, a, d, c]] = False
            adjacency[[a, d, c, b], [d, a, b, c]] = True
            pairs[first], pairs[second] = [a, d], [c, b]


def _is_connected(adjacency: np.ndarray) -> bool:
    reached = np.arange(len(adjacency)) == 0
    frontier = reached
    while frontier.any():
        frontier = adjacency[frontier].any(0) & ~reached
        reached = reached | frontier
    return bool(reached.all())


def _divide_rows(matrix: np.ndarray) -> np.ndarray:
    """W_ij / sum_k W_ik in double precision, where sums of large float32 weights are finite."""
    matrix = np.asarray(matrix, np.float64)
    total = matrix.sum(1, keepdims=True)
    return (matrix / np.where(total == 0, 1.0, total)).astype(np.float32)
