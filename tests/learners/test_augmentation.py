"""Augmentation: one update is that of a learner who saw the variants itself, for JAX and for Gymnasium."""

from dataclasses import replace
from functools import cache, partial

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.distributed.mesh import DATA
from shoal.envs.adapters.gymnasium import gym_recipe
from shoal.envs.adapters.host import EnvironmentCrashed, raise_crash
from shoal.envs.adapters.jax_env import from_jax
from shoal.envs.registry import register
from shoal.errors import ShoalError
from shoal.learners import ppo
from shoal.learners.context import LearnerContext
from shoal.learners.ppo import PPOConfig
from shoal.learners.wrappers.augmentation import add_augmentation
from shoal.learners.wrappers.curiosity import WithCuriosity, add_curiosity
from shoal.nets.actor_critic import actor_critic
from shoal.ops import trees
from shoal.runs import checkpoint
from shoal.runs.session import open_session, run_session
from shoal.settings import with_settings
from shoal.training.config import TrainConfig
from shoal.training.loop import train
from shoal.training.program import make_trainer
from shoal.types import Box, Discrete, EnvSpec, JaxEnv, LearnerState, Rollout
from tests.learners.lab import drawn_by_numpy, plainly

jax.devices()  # two of them, before a trainer divides the cores its own way

KEY = jax.random.key(0)
TURN = np.array([[0.0, -1.0], [1.0, 0.0]], np.float32)
TURNS = np.stack([np.linalg.matrix_power(TURN, k) for k in range(4)])  # (4, 2, 2)


def plane(augment=lambda obs: jnp.asarray(TURNS) @ obs) -> JaxEnv:
    """A point in a plane moves out or in; reward -| |x| - 1 |: turned by 90 degrees it is the same world."""

    def step(key, state, action, params):
        state = state * jnp.where(action == 1, 1.1, 0.9)
        distance = jnp.linalg.norm(state)
        return state, -jnp.abs(distance - 1), distance > 3

    reset = lambda key, params: jax.random.normal(key, (2,))
    spec = EnvSpec("plane", "jax", Box((2,)), Discrete(2), 7)
    return JaxEnv(spec, reset, step, lambda state, params: state, augment=augment)


CONFIG = PPOConfig(
    num_envs=2, num_steps=6, num_minibatches=3, update_epochs=2, hidden=(8,), norm_obs=True, norm_reward=True
)


CURIOUS = with_settings(CONFIG, curiosity=True, icm_size=4)
NETWORK = plainly(actor_critic(hidden=(8,)))
SPEC = from_jax(plane()).spec


def explorer(config, shards=1):
    """A curious learner."""
    context = LearnerContext(num_updates=10, shards=shards, network=NETWORK)
    return add_curiosity(ppo.ppo(config, SPEC, context), config, SPEC, (), shards)


@cache
def begun():
    """The compiled update of an augmented and curious learner, and its state after some steps."""
    learner = add_augmentation(explorer, CURIOUS, SPEC)
    state = drawn_by_numpy(learner.init)(KEY)
    assert [x.shape for x in sums(state)] == [(2,), (2,)]
    return jax.jit(learner.update), per_env(state, np.float32([0.5, 2.0]), np.float32([3.0, 1.0]))


def per_env(state, returns, bonuses):
    """With these sums of rewards and bonuses in the episodes under way."""
    policy = state.private.policy._replace(discounted_return=returns)
    running = state.private.curiosity._replace(running=bonuses)
    return state._replace(private=WithCuriosity(policy, running))


def sums(state):
    return state.private.policy.discounted_return, state.private.curiosity.running


@cache
def rollout():
    """Random steps with an end within."""
    rng = np.random.default_rng(0)
    terminated, truncated = np.zeros((2, 6, 2), bool)
    terminated[2, 0] = True
    valid = np.ones((6, 2), bool)
    valid[3, 0] = False
    obs = np.float32(rng.normal(size=(7, 2, 2)))
    action = rng.integers(2, size=(6, 2)).astype(np.int32)
    reward = np.float32(np.where(valid, rng.normal(size=(6, 2)), 0))
    return Rollout(obs[:6], action, reward, terminated, truncated, valid, obs[6])


