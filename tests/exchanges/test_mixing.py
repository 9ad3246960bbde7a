"""Mixing: averages, gossip, pairs and servers, by hand and against NumPy."""

import jax
import numpy as np
import optax
import pytest

from shoal.errors import ShoalError
from shoal.exchanges import mixing_rules, topology
from shoal.exchanges.builders import server_optimiser
from shoal.exchanges.config import ExchangeConfig
from shoal.exchanges.mixing import average, gossip, gossip_in_pairs, mix, weigh
from shoal.exchanges.products import linear
from shoal.settings import with_settings
from shoal.types import LearnerState
from tests.exchanges.meetings import Federation, meet, met, random_rows, rows, scores

NAN = float("nan")
WEIGH = jax.jit(weigh, static_argnums=0)
AVERAGES = {weights: average(weights=weights) for weights in ("uniform", "samples", "returns")}
RING = gossip(topology.metropolis(topology.ring(3)))
PAIRS = gossip_in_pairs()


def random_matrix(num_learners, degree, seed=0):
    """Row-stochastic, with `degree` others heard by each."""
    rng = np.random.default_rng(seed)
    matrix = np.diag(rng.uniform(0.5, 1.5, num_learners))
    for i in range(num_learners):
        others = rng.choice([j for j in range(num_learners) if j != i], degree, replace=False)
        matrix[i, others] = rng.uniform(0.5, 1.5, degree)
    return matrix / matrix.sum(1, keepdims=True)


# Averages


@pytest.mark.parametrize(
    ("weights", "changes", "expected"),
    [
        ("uniform", {}, [1, 1, 1]),
        ("uniform", {"present": [True, False, True]}, [1, 0, 1]),
        ("samples", {"samples": [1.0, 2.0, 1.0]}, [1, 2, 1]),
        ("samples", {"samples": [1.0, 2.0, 1.0], "present": [True, False, True]}, [1, 0, 1]),
        ("samples", {"samples": [0.0, 0.0, 0.0]}, [1, 1, 1]),
        ("returns", {"returns": [10.0, 30.0, 0.0]}, [10, 30, 0]),
        ("returns", {"returns": [-10.0, 0.0, 20.0]}, [0, 10, 30]),
        ("returns", {"returns": [-10.0, -8.0, -9.0]}, [0, 2, 1]),
        ("returns", {"returns": [NAN, 10.0, 30.0]}, [0, 10, 30]),
        ("returns", {"returns": [NAN, -10.0, 30.0]}, [0, 0, 40]),
        ("returns", {"returns": [NAN, NAN, NAN]}, [1, 1, 1]),
        ("returns", {"returns": [NAN, -5.0, NAN]}, [1, 1, 1]),
        ("returns", {"returns": [5.0, 5.0, 5.0]}, [5, 5, 5]),
        ("returns", {"returns": [-5.0, -5.0, -5.0]}, [1, 1, 1]),
        ("returns", {"returns": [0.0, 0.0, 0.0]}, [1, 1, 1]),
        ("returns", {"returns": [2.0, 3.0, -9.0], "present": [True, True, False]}, [2, 3, 0]),
        ("returns", {"returns": [-2.0, -2.0, 9.0], "present": [True, True, False]}, [1, 1, 0]),
    ],
)
def test_what_learners_count_by(weights, changes, expected):
    assert WEIGH(weights, scores(3, **changes)).tolist() == expected


@pytest.mark.parametrize(
    ("weights", "changes", "expected"),
    [
        ("uniform", {}, [3, 3, 3]),  # (1 + 2 + 6) / 3
        ("samples", {"samples": [1.0, 2.0, 1.0]}, [2.75, 2.75, 2.75]),  # (1 + 4 + 6) / 4
        ("returns", {"returns": [-10.0, 0.0, 20.0]}, [5, 5, 5]),  # (0 + 20 + 180) / 40
        (
            "returns",
            {"returns": [NAN, 10.0, 30.0]},
            [5, 5, 5],
        ),  # the first only receives
        ("uniform", {"present": [True, False, True]}, [3.5, 2, 3.5]),
        ("uniform", {"present": [False, False, False]}, [1, 2, 6]),
    ],
)
def test_the_average_by_hand(weights, changes, expected):
    found = meet(AVERAGES[weights], rows(1, 2, 6), **changes)
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-6)


