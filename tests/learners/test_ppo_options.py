"""PPO's options: what the critic learns, in which units, when it is asked again, where rollouts begin."""

from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.distributed.mesh import DATA
from shoal.envs.adapters.jax_env import from_jax
from shoal.errors import ShoalError
from shoal.learners import ppo, ppo_batch
from shoal.learners.epochs import normalise_minibatch
from shoal.learners.minibatches import gather_minibatches, shuffle_blocks, stratify
from shoal.learners.ppo import PPOConfig, PPOSetup
from shoal.learners.ppo_rewards import clip_rewards
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
    return Linear(np.float32(actor), np.zeros(size, np.float32))


def setup_for(config):
    return PPOSetup(config, SPEC, distribution_for(SPEC.action), linear, num_updates=10)


@cache
def compiled(function, config):
    return jax.jit(partial(function, setup_for(config)))


def update_of(config):
    return compiled(ppo.update, config)


def begun(config):
    return jax.device_get(ppo.init(setup_for(config), KEY))


def rollout_of(seed, shape=(8, 4)):
    rng = np.random.default_rng(seed)
    terminated, truncated, valid = random_ends(rng, shape)
    obs = np.float32(rng.normal(size=(shape[0] + 1, shape[1], 4)))
    reward = np.float32(np.where(valid, rng.normal(1.0, 1.0, shape), 0.0))
    action = rng.integers(0, 2, shape).astype(np.int32)
    return Rollout(obs[:-1], action, reward, terminated, truncated, valid, obs[-1])


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
    found = clip_rewards(config, begun(config).hypers, np.float32([-7.0, -0.5, 3.0]))
    assert found.tolist() == expected


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
    state, rollout = begun(config), rollout_of(2)
    state = state._replace(params=state.params._replace(critic=np.float32([10.0, 0.0, 0.0, 0.0])))
    if config.value.bootstrap_clip == "dynamic":
        state = state._replace(private=state.private._replace(reward_range=np.float32(SEEN)))
    batch = jax.device_get(compiled(ppo.make_batch, config)(state, rollout))
    obs = np.concatenate([rollout.obs, rollout.last_obs[None]])
    terminated, truncated = rollout.terminated, rollout.truncated
    expected, kinds = np.zeros((8, 4)), set()
    for t, e in zip(*np.nonzero(rollout.valid), strict=True):
        last = next((k for k in range(t, 8) if terminated[k, e] or truncated[k, e]), 7)
        kinds.add((bool(terminated[last, e]), bool(truncated[last, e])))
        bootstrap = 0.0 if terminated[last, e] else np.clip(10 * obs[last + 1, e, 0], low, high)
        rewards = [0.5 ** (k - t) * float(rollout.reward[k, e]) for k in range(t, last + 1)]
        expected[t, e] = sum(rewards) + 0.5 ** (last + 1 - t) * bootstrap
    assert {(True, False), (False, True), (False, False)} <= kinds
    np.testing.assert_allclose(np.where(rollout.valid, batch.target.reshape(8, 4), 0), expected, atol=1e-5)
    plain = compiled(ppo.make_batch, replace(SMALL, gamma=0.5))(state, rollout)
    assert_equal(batch.advantage, plain.advantage)
    assert np.any(batch.target != plain.target)


def test_the_dynamic_bounds_are_those_of_all_rewards_so_far():
    """Valid ones, as the learner sees them; a reset's reward is none."""
    config = with_settings(SMALL, bootstrap_clip="dynamic", clip_reward=2.0)
    update, state, seen = update_of(config), begun(config), []
    for seed in (2, 3):
        rollout = rollout_of(seed)
        rollout = rollout._replace(reward=np.where(rollout.valid, rollout.reward, np.float32(-99)))
        seen.extend(np.clip(rollout.reward[rollout.valid], -2, 2))
        state, _ = update(KEY, state, rollout)
        assert state.private.reward_range.tolist() == [min(seen), max(seen)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bootstrap_clip": "wild"}, "value.bootstrap_clip must be a number, dynamic or none, not 'wild'"),
        ({"bootstrap_clip": "dynamic", "bootstrap_floor": 0.0}, "leave out bootstrap_floor"),
        ({"bootstrap_clip": 1.0, "bootstrap_floor": 2.0}, "bootstrap_floor 2.0 must not lie above"),
        ({"clip_reward": -1.0}, "inputs.clip_reward must not be negative without inputs.reward_floor"),
        ({"huber_delta": 0.0}, "huber_delta must be a number above 0"),
    ],
)
def test_bounds_that_are_none(settings, message):
    with pytest.raises(ShoalError, match=message):
        with_settings(PPOConfig(), **settings)


# Values in units of their own