def turned_by_hand():
    """The same in eight environments: those of environment 0 turned by 0, 90, 180, 270 degrees, then of 1."""
    turn = lambda obs: np.einsum("kij,...ej->...eki", TURNS, obs).reshape(*obs.shape[:-2], 8, 2)
    every = {
        name: np.repeat(np.asarray(getattr(rollout(), name)), 4, axis=1)
        for name in ("action", "reward", "terminated", "truncated", "valid")
    }
    return Rollout(obs=turn(rollout().obs), last_obs=turn(rollout().last_obs), **every)


def test_an_update_is_that_of_a_learner_who_saw_all_variants():
    update, state = begun()
    after, metrics = jax.device_get(update(KEY, state, rollout()))
    wide = per_env(state, *(np.repeat(x, 4) for x in sums(state)))
    plain = jax.jit(explorer(replace(CURIOUS, num_envs=8)).update)
    expected, by_hand = jax.device_get(plain(KEY, wide, turned_by_hand()))
    expected = per_env(expected, *(x[::4] for x in sums(expected)))
    close = partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)
    jax.tree.map(close, (after, metrics), (expected, by_hand))
    np.testing.assert_allclose(after.statistics.obs["obs"].mean, 0, atol=1e-6)  # of turned pairs
    assert after.statistics.obs["obs"].count == 4 * 11


@pytest.mark.slow
def test_devices_that_share_a_learner_change_no_numbers():
    """Each with one of its two environments, and the variants of that."""
    update, one = begun()
    learner = add_augmentation(partial(explorer, shards=2), CURIOUS, SPEC)
    by_env = jax.tree.map(lambda split: 0 if split else None, learner.by_env)
    by_env = LearnerState(None, None, None, None, private=by_env, anchor=None)
    axes = (None, by_env, Rollout(1, 1, 1, 1, 1, 1, last_obs=0))
    devices = jax.jit(jax.vmap(learner.update, axes, (by_env, None), axis_name=DATA))
    parts = jax.tree.map(lambda x: x[:, :, None], rollout()._replace(last_obs=()))
    parts = parts._replace(last_obs=rollout().last_obs[:, None])
    shared = per_env(one, *(x[:, None] for x in sums(one)))
    one, metrics = jax.device_get(update(KEY, one, rollout()))
    shared, told = jax.device_get(devices(KEY, shared, parts))
    shared = per_env(shared, *(x[:, 0] for x in sums(shared)))
    close = partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
    jax.tree.map(close, (one, metrics), (shared, told))


def test_a_checkpoint_holds_all_of_it(tmp_path):
    """To the bit; `test_a_run_goes_on_where_it_stopped` is the run."""
    update, state = begun()
    after, _ = jax.device_get(update(KEY, state, rollout()))
    found, _ = checkpoint.load(checkpoint.save(tmp_path, 1, after, {}), state)
    jax.tree.map(np.testing.assert_array_equal, found, after)


register("Plane-v0", plane())
RUN = TrainConfig(
    "Plane-v0",
    algo=with_settings(
        PPOConfig(),
        num_envs=4,
        num_steps=8,
        num_minibatches=2,
        hidden=(8,),
        init="xavier",
        norm_obs=True,
        norm_reward=True,
        learning_rate=0.01,
        augment=True,
        curiosity=True,
        icm_size=8,
    ),
    steps=32 * 6,
    reports=6,
)
"""Augmented and curious."""


@cache
def advanced(mesh):
    trainer = make_trainer(RUN, mesh=mesh)
    return trainer.advance(trainer.init(), jnp.int32(6))


@pytest.mark.slow
def test_two_devices_are_one_and_steps_are_real():
    """Four environments of eight steps, curious too; the step after an end does not count."""
    (one, progress), (two, shared) = advanced("1x1"), advanced("1x2")
    close = partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
    jax.tree.map(close, (one.cohort, progress.metrics), (two.cohort, shared.metrics))
    assert progress.metrics["curiosity/return"] > 0
    assert progress.valid_steps.tolist() == shared.valid_steps.tolist()
    assert 32 * 6 * 0.8 < progress.valid_steps[0] < 32 * 6
    assert one.cohort.private.curiosity.running.shape == (1, 4)


