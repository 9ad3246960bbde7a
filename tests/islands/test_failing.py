"""Environments in Python that fail on an island: they cost their learner alone, as in one program."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from crowds import SMALL, hold

from shoal.islands.island import Island
from shoal.islands.meeting import Meeting
from shoal.islands.plan import config_of, divide, make_plan
from shoal.runs.config import from_settings
from shoal.runs.own import OwnParts
from shoal.training.parts import env_seeds


class Walk(gymnasium.Env):
    """A walk in episodes of 3 steps; it raises at the fifth step where it began with a seed."""

    observation_space = gymnasium.spaces.Box(-9, 9, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, failing=None):
        self.failing, self.fails, self.taken = failing, False, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.fails = seed == self.failing if seed is not None else self.fails
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.taken += 1
        if self.taken == 5 and self.fails:
            raise ZeroDivisionError("the wheel came off")
        return np.full(1, 0.1, np.float32), float(action), False, self.taken % 3 == 0, {}


def crowd_with(**settings):
    """A meeting of two islands of two learners; an environment of learner 1 fails."""
    config = from_settings(settings | {"env": "walk", "learners": 4})
    parts = divide(4, 2)
    own = OwnParts(env=partial(Walk, int(env_seeds(config_of(config, parts[0]), 0)[1, 0])))
    meeting = Meeting(make_plan(config, own), "run")
    crowd = [Island(config, number, members, None, "1x1", own) for number, members in enumerate(parts)]
    for island in crowd:
        island.take(meeting.answer(island.number, island.members))
    return meeting, crowd


@pytest.mark.slow
def test_a_population_replaces_the_learner_and_its_environment_is_made_anew():
    once = {"exchange": "winner", "local_updates": 1, "population.min_episodes": 1}
    crowd = crowd_with(**SMALL | once)
    with pytest.warns(RuntimeWarning, match="an environment of learner 1 failed: .* the wheel came off"):
        held = [hold(*crowd)]
    held += [hold(*crowd) for _ in range(3)]
    assert [one.metrics["lost"].tolist() for one in held] == [[0, 1, 0, 0]] + 3 * [[0, 0, 0, 0]]
    assert held[-1].metrics["episodes"][1] > held[0].metrics["episodes"][1]


@pytest.mark.slow
def test_a_learner_with_a_replay_is_absent_from_then_on():
    ppo = ("num_minibatches", "update_epochs", "norm_obs")
    settings = {"algo": "dqn", "exchange": "average", "local_updates": 1, "learning_starts": 8}
    settings |= {"batch_size": 8, "buffer_size": 64, "num_steps": 4}
    crowd = crowd_with(**{name: x for name, x in (SMALL | settings).items() if name not in ppo})
    with pytest.warns(RuntimeWarning, match="an environment of learner 1 failed"):
        held = [hold(*crowd) for _ in range(3)]
    assert held[-1].present.tolist() == [True, False, True, True]