NORMED = with_settings(SMALL, norm_value=True)
RECALCULATED = with_settings(NORMED, recalc_adv=True, norm_adv="batch")


def test_the_critic_learns_in_units_that_rewards_do_not_change():
    """A thousandfold reward: the same steps of policy and critic, values a thousandfold."""
    ends, value, start = [], compiled(ppo.value, RECALCULATED), begun(RECALCULATED)
    start = start._replace(hypers=start.hypers._replace(ent_coef=np.float32(0)))
    for scale in (np.float32(1), np.float32(1000)):
        state = start
        for seed in range(3):
            rollout = rollout_of(seed)
            rollout = rollout._replace(reward=scale * rollout.reward)
            state, metrics = jax.device_get(update_of(RECALCULATED)(KEY, state, rollout))
        ends.append((state.params, metrics, np.asarray(value(state, rollout.obs)) / scale))
    assert np.max(np.abs(ends[0][0].actor - start.params.actor)) > 0.03
    assert_close(ends[0], ends[1], rtol=1e-3, atol=1e-4)


def test_moments_include_targets_before_the_epochs_and_values_use_the_old_ones(monkeypatch):
    """Two rollouts: the first with empty moments, mean 0 and deviation 1, the second with the first's."""
    setup = setup_for(NORMED)
    monkeypatch.setattr(ppo, "learn", lambda setup, key, state, rollout, batch: (state, batch))
    update = jax.jit(partial(ppo.update, setup))
    take_in = jax.jit(lambda moments, target, valid: merge(moments, summarise(target, valid)))
    advantages = jax.jit(lambda *given: generalised_advantages(*given, 0.99, 0.95))
    state = begun(NORMED)
    state = state._replace(params=state.params._replace(critic=np.float32([1.0, 2.0, 0.0, 0.0])))
    moments = empty()
    for seed in (4, 5):
        rollout = rollout_of(seed)
        mean, deviation = float(moments.mean), float(ppo_batch.deviation(moments))
        said = np.concatenate([rollout.obs, rollout.last_obs[None]]) @ np.array([1.0, 2.0, 0.0, 0.0])
        told = np.float32(mean + deviation * said)
        ends = (rollout.terminated, rollout.truncated, rollout.valid)
        advantage = np.asarray(advantages(rollout.reward, told[:-1], told[1:], *ends))
        target = (advantage + told[:-1]).reshape(-1)
        moments = jax.device_get(take_in(moments, target, rollout.valid.reshape(-1)))
        state, batch = jax.device_get(update(KEY, state, rollout))
        assert_close(state.statistics.targets, moments, rtol=1e-5)
        np.testing.assert_allclose(batch.advantage, advantage.reshape(-1), atol=1e-4)
        spread = np.sqrt(float(moments.m2 / moments.count))
        np.testing.assert_allclose(batch.target, (target - moments.mean) / spread, atol=1e-4)
        np.testing.assert_allclose(batch.value, (told[:-1].reshape(-1) - moments.mean) / spread, atol=1e-4)
    valid = np.asarray(batch.weight) > 0
    assert abs(float(np.mean(batch.target[valid]))) < 1


# Advantages calculated again


@pytest.mark.parametrize("config", [with_settings(SMALL, recalc_adv=True), RECALCULATED])
def test_every_epoch_but_the_first_has_new_advantages(config):
    """By hand: one step of the optimiser after another, the critic asked in between, the log-probs kept."""
    setup, before, rollout = setup_for(config), begun(config), rollout_of(6)
    found, _ = update_of(config)(KEY, before, rollout)

    @jax.jit
    def minibatches(state, batch):
        parts = partial(gather_minibatches, ppo_batch.normalise_targets(setup, state, batch))
        parts = jax.vmap(parts)(shuffle_blocks(KEY, 2, 8, stratify(8, 4, 2), 2))  # (epoch, minibatch, ...)
        weighed = jax.vmap(jax.vmap(partial(normalise_minibatch, config.norm_adv, ())))(
            parts.advantage, parts.weight
        )
        return parts._replace(advantage=weighed[0], weight=weighed[1])

    make_batch, take_step = compiled(ppo.make_batch, config), compiled(ppo.take_step, config)
    first = jax.device_get(make_batch(before, rollout))
    state = ppo_batch.update_target_moments(
        setup, before, first
    )  # of the first update: nothing is annealed yet
    carry = (state.params, state.opt_state)
    for epoch in range(2):
        now = first
        if epoch:
            again = make_batch(state._replace(params=carry[0]), rollout)
            now = first._replace(value=again.value, advantage=again.advantage, target=again.target)
            assert np.any(now.advantage != first.advantage)
        parts = jax.device_get(minibatches(state, now))
        for i in range(2):
            carry, _ = take_step(state, carry, jax.tree.map(lambda x: x[epoch, i], parts))  # noqa: B023
    assert_close(found.params, carry[0], rtol=1e-4, atol=1e-6)
    if config != RECALCULATED:
        off, _ = update_of(SMALL)(KEY, before, rollout)
        assert np.max(np.abs(off.params.actor - found.params.actor)) > 1e-5


