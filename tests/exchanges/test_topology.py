"""Communication graphs: small ones by hand, many by their properties, every mistake by its message."""

import json

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
    read_matrix,
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


def test_reading_by_hand():
    data = {"comm_matrix": {"0": {"1": 100, "2": 0.5}, "2": {"2": 1, "0": 3}, "1": {}}}
    expected = np.array([[0, 100, 0.5], [0, 0, 0], [3, 0, 1]])
    np.testing.assert_array_equal(read_matrix(data, 3), expected)
    assert read_matrix(data, 3).dtype == np.float32
    np.testing.assert_array_equal(read_matrix({"comm_matrix": expected.tolist()}, 3), expected)
    np.testing.assert_array_equal(read_matrix(expected.tolist(), 3), expected)
    assert read_matrix(data, 4)[:3, :3].tolist() == expected.tolist()
    assert read_matrix({"comm_matrix": {0: {1: 1}}}, 2).tolist() == [[0, 1], [0, 0]]


def test_reading_changes_nothing():
    data = {"comm_matrix": {"0": {"1": 1}}}
    read_matrix(data, 2, symmetrise=True)
    assert data == {"comm_matrix": {"0": {"1": 1}}}


@pytest.mark.parametrize(
    "data",
    [
        {"comm_matrix": {"0": {"1": 2, "0": 5}, "2": {"1": 3}}},
        {"comm_matrix": {"1": {"0": 2, "2": 3}, "0": {"0": 5}, "2": {"1": 3}}},
        [[5, 2, 0], [0, 0, 3], [0, 3, 0]],
    ],
)
def test_symmetrised_edges_hold_both_ways(data):
    assert read_matrix(data, 3, symmetrise=True).tolist() == [[5, 2, 0], [2, 0, 3], [0, 3, 0]]


@pytest.mark.parametrize("back", [2, 0])
def test_symmetrising_a_contradiction(back):
    data = {"comm_matrix": {"0": {"1": 1.5}, "1": {"0": back}}}
    message = (
        f"learner 0 receives from 1 with weight 1.5, but 1 from 0 with {back}; to symmetrise, give one of"
    )
    with pytest.raises(ShoalError, match=message):
        read_matrix(data, 2, symmetrise=True)
    assert read_matrix(data, 2).tolist() == [[0, 1.5], [back, 0]]


@pytest.mark.parametrize("name", GRAPHS)
def test_reading_what_was_written(name):
    graph = GRAPHS[name](12)
    rows = {str(i): {str(j): float(graph[i, j]) for j in neighbours(graph, i)} for i in range(12)}
    data = json.loads(json.dumps({"comm_matrix": rows}))
    np.testing.assert_array_equal(read_matrix(data, 12), graph)
    np.testing.assert_array_equal(read_matrix(graph.tolist(), 12), graph)


COUNTED = "learners are counted from 0; with 4 learners 0 to 3, found "
FROM_ONE = "; these seem to be counted from 1: subtract 1 from every number"
WEIGHT = "comm_matrix: the weight of learner 0 for 1 must be "
BY_LEARNER = "comm_matrix: 4 learners need 4 rows of 4 weights, "

