"""Mixing: averages, gossip, pairs, servers, statistics and channels, by hand and against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from shoal.exchange import channels, mixing, robust, topology
from shoal.exchange.make import ExchangeConfig, channel_for, server_for
from shoal.exchange.mixing import Channel, average, from_server, gossip, gossip_in_pairs, mix, weigh
from shoal.exchange.products import linear
from shoal.ops.statistics import Running, merge, summarise, variance
from shoal.types import LearnerState, ShoalError, Standing

KEY = jax.random.key(2)
NAN = float("nan")


def rows(*values):
    """Learners' parameters (L, D): a number each, or a list each."""
    x = jnp.array(values, jnp.float32)
    return x if x.ndim == 2 else x[:, None]


def cohort_of(x, statistics=(), opt_state=()):
    return LearnerState({"w": x}, statistics, opt_state, (), ())


def standing(num_learners, **changes):
    zeros, everyone = jnp.zeros(num_learners), jnp.ones(num_learners, bool)
    changes = {name: jnp.array(x) for name, x in changes.items()}
    return Standing(zeros, zeros, zeros.astype(jnp.int32), everyone)._replace(**changes)


def meet(exchange, x, **changes):
    """The parameters (L, D) after one meeting."""
    memory, cohort = exchange.init(cohort_of(x))
    _, cohort, _ = jax.jit(exchange.apply)(KEY, memory, cohort, standing(len(x), **changes))
    return np.asarray(cohort.params["w"])


class Federation:
    """Learners that meet again and again; what they do in between is written to `x`."""

    def __init__(self, exchange, x):
        self.apply, self.rounds = jax.jit(exchange.apply), 0
        self.memory, cohort = exchange.init(cohort_of(x))
        self.x = cohort.params["w"]

    def meet(self, **changes):
        self.rounds += 1
        key, now = jax.random.fold_in(KEY, self.rounds), standing(len(self.x), **changes)
        self.memory, cohort, self.metrics = self.apply(key, self.memory, cohort_of(self.x), now)
        self.x = cohort.params["w"]
        return np.asarray(self.x)


def random_rows(num_learners, size, seed=0):
    return jax.random.normal(jax.random.key(seed), (num_learners, size))


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
    assert weigh(weights, standing(3, **changes)).tolist() == expected


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
    found = meet(average(weights=weights), rows(1, 2, 6), **changes)
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-6)


def test_every_coordinate_of_every_leaf_is_averaged():
    params = {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.array([[[1.0, 2.0]], [[3.0, 6.0]]])}
    exchange = average()
    memory, cohort = exchange.init(LearnerState(params, (), (), (), ()))
    _, after, _ = exchange.apply(KEY, memory, cohort, standing(2))
    assert after.params["a"].tolist() == [[1.5, 2.5, 3.5]] * 2
    assert after.params["b"].tolist() == [[[2, 4]]] * 2


@pytest.mark.parametrize("absent", [NAN, np.inf])
def test_what_an_absent_learner_holds_reaches_nobody(absent):
    x, here = rows(1, 2, absent), [True, True, False]
    ring = topology.metropolis(topology.ring(3))
    for exchange in (average(), gossip(ring), gossip_in_pairs()):
        found = meet(exchange, x, present=here)
        assert np.isfinite(found[:2]).all()
        np.testing.assert_allclose(found[:2].mean(), 1.5, rtol=1e-6)


# Neighbours


@pytest.mark.parametrize(("num_learners", "degree"), [(5, 2), (5, 4), (24, 3), (16, 9), (8, 1), (3, 0)])
def test_gossip_is_a_product_with_the_matrix(num_learners, degree):
    """With any number of neighbours; (16, 9) is dense."""
    matrix, x = random_matrix(num_learners, degree), random_rows(num_learners, 7)
    np.testing.assert_allclose(meet(gossip(matrix), x), matrix @ np.asarray(x), rtol=1e-5, atol=1e-6)


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
    program = str(jax.make_jaxpr(linear(matrix))(x))
    assert ("dot_general" not in program) == gathers
    np.testing.assert_allclose(linear(matrix)(x), matrix @ np.asarray(x), rtol=1e-5, atol=1e-6)


def test_rows_that_do_not_sum_to_one_are_refused():
    with pytest.raises(ShoalError, match="each row of a gossip matrix must sum to 1"):
        gossip(np.array([[0.5, 0.4], [0.0, 1.0]]))