@pytest.mark.slow
def test_a_run_goes_on_where_it_stopped(tmp_path):
    """To the bit."""
    reports = run_session(open_session(RUN, tmp_path, mesh="1x1"))
    next(report for report in reports if report.step >= 32 * 3)
    reports.close()
    again = open_session(RUN, tmp_path, mesh="1x1")
    assert again.resumed_step == 32 * 3
    *_, last = run_session(again)
    for a, b in zip(*map(jax.tree.leaves, (last.state.cohort, advanced("1x1")[0].cohort)), strict=True):
        np.testing.assert_array_equal(a, b)


class Slope(gymnasium.Env):
    """A line seen from both sides: x and -x are the same world."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, wrong=""):
        self.wrong = wrong

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.normal(size=2)
        return self.x, {}

    def step(self, action):
        self.x = self.x * (1.1 if action else 0.9)
        return self.x, -float(np.abs(self.x).sum()), False, False, {}

    def augment_observation(self, obs):
        if self.wrong == "later" and not isinstance(obs[0], np.float64):
            return np.stack([obs] * 3)
        if self.wrong == "rows":
            return np.stack([obs[:1], -obs[:1]])
        return np.stack([-obs, obs] if self.wrong == "order" else [obs, -obs])


gymnasium.register("Slope-v0", Slope, max_episode_steps=5)
GYM = TrainConfig("gym:Slope-v0", algo=with_settings(CONFIG, augment=True), steps=24, learners=2, reports=1)


def test_gymnasium_offers_variants():
    recipe = gym_recipe("Slope-v0", {})
    obs = np.float32([[1, 2], [3, 4], [5, 6]])
    assert recipe.spec.augment.copies == 2
    found = jax.jit(jax.vmap(recipe.spec.augment.apply))(obs[None])
    np.testing.assert_array_equal(found, np.stack([obs, -obs], 1)[None])
    (report,) = train(GYM)
    moments = report.state.cohort.statistics.obs["obs"]
    np.testing.assert_allclose(moments.mean, 0, atol=1e-6)
    assert np.all(moments.count == 2 * 20)  # of 24 steps, 2 x 2 are resets


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("rows", r"Slope-v0: augment_observation must always return \(2, 2\), not \(2, 1\)"),
        ("order", "Slope-v0: augment_observation must return the observation itself first"),
    ],
)
def test_wrong_variants_are_refused(wrong, message):
    with pytest.raises(ShoalError, match=message):
        gym_recipe("Slope-v0", {"wrong": wrong})


def test_variants_that_change_in_number():
    """A callback cannot raise: whoever runs the program asks for the crash."""
    augment = gym_recipe("Slope-v0", {"wrong": "later"}).spec.augment
    jax.block_until_ready(augment.apply(np.ones((3, 2), np.float32)))
    with pytest.raises(EnvironmentCrashed, match=r"must always return \(2, 2\), not \(3, 2\)"):
        raise_crash()


def test_augmentation_that_does_not_fit_is_refused():
    with pytest.raises(ShoalError, match="CartPole-v1 offers no variants of its observations"):
        make_trainer(TrainConfig("CartPole-v1", algo=with_settings(CONFIG, augment=True)))
    with pytest.raises(ShoalError, match="plane: `augment` must return observations"):
        from_jax(plane(lambda obs: jnp.stack([obs[:1], obs[1:]])))
    with pytest.raises(ShoalError, match=r"inputs\.augment does not work with memory"):
        with_settings(PPOConfig(), augment=True, memory="gru")
    other = replace(from_jax(plane()).spec, observation=Box((4,)))
    with pytest.raises(TypeError, match="contracting dimensions"):
        add_augmentation(lambda config: trees, CONFIG, other)


def test_minibatches_divide_the_rollout_and_so_its_variants():
    with pytest.raises(ShoalError, match=r"num_minibatches 5 does not divide num_envs 2 x num_steps 6"):
        with_settings(CONFIG, num_minibatches=5, augment=True)
    for minibatches in (1, 2, 3, 4, 6, 12):
        assert replace(CONFIG, num_minibatches=minibatches, num_envs=3 * CONFIG.num_envs)


def test_schedules_count_real_steps():
    ends = with_settings(CONFIG, schedules=("gamma=linear(0.5, 120 steps)",), augment=True)
    made = []
    spec = from_jax(plane()).spec
    add_augmentation(
        lambda config: made.append(config) or ppo.ppo(config, spec, LearnerContext(num_updates=99)),
        ends,
        spec,
    )
    assert made[0].plan == ends.plan
    assert made[0].rollout_size == 4 * ends.rollout_size
