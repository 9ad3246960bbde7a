"""Mixing through channels: clipped, false, noisy and compressed messages by hand, and their bytes."""

import jax
import numpy as np
import pytest

from shoal.exchanges import channels, robust, topology
from shoal.exchanges.builders import make_channel
from shoal.exchanges.channels import Channel
from shoal.exchanges.config import ExchangeConfig
from shoal.exchanges.mixing import average, gossip, gossip_in_pairs, mix
from shoal.exchanges.mixing_rules import from_server
from shoal.ops.statistics import Running
from shoal.settings import with_settings
from tests.exchanges.meetings import KEY, Federation, cohort_of, met, random_rows, rows, scores


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


def test_attackers_change_what_they_send_and_are_not_clipped():
    """From 5 by 1, 2, 4: the last says -4 x 2; clipped to 1 the others say 1 and 1: 5 + (1 + 1 - 2) / 3."""
    flip = make_channel(
        with_settings(ExchangeConfig("average"), attack="sign-flip", attackers=1, attack_strength=2.0), 3
    )
    run = Federation(average(channel=flip), rows(5, 5, 5))
    run.x = rows(6, 7, 9)
    np.testing.assert_allclose(run.meet()[:, 0], [5 + (1 + 2 - 8) / 3] * 3, rtol=1e-6)
    settings = {"attack": "sign-flip", "attackers": 1, "attack_strength": 2.0, "clip": 1.0}
    run = Federation(
        average(channel=make_channel(with_settings(ExchangeConfig("average"), **settings), 3)), rows(5, 5, 5)
    )
    run.x = rows(6, 7, 9)
    np.testing.assert_allclose(run.meet()[:, 0], [5] * 3, rtol=1e-6)


def test_noise_is_drawn_anew_for_every_learner_and_round():
    noisy = Channel(channels.privatise(1e-3, 1.0), attack=channels.attack("noise", 3, 1e-3))
    run = Federation(gossip(np.eye(3)[[1, 2, 0]], channel=noisy), np.zeros((3, 1), np.float32))
    seen = []
    for _ in range(3):
        run.x = np.zeros((3, 1), np.float32)
        seen += run.meet()[:, 0].tolist()
    assert len(set(seen)) == 9


def test_every_alteration_draws_noise_of_its_own():
    """Two of deviation 1 make one of sqrt(2), where the same twice would make 2."""
    twice = Channel(channels.privatise(1.0, 1.0), attack=channels.attack("noise", 2, 1.0))
    run = Federation(gossip(np.eye(2)[[1, 0]], channel=twice), np.zeros((2, 5000), np.float32))
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
    run = Federation(average(channel=TOP_ONE), np.zeros((3, 4), np.float32))
    run.x = JUMPED
    np.testing.assert_allclose(run.meet(), [[4 / 3, 1, 8 / 3, 0]] * 3, rtol=1e-6)
    np.testing.assert_allclose(run.meet(), [[4 / 3, 4 / 3, 10 / 3, 4 / 3]] * 3, rtol=1e-6)
    np.testing.assert_allclose(run.meet(), [[4 / 3, 4 / 3, 10 / 3, 4 / 3]] * 3, rtol=1e-6)


@pytest.mark.parametrize("compressor", [channels.top_k(0.1), channels.int8()])
def test_error_feedback_brings_the_average_to_the_exact_mean(compressor):
    run, x = (
        Federation(average(channel=Channel(compressor=compressor)), np.zeros((5, 20), np.float32)),
        random_rows(5, 20),
    )
    run.x = x
    for _ in range(12):
        found = run.meet()
    np.testing.assert_allclose(found, np.broadcast_to(np.mean(x, 0), x.shape), atol=1e-5)


def test_error_feedback_sends_everything_however_late_while_learners_go_on():
    """Ten rounds of steps toward nowhere in particular: all steps arrive in the end."""
    run = Federation(average(channel=TOP_ONE), np.zeros((3, 8), np.float32))
    total = np.zeros((3, 8), np.float32)
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
    run = Federation(gossip(matrix, channel=Channel(compressor=compressor)), np.zeros((5, 20), np.float32))
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


def test_an_attacker_in_gossip_falsifies_its_change_not_its_last_false_message():
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
ROUNDS = np.array([[1, 1, 0, 1, 1, 1], [1, 0, 0, 1, 1, 1]])  # who is there
ONCE = ([1] * 6, [1] * 6)
AROUND = ([2, 1, 2, 1, 2, 2], [1, 1, 1, 1, 2, 2])  # how many who are there listen to each, in a ring


@pytest.mark.parametrize(
    ("exchange", "message", "copies"),
    [  # how often each is heard in a round without the third, and in one without the second and the third
        (average(), 400, ONCE),
        (average(channel=TOP_SEVEN), 7 * 8, ONCE),
        (average(channel=BYTES), 104, ONCE),
        (average(channel=NOISY), 400, ONCE),
        (gossip(RING), 400, AROUND),
        (gossip(STAR), 400, ([4, 1, 1, 1, 1, 1], [3, 1, 1, 1, 1, 1])),
        (gossip(LEADER), 400, ([4, 0, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0])),
        (gossip(np.eye(6)), 400, ([0] * 6, [0] * 6)),
        (mix(from_server(robust.median(), robust=True)), 400, ONCE),
    ],
)
def test_bytes_are_counted(exchange, message, copies):
    """100 parameters of 4 bytes, and 7 numbers of statistics; who is absent sends and hears nothing."""
    metrics = after_two_rounds(exchange)
    np.testing.assert_array_equal(metrics["exchange/rounds"], ROUNDS.sum(0))
    np.testing.assert_array_equal(metrics["exchange/bytes"], (ROUNDS * copies).sum(0) * (message + 28))


def test_changes_are_told_to_everyone_who_may_ever_listen():
    """And statistics, which are no changes, to those who listen now."""
    ring = after_two_rounds(gossip(RING, channel=BYTES))["exchange/bytes"]
    np.testing.assert_array_equal(ring, 104 * 2 * ROUNDS.sum(0) + 28 * (ROUNDS * AROUND).sum(0))
    pairs = after_two_rounds(gossip_in_pairs(channel=TOP_SEVEN, share_statistics=False))["exchange/bytes"]
    np.testing.assert_array_equal(pairs, 7 * 8 * 5 * ROUNDS.sum(0))


def after_two_rounds(exchange) -> dict:
    zeros = np.zeros((6, 3), np.float32)
    statistics = Running(np.ones(6, np.float32), zeros, zeros + 1)

    @jax.jit
    def run(cohort, rounds):
        def meet(state, here):
            *state, metrics = exchange.apply(KEY, *state, scores(6)._replace(present=here))
            return tuple(state), metrics

        return jax.lax.scan(meet, exchange.init(cohort), rounds)[1]

    metrics = jax.device_get(run(cohort_of(random_rows(6, 100), statistics), ROUNDS.astype(bool)))
    return {name: x[-1] for name, x in metrics.items()}


def test_whoever_has_no_partner_sends_nothing():
    _, metrics = met(gossip_in_pairs(share_statistics=False), cohort_of(random_rows(5, 100)))
    assert sorted(metrics["exchange/bytes"].tolist()) == [0, 400, 400, 400, 400]
