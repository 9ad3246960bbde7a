"""gymnax through its adapter: its own steps, ends, worlds that differ and pictures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.errors import ShoalError
from shoal.types import Discrete
from tests.envs.suites import compare_with_own, ranks_as_suites_like, train_in_two_parts  # noqa: F401

gymnax = pytest.importorskip("gymnax", reason="needs the extra gymnax")

pytestmark = pytest.mark.filterwarnings("ignore")

QUICK = ("CartPole-v1", "Breakout-MinAtar")
OFFLINE = [
    name for name in gymnax.registered_envs if name != "MNISTBandit-bsuite"
]  # which downloads its data


def names():
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in OFFLINE]


def own_functions(name):
    """gymnax's step without reset, and what the adapter shows of an observation."""
    env, defaults = gymnax.make(name)

    def step(key, state, action, params):
        if not isinstance(env.action_space(defaults), gymnax.environments.spaces.Discrete):
            low, high = env.action_space(defaults).low, env.action_space(defaults).high
            action = jnp.clip(action, low, high)
        params = defaults.replace(**params)
        obs, after, reward, terminated, _ = env.step_env(key, state, action, params)
        return obs, reward, terminated, env.is_truncated(after, params)

    size = getattr(env.observation_space(defaults), "n", None)
    show = lambda obs: jax.nn.one_hot(obs, size) if size else obs.astype(jnp.float32)
    return step, show


@pytest.mark.parametrize("name", names())
def test_random_steps_are_gymnaxs_own(name):
    step, show = own_functions(name)
    compare_with_own(f"gymnax:{name}", step, show)


def test_the_time_limit_truncates_and_may_be_another():
    step, show = own_functions("Pendulum-v1")
    assert shoal.make("gymnax:Pendulum-v1").spec.max_episode_steps == 200
    spec = shoal.make("gymnax:Pendulum-v1", max_episode_steps=50).spec
    assert spec.max_episode_steps == 50

    def limited(key, state, action, params):
        obs, reward, terminated, _ = step(key, state, action, params)
        return obs, reward, terminated, state.time + 1 >= 50

    ours = compare_with_own("gymnax:Pendulum-v1", limited, show, max_episode_steps=50)
    assert np.flatnonzero(ours.truncated[:, 0]).tolist() == [49, 100, 151]  # and a step for each reset
    assert not ours.terminated.any()


def test_worlds_differ_where_parameters_are_numbers():
    step, show = own_functions("CartPole-v1")
    heavy = shoal.make("gymnax:CartPole-v1").spec.params | {"gravity": 20.0, "force_mag": 5.0}
    found = compare_with_own("gymnax:CartPole-v1", step, show, params=heavy)
    usual = compare_with_own("gymnax:CartPole-v1", step, show)
    assert (found.obs != usual.obs).any()


def test_options_are_parameters_and_arguments_of_the_constructor():
    assert shoal.make("gymnax:DeepSea-bsuite", size=5).spec.observation.shape == (5, 5)
    assert shoal.make("gymnax:Asterix-MinAtar", ramping=False).spec.action == Discrete(5)
    with pytest.raises(ShoalError, match=r"does not take these options: .*gravy"):
        shoal.make("gymnax:CartPole-v1", gravy=1)


def test_a_run_stops_in_mid_episode_and_goes_on(tmp_path, compilations):
    train_in_two_parts("gymnax:Breakout-MinAtar", tmp_path, compilations)


def picture(name):
    env = shoal.make(f"gymnax:{name}").build(np.zeros((1, 2), np.uint32), True)
    params = jax.tree.map(lambda x: jnp.full(2, x, jnp.float32), env.spec.params)
    state, _ = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 2), params)
    return env.render(state, 0)


@pytest.mark.parametrize("name", ["CartPole-v1", "Breakout-MinAtar"])
def test_pictures_are_gymnaxs_own(name):
    found = picture(name)
    assert found.dtype == np.uint8
    assert found.shape[2] == 3
    assert found.std() > 10  # not one colour


def test_an_environment_without_pictures_says_so():
    with pytest.raises(ShoalError, match="gymnax has no pictures of DeepSea-bsuite"):
        picture("DeepSea-bsuite")
