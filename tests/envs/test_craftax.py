"""Craftax through its adapter: its own steps, deaths and time limits apart, pixels as bytes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.envs.adapters.craftax import NAMES
from shoal.errors import ShoalError
from tests.envs.suites import compare_with_own, ranks_as_suites_like, train_in_two_parts  # noqa: F401

library = pytest.importorskip("craftax.craftax_env", reason="needs the extra craftax")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]  # half a minute to compile

CLASSIC = "Craftax-Classic-Symbolic-v1"


def own(name, **changed):
    env = library.make_craftax_env_from_name(name, auto_reset=False)
    defaults = env.default_params.replace(**changed)

    def step(key, state, action, params):
        params = defaults.replace(**params)
        obs, after, reward, done, _ = env.step_env(key, state, action, params)
        return obs, reward, done & (after.timestep < params.max_timesteps), done

    return step


def as_bytes(obs):
    return jnp.round(255 * obs).astype(jnp.uint8)


@pytest.mark.parametrize("name", NAMES)
def test_random_steps_are_craftaxs_own(name):
    compare_with_own(f"craftax:{name}", own(name), as_bytes if "Pixels" in name else lambda obs: obs)


def test_the_clock_truncates_and_deaths_terminate():
    ours = compare_with_own(f"craftax:{CLASSIC}", own(CLASSIC, max_timesteps=30), max_episode_steps=30)
    assert ours.truncated.any()
    ends = np.flatnonzero(ours.truncated[:, 0] | ours.terminated[:, 0])
    assert np.diff(ends).max() <= 31


def test_options_are_parameters():
    assert shoal.make(f"craftax:{CLASSIC}", max_timesteps=50).spec.max_episode_steps == 50
    with pytest.raises(ShoalError, match="has no option lives; it has max_timesteps, day_length"):
        shoal.make(f"craftax:{CLASSIC}", lives=3)


def test_pictures_are_craftaxs_own():
    recipe = shoal.make(f"craftax:{CLASSIC}")
    env = recipe.build(np.zeros((1, 1), np.uint32), True)
    params = jax.tree.map(lambda x: jnp.full(1, x, jnp.float32), recipe.spec.params)
    state, _ = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 1), params)
    picture = env.render(state, 0)
    assert picture.dtype == np.uint8
    assert picture.shape[2] == 3
    assert picture.std() > 10


def test_a_run_stops_in_mid_episode_and_goes_on(tmp_path, compilations):
    train_in_two_parts(f"craftax:{CLASSIC}", tmp_path, compilations)
