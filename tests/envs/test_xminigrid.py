"""XLand-MiniGrid through its adapter: its own steps and ends, tiles and colours as choices, tasks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.errors import ShoalError
from tests.envs.suites import compare_with_own, ranks_as_suites_like, train_in_two_parts  # noqa: F401

xminigrid = pytest.importorskip("xminigrid", reason="needs the extra xminigrid")
pytestmark = pytest.mark.filterwarnings("ignore")

QUICK = ("MiniGrid-EmptyRandom-5x5",)
CASES = [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK))
    for name in xminigrid.registered_environments()
]


def own(name, **changed):
    env, defaults = xminigrid.make(name, **changed)

    def step(key, state, action, params):
        now = env.step(defaults, state, action)
        return now.observation, now.reward, now.discount == 0, now.last()

    return step


def show(cells):
    tiles, colours = jnp.arange(13), jnp.arange(12)
    found = [cells[..., :1] == tiles[None, None], cells[..., 1:] == colours[None, None]]
    return jnp.concatenate(found, -1).astype(jnp.float32)


@pytest.mark.parametrize("name", CASES)
def test_random_steps_are_the_suites_own(name):
    compare_with_own(f"xminigrid:{name}", own(name), show)


def test_goals_terminate_and_the_clock_truncates():
    name = QUICK[0]
    ours = compare_with_own(f"xminigrid:{name}", own(name, max_steps=20), show, max_episode_steps=20)
    assert ours.terminated.any()
    assert ours.truncated.any()
    assert (ours.reward[ours.terminated] > 0).all()
    assert shoal.make(f"xminigrid:{name}", view_size=5).spec.observation.shape == (5, 5, 25)
    with pytest.raises(ShoalError, match="has no option lives; it has height, width"):
        shoal.make(f"xminigrid:{name}", lives=3)


def test_each_episode_has_a_task_of_the_benchmark(monkeypatch):
    goals = jnp.stack([jnp.array([kind, 3, kind, 0, 0]) for kind in (1, 2, 3)]).astype(jnp.uint8)
    benchmark = xminigrid.benchmarks.Benchmark(
        goals, jnp.zeros((3, 1, 7), jnp.uint8), jnp.zeros((3, 1, 2), jnp.uint8), jnp.zeros(3, jnp.uint8)
    )
    monkeypatch.setattr(xminigrid, "load_benchmark", {"three": benchmark}.__getitem__)
    env = shoal.make("xminigrid:XLand-MiniGrid-R1-9x9", benchmark="three")
    env = env.build(np.zeros((1, 32), np.uint32), False)
    state, _ = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 32), ())
    found = state.batch.state.state.state.goal_encoding[:, 0]
    assert set(found.tolist()) == {1, 2, 3}


def test_a_run_stops_in_mid_episode_and_goes_on(tmp_path, compilations):
    train_in_two_parts(f"xminigrid:{QUICK[0]}", tmp_path, compilations)
