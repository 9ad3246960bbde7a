"""Whatever a file or a call says, it is taken and in range, or refused in a line: a few seconds of fuzzing.

`make fuzz` goes on for longer, with new cases each time.
"""

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from shoal.ranges import limits_of
from shoal.settings import hints
from shoal.training.config import TrainConfig
from tests.fuzz.cases import CASES, allowed
from tests.fuzz.corpus import read_corpus
from tests.fuzz.doors import DOORS, Broken, bring, within

FEW = {"flags": 5, "config": 20, "preset": 20, "sweep": 15}
"""Cases of a door; 40 of the quick ones."""


@pytest.mark.parametrize("door", CASES)
def test_every_case_is_taken_or_refused_in_a_line(door, tmp_path):
    @settings(
        max_examples=FEW.get(door, 40),
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(CASES[door])
    def brought(content):
        bring(door, content, tmp_path)

    brought()


@pytest.mark.parametrize(("door", "content"), read_corpus())
def test_what_once_broke_something_does_not_again(door, content, tmp_path):
    bring(door, content, tmp_path)


def test_the_doors_notice_what_is_wrong(tmp_path, monkeypatch):
    """Each way to break is seen: another exception, a message of two lines, a value out of range."""

    def fails(content, folder):
        raise KeyError("two\nlines")

    monkeypatch.setitem(DOORS, "config", fails)
    with pytest.raises(Broken, match="KeyError"):
        bring("config", "", tmp_path)
    hint = hints(TrainConfig)["seed"]
    assert within(3, hint)
    assert not any(within(value, hint) for value in (True, -1, 2**32, 3.0, "3", None))


def test_cases_reach_the_ends_of_a_range():
    """The strategies read the schema: for a number from 1 to 16,384 they propose both."""
    hint, seen = hints(TrainConfig)["frame_stack"], set()

    @settings(max_examples=100, database=None, derandomize=True, phases=[Phase.generate])
    @given(allowed(hint))
    def collect(value):
        seen.add(value)

    collect()
    limits = limits_of(hint)[1]
    assert {limits.ge, limits.le} <= seen
    assert all(limits.allow(value) for value in seen)
