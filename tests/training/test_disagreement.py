"""How far learners are apart: by hand, for policies that are single numbers."""

import jax.numpy as jnp
import numpy as np
import pytest

from shoal.exchanges.config import ExchangeConfig
from shoal.exchanges.topology import complete, ring
from shoal.training.config import TrainConfig
from shoal.training.parts import links_of
from shoal.training.scores import PEERS, disagreement, linked_and_unlinked
from shoal.types import Learner, LearnerState


def apart(numbers, links=None):
    """The metrics of learners whose only parameter is a number, and whose distance is the difference."""
    nothing = lambda *_: None
    learner = Learner(nothing, nothing, nothing, nothing, distance=difference)  # type: ignore[arg-type]
    params = jnp.float32(numbers)[:, None]
    cohort = LearnerState(params, (), (), (), ())
    found = disagreement(learner, cohort, jnp.zeros((len(numbers), 1)), links)
    return {name: np.asarray(x).tolist() for name, x in found.items()}


def difference(own, other, obs):
    return jnp.abs(own.params - other.params)


PAIRS = np.zeros((4, 4))
PAIRS[0, 1] = PAIRS[3, 2] = 0.5
"""0 receives from 1 and 3 from 2: a link counts in both directions."""


def test_linked_and_unlinked_learners_by_hand():
    found = apart([1.0, 2.0, 5.0, 9.0], PAIRS)
    assert found["disagreement/linked"] == [1, 1, 4, 4]
    assert found["disagreement/unlinked"] == [6, 5, 3.5, 7.5]
    assert found["disagreement/params"] == [3.25, 2.25, 0.75, 4.75]
    assert found["disagreement/policy"] == apart([1.0, 2.0, 5.0, 9.0])["disagreement/policy"]


def test_a_lost_learner_counts_for_nobody():
    found = apart([1.0, np.nan, 5.0, 9.0], PAIRS)
    assert np.isnan(found["disagreement/linked"][0])
    assert found["disagreement/unlinked"][0] == 6
    assert found["disagreement/linked"][2:] == [4, 4]


def test_a_learner_without_links_has_no_distance_to_any():
    one = np.zeros((3, 3))
    one[0, 1] = 1
    found = apart([1.0, 2.0, 4.0], one)
    np.testing.assert_array_equal(found["disagreement/linked"], [1, 1, np.nan])
    assert found["disagreement/unlinked"] == [3, 2, 2.5]


@pytest.mark.parametrize("links", [None, np.zeros((3, 3)), complete(3), np.eye(3)])
def test_where_all_are_linked_or_none_there_is_nothing_to_tell_apart(links):
    assert apart([1.0, 2.0, 4.0], links).keys() == {"disagreement/params", "disagreement/policy"}


def test_of_many_only_some_are_compared_and_each_at_most_once():
    others = linked_and_unlinked(ring(40))
    assert others["linked"].shape == (2, 40)
    assert others["unlinked"].shape == (PEERS, 40)
    for learner in range(40):
        near = {(learner - 1) % 40, (learner + 1) % 40}
        assert {*others["linked"][:, learner]} == near
        far = {*others["unlinked"][:, learner].tolist()}
        assert len(far) == PEERS
        assert not far & {learner, *near}


def test_the_links_of_a_run_are_those_of_all_its_graphs():
    file = {"comm_matrix": {"0": {"2": 100}}}
    exchanges = (
        ExchangeConfig("neighbours", comm_matrix=file),
        ExchangeConfig("gossip", topology="ring"),
        ExchangeConfig("average"),
    )
    both = TrainConfig("CartPole-v1", learners=5, exchanges=exchanges)
    expected = ring(5) != 0
    expected[0, 2] = True
    np.testing.assert_array_equal(links_of(both), expected)
    assert links_of(TrainConfig("CartPole-v1", learners=5, exchanges=exchanges[2:])) is None
