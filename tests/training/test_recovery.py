"""Learners that are lost to NaN, and what that means for the others, for scores and for those that go on."""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.adapters.jax_env import from_jax
from shoal.exchanges.config import ExchangeConfig
from shoal.exchanges.mixing import mean_learner
from shoal.exchanges.soundness import is_sound
from shoal.learners.ppo import PPOConfig
from shoal.learners.td3 import TD3Config
from shoal.ops import trees
from shoal.settings import with_settings
from shoal.training.config import TrainConfig
from shoal.training.loop import train
from shoal.types import Box, EnvSpec, JaxEnv

PPO = PPOConfig(num_envs=2, num_steps=8, num_minibatches=2, update_epochs=2, hidden=(3,), norm_obs=True)
TD3 = TD3Config(num_envs=2, num_steps=4, batch_size=8, buffer_size=64, learning_starts=8, hidden=(3,))


ONCE = {"local_updates": 1}


class World(NamedTuple):
    """How an environment fails: the probability of each step that all is NaN from then on."""

    fault: float = 0.0


def walk():
    """A random walk in episodes of 5 steps, whose reward is where it is; NaN stays NaN to the end."""

    def step(key, x, action, params):
        move = jax.random.normal(key, (2,))
        fails = jax.random.uniform(jax.random.fold_in(key, 1)) < params.fault
        x = jnp.where(fails, jnp.nan, x + 0.1 * move + action[0])
        return x, x[0], jnp.bool_(False)

    spec = EnvSpec("walk", "jax", Box((2,)), Box((1,), -1.0, 1.0), max_episode_steps=5, params=World())
    reset = lambda key, params: jax.random.normal(key, (2,))
    return from_jax(JaxEnv(spec, reset, step, observe=lambda x, params: x))


WALK = walk()


@cache
def trained(exchange="none", faults=(0.0, 0.0, 0.0), algo=PPO, iterations=6, **changes):
    """The reports of three learners' run."""
    settings = {"average": ONCE, "gossip": ONCE, "winner": ONCE | {"min_episodes": 1}}.get(exchange, {})
    exchanges = () if exchange == "none" else (with_settings(ExchangeConfig(exchange), **settings),)
    worlds = {str(learner): {"fault": fault} for learner, fault in enumerate(faults)}
    config = TrainConfig(
        "walk",
        algo,
        steps=iterations * algo.rollout_size,
        learners=3,
        reports=iterations,
        env_params=worlds,
        exchanges=exchanges,
        **changes,
    )
    return list(train(config, recipe=WALK))


def params(report, learner):
    return [np.asarray(x[learner]).tobytes() for x in jax.tree.leaves(report.state.cohort.params)]


def sound(report):
    return np.asarray(is_sound(report.state.cohort)).tolist()


def test_a_lost_learner_changes_no_bit_of_the_others():
    """The second one's world fails at the first step."""
    lost, whole = trained(faults=(0.0, 1.0, 0.0))[-1], trained()[-1]
    assert sound(lost) == [True, False, True]
    assert [params(lost, i) for i in (0, 2)] == [params(whole, i) for i in (0, 2)]


@pytest.mark.parametrize("exchange", ["average", "gradients", pytest.param("gossip", marks=pytest.mark.slow)])
def test_an_exchange_goes_on_without_it(exchange):
    reports = trained(exchange, faults=(0.0, 1.0, 0.0))
    assert [sound(report)[0] and sound(report)[2] for report in reports] == [True] * len(reports)
    assert np.isfinite(reports[-1].metrics["disagreement/params"][[0, 2]]).all()


def test_it_is_counted_and_has_no_score():
    report = trained("average", faults=(0.0, 1.0, 0.0))[-1]
    assert report.metrics["lost"].tolist() == [False, True, False]
    assert np.isfinite(report.metrics["return_mean"]).tolist() == [True, False, True]


def test_the_mean_learner_is_that_of_the_others():
    cohort = jax.device_get(trained(faults=(0.0, 1.0, 0.0))[-1].state.cohort)
    others = jax.tree.map(lambda x: x[np.array([0, 2])], (cohort.params, cohort.statistics))
    both = cohort._replace(params=others[0], statistics=others[1], opt_state=())
    for found, expected in zip(
        jax.tree.leaves(mean_learner(cohort)[:2]), jax.tree.leaves(mean_learner(both)[:2]), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_population_replaces_those_it_loses():
    """A learning rate of 1e30 loses every learner that draws it, again and again."""
    reports = trained("winner", iterations=40, evolve=("learning_rate=choice 1e-3 1e30",), seed=3)
    assert sum(report.metrics["lost"].sum() for report in reports) > 3
    assert all(all(sound(report)) for report in reports[-20:])


def test_an_update_that_is_undone_is_counted_though_its_loss_is_finite():
    """A learning rate of 1e30 makes parameters whose squares are infinite, from a finite loss."""
    once, rates = replace(PPO, num_minibatches=1, update_epochs=1), {"learning_rate": [1e-3, 1e30, 1e-3]}
    reports = trained.__wrapped__(algo=once, iterations=2, on_nan="restart", learner_hypers=rates)
    assert np.isfinite([report.metrics["loss/total"] for report in reports]).all()
    assert [report.metrics["lost"].tolist() for report in reports] == [[False, True, False]] * 2
    assert params(reports[0], 1) == params(reports[1], 1)


@pytest.mark.parametrize("algo", [PPO, pytest.param(TD3, marks=pytest.mark.slow)], ids=["ppo", "td3"])
def test_a_learner_that_restarts_goes_on_from_before(algo):
    """Every tenth step is the last good one of its episode, in the second learner's world."""
    reports = trained(faults=(0.0, 0.1, 0.0), algo=algo, iterations=30, on_nan="restart")
    if algo is PPO:  # a replay leaves such steps out
        assert sum(report.metrics["lost"][1] for report in reports) > 3
    assert all(all(sound(report)) for report in reports)
    assert len({str(params(report, 1)) for report in reports}) > 3, "it learns from the good rollouts"
    broken = ~np.asarray(trees.finite_rows(trees.merge_axes(reports[-1].state.envs.step.obs)))
    assert broken.sum() < 2, "an environment that fails begins a new episode"
