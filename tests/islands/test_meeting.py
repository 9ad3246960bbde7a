"""A meeting of whoever came: the absent, the late, liars; saved and gone on with."""

from functools import cache

import jax
import numpy as np
import pytest
from crowds import begin, config_with, hold

from shoal.islands.changes import matrix_of
from shoal.islands.meeting import Meeting, sound_rows
from shoal.islands.plan import make_plan

CONFIG = config_with(exchange="average", steps=16 * 12)


@cache
def crowd_of_two():
    """A meeting of two islands of four learners each; tests hold meetings of their own state."""
    return begin(CONFIG, 2)


@cache
def messages():
    """What the two send to their first meeting."""
    meeting, crowd = crowd_of_two()
    return meeting, [island.train() for island in crowd]


@pytest.fixture
def meeting():
    """The meeting before its first round, and what came; as it was, afterwards."""
    held, came = messages()
    state = held.state
    yield held, came
    held.state, held.round = state, 0


def weights(meeting):
    return np.asarray(jax.tree.leaves(meeting.state.models.params)[0])


def changed(message, **arrays):
    return message._replace(arrays=message.arrays | arrays)


def test_the_absent_keep_their_rows_and_do_not_count(meeting):
    meeting, (first, _) = meeting
    before = weights(meeting)
    held = meeting.meet([first])
    name = next(name for name in first.arrays if name.startswith("params"))
    np.testing.assert_allclose(
        weights(meeting)[:4], np.broadcast_to(first.arrays[name].mean(0), before[:4].shape), rtol=1e-5
    )
    np.testing.assert_array_equal(weights(meeting)[4:], before[4:])
    assert held.came.tolist() == [True] * 4 + [False] * 4
    assert [answer.island for answer in held.answers] == [0]
    assert np.isnan(held.metrics["loss/total"][4:]).all()
    assert np.isfinite(held.metrics["loss/total"][:4]).all()


def test_bad_messages_are_left_out_and_named(meeting):
    meeting, (first, second) = meeting
    name = next(name for name in first.arrays if name.startswith("params"))
    bad = {
        "an old round, 0, not 1": second._replace(round=0),
        "belongs to the run": second._replace(run="another"),
        "has the shape": changed(second, **{name: second.arrays[name][:, :1]}),
        "has an unknown": changed(second, more=np.zeros(4, np.float32)),
        "lacks": second._replace(arrays={}),
        "came from another island, too": second._replace(members=first.members),
        "not float32": changed(second, **{"metrics/loss/total": np.zeros((4, 2), np.float32)}),
    }
    for why, message in bad.items():
        held = meeting.meet([first, message], round=1)
        assert why in held.left_out[1]
        assert held.came.tolist() == [True] * 4 + [False] * 4
        meeting.state, meeting.round = crowd_of_two()[0].state, 0


def test_learners_whose_numbers_are_not_finite_do_not_spoil_the_others(meeting):
    meeting, (first, second) = meeting
    name = next(name for name in first.arrays if name.startswith("params"))
    spoiled = second.arrays[name].copy()
    spoiled[1] = np.nan
    held = meeting.meet([first, changed(second, **{name: spoiled})])
    assert held.present.tolist() == [True] * 5 + [False] + [True] * 2
    assert np.asarray(sound_rows(meeting.state.models)).tolist() == held.present.tolist()


@cache
def a_third_lies():
    """What three islands of three learners send to their first meeting; the last one lies."""
    *honest, liar = [
        island.train()
        for island in begin(config_with(learners=9, exchange="average", local_updates=12), 3)[1]
    ]
    false = {name: -100 * x for name, x in liar.arrays.items() if name.startswith("params")}
    return [*honest, changed(liar, **false)]


def apart(rows):
    """How far rows of parameters are from the mean of those that islands sent honestly."""
    honest = np.concatenate([matrix_of(message.arrays) for message in a_third_lies()[:2]])
    return np.linalg.norm(rows - honest.mean(0), axis=1), np.linalg.norm(honest - honest.mean(0), axis=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule", ["median", "trimmed-mean", "krum", "multi-krum", "geometric-median", "average"]
)
def test_a_third_of_the_islands_lies(rule):
    meeting = Meeting(make_plan(config_with(learners=9, exchange=rule, local_updates=12)), "run")
    held = meeting.meet(a_third_lies())
    assert not held.left_out
    found, honest = apart(matrix_of(held.answers[0].arrays))
    assert found.max() > 10 * honest.max() if rule == "average" else found.max() <= honest.max()


def test_an_island_that_was_late_goes_on_from_its_own_work():
    meeting, crowd = begin(CONFIG, 2)
    hold(meeting, crowd, absent=(1,))
    own = np.asarray(jax.tree.leaves(crowd[1].state.cohort.params)[0])
    assert not np.array_equal(own, weights(meeting)[4:])
    held = hold(meeting, crowd)
    assert not held.left_out
    assert held.came.all()
    np.testing.assert_array_equal(weights(meeting)[0], weights(meeting)[7])


@pytest.mark.slow
def test_islands_and_their_meeting_go_on_bit_for_bit_also_where_learners_moved(tmp_path):
    config = config_with(exchange="gossip", topology="ring", steps=16 * 12, compress="int8")
    meeting, crowd = begin(config, 2, tmp_path / "islands")
    hold(meeting, crowd)
    for island in crowd:
        island.save()
    meeting.save(tmp_path, {"scores": [0.0] * 8})
    hold(meeting, crowd)
    for divided in (2, 4):  # the same islands again; each half of one
        later, others = begin(config, divided, tmp_path / "islands")
        assert later.restore(tmp_path) is not None
        for island in others:
            island.begun = False
            island.take(later.answer(island.number, island.members))
        hold(later, others)
        for a, b in zip(
            jax.tree.leaves(later.state.models), jax.tree.leaves(meeting.state.models), strict=True
        ):
            (np.testing.assert_array_equal if divided == 2 else np.testing.assert_allclose)(a, b)
    assert isinstance(later, Meeting)