@pytest.mark.parametrize("graph", ["ring", "star", "torus", "complete"])
def test_doubly_stochastic_mixing_keeps_the_mean_and_shrinks_disagreement(graph):
    """By W's second singular value at least, each round."""
    matrix = topology.metropolis(topology.GRAPHS[graph](20))
    rate = np.linalg.svd(matrix, compute_uv=False)[1]
    run = Federation(gossip(matrix), random_rows(20, 6))
    x = np.asarray(run.x)
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
        before = np.asarray(run.x)
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
    run, met = Federation(gossip_in_pairs(), rows(*x)), set()
    for _ in range(30):
        run.x = rows(*x)
        found = partners(x, run.meet()[:, 0])
        assert [found[j] for j in found] == [*range(num_learners)]  # a partner's partner is oneself
        assert sum(i == j for i, j in enumerate(found)) == alone
        met |= {frozenset((i, j)) for i, j in enumerate(found) if i != j}
    assert len(met) == num_learners * (num_learners - 1) // 2  # everyone meets everyone in time


def test_only_those_present_pair_up():
    x, here = 2.0 ** np.arange(7, dtype=np.float32), np.array([1, 0, 1, 1, 0, 1, 1], bool)
    run = Federation(gossip_in_pairs(), rows(*x))
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
    config = ExchangeConfig("average", server=kind, server_momentum=0.8)
    optimiser = {"momentum": optax.sgd(1.0, 0.8), "adam": optax.adam(0.01, b1=0.8, b2=0.99, eps=1e-3)}[kind]
    x = random_rows(3, 4)
    run = Federation(average(server=server_for(config)), x)
    model = jnp.mean(x, 0)
    state = optimiser.init(model)
    for number, here in enumerate([[1, 1, 1], [1, 0, 1], [0, 0, 0], [1, 1, 1]]):
        here, before = np.array(here, bool), np.asarray(run.x)
        after = run.meet(present=here)
        if here.any():
            updates, state = optimiser.update(model - jnp.mean(before[here], 0), state)
            model = optax.apply_updates(model, updates)
        np.testing.assert_allclose(after, np.where(here[:, None], model[None], before), rtol=1e-4, atol=1e-5)
        run.x = run.x + random_rows(3, 4, seed=10 + number)


def test_the_servers_step_size_can_be_given():
    """Half way from the model at 0 to the clients at 2, then momentum 0."""
    for kind in ("momentum", "adam"):
        given = server_for(ExchangeConfig("average", server=kind, server_lr=0.5, server_momentum=0.0))
        run = Federation(average(server=given), rows(0, 0))
        run.x = rows(1, 3)
        expected = {"momentum": 1.0, "adam": 0.5 * 2 / (2 + 1e-3)}[kind]
        np.testing.assert_allclose(run.meet()[:, 0], [expected] * 2, rtol=1e-5)


def test_a_server_of_step_one_without_momentum_is_the_average():
    x = random_rows(4, 5)
    found, plain = meet(average(server=optax.sgd(1.0)), x), meet(average(), x)
    np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-6)


def test_gossip_has_no_server():
    for rule in (mixing.from_partner(), mixing.from_neighbours(np.eye(2))):
        with pytest.raises(ShoalError, match="a server optimiser needs a server"):
            mix(rule, server=optax.sgd(1.0))


# Statistics


def collected(rng, num_learners, offset=0.0):
    """Some numbers (n, 3) for each learner: not as many, nor of the same kind."""
    kinds = [(rng.integers(2, 9), rng.normal(), rng.uniform(0.5, 2)) for _ in range(num_learners)]
    return [offset + m + s * rng.normal(size=(n, 3)).astype(np.float32) for n, m, s in kinds]


def stacked(statistics):
    return jax.tree.map(lambda *x: jnp.stack(x), *statistics)


def summaries(data):
    return stacked([summarise(jnp.array(x), jnp.ones(len(x))) for x in data])


def start(num_learners):
    return stacked([Running(jnp.zeros(()), jnp.zeros(3), jnp.zeros(3))] * num_learners)


