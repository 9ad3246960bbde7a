"""Communication graphs: small ones by hand, many by their properties, every mistake by its message."""

import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.exchanges.topology import (
    GRAPHS,
    by_device,
    complete,
    edges,
    metropolis,
    neighbour_weights,
    random_regular,
    ring,
    row_stochastic,
    spectral_gap,
    star,
    torus,
)

SIZES = [*range(1, 26), 36, 49, 64]
REGULAR = [
    (2, 1),
    (3, 2),
    (4, 2),
    (4, 3),
    (6, 2),
    (6, 3),
    (7, 4),
    (10, 3),
    (12, 11),
    (20, 2),
    (33, 8),
    (64, 4),
]


def neighbours(adjacency, i):
    return adjacency[i].nonzero()[0].tolist()


def assert_is_a_connected_graph(adjacency, n):
    assert adjacency.shape == (n, n)
    assert adjacency.dtype == np.float32
    assert set(np.unique(adjacency)) <= {0, 1}
    assert not adjacency.diagonal().any()
    np.testing.assert_array_equal(adjacency, adjacency.T)
    paths = np.linalg.matrix_power((adjacency + np.eye(n)) / n, n)  # positive where n steps suffice
    assert (paths > 0).all()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_are_simple_and_connected(name, n):
    assert_is_a_connected_graph(GRAPHS[name](n), n)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_smallest_graphs(name):
    """One learner has no neighbour, two have each other; of three only the star leaves out an edge."""
    graph = GRAPHS[name]
    assert graph(1).tolist() == [[0]]
    assert graph(2).tolist() == [[0, 1], [1, 0]]
    triangle = [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    assert graph(3).tolist() == ([[0, 1, 1], [1, 0, 0], [1, 0, 0]] if name == "star" else triangle)


@pytest.mark.parametrize("n", range(3, 20))
def test_degrees(n):
    assert (complete(n).sum(1) == n - 1).all()
    assert (ring(n).sum(1) == 2).all()
    assert star(n).sum(1).tolist() == [n - 1] + [1] * (n - 1)


def test_ring_by_hand():
    assert [neighbours(ring(5), i) for i in range(5)] == [[1, 4], [0, 2], [1, 3], [2, 4], [0, 3]]


@pytest.mark.parametrize(
    ("n", "degree"), [(1, 0), (2, 1), (4, 2), (6, 3), (8, 3), (9, 4), (10, 3), (12, 4), (16, 4), (30, 4)]
)
def test_torus_degrees(n, degree):
    """Four neighbours, three where a side is two, two in the square of four."""
    assert (torus(n).sum(1) == degree).all()


def test_torus_by_hand():
    assert neighbours(torus(9), 4) == [1, 3, 5, 7]
    assert neighbours(torus(9), 0) == [1, 2, 3, 6]
    assert neighbours(torus(6), 0) == [1, 2, 3]  # two rows of three


@pytest.mark.parametrize("n", [2, 3, 5, 7, 11, 13, 31])
def test_a_torus_of_prime_size_is_the_ring(n):
    np.testing.assert_array_equal(torus(n), ring(n))


@pytest.mark.parametrize(("n", "degree"), REGULAR)
def test_random_regular_graphs(n, degree):
    for seed in range(10):
        graph = random_regular(n, degree, seed)
        assert_is_a_connected_graph(graph, n)
        assert (graph.sum(1) == degree).all()


def test_random_regular_graphs_are_decided_by_their_seed():
    graphs = [random_regular(20, 3, seed) for seed in range(8)]
    assert len({graph.tobytes() for graph in graphs}) == 8
    np.testing.assert_array_equal(graphs[5], random_regular(20, 3, 5))


def test_random_regular_graphs_are_drawn_evenly():
    """Of the 70 labelled graphs of six with three neighbours, 60 are prisms and 10 have no triangle."""
    graphs = [random_regular(6, 3, seed).astype(int) for seed in range(1000)]
    bare = sum(np.trace(np.linalg.matrix_power(graph, 3)) == 0 for graph in graphs)
    assert len({graph.tobytes() for graph in graphs}) == 70
    assert abs(bare / 1000 - 1 / 7) < 0.05  # four standard deviations


@pytest.mark.parametrize(
    ("n", "degree", "message"),
    [
        (5, 3, "a regular graph of 5 learners with degree 3 does not exist; one of the two .* even"),
        (4, 4, "4 learners with degree 4 does not exist; the degree must be at least 1 and below 4"),
        (4, 0, "at least 1 and below 4"),
        (4, -1, "at least 1 and below 4"),
        (4, 1, "4 learners with degree 1 is not connected; the degree must be at least 2"),
        (0, 2, "a graph needs at least 1 learner, not 0"),
    ],
)
def test_regular_graphs_that_do_not_exist(n, degree, message):
    with pytest.raises(ShoalError, match=message):
        random_regular(n, degree, 0)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_of_nobody(name):
    with pytest.raises(ShoalError, match="at least 1 learner, not 0"):
        GRAPHS[name](0)


def test_metropolis_by_hand():
    """A path 0-1-2 with degrees 1, 2, 1: both edges weigh 1/3."""
    path = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], np.float32)
    expected = np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3
    np.testing.assert_allclose(metropolis(path), expected, rtol=1e-6)
    np.testing.assert_allclose(metropolis(50 * path + np.eye(3)), expected, rtol=1e-6)
    assert metropolis(path).dtype == np.float32
    np.testing.assert_allclose(metropolis(complete(5)), np.full((5, 5), 0.2), rtol=1e-6)
    assert metropolis(np.zeros((2, 2))).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", GRAPHS)
