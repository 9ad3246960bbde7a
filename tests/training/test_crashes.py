"""Environments in Python that raise, hang or end their process: they cost their learner alone."""

import os
import signal
import time
from functools import cache, partial

import gymnasium
import jax
import numpy as np
import pytest

import shoal
from shoal.envs.adapters.host import EnvironmentCrashed
from shoal.errors import ShoalError
from shoal.exchanges.config import ExchangeConfig
from shoal.exchanges.soundness import is_sound
from shoal.learners.dqn import DQNConfig
from shoal.learners.ppo import PPOConfig
from shoal.runs.divergence import Diverged, DivergenceCheck
from shoal.settings import with_settings
from shoal.training.config import TrainConfig
from shoal.training.evaluate import play_episodes
from shoal.training.loop import train
from shoal.training.parts import env_seeds

jax.devices()  # two of them: a run of environments in Python would take one, for all tests after these
PPO = PPOConfig(num_envs=2, num_steps=8, num_minibatches=2, update_epochs=1, hidden=(3,))
DQN = DQNConfig(num_envs=2, num_steps=4, batch_size=8, buffer_size=64, learning_starts=8, hidden=(3,))


class Walk(gymnasium.Env):
    """A walk in episodes of 5 steps; `faults` says how it fails, by the seed it began with."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    made = 0

    def __init__(self, faults=(), at=7):
        Walk.made += 1
        self.faults, self.fault, self.left = dict(faults), None, at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.fault = self.faults.get(seed)
        self.x, self.steps = self.np_random.random(2, np.float32), 0
        if self.fault == "reset" and self.left < 7:
            raise RuntimeError("no start is found")
        return self.x, {}

    def step(self, action):
        self.left -= 1
        self.steps += 1
        if self.left == 0 and self.fault == "raise":
            raise ZeroDivisionError("the wheel came off")
        if self.left == 0 and self.fault == "shape":
            return np.zeros(3, np.float32), 0.0, False, False, {}
        if self.left == 0 and self.fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.left == 0 and self.fault == "hang":
            time.sleep(600)
        self.x = self.x + np.float32(0.1 * action - 0.05)
        return self.x, float(self.x[0]), False, self.steps == 5, {}


class Pictures(Walk):
    """The same in pictures, whose numbers cannot be NaN."""

    observation_space = gymnasium.spaces.Box(0, 255, (2,), np.uint8)

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0].astype(np.uint8), {}

    def step(self, action):
        obs, *rest = super().step(action)
        return obs.astype(np.uint8), *rest


SEEDS = env_seeds(TrainConfig("walk", PPO, learners=5), 0)


def faults(**learners):
    """How an environment of these learners fails: `faults(raises=1)` of the second one."""
    kinds = {"raises": "raise", "resets": "reset", "shapes": "shape", "dies": "die", "hangs": "hang"}
    return tuple((int(SEEDS[learner, 0]), kinds[how]) for how, learner in learners.items())


ONE = faults(raises=1)
ALL = tuple((seed, "raise") for seed in SEEDS[:, 0].tolist())


@cache
def trained(failing=(), exchange="none", algo=PPO, learners=3, iterations=4, env=Walk, workers=1, **others):
    """The reports of a run in which environments may fail."""
    once = {"local_updates": 1} | ({"min_episodes": 1} if exchange == "winner" else {})
    exchanges = () if exchange == "none" else (with_settings(ExchangeConfig(exchange), **once),)
    config = TrainConfig(
        "walk",
        algo,
        steps=iterations * algo.rollout_size,
        learners=learners,
        reports=iterations,
        env_options={"workers": workers},
        exchanges=exchanges,
        **others,
    )
    recipe = shoal.make(partial(env, failing), workers=workers)
    Walk.made = 0
    return list(train(config, recipe=recipe))


def mixed():
    """Three of five learners fail, each in its own way; no program with Python in it can be kept."""
    return trained(faults(raises=1, resets=2, shapes=3), learners=5)


def params(report, learner):
    return [np.asarray(x[learner]).tobytes() for x in jax.tree.leaves(report.state.cohort.params)]


def sound(report):
    return np.asarray(is_sound(report.state.cohort)).tolist()


def told(reports):
    return [(learner, fault) for report in reports for learner, fault in report.crashes.items()]


def test_an_environment_that_fails_costs_its_learner_alone():
    """The others' numbers are those of a run in which nothing failed."""
    reports, whole = mixed(), trained(learners=5)
    assert sound(reports[-1]) == [True, False, False, False, True]
    assert [params(reports[-1], i) for i in (0, 4)] == [params(whole[-1], i) for i in (0, 4)]
    found = told(reports)
    assert sorted(learner for learner, _ in found) == [1, 2, 3]
    fault = str(dict(found)[1])
    assert "raised ZeroDivisionError: the wheel came off" in fault
    assert "test_crashes.py:" in fault
    assert fault.endswith("in step)")


def test_pictures_lose_their_learner_to_the_reward():
    assert sound(trained(faults(raises=1, resets=2), env=Pictures)[-1]) == [True, False, False]