class Counting:
    """Learners who see data between meetings; `seen` is all of it."""

    def __init__(self, exchange, num_learners, offset=0.0):
        self.rng, self.offset, self.num_learners = np.random.default_rng(1), offset, num_learners
        self.apply, self.statistics, self.seen = jax.jit(exchange.apply), start(num_learners), []
        self.memory, _ = exchange.init(cohort_of(jnp.zeros((num_learners, 1))))
        self.rounds = 0

    def collect(self):
        data = collected(self.rng, self.num_learners, self.offset)
        self.seen += data
        self.statistics = jax.vmap(merge)(self.statistics, summaries(data))

    def meet(self, **changes):
        self.rounds += 1
        cohort = cohort_of(jnp.zeros((self.num_learners, 1)), {"obs": self.statistics})
        key, now = jax.random.fold_in(KEY, self.rounds), standing(self.num_learners, **changes)
        self.memory, cohort, _ = self.apply(key, self.memory, cohort, now)
        self.statistics = cohort.statistics["obs"]

    def totals(self):
        """Count, sum and sum of squares (about the offset), over all learners."""
        n, mean, m2 = (np.asarray(x, np.float64) for x in self.statistics)
        mean = mean - self.offset
        return n.sum(), (n[:, None] * mean).sum(0), (m2 + n[:, None] * mean**2).sum(0)

    def true_totals(self):
        data = np.concatenate(self.seen).astype(np.float64) - self.offset
        return len(data), data.sum(0), (data**2).sum(0)

    def check_pooled(self, tolerance=1e-4):
        """Everyone has the mean and the variance of all data, and an equal share of its count."""
        data = np.concatenate(self.seen).astype(np.float64)
        share = len(data) / self.num_learners
        np.testing.assert_allclose(self.statistics.count, share, rtol=tolerance)
        spread = jax.vmap(variance)(self.statistics)
        for learner in range(self.num_learners):
            np.testing.assert_allclose(self.statistics.mean[learner], data.mean(0), rtol=tolerance, atol=1e-5)
            np.testing.assert_allclose(spread[learner], data.var(0), rtol=tolerance)

    def check_totals(self):
        for found, expected in zip(self.totals(), self.true_totals(), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("offset", [0.0, 300.0])
@pytest.mark.parametrize("kind", ["average", "complete"])
def test_merged_statistics_are_those_of_the_pooled_data_after_every_round(kind, offset):
    """Twice in a row changes nothing, and data that came before is never counted again."""
    complete = gossip(topology.metropolis(topology.complete(4)))
    run = Counting(average() if kind == "average" else complete, 4, offset)
    for _ in range(6):
        run.collect()
        run.meet()
        run.check_pooled(1e-4 if offset == 0 else 1e-3)
        run.meet()
        run.check_pooled(1e-4 if offset == 0 else 1e-3)


EXCHANGES = {
    "ring": gossip(topology.metropolis(topology.ring(6))),
    "star": gossip(topology.metropolis(topology.star(6))),
    "pairs": gossip_in_pairs(),
    "average": average(),
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_no_data_is_lost_or_counted_twice_whoever_meets(name):
    run = Counting(EXCHANGES[name], 6)
    for seed in range(8):
        run.collect()
        run.meet(present=np.random.default_rng(seed).uniform(size=6) < 0.7)
        run.check_totals()


@pytest.mark.parametrize("name", ["ring", "pairs"])
def test_after_many_rounds_everyone_knows_the_pooled_data(name):
    run = Counting(EXCHANGES[name], 6)
    for _ in range(3):
        run.collect()
        run.meet()
    for _ in range(60):
        run.meet()
    run.check_pooled(1e-3)


def test_the_statistics_of_two_neighbours_by_hand():
    """Counts 2 and 6, means 1 and 5, M2 4 and 6; W = (3/4, 1/4; 1/4, 3/4).

    n' = (3, 5). Sums 2, 30: (9, 23), means (3, 4.6). Squares 4 + 2, 6 + 150: (43.5, 118.5),
    M2' = 43.5 - 3 x 9 = 16.5 and 118.5 - 5 x 4.6^2 = 12.7.
    """
    exchange = gossip(np.array([[0.75, 0.25], [0.25, 0.75]]))
    statistics = Running(jnp.array([2.0, 6.0]), jnp.array([[1.0], [5.0]]), jnp.array([[4.0], [6.0]]))
    memory, _ = exchange.init(cohort_of(rows(0, 0)))
    _, cohort, _ = exchange.apply(KEY, memory, cohort_of(rows(0, 0), statistics), standing(2))
    np.testing.assert_allclose(cohort.statistics.count, [3, 5], rtol=1e-6)
    np.testing.assert_allclose(cohort.statistics.mean[:, 0], [3, 4.6], rtol=1e-6)
    np.testing.assert_allclose(cohort.statistics.m2[:, 0], [16.5, 12.7], rtol=1e-5)


def test_weights_apply_to_statistics_too():
    """Counts 2 and 4 by weights 3/4 and 1/4: 1.5 and 1, so the mean is (1.5 x 0 + 1 x 10) / 2.5 = 4.

    M2 = 3/4 x 8 + 1/4 x 4 + 1.5 x 16 + 1 x 36 = 67.
    """
    exchange = average(weights="samples")
    statistics = Running(jnp.array([2.0, 4.0]), jnp.array([0.0, 10.0]), jnp.array([8.0, 4.0]))
    memory, _ = exchange.init(cohort_of(rows(0, 0)))
    now = standing(2, samples=[3.0, 1.0])
    _, cohort, _ = exchange.apply(KEY, memory, cohort_of(rows(0, 0), statistics), now)
    assert cohort.statistics.count.tolist() == [2.5, 2.5]
    np.testing.assert_allclose(cohort.statistics.mean, [4, 4], rtol=1e-6)
    np.testing.assert_allclose(cohort.statistics.m2, [67, 67], rtol=1e-6)


def test_robust_rules_take_the_median_of_the_present():
    """Counts 2, 4, 10, means 1, 2, 1e9, variances 1, 3, 1e9; a fourth learner is absent."""
    exchange = mix(from_server(robust.median(), robust=True))
    count, mean = jnp.array([2.0, 4.0, 10.0, 7.0]), jnp.array([[1.0], [2.0], [1e9], [-1e9]])
    statistics = Running(count, mean, jnp.array([[2.0], [12.0], [1e10], [0.0]]))
    memory, _ = exchange.init(cohort_of(rows(0, 0, 0, 0)))
    now = standing(4, present=[True, True, True, False])
    _, cohort, _ = exchange.apply(KEY, memory, cohort_of(rows(0, 0, 0, 0), statistics), now)
    assert cohort.statistics.count.tolist() == [4, 4, 4, 7]
    assert cohort.statistics.mean[:, 0].tolist() == [2, 2, 2, -1e9]
    assert cohort.statistics.m2[:, 0].tolist() == [12, 12, 12, 0]


def test_statistics_that_are_not_shared_stay():
    exchange = average(share_statistics=False)
    statistics = summaries(collected(np.random.default_rng(0), 2))
    memory, _ = exchange.init(cohort_of(rows(0, 0)))
    _, cohort, metrics = exchange.apply(KEY, memory, cohort_of(rows(0, 0), statistics), standing(2))
    jax.tree.map(np.testing.assert_array_equal, cohort.statistics, statistics)
    assert metrics["exchange/bytes"].tolist() == [4, 4]


@pytest.mark.parametrize("kind", ["average", "gossip", "pairs"])
def test_an_absent_learners_lost_statistics_reach_nobody(kind):
    ring = gossip(topology.metropolis(topology.ring(3)))
    exchange = {"average": average(), "gossip": ring, "pairs": gossip_in_pairs()}[kind]
    count, mean = jnp.array([2.0, 2.0, 2.0]), jnp.array([1.0, 3.0, NAN])
    statistics = Running(count, mean, jnp.array([1.0, 1.0, NAN]))
    memory, _ = exchange.init(cohort_of(rows(0, 0, 0)))
    now = standing(3, present=[True, True, False])
    _, cohort, _ = exchange.apply(KEY, memory, cohort_of(rows(0, 0, 0), statistics), now)
    assert np.isfinite(cohort.statistics.mean[:2]).all()
    assert np.isfinite(cohort.statistics.m2[:2]).all()


# Adam's moments


def after_adam(exchange, **changes):
    """Three learners' Adam, with moments 1, 2, 6 and counters 1, 2, 3, after a meeting."""
    moments = {"mu": rows(1, 2, 6), "count": jnp.array([1, 2, 3])}
    memory, cohort = exchange.init(cohort_of(rows(0, 0, 0), (), moments))
    _, cohort, metrics = exchange.apply(KEY, memory, cohort, standing(3, **changes))
    return cohort.opt_state["mu"][:, 0].tolist(), cohort.opt_state["count"].tolist(), metrics


def test_moments_stay_local_unless_they_are_shared():
    assert after_adam(average())[:2] == ([1, 2, 6], [1, 2, 3])
    assert after_adam(average(share_moments=True))[:2] == ([3, 3, 3], [1, 2, 3])
    here = {"present": [True, False, True]}
    assert after_adam(average(share_moments=True), **here)[:2] == ([3.5, 2, 3.5], [1, 2, 3])
    matrix = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    assert after_adam(gossip(matrix, share_moments=True))[:2] == ([1.5, 2, 3.5], [1, 2, 3])


def test_moments_go_to_everyone_who_receives_parameters():
    exchange = average(weights="returns", share_moments=True)
    moments, _, _ = after_adam(exchange, returns=[-10.0, 0.0, 20.0])
    np.testing.assert_allclose(moments, [5, 5, 5], rtol=1e-6)


def test_shared_moments_are_counted_in_bytes():
    _, _, metrics = after_adam(average(share_moments=True))
    assert metrics["exchange/bytes"].tolist() == [8, 8, 8]


def test_shared_second_moments_never_turn_negative():
    """Who heeds only others, whose moments are 0, keeps 0 of its own, not -1e-7: Adam takes the root."""
    matrix, learner = more_than_one()
    moments = {"nu": jnp.zeros((len(matrix), 1)).at[learner].set(1.0)}
    exchange = gossip(matrix, share_moments=True)
    memory, cohort = exchange.init(cohort_of(jnp.zeros((len(matrix), 1)), (), moments))
    _, cohort, _ = exchange.apply(KEY, memory, cohort, standing(len(matrix)))
    assert np.min(cohort.opt_state["nu"]) >= 0


def more_than_one():
    """A matrix without a diagonal one of whose rows, rounded, sums to more than 1; and which."""
    for seed in range(100):
        graph = np.random.default_rng(seed).uniform(1, 100, (6, 6)) * (1 - np.eye(6))
        matrix = np.asarray(topology.row_stochastic(graph), np.float32)
        heard = np.asarray(linear(matrix)(jnp.ones((6, 1))))[:, 0]
        if heard.max() > 1:
            return matrix, int(heard.argmax())
    raise AssertionError("all rows sum to 1 or less")


# Channels


def test_a_clipped_change_is_averaged_and_the_rest_forgotten():
    """From 0 to 3 and 1, clipped to 1: both arrive as 1. Then the others know that they hold 1."""
    run = Federation(average(channel=Channel(channels.privatise(1.0, 0.0))), rows(0, 0))
    run.x = rows(3, 1)
    assert run.meet()[:, 0].tolist() == [1, 1]
    assert run.meet()[:, 0].tolist() == [1, 1]
    run.x = rows(1.5, 2)
    assert run.meet()[:, 0].tolist() == [1.75, 1.75]


def test_in_gossip_the_neighbours_copies_catch_up_with_a_clipped_change():
    """From 0 to 3 and 1: copies 1, 1, so (3 + 1) / 2 and (1 + 1) / 2. Copies 2, 1: (2 + 1) / 2 both."""
    half = np.array([[0.5, 0.5], [0.5, 0.5]])
    run = Federation(gossip(half, channel=Channel(channels.privatise(1.0, 0.0))), rows(0, 0))
    run.x = rows(3, 1)
    assert run.meet()[:, 0].tolist() == [2, 1]
    assert run.meet()[:, 0].tolist() == [1.5, 1.5]


def test_liars_lie_about_their_change_and_are_not_clipped():
    """From 5 by 1, 2, 4: the last says -4 x 2; clipped to 1 the others say 1 and 1: 5 + (1 + 1 - 2) / 3."""
    flip = channel_for(ExchangeConfig("average", attack="sign-flip", attackers=1, attack_strength=2.0), 3)
    run = Federation(average(channel=flip), rows(5, 5, 5))
    run.x = rows(6, 7, 9)
    np.testing.assert_allclose(run.meet()[:, 0], [5 + (1 + 2 - 8) / 3] * 3, rtol=1e-6)
    settings = {"attack": "sign-flip", "attackers": 1, "attack_strength": 2.0, "clip": 1.0}
    run = Federation(average(channel=channel_for(ExchangeConfig("average", **settings), 3)), rows(5, 5, 5))
    run.x = rows(6, 7, 9)
    np.testing.assert_allclose(run.meet()[:, 0], [5] * 3, rtol=1e-6)


def test_noise_is_drawn_anew_for_every_learner_and_round():
    noisy = Channel(channels.privatise(1e-3, 1.0), attack=channels.attack("noise", 3, 1e-3))
    run = Federation(gossip(np.eye(3)[[1, 2, 0]], channel=noisy), jnp.zeros((3, 1)))
    seen = []
    for _ in range(3):
        run.x = jnp.zeros((3, 1))
        seen += run.meet()[:, 0].tolist()
    assert len(set(seen)) == 9


def test_every_alteration_draws_noise_of_its_own():
    """Two of deviation 1 make one of sqrt(2), where the same twice would make 2."""
    twice = Channel(channels.privatise(1.0, 1.0), attack=channels.attack("noise", 2, 1.0))
    run = Federation(gossip(np.eye(2)[[1, 0]], channel=twice), jnp.zeros((2, 5000)))
    np.testing.assert_allclose(run.meet().std(1), 2**0.5, rtol=0.05)


def test_the_copies_of_absent_learners_stay():
    """From 1, 2 to 5, 7, clipped to 1, the first alone: its copy is 2, the second's still 2, not 3."""
    half, clip = np.array([[0.5, 0.5], [0.5, 0.5]]), Channel(channels.privatise(1.0, 0.0))
    run = Federation(gossip(half, channel=clip), rows(1, 2))
    run.x = rows(5, 7)
    assert run.meet(present=[True, False])[:, 0].tolist() == [5, 7]
    assert run.meet()[:, 0].tolist() == [(5 + 3) / 2, (7 + 3) / 2]
    run = Federation(average(channel=clip), rows(1, 2))
    run.x = rows(5, 7)
    assert run.meet(present=[True, False])[:, 0].tolist() == [2, 7]
    assert run.meet()[:, 0].tolist() == [(2 + 3) / 2] * 2


TOP_ONE = Channel(compressor=channels.top_k(0.25))
JUMPED = rows([4, 1, 0, 0], [0, 3, 2, 0], [0, 0, 8, 4])  # the mean: 4/3, 4/3, 10/3, 4/3


def test_what_top_k_leaves_out_arrives_later_by_hand():
    """One number of four at a time, from 0. First 4, 3 and 8 arrive; then 1, 2 and 4."""
    run = Federation(average(channel=TOP_ONE), jnp.zeros((3, 4)))
    run.x = JUMPED
    np.testing.assert_allclose(run.meet(), [[4 / 3, 1, 8 / 3, 0]] * 3, rtol=1e-6)
    np.testing.assert_allclose(run.meet(), [[4 / 3, 4 / 3, 10 / 3, 4 / 3]] * 3, rtol=1e-6)
    np.testing.assert_allclose(run.meet(), [[4 / 3, 4 / 3, 10 / 3, 4 / 3]] * 3, rtol=1e-6)


@pytest.mark.parametrize("compressor", [channels.top_k(0.1), channels.int8()])
def test_error_feedback_brings_the_average_to_the_exact_mean(compressor):
    run, x = (
        Federation(average(channel=Channel(compressor=compressor)), jnp.zeros((5, 20))),
        random_rows(5, 20),
    )
    run.x = x
    for _ in range(12):
        found = run.meet()
    np.testing.assert_allclose(found, np.broadcast_to(np.mean(x, 0), x.shape), atol=1e-5)


def test_error_feedback_sends_everything_however_late_while_learners_go_on():
    """Ten rounds of steps toward nowhere in particular: all steps arrive in the end."""
    run = Federation(average(channel=TOP_ONE), jnp.zeros((3, 8)))
    total = jnp.zeros((3, 8))
    for seed in range(10):
        step = random_rows(3, 8, seed)
        run.x, total = run.x + step, total + step
        run.meet()
    for _ in range(40):
        found = run.meet()
    np.testing.assert_allclose(found, np.broadcast_to(np.mean(total, 0), found.shape), atol=1e-4)


@pytest.mark.parametrize("compressor", [channels.top_k(0.1), channels.int8()])
@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_compressed_gossip_comes_to_consensus(compressor, graph):
    matrix = topology.metropolis(topology.GRAPHS[graph](5))
    run = Federation(gossip(matrix, channel=Channel(compressor=compressor)), jnp.zeros((5, 20)))
    x = run.x = random_rows(5, 20)
    for _ in range(150):
        found = run.meet()
    assert np.abs(found - found.mean(0)).max() < 1e-4
    assert np.all((found.min(0) > np.min(x, 0) - 1) & (found.max(0) < np.max(x, 0) + 1))


def test_a_channel_that_alters_nothing_changes_nothing():
    x = random_rows(4, 6)
    whole = Channel(compressor=channels.top_k(1.0))
    ring = topology.metropolis(topology.ring(4))
    for plain, sent in ((average(), average(channel=whole)), (gossip(ring), gossip(ring, channel=whole))):
        runs = [Federation(exchange, x) for exchange in (plain, sent)]
        for seed in range(4):
            found = [run.meet() for run in runs]
            np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)
            for run in runs:
                run.x = run.x + random_rows(4, 6, seed)


def test_a_liar_in_gossip_lies_about_its_change_not_about_its_last_lie():
    """A step of 1 every round, sign flipped: what the other hears is small after 20 rounds, too."""
    lie = Channel(attack=channels.attack("sign-flip", 1, 1.0))
    run = Federation(gossip(np.array([[0.5, 0.5], [0.0, 1.0]]), channel=lie), rows(0, 0))
    for number in range(1, 21):
        run.x = rows(0, number)
        heard = 2 * run.meet()[0, 0]
    assert abs(heard) < 100


# Bytes


LEADER = 0.5 * np.eye(6) + 0.5 * np.eye(6)[[0] * 6]  # all listen to the first, who listens to nobody
RING, STAR = (topology.metropolis(graph(6)) for graph in (topology.ring, topology.star))
TOP_SEVEN, BYTES = Channel(compressor=channels.top_k(0.07)), Channel(compressor=channels.int8())
NOISY = Channel(channels.privatise(1.0, 1.0))


@pytest.mark.parametrize(
    ("exchange", "message", "copies"),
    [
        (average(), 400, [1] * 6),
        (average(channel=TOP_SEVEN), 7 * 8, [1] * 6),
        (average(channel=BYTES), 104, [1] * 6),
        (average(channel=NOISY), 400, [1] * 6),
        (gossip(RING), 400, [2] * 6),
        (gossip(STAR), 400, [5, 1, 1, 1, 1, 1]),
        (gossip(LEADER), 400, [5, 0, 0, 0, 0, 0]),
        (gossip(np.eye(6)), 400, [0] * 6),
        (gossip(RING, channel=BYTES), 104, [2] * 6),
        (gossip_in_pairs(channel=TOP_SEVEN), 7 * 8, [1] * 6),
        (mix(from_server(robust.median(), robust=True)), 400, [1] * 6),
    ],
)
def test_bytes_are_counted(exchange, message, copies):
    """100 parameters of 4 bytes, and 7 numbers of statistics; who is absent sends nothing."""
    statistics = Running(jnp.ones(6), jnp.zeros((6, 3)), jnp.ones((6, 3)))
    memory, cohort = exchange.init(cohort_of(random_rows(6, 100), statistics))
    apply = jax.jit(exchange.apply)
    for here in ([1, 1, 0, 1, 1, 1], [1, 0, 0, 1, 1, 1]):
        memory, cohort, metrics = apply(KEY, memory, cohort, standing(6, present=np.array(here, bool)))
    rounds = np.array([2, 1, 0, 2, 2, 2])
    np.testing.assert_array_equal(metrics["exchange/rounds"], rounds)
    np.testing.assert_array_equal(metrics["exchange/bytes"], rounds * copies * (message + 28))


# The mean learner


def test_merged_is_the_mean_learner_with_all_the_data():
    data = collected(np.random.default_rng(3), 3)
    cohort = cohort_of(rows(1, 2, 6), {"obs": summaries(data)}, jnp.arange(3.0))
    one = mixing.merged(cohort)
    assert one.params["w"].tolist() == [[3]]
    assert one.opt_state.tolist() == [0]
    pooled = np.concatenate(data)
    assert one.statistics["obs"].count.tolist() == [len(pooled)]
    np.testing.assert_allclose(one.statistics["obs"].mean[0], pooled.mean(0), rtol=1e-5)
    np.testing.assert_allclose(one.statistics["obs"].m2[0] / len(pooled), pooled.var(0), rtol=1e-5)
