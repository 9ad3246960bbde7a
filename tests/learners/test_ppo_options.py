"""PPO's options: what the critic learns, in which units, when it is asked again, where rollouts begin."""

from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.adapters.jax_env import from_jax
from shoal.errors import ShoalError
from shoal.learners import ppo, targets
from shoal.learners.epochs import weigh
from shoal.learners.minibatches import arrange, shuffles, stratify
from shoal.learners.ppo import PPOConfig, PPOSetup
from shoal.ops import trees
from shoal.ops.advantages import generalised_advantages
from shoal.ops.distributions import distribution_for
from shoal.ops.statistics import empty, merge, summarise
from shoal.settings import with_settings
from shoal.training.config import TrainConfig
from shoal.training.program import make_trainer
from shoal.types import Box, Discrete, EnvSpec, Rollout
from tests.learners.lab import random_ends
from tests.probes import counter

jax.devices()  # two of them, before a trainer divides the cores its own way

KEY = jax.random.key(0)
SPEC = EnvSpec("four", "jax", Box((4,)), Discrete(2))
SMALL = PPOConfig(num_envs=4, num_steps=8, num_minibatches=2, update_epochs=2, learning_rate=0.01)


class Linear(NamedTuple):
    """A linear actor and a linear critic, which begins with the value 0 everywhere."""

    actor: jax.Array
    critic: jax.Array

    def __call__(self, obs):
        return obs @ self.actor, obs @ self.critic


def linear(key, spec, num_outputs):
    (size,) = spec.observation.shape
    actor = np.random.default_rng(1).normal(size=(size, num_outputs))
    return Linear(jnp.float32(actor), jnp.zeros(size))


def setup_for(config):
    return PPOSetup(config, SPEC, distribution_for(SPEC.action), linear, num_updates=10)


@cache
def update_of(config):
    return jax.jit(partial(ppo.update, setup_for(config)))


def rollout_of(seed, shape=(8, 4)):
    rng = np.random.default_rng(seed)
    terminated, truncated, valid = random_ends(rng, shape)
    obs = jnp.float32(rng.normal(size=(shape[0] + 1, shape[1], 4)))
    reward = jnp.float32(np.where(valid, rng.normal(1.0, 1.0, shape), 0.0))
    action = jnp.asarray(rng.integers(0, 2, shape))
    return Rollout(obs[:-1], action, reward, *map(jnp.asarray, (terminated, truncated, valid)), obs[-1])


def assert_close(a, b, **tolerance):
    jax.tree.map(partial(np.testing.assert_allclose, **tolerance), a, b)


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


# Bounds


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [-7.0, -0.5, 3.0]),
        ({"clip_reward": 2.0}, [-2.0, -0.5, 2.0]),
        ({"clip_reward": 2.0, "reward_floor": -0.25}, [-0.25, -0.25, 2.0]),
        ({"clip_reward": 2.0, "reward_floor": -10.0}, [-7.0, -0.5, 2.0]),
        ({"reward_floor": -1.0}, [-1.0, -0.5, 3.0]),
    ],
)
def test_rewards_between_their_bounds(settings, expected):
    config = with_settings(PPOConfig(), **settings)
    hypers = ppo.init(setup_for(config), KEY).hypers
    assert targets.clip_rewards(config, hypers, jnp.array([-7.0, -0.5, 3.0])).tolist() == expected


SEEN = [-2.0, 3.0]  # the least and the largest reward, for `dynamic`


