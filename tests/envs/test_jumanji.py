"""Jumanji through its adapter: its own steps and ends, names, masks, teams as one learner."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.types import Discrete, MultiDiscrete
from tests.envs.suites import compare_with_own, ranks_as_suites_like, train_in_two_parts  # noqa: F401

jumanji = pytest.importorskip("jumanji", reason="needs the extra jumanji")
pytestmark = pytest.mark.filterwarnings("ignore")

QUICK = ("Maze-v0",)
DOWNLOADS = ("Sokoban-v0",)
COMBINED = {"BinPack-v2", "FlatPack-v0", "Minesweeper-v0", "Sudoku-v0", "Sudoku-very-easy-v0", "Tetris-v0"}
NAMES = sorted(set(jumanji.registered_environments()) - set(DOWNLOADS))
CASES = [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in NAMES]


def own(name):
    env = jumanji.make(name)
    nums = np.asarray(getattr(env.action_spec, "num_values", 0))

    def step(key, state, action, params):
        if name in COMBINED:
            action = jnp.stack(jnp.unravel_index(action, tuple(nums)))
        _, now = env.step(state, action.astype(env.action_spec.dtype))
        return now.observation, jnp.sum(now.reward), now.last() & (jnp.max(now.discount) == 0), now.last()

    return step


def flat(obs, spec):
    """Jumanji's observation under our names: choices as one-hot vectors, everything else as real numbers."""
    if isinstance(spec, jumanji.specs.DiscreteArray) and spec.num_values <= 64:
        return jax.nn.one_hot(obs, spec.num_values)
    if isinstance(spec, jumanji.specs.MultiDiscreteArray):
        parts = zip(obs.reshape(-1), np.reshape(spec.num_values, -1), strict=True)
        return jnp.concatenate([jax.nn.one_hot(part, int(num)) for part, num in parts])
    if isinstance(spec, jumanji.specs.Array):
        return jnp.float32(obs).reshape(spec.shape or (1,))
    found = {}
    for name, part in (obs._asdict() if isinstance(obs, tuple) else vars(obs)).items():
        shown = flat(part, vars(spec)[name])
        found |= (
            {f"{name}/{key}": x for key, x in shown.items()} if isinstance(shown, dict) else {name: shown}
        )
    return found


@pytest.mark.parametrize("name", CASES)
def test_random_steps_are_jumanjis_own(name):
    spec = jumanji.make(name).observation_spec
    compare_with_own(f"jumanji:{name}", own(name), lambda obs: flat(obs, spec))


@pytest.mark.slow
def test_masks_fit_the_actions():
    assert shoal.make("jumanji:Tetris-v0").spec.action == Discrete(40)
    assert shoal.make("jumanji:Cleaner-v0").spec.action == MultiDiscrete((4, 4, 4))
    assert shoal.make("jumanji:MultiCVRP-v0").spec.action == MultiDiscrete((21, 21))


def test_options_are_the_constructors_and_the_limit_is_ours():
    assert shoal.make("jumanji:Maze-v0", time_limit=30, max_episode_steps=10).spec.max_episode_steps == 10


def test_pictures_are_jumanjis_own():
    env = shoal.make("jumanji:Maze-v0").build(np.zeros((1, 1), np.uint32), True)
    state, _ = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 1), ())
    picture = env.render(state, 0)
    assert picture.dtype == np.uint8
    assert picture.shape[2] == 3
    assert picture.std() > 10


def test_a_run_stops_in_mid_episode_and_goes_on(tmp_path, compilations):
    train_in_two_parts("jumanji:Maze-v0", tmp_path, compilations)
