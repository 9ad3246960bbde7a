"""Islands end where one program ends: same seeds, same keys, same exchanges."""

from functools import cache

import jax
import numpy as np
import pytest
from crowds import begin, config_with, train

import shoal

AVERAGE = {"exchange": "average"}
FEDERATION = {"exchange": "trimmed-mean", "compress": "top-k", "compress__keep": 0.5, "server": "momentum"}
GOSSIP = {
    "exchange": "gossip",
    "topology": "pairs",
    "local_updates": 3,
    "participation": 0.5,
    "share_moments": True,
}
GRAPH = {"exchange": "neighbours", "topology": "star", "local_updates": 3}
ANCHORED = {"exchange": "average", "prox_coef": 0.1, "weights": "samples", "env_spread": 0.5}
PARTS = {"exchange": "average", "parts": ("critic:2", "actor:4"), "evolve": ("learning_rate",)}
POPULATION = {"exchange": "truncation", "population__min_episodes": 1, "learning_rate": 0.02}
ALONE = {"env_spread": 0.2}
CASES = {
    "average": AVERAGE,
    "federation": FEDERATION,
    "gossip": GOSSIP,
    "graph": GRAPH,
    "anchored": ANCHORED,
    "parts": PARTS,
    "population": POPULATION,
    "alone": ALONE,
}


@cache
def one_program(name):
    *_, report = shoal.train(config_with(**CASES[name]), mesh="1x1")
    return jax.device_get(report.state.cohort._replace(private=())), report.metrics


def compare(name, islands, **close):
    meeting, crowd = begin(config_with(**CASES[name]), islands)
    held = train(meeting, crowd)
    cohort, metrics = one_program(name)
    for field in meeting.plan.sent:
        found, expected = getattr(meeting.state.models, field), getattr(cohort, field)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **close), found, expected)
    for metric in set(held.metrics) & {"exchange/bytes", "exchange/rounds", "population/parent"}:
        np.testing.assert_array_equal(held.metrics[metric], metrics[metric])
    return meeting


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_one_island_is_the_same_run_bit_for_bit(name):
    compare(name, 1, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "islands"),
    [
        ("average", 4),
        ("federation", 2),
        ("gossip", 4),
        ("graph", 4),
        ("anchored", 2),
        ("parts", 2),
        ("population", 4),
    ],
)
def test_learners_on_several_islands_end_with_the_parameters_of_one_program(name, islands):
    compare(name, islands, rtol=1e-6, atol=1e-6)


def test_two_islands_that_average_end_with_the_parameters_of_one_program():
    meeting = compare("average", 2, rtol=1e-6, atol=1e-6)
    weights = jax.tree.leaves(meeting.state.models.params)[0]
    assert np.array_equal(weights[0], weights[7])
