"""Brax through its adapter: its own steps with every engine, repeated actions, worlds that differ."""

import copy

import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.envs.adapters.brax import FACTORS, scaled
from tests.envs.suites import compare_with_own, ranks_as_suites_like, train_in_two_parts  # noqa: F401

envs = pytest.importorskip("brax.envs", reason="needs the extra brax")

pytestmark = pytest.mark.filterwarnings("ignore")

ENGINES = ("generalized", "spring", "positional", "mjx")
BROKEN = ("swimmer",)  # calls jnp.clip with names that JAX has no more
QUICK = [("fast", "positional"), ("inverted_pendulum", "positional")]
CASES = [
    pytest.param(name, engine, marks=[pytest.mark.slow] * ((name, engine) not in QUICK))
    for name in envs._envs
    for engine in ENGINES
    if name not in BROKEN and (name != "fast" or engine == "positional")
]


def own(env, world=None):
    def step(key, state, action, params):
        there = copy.copy(env)
        if world is not None:
            there.sys = world(params)
        after = there.step(state, jnp.clip(action, -1, 1))
        return after.obs, after.reward, after.done, False

    return step


@pytest.mark.parametrize(("name", "engine"), CASES)
def test_random_steps_are_braxs_own(name, engine):
    env = envs.get_environment(name, backend=engine)
    compare_with_own(f"brax:{name}", own(env), backend=engine, max_episode_steps=150, limit=150)


def test_physics_may_be_fixed():
    assert shoal.make("brax:inverted_pendulum", backend="spring").spec.params == FACTORS
    assert shoal.make("brax:inverted_pendulum", backend="spring", worlds=False).spec.params == {}


def test_the_time_limit_truncates():
    assert shoal.make("brax:fast").spec.max_episode_steps == 1000
    ours = compare_with_own("brax:fast", own(envs.get_environment("fast")), max_episode_steps=30, limit=30)
    assert np.flatnonzero(ours.truncated[:, 0]).tolist() == [29, 60, 91, 122, 153, 184]
    assert not ours.terminated.any()


def test_repeated_actions_add_up_until_the_end():
    env = envs.get_environment("inverted_pendulum", backend="positional")
    assert shoal.make("brax:inverted_pendulum", action_repeat=3).spec.max_episode_steps == 334

    def step(key, state, action, params):
        reward, over, obs = 0.0, False, state.obs
        for _ in range(3):
            state = env.step(state, jnp.clip(action, -1, 1))
            reward += jnp.where(over, 0.0, state.reward)
            obs = jnp.where(over, obs, state.obs)
            over |= state.done > 0
        return obs, reward, over, False

    ours = compare_with_own("brax:inverted_pendulum", step, action_repeat=3, backend="positional")
    assert ours.terminated.any()


@pytest.mark.slow
@pytest.mark.parametrize("factor", FACTORS)
def test_worlds_differ_in_their_physics(factor):
    """With a factor the steps are those of a system that was scaled; each factor changes something."""
    name, engine = ("hopper", "spring") if factor == "friction" else ("inverted_pendulum", "generalized")
    env = envs.get_environment(name, backend=engine)
    usual, factors = env.sys, FACTORS | {factor: 1.4}
    step = own(env, lambda params: scaled(usual, params))
    ours = compare_with_own(f"brax:{name}", step, params=factors, backend=engine)
    usual = compare_with_own(f"brax:{name}", own(env), backend=engine)
    assert (ours.obs != usual.obs).any()


def test_a_run_stops_in_mid_episode_and_goes_on(tmp_path, compilations):
    train_in_two_parts("brax:inverted_pendulum", tmp_path, compilations, backend="positional")
