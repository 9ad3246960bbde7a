"""Islands of one size are one program, in all tests here."""

import os
from dataclasses import replace

import pytest

from shoal.exchanges.registry import penalises
from shoal.islands import island
from shoal.training.program import for_learners


@pytest.fixture(autouse=True, scope="session")
def programs_of_islands_are_kept():
    """An island of so many learners has the program of the first one with its settings; numbers are data.

    Not where an exchange tells learners of their peers, which is part of the program.
    """
    original, kept = island.make_trainer, {}

    def make_trainer(config, *, recipe, mesh, exchange, **parts):
        if parts or any(penalises(one) for one in config.exchanges) or config.env != "CartPole-v1":
            return original(config, recipe=recipe, mesh=mesh, exchange=exchange, **parts)
        same = replace(config, reports=1, steps=1, anneal_to=None, first_member=0)
        key = (repr(same), repr(mesh), os.environ["XLA_FLAGS"])
        if key not in kept:
            kept[key] = original(config, recipe=recipe, mesh=mesh, exchange=exchange)
        return for_learners(kept[key], config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(island, "make_trainer", make_trainer)
        yield
