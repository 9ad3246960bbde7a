"""MuJoCo Playground through its adapter: its own steps on the DM Control suite, worlds that differ."""

import copy

import jax.numpy as jnp
import pytest

import shoal
from shoal.envs.adapters.brax import FACTORS, scaled_model
from shoal.errors import ShoalError
from tests.envs.suites import compare_with_own, ranks_as_suites_like, train_in_two_parts  # noqa: F401

playground = pytest.importorskip("mujoco_playground", reason="needs the extra playground")
pytestmark = pytest.mark.filterwarnings("ignore")

QUICK = ("PendulumSwingup",)
SUITE = playground.dm_control_suite.ALL_ENVS
CASES = [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in SUITE]


def load(name):
    return playground.registry.load(name, config_overrides={"impl": "jax"})


def own(env, model=None):
    def step(key, state, action, params):
        there = copy.copy(env)
        if model is not None:
            there._mjx_model = model(params)
        after = there.step(state, jnp.clip(action, -1, 1))
        return after.obs, after.reward, after.done, False

    return step


@pytest.mark.parametrize("name", CASES)
def test_random_steps_are_playgrounds_own(name):
    compare_with_own(f"playground:{name}", own(load(name)), limit=150, max_episode_steps=150)


@pytest.mark.slow
@pytest.mark.parametrize("factor", ["mass", "gravity"])
def test_worlds_differ_in_their_physics(factor):
    env, factors = load("PendulumSwingup"), FACTORS | {factor: 1.4}
    step = own(env, lambda params: scaled_model(env.mjx_model, params))
    ours = compare_with_own("playground:PendulumSwingup", step, params=factors)
    usual = compare_with_own("playground:PendulumSwingup", own(env))
    assert (ours.obs != usual.obs).any()


def test_options_are_those_of_its_configuration():
    assert shoal.make("playground:PendulumSwingup").spec.max_episode_steps == 1000
    assert shoal.make("playground:PendulumSwingup", action_repeat=2).spec.max_episode_steps == 500
    with pytest.raises(ShoalError, match=r"has no option lives; it has .*ctrl_dt"):
        shoal.make("playground:PendulumSwingup", lives=3)


@pytest.mark.slow
def test_a_run_stops_in_mid_episode_and_goes_on(tmp_path, compilations):
    train_in_two_parts("playground:PendulumSwingup", tmp_path, compilations)