def test_metropolis_weights_are_doubly_stochastic_and_reach_consensus(name, n):
    weights = metropolis(GRAPHS[name](n))
    assert (weights >= 0).all()
    np.testing.assert_array_equal(weights, weights.T)
    np.testing.assert_allclose(weights.sum(0), 1, rtol=1e-6)
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)
    exact = weights.astype(np.float64)
    limit = np.linalg.matrix_power(exact / exact.sum(1, keepdims=True), 4 * n * n)
    np.testing.assert_allclose(limit, 1 / n, rtol=1e-4)


def test_metropolis_refuses_a_direction():
    with pytest.raises(ShoalError, match="learner 0 receives from 1 and 1 does not receive from 0"):
        metropolis(np.array([[0.0, 1.0], [0.0, 0.0]]))


def test_rows_that_sum_to_one():
    matrix = np.array([[1, 3, 0], [0, 0, 0], [0, 0, 100]], np.float32)
    assert row_stochastic(matrix).tolist() == [[0.25, 0.75, 0], [0, 1, 0], [0, 0, 1]]
    assert row_stochastic(matrix).dtype == np.float32
    assert row_stochastic(np.full((2, 2), 3e38, np.float32)).tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_the_mean_over_neighbours():
    matrix = np.array([[9, 1, 3], [0, 7, 0], [2, 0, 0]], np.float32)
    assert neighbour_weights(matrix).tolist() == [[0, 0.25, 0.75], [0, 0, 0], [1, 0, 0]]
    assert matrix[0, 0] == 9
    assert neighbour_weights(star(3)).tolist() == [[0, 0.5, 0.5], [1, 0, 0], [1, 0, 0]]
    assert neighbour_weights(np.zeros((1, 1))).tolist() == [[0]]


@pytest.mark.parametrize("n", range(3, 20))
def test_the_spectral_gap_of_rings(n):
    """Metropolis weights of a ring are 1/3, with eigenvalues (1 + 2 cos(2 pi k / n)) / 3."""
    values = np.sort(np.abs((1 + 2 * np.cos(2 * np.pi * np.arange(n) / n)) / 3))
    assert spectral_gap(metropolis(ring(n))) == pytest.approx(1 - values[-2], abs=1e-6)


def test_spectral_gaps_at_the_ends():
    assert spectral_gap(np.ones((1, 1))) == 1
    assert spectral_gap(metropolis(complete(7))) == pytest.approx(1, abs=1e-6)
    assert spectral_gap(np.eye(4)) == 0
    assert spectral_gap(np.array([[0.0, 1.0], [1.0, 0.0]])) == 0  # they swap for ever


def random_matrix(n, share, seed=0):
    random = np.random.default_rng(seed)
    return (random.random((n, n)) * (random.random((n, n)) < share)).astype(np.float32)


def test_edges_by_hand():
    targets, sources, weights = edges(np.array([[0, 5, 0], [0, 0, 0], [7, 0, 1]]))
    assert targets.tolist() == [0, 2, 2]
    assert sources.tolist() == [1, 0, 2]
    assert weights.tolist() == [5, 7, 1]
    assert [x.dtype for x in (targets, sources, weights)] == [np.int32, np.int32, np.float32]
    assert [len(x) for x in edges(np.zeros((3, 3)))] == [0, 0, 0]


def test_edges_give_the_matrix_back():
    matrix = random_matrix(17, 0.3)
    targets, sources, weights = edges(matrix)
    assert (np.diff(targets * 17 + sources) > 0).all()
    again = np.zeros_like(matrix)
    again[targets, sources] = weights
    np.testing.assert_array_equal(again, matrix)


def test_edges_by_device_by_hand():
    """Two devices of two learners; learner 2 receives from three others, learner 1 from learner 3."""
    matrix = np.array([[0, 0, 0, 0], [0, 0, 0, 4], [1, 2, 0, 3], [0, 0, 0, 0]])
    laid_out = by_device(matrix, 2)
    assert laid_out.targets.tolist() == [1, 0, 0, 0, 0, 0]
    assert laid_out.sources.tolist() == [3, 0, 0, 0, 1, 3]
    assert laid_out.weights.tolist() == [4, 0, 0, 1, 2, 3]
    assert [x.dtype for x in laid_out] == [np.int32, np.int32, np.float32]


def test_edges_by_device_where_there_are_none():
    targets, sources, weights = by_device(np.zeros((6, 6)), 3)
    assert (targets.tolist(), sources.tolist(), weights.tolist()) == ([0, 0, 0], [0, 2, 4], [0, 0, 0])


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("num_devices", [1, 2, 3, 4, 6, 12, 24])
def test_edges_by_device_give_the_matrix_back(num_devices, share):
    matrix = random_matrix(24, share, seed=num_devices)
    matrix[3] = 1  # one learner that receives from all, so that the shares are unequal
    block = 24 // num_devices
    shares = [x.reshape(num_devices, -1) for x in by_device(matrix, num_devices)]
    assert shares[0].shape[1] == max((rows != 0).sum() for rows in np.split(matrix, num_devices))
    again = np.zeros_like(matrix)
    for device, (targets, sources, weights) in enumerate(zip(*shares, strict=True)):
        real = int((weights > 0).sum())
        assert (weights[:real] > 0).all()
        assert (np.diff(targets[:real]) >= 0).all()
        assert (targets < block).all()
        assert set(targets[real:]) <= {0}
        assert set(sources[real:]) <= {device * block}
        np.add.at(again, (device * block + targets, sources), weights)
    np.testing.assert_array_equal(again, matrix)


@pytest.mark.parametrize("num_devices", [0, 3, 8])
def test_learners_that_do_not_divide_over_the_devices(num_devices):
    with pytest.raises(ShoalError, match=f"4 learners cannot be divided equally over {num_devices} devices"):
        by_device(ring(4), num_devices)
