"""Statistics and moments that are mixed: no data lost, none counted twice, by hand and against NumPy."""

import jax
import numpy as np
import pytest

from shoal.exchanges import mixing, robust, topology
from shoal.exchanges.mixing import average, gossip, gossip_in_pairs, mix
from shoal.exchanges.mixing_rules import from_server
from shoal.exchanges.products import linear
from shoal.ops.statistics import Running, merge, variance
from tests.exchanges.meetings import Federation, cohort_of, met, rows

NAN = float("nan")


EXCHANGES = {
    "ring": gossip(topology.metropolis(topology.ring(6))),
    "star": gossip(topology.metropolis(topology.star(6))),
    "pairs": gossip_in_pairs(),
    "average": average(),
}
COMPLETE = gossip(topology.metropolis(topology.complete(4)))


def collected(rng, num_learners, offset=0.0):
    """Some numbers (n, 3) for each learner: not as many, nor of the same kind."""
    kinds = [(rng.integers(2, 9), rng.normal(), rng.uniform(0.5, 2)) for _ in range(num_learners)]
    return [offset + m + s * rng.normal(size=(n, 3)).astype(np.float32) for n, m, s in kinds]


def summaries(data):
    moments = [(len(x), x.mean(0), len(x) * x.var(0)) for x in data]
    return Running(*(np.float32(x) for x in zip(*moments, strict=True)))


def start(num_learners):
    zeros = np.zeros((num_learners, 3), np.float32)
    return Running(zeros[:, 0], zeros, zeros)


MERGE, SPREAD = jax.jit(jax.vmap(merge)), jax.jit(jax.vmap(variance))


class Counting:
    """Learners who see data between meetings; `seen` is all of it."""

    def __init__(self, exchange, num_learners, offset=0.0):
        self.rng, self.offset, self.num_learners = np.random.default_rng(1), offset, num_learners
        self.statistics, self.seen = start(num_learners), []
        self.federation = Federation(exchange, rows(*[0] * num_learners))

    def collect(self):
        data = collected(self.rng, self.num_learners, self.offset)
        self.seen += data
        self.statistics = jax.device_get(MERGE(self.statistics, summaries(data)))

    def meet(self, **changes):
        self.federation.statistics = {"obs": self.statistics}
        self.federation.meet(**changes)
        self.statistics = self.federation.statistics["obs"]

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
        spread = SPREAD(self.statistics)
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
    run = Counting({"average": EXCHANGES["average"], "complete": COMPLETE}[kind], 4, offset)
    for _ in range(6):
        run.collect()
        run.meet()
        run.check_pooled(1e-4 if offset == 0 else 1e-3)
        run.meet()
        run.check_pooled(1e-4 if offset == 0 else 1e-3)


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
    statistics = Running(np.float32([2, 6]), np.float32([[1], [5]]), np.float32([[4], [6]]))
    cohort, _ = met(exchange, cohort_of(rows(0, 0), statistics))
    np.testing.assert_allclose(cohort.statistics.count, [3, 5], rtol=1e-6)
    np.testing.assert_allclose(cohort.statistics.mean[:, 0], [3, 4.6], rtol=1e-6)
    np.testing.assert_allclose(cohort.statistics.m2[:, 0], [16.5, 12.7], rtol=1e-5)


def test_weights_apply_to_statistics_too():
    """Counts 2 and 4 by weights 3/4 and 1/4: 1.5 and 1, so the mean is (1.5 x 0 + 1 x 10) / 2.5 = 4.

    M2 = 3/4 x 8 + 1/4 x 4 + 1.5 x 16 + 1 x 36 = 67.
    """
    exchange = average(weights="samples")
    statistics = Running(np.float32([2, 4]), np.float32([0, 10]), np.float32([8, 4]))
    cohort, _ = met(exchange, cohort_of(rows(0, 0), statistics), samples=[3.0, 1.0])
    assert cohort.statistics.count.tolist() == [2.5, 2.5]
    np.testing.assert_allclose(cohort.statistics.mean, [4, 4], rtol=1e-6)
    np.testing.assert_allclose(cohort.statistics.m2, [67, 67], rtol=1e-6)