MISTAKES = [
    ({}, 'has no key "comm_matrix"; write {"comm_matrix": {"0": {"1": 1.0}}} (found nothing)'),
    ({"0": {"1": 1}}, 'has no key "comm_matrix"; write {"comm_matrix": {"0": {"1": 1.0}}} (found "0")'),
    (7, 'comm_matrix must be an object such as {"0": {"1": 1.0}} or a list of rows, not 7'),
    (None, "or a list of rows, not null"),
    ({"comm_matrix": "ring"}, 'or a list of rows, not "ring"'),
    ({"comm_matrix": None}, "or a list of rows, not null"),
    ({"comm_matrix": {"0": 5}}, 'comm_matrix: learner 0 must have an object such as {"1": 1.0}, not 5'),
    ({"comm_matrix": {"0": [0, 1]}}, 'such as {"1": 1.0}, not [0, 1]'),
    ({"comm_matrix": {"a": {}}}, 'comm_matrix: "a" is not the number of a learner; they are counted from 0'),
    ({"comm_matrix": {"": {}}}, '"" is not the number of a learner'),
    ({"comm_matrix": {True: {}}}, "true is not the number of a learner"),
    ({"comm_matrix": {"0": {"1.5": 1}}}, 'comm_matrix, learner 0: "1.5" is not the number of a learner'),
    ({"comm_matrix": {"0": {"01": 1, "1": 2}}}, "comm_matrix, learner 0: a learner is named twice, among"),
    ({"comm_matrix": {"0": {"4": 1}}}, COUNTED + "4"),
    ({"comm_matrix": {"4": {"0": 1}}}, COUNTED + "4"),
    ({"comm_matrix": {"9": {}}}, COUNTED + "9"),
    ({"comm_matrix": {"0": {"-1": 1}}}, COUNTED + "-1"),
    ({"comm_matrix": {"1": {"2": 1}, "3": {"4": 1}}}, COUNTED + "4" + FROM_ONE),
    ({"comm_matrix": {"0": {"1": -3}}}, WEIGHT + "0 or more, not -3"),
    ({"comm_matrix": {"0": {"1": -np.inf}}}, WEIGHT + "0 or more, not -Infinity"),
    ({"comm_matrix": {"0": {"1": np.nan}}}, WEIGHT + "a finite number, not NaN"),
    ({"comm_matrix": {"0": {"1": np.inf}}}, WEIGHT + "a finite number, not Infinity"),
    ({"comm_matrix": {"0": {"1": 1e39}}}, WEIGHT + "a finite number, not 1e+39"),
    ({"comm_matrix": {"0": {"1": 10**400}}}, WEIGHT + "a finite number, not 1000"),
    ({"comm_matrix": {"0": {"1": True}}}, WEIGHT + "a number, not true"),
    ({"comm_matrix": {"0": {"1": "5"}}}, WEIGHT + 'a number, not "5"'),
    ({"comm_matrix": {"0": {"1": None}}}, WEIGHT + "a number, not null"),
    ({"comm_matrix": {"0": {"1": {"2": 1}}}}, WEIGHT + 'a number, not {"2": 1}'),
    ([[0, -1, 0, 0]] + [[0] * 4] * 3, WEIGHT + "0 or more, not -1"),
    ([[0, 1]] * 2, BY_LEARNER + "found 2 rows"),
    ([], BY_LEARNER + "found 0 rows"),
    ({"comm_matrix": [[0, 1]] * 4}, BY_LEARNER + "but row 0 has 2"),
    ([[0] * 4] * 3 + [5], BY_LEARNER + "but row 3 is 5"),
    ([[0] * 4] * 4, "comm_matrix is zero everywhere, so no learner receives anything; give a weight above 0"),
    ({"comm_matrix": {}}, "comm_matrix is zero everywhere"),
    ({"comm_matrix": {"0": {"1": 0}}}, "comm_matrix is zero everywhere"),
]


@pytest.mark.parametrize(("data", "message"), MISTAKES)
@pytest.mark.parametrize("symmetrise", [False, True])
def test_mistakes_in_a_matrix(data, message, symmetrise):
    with pytest.raises(ShoalError) as caught:
        read_matrix(data, 4, symmetrise)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 160


def test_the_hint_is_given_only_where_it_helps():
    for data in ({"0": {"4": 1}}, {"1": {"5": 1}}, {"1": {"4": 1, "5": 1}}):
        with pytest.raises(ShoalError) as caught:
            read_matrix({"comm_matrix": data}, 4)
        assert "counted from 1" not in str(caught.value)


def test_one_learner_out_of_range():
    with pytest.raises(ShoalError, match="with 1 learner only 0, found 1"):
        read_matrix({"comm_matrix": {"0": {"1": 1}}}, 1)


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
