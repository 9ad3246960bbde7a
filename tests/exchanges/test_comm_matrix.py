"""Communication matrices from files: what is read, and mistakes by name."""

import json

import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.exchanges.comm_matrix import read_matrix
from shoal.exchanges.topology import GRAPHS


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
    rows = {str(i): {str(j): float(graph[i, j]) for j in np.flatnonzero(graph[i])} for i in range(12)}
    data = json.loads(json.dumps({"comm_matrix": rows}))
    np.testing.assert_array_equal(read_matrix(data, 12), graph)
    np.testing.assert_array_equal(read_matrix(graph.tolist(), 12), graph)


COUNTED = "learners are counted from 0; with 4 learners 0 to 3, found "
FROM_ONE = "; these seem to be counted from 1: subtract 1 from every number"
WEIGHT = "comm_matrix: the weight of learner 0 for 1 must be a number of at least 0, not "
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
    ({"comm_matrix": {"0": {"1": -3}}}, WEIGHT + "-3"),
    ({"comm_matrix": {"0": {"1": -np.inf}}}, WEIGHT + "-inf"),
    ({"comm_matrix": {"0": {"1": np.nan}}}, WEIGHT + "nan"),
    ({"comm_matrix": {"0": {"1": np.inf}}}, WEIGHT + "inf"),
    ({"comm_matrix": {"0": {"1": 1e39}}}, WEIGHT + "1e+39"),
    ({"comm_matrix": {"0": {"1": 10**400}}}, WEIGHT + "1000"),
    ({"comm_matrix": {"0": {"1": True}}}, WEIGHT + "True"),
    ({"comm_matrix": {"0": {"1": "five"}}}, WEIGHT + "'five'"),
    ({"comm_matrix": {"0": {"1": None}}}, WEIGHT + "None"),
    ({"comm_matrix": {"0": {"1": {"2": 1}}}}, WEIGHT + "{'2': 1}"),
    ([[0, -1, 0, 0]] + [[0] * 4] * 3, WEIGHT + "-1"),
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