def test_every_coordinate_of_every_leaf_is_averaged():
    params = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.float32([[[1, 2]], [[3, 6]]])}
    after, _ = met(AVERAGES["uniform"], LearnerState(params, (), (), (), ()))
    assert after.params["a"].tolist() == [[1.5, 2.5, 3.5]] * 2
    assert after.params["b"].tolist() == [[[2, 4]]] * 2


@pytest.mark.parametrize("absent", [NAN, np.inf])
def test_what_an_absent_learner_holds_reaches_nobody(absent):
    x, here = rows(1, 2, absent), [True, True, False]
    for exchange in (AVERAGES["uniform"], RING, PAIRS):
        found = meet(exchange, x, present=here)
        assert np.isfinite(found[:2]).all()
        np.testing.assert_allclose(found[:2].mean(), 1.5, rtol=1e-6)


# Neighbours


@pytest.mark.parametrize(("num_learners", "degree"), [(5, 2), (5, 4), (24, 3), (16, 9), (8, 1), (3, 0)])
def test_gossip_is_a_product_with_the_matrix(num_learners, degree):
    """With any number of neighbours; (16, 9) is dense."""
    matrix, x = random_matrix(num_learners, degree), random_rows(num_learners, 7)
    np.testing.assert_allclose(meet(gossip(matrix), x), matrix @ x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("graph", "gathers"),
    [
        (topology.ring(3), True),
        (topology.complete(9), True),
        (topology.complete(10), False),
        (topology.random_regular(72, 9, seed=0), True),
        (topology.random_regular(70, 9, seed=0), False),
    ],
)
def test_a_sparse_matrix_gathers_and_a_dense_one_multiplies(graph, gathers):
    """Up to 8 neighbours, or an eighth of the learners."""
    matrix = np.asarray(topology.neighbour_weights(graph), np.float32)
    x = random_rows(len(matrix), 200)
    program = jax.jit(linear(matrix)).trace(x)
    assert ("dot_general" not in str(program.jaxpr)) == gathers
    np.testing.assert_allclose(program.lower().compile()(x), matrix @ x, rtol=1e-5, atol=1e-6)


def test_rows_that_do_not_sum_to_one_are_refused():
    with pytest.raises(ShoalError, match="each row of a gossip matrix must sum to 1"):
        gossip(np.array([[0.5, 0.4], [0.0, 1.0]]))


@pytest.mark.parametrize("graph", ["ring", "star", "torus", "complete"])
def test_doubly_stochastic_mixing_keeps_the_mean_and_shrinks_disagreement(graph):
    """By W's second singular value at least, each round."""
    matrix = topology.metropolis(topology.GRAPHS[graph](20))
    rate = np.linalg.svd(matrix, compute_uv=False)[1]
    run = Federation(gossip(matrix), random_rows(20, 6))
    x = run.x
    mean, apart = x.mean(0), np.linalg.norm(x - x.mean(0))
    for _ in range(8):
        x = run.meet()
        np.testing.assert_allclose(x.mean(0), mean, atol=1e-6)
        assert np.linalg.norm(x - x.mean(0)) <= rate * apart + 1e-5
        apart = np.linalg.norm(x - x.mean(0))


def test_absent_neighbours_leave_their_weight_to_the_listener():
    """x_0 = 0.75 x_0 + 0.25 x_1 without the third, who stays as it is."""
    matrix = np.array([[0.5, 0.25, 0.25], [0.3, 0.5, 0.2], [0.1, 0.1, 0.8]])
    found = meet(gossip(matrix), rows(1, 5, 100), present=[True, True, False])
    np.testing.assert_allclose(found[:, 0], [2, 0.3 * 1 + 0.7 * 5, 100], rtol=1e-6)


@pytest.mark.parametrize("num_learners", [6, 20])
def test_symmetric_mixing_keeps_the_mean_whoever_is_absent(num_learners):
    run = Federation(gossip(topology.metropolis(topology.ring(num_learners))), random_rows(num_learners, 4))
    mean = np.mean(run.x, 0)
    for seed in range(5):
        here = np.random.default_rng(seed).uniform(size=num_learners) < 0.6
        before = run.x
        x = run.meet(present=here)
        np.testing.assert_array_equal(x[~here], before[~here])
        np.testing.assert_allclose(x.mean(0), mean, atol=1e-6)


# Pairs