@pytest.mark.parametrize(
    ("settings", "low", "high"),
    [
        ({"bootstrap_clip": 5.0}, -5.0, 5.0),
        ({"bootstrap_clip": 5.0, "bootstrap_floor": 0.5}, 0.5, 5.0),
        ({"bootstrap_floor": -1.0}, -1.0, np.inf),
        ({"bootstrap_clip": "dynamic"}, *SEEN),
    ],
)
def test_targets_are_rewards_to_go_with_a_bounded_value_where_they_are_cut_off(settings, low, high):
    """The critic says 10 times the first number; the sums are written out; advantages stay as they were."""
    config = with_settings(SMALL, gamma=0.5, **settings)
    setup, rollout = setup_for(config), rollout_of(2)
    state = ppo.init(setup, KEY)
    state = state._replace(params=state.params._replace(critic=jnp.array([10.0, 0.0, 0.0, 0.0])))
    if config.value.bootstrap_clip == "dynamic":
        state = state._replace(private=state.private._replace(reward_range=jnp.array(SEEN)))
    batch = ppo.assess(setup, state, rollout)
    obs = np.concatenate([rollout.obs, rollout.last_obs[None]])
    terminated, truncated = np.asarray(rollout.terminated), np.asarray(rollout.truncated)
    expected, kinds = np.zeros((8, 4)), set()
    for t, e in zip(*np.nonzero(rollout.valid), strict=True):
        last = next((k for k in range(t, 8) if terminated[k, e] or truncated[k, e]), 7)
        kinds.add((bool(terminated[last, e]), bool(truncated[last, e])))
        bootstrap = 0.0 if terminated[last, e] else np.clip(10 * obs[last + 1, e, 0], low, high)
        rewards = [0.5 ** (k - t) * float(rollout.reward[k, e]) for k in range(t, last + 1)]
        expected[t, e] = sum(rewards) + 0.5 ** (last + 1 - t) * bootstrap
    assert {(True, False), (False, True), (False, False)} <= kinds
    np.testing.assert_allclose(np.where(rollout.valid, batch.target.reshape(8, 4), 0), expected, atol=1e-5)
    plain = ppo.assess(setup_for(replace(SMALL, gamma=0.5)), state, rollout)
    assert_equal(batch.advantage, plain.advantage)
    assert np.any(batch.target != plain.target)


def test_the_dynamic_bounds_are_those_of_all_rewards_so_far():
    """Valid ones, as the learner sees them; a reset's reward is none."""
    update = update_of(with_settings(SMALL, bootstrap_clip="dynamic", clip_reward=2.0))
    state = ppo.init(setup_for(with_settings(SMALL, bootstrap_clip="dynamic", clip_reward=2.0)), KEY)
    seen = []
    for seed in (2, 3):
        rollout = rollout_of(seed)
        rollout = rollout._replace(reward=jnp.where(rollout.valid, rollout.reward, -99.0))
        seen.extend(np.clip(np.asarray(rollout.reward)[np.asarray(rollout.valid)], -2, 2))
        state, _ = update(KEY, state, rollout)
        assert state.private.reward_range.tolist() == [min(seen), max(seen)]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"bootstrap_clip": "wild"}, "value.bootstrap_clip must be a number, dynamic or none, not 'wild'"),
        ({"bootstrap_clip": "dynamic", "bootstrap_floor": 0.0}, "leave out bootstrap_floor"),
        ({"bootstrap_clip": 1.0, "bootstrap_floor": 2.0}, "bootstrap_floor 2.0 must not lie above"),
        ({"clip_reward": -1.0}, "inputs.clip_reward must not be negative without inputs.reward_floor"),
        ({"huber_delta": 0.0}, "huber_delta must be above 0"),
    ],
)
def test_bounds_that_are_none(settings, told):
    with pytest.raises(ShoalError, match=told):
        with_settings(PPOConfig(), **settings)


# Values in units of their own

NORMED = with_settings(SMALL, norm_value=True, ent_coef=0.0)


def test_the_critic_learns_in_units_that_rewards_do_not_change():
    """A thousandfold reward: the same steps of policy and critic, values a thousandfold."""
    setup, ends = setup_for(NORMED), []
    for scale in (1.0, 1000.0):
        state = ppo.init(setup, KEY)
        for seed in range(3):
            rollout = rollout_of(seed)
            state, metrics = update_of(NORMED)(KEY, state, rollout._replace(reward=scale * rollout.reward))
        ends.append((state.params, metrics, ppo.value(setup, state, rollout.obs) / scale))
    start = ppo.init(setup, KEY).params
    assert np.max(np.abs(ends[0][0].actor - start.actor)) > 0.03
    assert_close(ends[0], ends[1], rtol=1e-3, atol=1e-4)


