"""What PPO learns from: observations, rewards and actions of every kind, standardised, scaled and clipped."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.adapters.jax_env import from_jax
from shoal.learners import ppo
from shoal.learners.context import LearnerContext
from shoal.learners.ppo import PPOConfig
from shoal.nets import convolutions, layers
from shoal.ops.advantages import standardise_advantages
from shoal.ops.statistics import Running
from shoal.settings import with_settings
from shoal.training import rollout
from shoal.types import Box, EnvSpec, JaxEnv, Rollout
from tests.learners.lab import (
    KEY,
    ONCE,
    PICTURE,
    PLAIN,
    SMALL,
    SPECS,
    assert_finite,
    caught_batch,
    lab,
    random_obs,
)


def test_observations_are_standardised_by_what_was_seen_before():
    state, rollout = lab().state, lab().rollout
    seen = rollout.obs[rollout.valid]
    after, _ = jax.device_get(lab().update(KEY, state, rollout))
    moments = after.statistics.obs["obs"]
    assert moments.count == len(seen) < rollout.valid.size
    np.testing.assert_allclose(moments.mean, seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(moments.m2 / moments.count, seen.var(0), rtol=1e-4)
    scaled = jax.jit(partial(ppo.standardise, lab().setup))(after, seen)
    np.testing.assert_allclose(scaled, (seen - seen.mean(0)) / seen.std(0), atol=1e-4)


def test_advantages_are_standardised_over_valid_samples():
    given = np.float32([1.0, 3.0, 1e6]), np.float32([1.0, 1.0, 0.0])
    found = np.asarray(jax.jit(standardise_advantages)(*given))
    np.testing.assert_allclose(found[:2], [-1, 1], rtol=1e-6)


@pytest.mark.parametrize("norm_adv", ["batch", "none"])
def test_where_advantages_are_standardised(norm_adv):
    setup = lab(PLAIN).setup._replace(config=PPOConfig(**SMALL, norm_adv=norm_adv))
    batch = jax.device_get(jax.jit(partial(ppo.make_batch, setup))(lab(PLAIN).state, lab(PLAIN).rollout))
    valid = batch.weight > 0
    raw = (batch.target - batch.value)[valid]
    expected = (raw - raw.mean()) / raw.std() if norm_adv == "batch" else raw
    np.testing.assert_allclose(batch.advantage[valid], expected, atol=1e-5)


def test_rewards_are_scaled_by_the_spread_of_returns_discounted_as_the_learner_discounts():
    state = lab(PLAIN).state
    setup = lab(PLAIN).setup._replace(config=PPOConfig(**SMALL, norm_reward=True))
    scale = jax.jit(partial(ppo.prepare_rewards, setup))
    for gamma in (0.99, 0.5):
        now = state._replace(hypers=state.hypers._replace(gamma=np.float32(gamma)))
        running, returns = np.zeros(4), []
        for seed in (2, 3):  # two rollouts: the second goes on where the first stopped
            rollout = lab(PLAIN).play(state, seed)[0]
            over = rollout.terminated | rollout.truncated
            for t, reward in enumerate(rollout.reward):
                running = gamma * running + reward
                returns.extend(running[rollout.valid[t]])
                running = np.where(over[t], 0, running)
            now, scaled = scale(now, rollout)
            assert running.any()
            np.testing.assert_allclose(scaled.reward, rollout.reward / np.std(returns), rtol=1e-4)
            np.testing.assert_allclose(now.private.discounted_return, running, atol=1e-5)
        assert now.statistics.returns.count == len(returns)


@pytest.mark.parametrize(
    ("clip_reward", "scale", "expected"), [(None, 1.0, 5.0), (1.0, 1.0, 1.0), (None, 0.1, 0.5)]
)
def test_a_reward_of_five_reaches_the_learner_as_five(monkeypatch, clip_reward, scale, expected):
    rollout = lab(PLAIN).rollout
    setup = lab(PLAIN).setup._replace(config=with_settings(PPOConfig(), **SMALL, clip_reward=clip_reward))
    inputs = replace(setup.config.inputs, reward_scale=scale)
    setup = setup._replace(config=replace(setup.config, inputs=inputs))
    yes = np.ones_like(rollout.valid)
    rollout = rollout._replace(reward=np.float32(5) * yes, terminated=yes, truncated=~yes, valid=yes)
    state = lab(PLAIN).state
    state = state._replace(hypers=state.hypers._replace(clip_reward=np.float32(clip_reward or np.inf)))
    batch = caught_batch(monkeypatch, setup, state, rollout)
    np.testing.assert_allclose(batch.target, expected, rtol=1e-6)


def test_large_returns_do_not_stop_the_critic():
    """Returns of +-1000 that the observation tells, and nothing but the defaults: the critic learns on."""
    setup = lab(PPOConfig()).setup._replace(num_updates=60)
    shape = (setup.config.num_steps, setup.config.num_envs)
    yes = jnp.ones(shape, bool)

    def body(state, key):
        key_obs, key_action, key_update = jax.random.split(key, 3)
        obs = jax.random.rademacher(key_obs, (*shape, 3), jnp.float32)
        action = jax.random.randint(key_action, shape, 0, 2)
        rollout = Rollout(obs, action, 1000 * obs[..., 0], yes, ~yes, yes, obs[0])
        state, metrics = ppo.update(setup, key_update, state, rollout)
        return state, metrics["explained_variance"]

    keys, start = jax.random.split(KEY, 60), jax.tree.map(jnp.asarray, lab(PPOConfig()).state)
    explained = np.asarray(jax.jit(lambda state: jax.lax.scan(body, state, keys))(start)[1])
    assert abs(explained[0]) < 0.005
    assert explained[-1] > 0.015
    assert (np.diff(explained[::10]) > 0).all()


def test_the_environment_gets_the_clipped_action_and_the_learner_keeps_its_own():
    echo = JaxEnv(
        EnvSpec("echo", "jax", Box((2,)), Box((2,), -1.0, 1.0)),
        reset=lambda key, params: jnp.zeros(2),
        step=lambda key, state, action, params: (action, 0.0, False),
        observe=lambda state, params: state,
    )
    learner = ppo.ppo(
        with_settings(PPOConfig(), num_envs=4, hidden=(4,), init_log_std=1.5),
        echo.spec,
        LearnerContext(num_updates=1),
    )
    env = from_jax(echo).build(np.zeros((1, 4), np.uint32), False)

    @jax.jit
    def play(key):
        keys = jax.random.split(key, (1, 4))
        cohort = jax.vmap(learner.init)(keys[:, 0])
        return rollout.collect(env, learner, 16, keys[:, 1], cohort, rollout.reset_envs(env, keys, ()))[2]

    played = jax.device_get(play(KEY))
    assert np.mean(np.abs(played.action) > 1) > 0.5
    # The compiler may compute an action twice, rounded differently.
    np.testing.assert_allclose(played.obs[1:], np.clip(played.action[:-1], -1, 1), rtol=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in SPECS if kind != "discrete"])
def test_every_kind_of_action_and_observation_trains_a_step(kind):
    pictures = {
        "nature": replace(ONCE, num_steps=2, num_envs=2),
        "impala": with_settings(ONCE, num_steps=2, num_envs=2, network="impala"),
    }
    config = pictures.get(kind, ONCE)
    here = lab(config, kind)
    state, rollout = here.state, here.rollout
    shapes = {"multi-discrete": (2,), "multi-binary": (3,), "continuous": (2, 1), "nature": (), "impala": ()}
    assert rollout.action.shape == (config.num_steps, config.num_envs, *shapes[kind])
    after, metrics = jax.device_get(here.update(KEY, state, rollout))
    assert_finite((after.params, after.opt_state, after.statistics, metrics))
    changed = jax.tree.map(lambda a, b: bool(np.any(a != b)), state.params, after.params)
    assert all(jax.tree.leaves(changed)), changed
    assert metrics["approx_kl"] < 1e-5
    assert {*after.statistics.obs} == {"nature": {"ear"}, "impala": set()}.get(kind, {"obs"})


def test_images_are_not_standardised():
    setup = lab().setup._replace(spec=SPECS["nature"])
    moments = {"ear": Running(np.float32(9), np.ones(2, np.float32), np.full(2, 36, np.float32))}
    state = lab().state
    state = state._replace(statistics=state.statistics._replace(obs=moments))
    obs = random_obs(np.random.default_rng(0), SPECS["nature"].observation, (2,))
    scaled = jax.jit(partial(ppo.standardise, setup))(state, obs)
    assert scaled["eye"].dtype == np.uint8
    np.testing.assert_array_equal(scaled["eye"], obs["eye"])
    np.testing.assert_allclose(scaled["ear"], (obs["ear"] - 1) / 2, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "shape", "flat", "num_out"),
    [
        (convolutions.NatureCNN, (84, 84, 4), 7 * 7 * 64, 512),
        (convolutions.NatureCNN, (36, 36, 3), 1 * 1 * 64, 512),
        (convolutions.Impala, (64, 64, 3), 8 * 8 * 32, 256),
        (convolutions.Impala, (84, 84, 4), 11 * 11 * 32, 256),
    ],
)
def test_the_shapes_of_the_convolutional_networks(kind, shape, flat, num_out):
    init = layers.orthogonal(2**0.5)
    network = jax.eval_shape(lambda: kind(KEY, shape, init))
    assert network.dense.weight.shape == (flat, num_out)
    obs = jax.ShapeDtypeStruct((5, 2, *shape), jnp.uint8)
    assert jax.eval_shape(lambda network, obs: network(obs), network, obs).shape == (5, 2, num_out)
    if kind is convolutions.NatureCNN:
        kernels = [layer.weight.shape for layer in network.layers]
        assert kernels == [(8, 8, shape[-1], 32), (4, 4, 32, 64), (3, 3, 64, 64)]
    else:
        kernels = [block[0].weight.shape for block in network.blocks]
        assert kernels == [(3, 3, shape[-1], 16), (3, 3, 16, 32), (3, 3, 32, 32)]


def test_small_or_real_valued_images_are_vectors():
    boxes = [Box((35, 84, 3), dtype="uint8"), Box((84, 84, 3)), Box((84, 84), dtype="uint8")]
    assert [convolutions.is_image(box) for box in (*boxes, PICTURE)] == [False, False, False, True]