def test_robust_rules_take_the_median_of_the_present():
    """Counts 2, 4, 10, means 1, 2, 1e9, variances 1, 3, 1e9; a fourth learner is absent."""
    exchange = mix(from_server(robust.median(), robust=True))
    count, mean = np.float32([2, 4, 10, 7]), np.float32([[1], [2], [1e9], [-1e9]])
    statistics = Running(count, mean, np.float32([[2], [12], [1e10], [0]]))
    cohort, _ = met(exchange, cohort_of(rows(0, 0, 0, 0), statistics), present=[True, True, True, False])
    assert cohort.statistics.count.tolist() == [4, 4, 4, 7]
    assert cohort.statistics.mean[:, 0].tolist() == [2, 2, 2, -1e9]
    assert cohort.statistics.m2[:, 0].tolist() == [12, 12, 12, 0]


def test_statistics_that_are_not_shared_stay():
    exchange = average(share_statistics=False)
    statistics = summaries(collected(np.random.default_rng(0), 2))
    cohort, metrics = met(exchange, cohort_of(rows(0, 0), statistics))
    jax.tree.map(np.testing.assert_array_equal, cohort.statistics, statistics)
    assert metrics["exchange/bytes"].tolist() == [4, 4]


@pytest.mark.parametrize("kind", ["average", "gossip", "pairs"])
def test_an_absent_learners_lost_statistics_reach_nobody(kind):
    exchange = EXCHANGES[kind] if kind != "gossip" else gossip(topology.metropolis(topology.ring(3)))
    statistics = Running(np.float32([2, 2, 2]), np.float32([1, 3, NAN]), np.float32([1, 1, NAN]))
    cohort, _ = met(exchange, cohort_of(rows(0, 0, 0), statistics), present=[True, True, False])
    assert np.isfinite(cohort.statistics.mean[:2]).all()
    assert np.isfinite(cohort.statistics.m2[:2]).all()


# Adam's moments


def after_adam(exchange, **changes):
    """Three learners' Adam, with moments 1, 2, 6 and counters 1, 2, 3, after a meeting."""
    moments = {"mu": rows(1, 2, 6), "count": np.int32([1, 2, 3])}
    cohort, metrics = met(exchange, cohort_of(rows(0, 0, 0), (), moments), **changes)
    return cohort.opt_state["mu"][:, 0].tolist(), cohort.opt_state["count"].tolist(), metrics


def test_moments_stay_local_unless_they_are_shared():
    shared = average(share_moments=True)
    assert after_adam(EXCHANGES["average"])[:2] == ([1, 2, 6], [1, 2, 3])
    assert after_adam(shared)[:2] == ([3, 3, 3], [1, 2, 3])
    here = {"present": [True, False, True]}
    assert after_adam(shared, **here)[:2] == ([3.5, 2, 3.5], [1, 2, 3])
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
    moments = {"nu": rows(*np.arange(len(matrix)) == learner)}
    cohort, _ = met(gossip(matrix, share_moments=True), cohort_of(rows(*[0] * len(matrix)), (), moments))
    assert np.min(cohort.opt_state["nu"]) >= 0


def more_than_one():
    """A matrix without a diagonal one of whose rows, rounded, sums to more than 1; and which."""
    for seed in range(100):
        graph = np.random.default_rng(seed).uniform(1, 100, (6, 6)) * (1 - np.eye(6))
        matrix = np.asarray(topology.row_stochastic(graph), np.float32)
        learner = int(sum(matrix.T).argmax())  # column by column, as neighbours are added
        if sum(matrix.T)[learner] > 1 and jax.jit(linear(matrix))(rows(*[1] * 6))[learner, 0] > 1:
            return matrix, learner
    raise AssertionError("all rows sum to 1 or less")


# The mean learner


def test_merged_is_the_mean_learner_with_all_the_data():
    data = collected(np.random.default_rng(3), 3)
    cohort = cohort_of(rows(1, 2, 6), {"obs": summaries(data)}, np.arange(3.0, dtype=np.float32))
    one = jax.device_get(mixing.mean_learner(cohort))
    assert one.params["w"].tolist() == [[3]]
    assert one.opt_state.tolist() == [0]
    pooled = np.concatenate(data)
    assert one.statistics["obs"].count.tolist() == [len(pooled)]
    np.testing.assert_allclose(one.statistics["obs"].mean[0], pooled.mean(0), rtol=1e-5)
    np.testing.assert_allclose(one.statistics["obs"].m2[0] / len(pooled), pooled.var(0), rtol=1e-5)