@pytest.mark.slow
def test_a_learner_with_a_replay_is_lost_too():
    reports, whole = trained(ONE, algo=DQN, iterations=8), trained(algo=DQN, iterations=8)
    assert sound(reports[-1]) == [True, False, True]
    assert np.isnan(reports[-1].metrics["loss/total"]).tolist() == [False, True, False]
    assert [params(reports[-1], i) for i in (0, 2)] == [params(whole[-1], i) for i in (0, 2)]


@pytest.mark.slow
def test_an_exchange_goes_on_without_it():
    reports = trained(ONE, "average")
    assert sound(reports[-1]) == [True, False, True]
    assert params(reports[-1], 0) == params(reports[-1], 2)


def test_a_learner_that_restarts_has_its_environment_made_anew():
    """Only the environment that failed, at the next step; it and all others play whole episodes again."""
    reports = trained(ONE, on_nan="restart", iterations=8)
    assert sound(reports[-1]) == [True] * 3
    assert Walk.made == 6 + 1
    assert [learner for learner, _ in told(reports)] == [1]
    assert np.isfinite(reports[-1].metrics["return_mean"]).all()
    assert sum(report.metrics["lost"][1] for report in reports) == 1, "the next rollout counts again"
    assert len({str(params(report, 1)) for report in reports}) > 5


@pytest.mark.slow
def test_a_population_replaces_it_and_its_environments_are_made_anew():
    reports = trained(ONE, "winner", iterations=12)
    assert sound(reports[-1]) == [True] * 3
    assert Walk.made == 6 + 2
    assert sum(report.metrics["lost"][1] for report in reports) == 1, "the next rollout counts again"
    assert np.isfinite(reports[-1].metrics["loss/total"]).all()


def test_where_all_are_lost_the_run_ends_with_the_environments_own_traceback():
    check = DivergenceCheck()
    with pytest.raises(Diverged, match="ZeroDivisionError") as caught:
        list(map(check.check, trained(ALL)))
    assert "the wheel came off" in caught.value.traceback_text


def test_one_learner_alone_has_nobody_to_go_on():
    with pytest.raises(EnvironmentCrashed, match="the wheel came off"):
        trained(ALL, learners=1)


def test_it_is_told_once():
    check = DivergenceCheck()
    with pytest.warns(RuntimeWarning) as caught:
        list(map(check.check, mixed()))
    said = sorted(str(warning.message) for warning in caught)
    assert [text.partition(" near step")[0] for text in said] == [f"learner {i} is lost" for i in (1, 2, 3)]
    assert all(text.endswith("the others train on") for text in said)


@pytest.mark.slow
@pytest.mark.parametrize("fails", ["dies", "hangs"])
def test_a_worker_that_dies_or_hangs_is_replaced(fails):
    """Each learner has a worker of its own, so nothing of the others is in the one that ends."""
    reports, whole = trained(faults(**{fails: 1}), workers=3, env_timeout=2.0), trained()
    assert sound(reports[-1]) == [True, False, True]
    assert [params(reports[-1], i) for i in (0, 2)] == [params(whole[-1], i) for i in (0, 2)]
    ((_, fault),) = told(reports)
    text = {"dies": "was ended by signal 9 (SIGKILL)", "hangs": "took longer than --env-timeout 2 seconds"}
    assert text[fails] in str(fault)


@pytest.mark.slow
def test_after_a_death_a_restart_goes_on_with_all():
    """Two learners share the worker that dies: the episodes of the other one are cut short."""
    reports = trained(faults(dies=1), workers=2, on_nan="restart", iterations=8)
    assert sound(reports[-1]) == [True] * 3
    assert np.isfinite(reports[-1].metrics["loss/total"]).all()
    assert [learner for learner, _ in told(reports)] == [1]


def test_a_limit_of_time_needs_processes_to_end():
    with pytest.raises(ShoalError, match=r"needs processes .*; add --env-options workers=2"):
        trained(env_timeout=3.0)
    with pytest.raises(ShoalError, match="env_timeout 3: CartPole-v1 is compiled"):
        next(train(TrainConfig("CartPole-v1", learners=2, env_timeout=3.0)))
    with pytest.raises(ShoalError, match="env_timeout must be a number above 0 and at most 1,000,000"):
        TrainConfig("CartPole-v1", env_timeout=-1.0)


def test_an_evaluation_scores_the_others():
    """The seeds of an evaluation's episodes are its own; the first of the second of two learners fails."""
    seeds = np.random.SeedSequence([0, 7]).generate_state(2 * 3)
    recipe, whole = shoal.make(partial(Walk, ((int(seeds[3]), "raise"),), at=3)), shoal.make(Walk)
    learner = shoal.ppo(PPO, recipe.spec)
    cohort = jax.vmap(learner.init)(jax.random.split(jax.random.key(0), 2))
    with pytest.warns(RuntimeWarning, match="learner 1 has no score: .* the wheel came off"):
        found, _ = play_episodes(recipe, learner, cohort, 3)
    expected, _ = play_episodes(whole, learner, cohort, 3)
    assert found[0].tolist() == expected[0].tolist()
    assert np.isnan(found[1]).all()