def partners(before, after):
    """Who met whom, read off distinct powers of two: (x_i + x_j) / 2; oneself where nothing changed."""
    return [int(np.flatnonzero(before == 2 * b - a)[0]) for a, b in zip(before, after, strict=True)]


@pytest.mark.parametrize(("num_learners", "alone"), [(2, 0), (6, 0), (5, 1), (7, 1)])
def test_each_pair_is_averaged_and_the_odd_one_stays(num_learners, alone):
    x = 2.0 ** np.arange(num_learners, dtype=np.float32)
    run, pairs = Federation(PAIRS, rows(*x)), set()
    for _ in range(30):
        run.x = rows(*x)
        found = partners(x, run.meet()[:, 0])
        assert [found[j] for j in found] == [*range(num_learners)]  # a partner's partner is oneself
        assert sum(i == j for i, j in enumerate(found)) == alone
        pairs |= {frozenset((i, j)) for i, j in enumerate(found) if i != j}
    assert len(pairs) == num_learners * (num_learners - 1) // 2  # everyone meets everyone in time


def test_only_those_present_pair_up():
    x, here = 2.0 ** np.arange(7, dtype=np.float32), np.array([1, 0, 1, 1, 0, 1, 1], bool)
    run = Federation(PAIRS, rows(*x))
    for _ in range(10):
        run.x = rows(*x)
        found = np.array(partners(x, run.meet(present=here)[:, 0]))
        alone = found == np.arange(7)
        assert alone[~here].all()
        assert here[found[~alone]].all()
        assert alone[here].sum() == 1  # of five


# Servers


def test_momentum_by_hand():
    """lr 1, momentum 0.9; the clients move by (1, 3) from the model, 2 on average.

    The model begins at the mean, 1. Velocities 2, 2 + 1.8 = 3.8, 2 + 3.42 = 5.42; models 3, 6.8, 12.22.
    """
    run = Federation(average(server=optax.sgd(1.0, momentum=0.9)), rows(0, 2))
    run.x = rows(2, 4)
    for model in (3, 6.8, 12.22):
        np.testing.assert_allclose(run.meet()[:, 0], [model, model], rtol=1e-6)
        run.x = run.x + rows(1, 3)


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_servers_are_optax_optimisers_of_the_distance(kind):
    """With everyone there, with some, and with nobody, when the server stands still."""
    config = with_settings(ExchangeConfig("average"), server=kind, server_momentum=0.8)
    optimiser = {"momentum": optax.sgd(1.0, 0.8), "adam": optax.adam(0.01, b1=0.8, b2=0.99, eps=1e-3)}[kind]
    x = random_rows(3, 4)
    run = Federation(average(server=server_optimiser(config)), x)
    model = x.mean(0)
    state = optimiser.init(model)

    @jax.jit
    def step(model, state, target):
        updates, state = optimiser.update(model - target, state)
        return optax.apply_updates(model, updates), state

    for number, here in enumerate([[1, 1, 1], [1, 0, 1], [0, 0, 0], [1, 1, 1]]):
        here, before = np.array(here, bool), run.x
        after = run.meet(present=here)
        if here.any():
            model, state = jax.device_get(step(model, state, before[here].mean(0)))
        np.testing.assert_allclose(after, np.where(here[:, None], model[None], before), rtol=1e-4, atol=1e-5)
        run.x = run.x + random_rows(3, 4, seed=10 + number)


def test_the_servers_step_size_can_be_given():
    """Half way from the model at 0 to the clients at 2, then momentum 0."""
    for kind in ("momentum", "adam"):
        given = server_optimiser(
            with_settings(ExchangeConfig("average"), server=kind, server_lr=0.5, server_momentum=0.0)
        )
        run = Federation(average(server=given), rows(0, 0))
        run.x = rows(1, 3)
        expected = {"momentum": 1.0, "adam": 0.5 * 2 / (2 + 1e-3)}[kind]
        np.testing.assert_allclose(run.meet()[:, 0], [expected] * 2, rtol=1e-5)


def test_a_server_of_step_one_without_momentum_is_the_average():
    x = random_rows(4, 5)
    found, plain = meet(average(server=optax.sgd(1.0)), x), meet(AVERAGES["uniform"], x)
    np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-6)


def test_gossip_has_no_server():
    for rule in (mixing_rules.from_partner(), mixing_rules.from_neighbours(np.eye(2))):
        with pytest.raises(ShoalError, match="a server optimiser needs a server"):
            mix(rule, server=optax.sgd(1.0))