def test_moments_take_in_targets_before_the_epochs_and_values_are_told_by_the_old_ones(monkeypatch):
    """Two rollouts: the first with empty moments, mean 0 and deviation 1, the second with the first's."""
    setup = setup_for(NORMED)
    monkeypatch.setattr(ppo, "learn", lambda setup, key, state, rollout, batch: (state, batch))
    state = ppo.init(setup, KEY)
    state = state._replace(params=state.params._replace(critic=jnp.array([1.0, 2.0, 0.0, 0.0])))
    moments = empty()
    for seed in (4, 5):
        rollout = rollout_of(seed)
        mean, deviation = float(moments.mean), float(targets.deviation(moments))
        said = np.concatenate([rollout.obs, rollout.last_obs[None]]) @ np.array([1.0, 2.0, 0.0, 0.0])
        told = jnp.float32(mean + deviation * said)
        ends = (rollout.terminated, rollout.truncated, rollout.valid)
        advantage = generalised_advantages(rollout.reward, told[:-1], told[1:], *ends, 0.99, 0.95)
        target = (advantage + told[:-1]).reshape(-1)
        moments = merge(moments, summarise(target, rollout.valid.reshape(-1)))
        state, batch = ppo.update(setup, KEY, state, rollout)
        assert_close(state.statistics.targets, moments, rtol=1e-5)
        np.testing.assert_allclose(batch.advantage, advantage.reshape(-1), atol=1e-4)
        spread = np.sqrt(float(moments.m2 / moments.count))
        np.testing.assert_allclose(batch.target, (target - moments.mean) / spread, atol=1e-4)
        np.testing.assert_allclose(batch.value, (told[:-1].reshape(-1) - moments.mean) / spread, atol=1e-4)
    valid = np.asarray(batch.weight) > 0
    assert abs(float(np.mean(batch.target[valid]))) < 1


# Advantages calculated again


@pytest.mark.parametrize("settings", [{}, {"norm_value": True, "norm_adv": "batch"}])
def test_every_epoch_but_the_first_has_new_advantages(settings):
    """By hand: one step of the optimiser after another, the critic asked in between, the log-probs kept."""
    config = with_settings(SMALL, recalc_adv=True, **settings)
    setup, rollout = setup_for(config), rollout_of(6)
    before = ppo.init(setup, KEY)
    found, _ = update_of(config)(KEY, before, rollout)
    assess, improve = (jax.jit(partial(f, setup)) for f in (ppo.assess, ppo.improve))
    first = assess(before, rollout)
    state = ppo.update_target_moments(setup, before, first)  # of the first update: nothing is annealed yet
    strata = stratify(8, 4, 2)
    carry = (state.params, state.opt_state)
    for epoch, blocks in enumerate(shuffles(KEY, 2, 8, strata, 2)):
        now = first
        if epoch:
            again = assess(state._replace(params=carry[0]), rollout)
            now = first._replace(value=again.value, advantage=again.advantage, target=again.target)
            assert np.any(now.advantage != first.advantage)
        parts = arrange(ppo.normalise_targets(setup, state, now), blocks)
        for i in range(2):
            part = trees.take(parts, i)
            advantage, weight = weigh(config.norm_adv, (), part.advantage, part.weight)
            carry, _ = improve(state, carry, part._replace(advantage=advantage, weight=weight))
    assert_close(found.params, carry[0], rtol=1e-4, atol=1e-6)
    off, _ = update_of(with_settings(config, recalc_adv=False))(KEY, before, rollout)
    assert np.max(np.abs(off.params.actor - found.params.actor)) > 1e-5


def test_with_one_epoch_there_is_nothing_to_recalculate():
    once = replace(SMALL, update_epochs=1)
    state, rollout = ppo.init(setup_for(once), KEY), rollout_of(7)
    on, off = (update_of(with_settings(once, recalc_adv=flag))(KEY, state, rollout) for flag in (True, False))
    assert_equal(on, off)


# Schedules


def test_the_update_goes_by_the_hypers_of_the_moment_and_leaves_them_as_they_are():
    """After five of ten updates: the rate halved, the value's weight doubled, as if they had been set so."""
    plan = ("vf_coef=linear(1.5)", "gamma=step(0.5, 5 iterations)")
    config = replace(SMALL, schedules=plan)
    state, rollout = ppo.init(setup_for(config), KEY), rollout_of(8)
    state = state._replace(private=state.private._replace(num_updates=jnp.int32(5)))
    found, metrics = update_of(config)(KEY, state, rollout)
    assert_equal(found.hypers, state.hypers)
    reported = [metrics[name] for name in ("learning_rate", "vf_coef", "gamma")]
    np.testing.assert_allclose(reported, [0.005, 1.0, 0.5])
    set_so = state.hypers._replace(vf_coef=jnp.float32(1.0), gamma=jnp.float32(0.5))
    expected, _ = update_of(SMALL)(KEY, state._replace(hypers=set_so), rollout)
    assert_close(found.params, expected.params, rtol=1e-6)


# All at once, in cohorts and on several devices