def test_with_one_epoch_there_is_nothing_to_recalculate():
    """The program is the same."""
    once = replace(SMALL, update_epochs=1)
    state, rollout, programs = begun(once), rollout_of(7), []
    for flag in (True, False):
        config = with_settings(once, recalc_adv=flag)
        programs.append(str(jax.make_jaxpr(partial(ppo.update, setup_for(config)))(KEY, state, rollout)))
    assert programs[0] == programs[1]


# Schedules


def test_an_update_uses_scheduled_hypers_and_returns_the_given_ones():
    """After five of ten updates: the rate halved, the value's weight doubled, as if they had been set so."""
    plan = ("vf_coef=linear(1.5)", "gamma=step(0.5, 5 iterations)")
    config = replace(SMALL, schedules=plan)
    state, rollout = begun(config), rollout_of(8)
    state = state._replace(private=state.private._replace(num_updates=np.int32(5)))
    found, metrics = update_of(config)(KEY, state, rollout)
    assert_equal(found.hypers, state.hypers)
    reported = [metrics[name] for name in ("learning_rate", "vf_coef", "gamma")]
    np.testing.assert_allclose(reported, [0.005, 1.0, 0.5])
    set_so = state.hypers._replace(vf_coef=np.float32(1.0), gamma=np.float32(0.5))
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


@pytest.mark.slow
def test_devices_that_share_a_learner_change_no_numbers():
    """Each with two of its four environments, twice."""
    setup, update = setup_for(ALL), update_of(ALL)
    sharded = setup._replace(shards=2)
    by_env = jax.tree.map(lambda _: None, begun(ALL))
    by_env = by_env._replace(private=by_env.private._replace(discounted_return=0))
    axes = (None, by_env, Rollout(1, 1, 1, 1, 1, 1, last_obs=0))
    outs = (by_env, None)
    devices = jax.jit(jax.vmap(partial(ppo.update, sharded), axes, outs, axis_name=DATA))
    halves = lambda x, axis: x.reshape(*x.shape[:axis], 2, 2, *x.shape[axis + 1 :])
    one = begun(ALL)
    private = one.private._replace(discounted_return=halves(one.private.discounted_return, 0))
    shared = one._replace(private=private)
    for seed in range(2):
        rollout = rollout_of(seed, (16, 4))
        parts = jax.tree.map(partial(halves, axis=1), rollout._replace(last_obs=()))
        parts = parts._replace(last_obs=halves(rollout.last_obs, 0))
        key = jax.random.key(seed)
        (one, metrics), (shared, told) = update(key, one, rollout), devices(key, shared, parts)
        assert_close(metrics, told, rtol=1e-3, atol=1e-4)
    returns = shared.private.discounted_return.reshape(4)
    shared = shared._replace(private=shared.private._replace(discounted_return=returns))
    assert_close(one, shared, rtol=1e-3, atol=1e-4)


def advanced(config, mesh):
    trainer = make_trainer(config, network=linear, mesh=mesh)
    return trainer.advance(trainer.init(), np.int32(3))


@pytest.mark.slow
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
    memory = state.cohort.private
    memory = memory._replace(discounted_return=memory.discounted_return + 7.0)
    state = state._replace(cohort=state.cohort._replace(private=memory))
    for _ in range(2):
        state, rollout = trainer.stages.collect(state)
        state = state._replace(iteration=state.iteration + 1)
    rollout, episodes = jax.device_get((rollout, state.envs.episodes))
    counted = rollout.obs[:, 0, 0, 0].tolist()
    assert counted == ([0, 1, 2, 3, 4, 5, 0, 1] if hard else [2, 3, 4, 5, 0, 1, 2, 3])
    assert bool(rollout.episode_starts[0].all()) == hard
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
        rollout = jax.device_get(rollout)
        starts.append(rollout.obs[0].reshape(-1))
        assert rollout.episode_starts[0].all()
        assert rollout.valid.all()
        assert np.abs(starts[-1]).max() <= 0.05 < np.abs(rollout.obs).max()
    assert len({tuple(start) for start in starts}) == 3
    assert state.envs.episodes.running_length.tolist() == [[4, 4]]


def test_a_reset_that_goes_on_with_the_same_game_is_refused():
    config = TrainConfig("Breakout-v5", env_options={"episodic_life": True}, hard_resets=True)
    with pytest.raises(ShoalError, match="Breakout-v5 cannot start new episodes at any time"):
        make_trainer(config)