ALL = with_settings(
    PPOConfig(),
    num_envs=4,
    num_steps=16,
    num_minibatches=2,
    update_epochs=2,
    learning_rate=0.01,
    norm_reward=True,
    norm_value=True,
    recalc_adv=True,
    value_loss="huber",
    huber_delta=1.0,
    clip_vloss=True,
    bootstrap_clip="dynamic",
    schedules=("ent_coef=log(0.001)",),
)
RUN = TrainConfig("Pendulum-v1", algo=ALL, steps=64 * 4, learners=2, seed=3, hard_resets=True)


def advanced(config, mesh):
    trainer = make_trainer(config, network=linear, mesh=mesh)
    return trainer.advance(trainer.init(), np.int32(3))


def test_cohorts_and_devices_change_no_numbers():
    """Two learners on one device, each shared by two, and the second of them alone."""
    (one, progress), (shared, shared_pulse) = (advanced(RUN, mesh) for mesh in ("1x1", "1x2"))
    parts = lambda state: (state.cohort.params, state.cohort.statistics, state.cohort.private)
    assert_close(parts(one), parts(shared), rtol=1e-3, atol=1e-4)
    assert_close(progress.metrics, shared_pulse.metrics, rtol=1e-2, atol=1e-4)
    alone, _ = advanced(replace(RUN, learners=1, first_member=1), "1x1")
    assert_close(trees.take(parts(one), jnp.array([1])), parts(alone), rtol=1e-4, atol=1e-5)
    least, largest = one.cohort.private.reward_range[0]
    assert least < largest < 0
    assert one.cohort.statistics.targets.count.tolist() == [192, 192]


# Hard resets


@pytest.mark.parametrize("hard", [False, True])
def test_a_hard_reset_begins_new_episodes_and_drops_those_under_way(hard):
    """The counter with a limit of 5 in rollouts of 8 steps: five steps, the end, the reset, two more."""
    algo = PPOConfig(num_envs=2, num_steps=8, num_minibatches=1)
    config = TrainConfig("counter", algo=algo, steps=16 * 3, hard_resets=hard)
    trainer = make_trainer(config, recipe=from_jax(counter(limit=5)), network=linear)
    state = trainer.init()
    memory = state.cohort.private._replace(discounted_return=jnp.full((1, 2), 7.0))
    state = state._replace(cohort=state.cohort._replace(private=memory))
    for _ in range(2):
        state, rollout = trainer.stages.collect(state)
        state = state._replace(iteration=state.iteration + 1)
    counted = np.asarray(rollout.obs)[:, 0, 0, 0].tolist()
    assert counted == ([0, 1, 2, 3, 4, 5, 0, 1] if hard else [2, 3, 4, 5, 0, 1, 2, 3])
    assert bool(rollout.episode_starts[0].all()) == hard
    episodes = state.envs.episodes
    assert episodes.returns[0, : episodes.finished[0]].tolist() == [5.0] * 4
    assert episodes.running_length.tolist() == ([[2, 2]] if hard else [[4, 4]])
    assert state.cohort.private.discounted_return.tolist() == ([[0, 0]] if hard else [[7, 7]])


@pytest.mark.parametrize("backend", ["gym", "envpool"])
def test_hard_resets_of_environments_outside(backend):
    """CartPoles begin within 0.05 of 0, each rollout elsewhere: the first starts are not replayed."""
    algo = PPOConfig(num_envs=2, num_steps=4, num_minibatches=1)
    config = TrainConfig(f"{backend}:CartPole-v1", algo=algo, steps=24, hard_resets=True)
    trainer = make_trainer(config, network=linear)
    state, starts = trainer.init(), []
    for _ in range(3):
        state, rollout = trainer.stages.collect(state)
        starts.append(np.asarray(rollout.obs)[0].reshape(-1))
        assert rollout.episode_starts[0].all()
        assert rollout.valid.all()
        assert np.abs(starts[-1]).max() <= 0.05 < np.abs(rollout.obs).max()
    assert len({tuple(start) for start in starts}) == 3
    assert state.envs.episodes.running_length.tolist() == [[4, 4]]


def test_a_reset_that_goes_on_with_the_same_game_is_refused():
    config = TrainConfig("Breakout-v5", env_options={"episodic_life": True}, hard_resets=True)
    with pytest.raises(ShoalError, match="Breakout-v5 cannot start new episodes at any time"):
        make_trainer(config)
