"""EnvPool's environments: the episode-end rule, seeds, layouts, devices, pictures."""

import os
from functools import partial
from types import SimpleNamespace

import envpool
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from shoal.envs.adapters import envpool as adapter
from shoal.envs.adapters.envpool import envpool_recipe
from shoal.envs.adapters.pool_env import time_step
from shoal.envs.adapters.suite import UnknownOptions
from shoal.errors import ShoalError
from shoal.types import Box, Discrete, MultiDiscrete

DEVICES = PartitionSpec(("learners", "data"))


def build(name, seeds, rendering=False, **options):
    return envpool_recipe(name, options).build(np.atleast_2d(np.asarray(seeds, np.uint32)), rendering)


def play(env, actions):
    """The reset's time step, and those of the actions (T, N, ...), in one compiled program."""

    @jax.jit
    def program(actions):
        state, first = env.reset(None, None)
        return first, jax.lax.scan(lambda state, action: env.step(state, action, ()), state, actions)[1]

    return jax.device_get(program(np.asarray(actions)))


def begin(env):
    """The first state and time step, in one compiled program."""
    return jax.jit(lambda: env.reset(None, None))()


def play_on_two_devices(env, actions):
    def program(actions):
        state, first = env.reset(None, None)
        return first, jax.lax.scan(lambda state, action: env.step(state, action, ()), state, actions)[1]

    mesh = Mesh(np.array(jax.devices()[:2]).reshape(2, 1), ("learners", "data"))
    rows = PartitionSpec(None, ("learners", "data"))
    sharded = jax.shard_map(program, mesh=mesh, in_specs=rows, out_specs=(DEVICES, rows), check_vma=False)
    return jax.device_get(jax.jit(sharded)(np.asarray(actions)))


def pushes(num_steps, num_rows):
    return np.random.default_rng(0).integers(0, 2, (num_steps, num_rows)).astype(np.int32)


def assert_equal(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def test_the_step_after_an_end_is_the_reset():
    first, steps = play(build("CartPole-v1", [1, 2, 3, 4]), pushes(120, 4))
    before = np.concatenate([first.obs[None], steps.obs[:-1]])
    fallen = lambda obs: (np.abs(obs[..., 0]) > 2.4) | (np.abs(obs[..., 2]) > 12 * 2 * np.pi / 360)
    assert steps.terminated.any(0).all()
    np.testing.assert_array_equal(
        fallen(steps.obs), steps.terminated
    )  # the final observation is the true one
    np.testing.assert_array_equal(fallen(before), ~steps.valid)  # nobody learns from what follows it
    assert (steps.reward == steps.valid).all()
    assert (np.abs(steps.obs[~steps.valid]) <= 0.05).all()  # the first observation of a new episode
    assert not (steps.terminated & ~steps.valid).any()
    assert steps.info == {}


def test_the_time_limit_truncates():
    env = build("CartPole-v1", [1, 2], max_episode_steps=4)
    assert env.spec.max_episode_steps == 4
    first, steps = play(env, pushes(7, 2))
    assert not (first.terminated | first.truncated | first.valid).any()
    assert steps.truncated[:, 0].tolist() == [False, False, False, True, False, False, False]
    assert steps.valid[:, 0].tolist() == [True, True, True, True, False, True, True]
    assert not steps.terminated.any()


def test_equal_seeds_give_equal_episodes_in_any_row():
    actions = pushes(80, 3)
    one, other = (
        play(build("CartPole-v1", [7, 8, 9]), actions),
        play(build("CartPole-v1", [7, 8, 9]), actions),
    )
    assert_equal(one, other)
    transposed = play(build("CartPole-v1", [9, 7]), actions[:, [2, 0]])
    assert_equal(transposed[1].obs, one[1].obs[:, [2, 0]])
    assert_equal(transposed[0].obs, one[0].obs[[2, 0]])


def test_rows_with_other_seeds_differ():
    first, _ = play(build("CartPole-v1", np.arange(2**32 - 8, 2**32)), pushes(1, 8))
    assert len(np.unique(first.obs, axis=0)) == 8


def test_two_devices_play_the_episodes_of_one():
    actions = pushes(60, 4)
    apart = play_on_two_devices(build("CartPole-v1", [[1, 2], [3, 4]]), actions)
    assert_equal(apart, play(build("CartPole-v1", [1, 2, 3, 4]), actions))


def test_a_second_reset_begins_new_episodes():
    env = build("CartPole-v1", [1, 2])
    first, _ = play(env, pushes(3, 2))
    second, steps = play(env, pushes(3, 2))
    assert (first.obs != second.obs).any(1).all()
    assert steps.valid.all()


def test_no_mesh_and_no_compilation_are_needed():
    env = build("CartPole-v1", [1])
    state, _ = env.reset(None, None)
    state, step = env.step(state, jnp.zeros(1, jnp.int32), env.draw(None, state, 1))
    assert state.handle.shape[0] == 1
    assert step.reward.tolist() == [1.0]


def test_float64_pools_speak_float32_and_clip_actions():
    actions = np.random.default_rng(0).uniform(-3, 3, (20, 2, 6)).astype(np.float32)
    env = build("HalfCheetah-v4", [5, 6])
    assert isinstance(env.spec.action, Box)
    assert env.spec.observation.shape == (17,)
    first, steps = play(env, actions)
    raw = envpool.make_gymnasium("HalfCheetah-v4", num_envs=2, env_seed=[5, 6])
    np.testing.assert_allclose(first.obs, raw.reset()[0], atol=1e-6)
    for action, obs, reward in zip(actions, steps.obs, steps.reward, strict=True):
        expected, expected_reward, *_ = raw.step(np.clip(action, -1, 1).astype(np.float64))
        np.testing.assert_allclose(obs, expected, atol=1e-5)
        np.testing.assert_allclose(reward, expected_reward, atol=1e-5)
    assert steps.obs.dtype == steps.reward.dtype == np.float32


def test_named_observations():
    env = build("MiniGrid-Empty-5x5-v0", [1, 2])
    _, steps = play(env, np.full((3, 2), 2, np.int32))
    assert {key: (value.shape[2:], str(value.dtype)) for key, value in steps.obs.items()} == {
        key: (box.shape, box.dtype) for key, box in env.spec.observation.items()
    }
    assert env.spec.observation["image"] == Box((7, 7, 3), 0, 255, "uint8")
    assert steps.obs["direction"].sum(-1).tolist() == [[1.0, 1.0]] * 3  # one-hot


def test_whole_number_boxes_are_choices_and_masks_side_by_side_stay_so():
    env = build("Cleaner-v0", [1])
    assert env.spec.action == MultiDiscrete((4, 4, 4))
    assert env.spec.observation["action_mask"].shape == (3, 4)


def test_combinations_that_a_mask_is_of_are_one_choice():
    """Tetris: rotation r in column c, where the mask allows it; the 10 r + c-th of 40 choices."""
    env = build("Tetris-v0", [1])
    assert env.spec.action == Discrete(40)
    first, _ = play(env, np.zeros((1, 1), np.int32))
    allowed = np.flatnonzero(first.obs["action_mask"][0])
    raw = envpool.make_gymnasium("Tetris-v0", num_envs=1, env_seed=[1], num_threads=1)
    raw.reset()
    _, steps = play(build("Tetris-v0", [1]), np.full((1, 1), allowed[-1], np.int32))
    obs, *_ = raw.step(np.array([[allowed[-1] // 10, allowed[-1] % 10]], np.int32))
    np.testing.assert_array_equal(steps.obs["grid"][0, 0], obs["grid"][0])
    assert obs["grid"].any()


def test_a_mask_told_beside_the_observation_becomes_a_part_of_it():
    first, _ = play(build("Play2048-v1", [1, 2]), np.zeros((1, 2), np.int32))
    raw = envpool.make_gymnasium("Play2048-v1", num_envs=2, env_seed=[1, 2], num_threads=1)
    obs, info = raw.reset()
    np.testing.assert_array_equal(first.obs["obs"], obs)
    np.testing.assert_array_equal(first.obs["action_mask"], info["legal_action_mask"])


def test_jumanjis_teams_have_an_axis_of_agents():
    env = build("LevelBasedForaging-v0", [1, 2])
    assert (env.spec.agents, env.spec.action) == (2, Discrete(6))
    shapes = {name: box.shape for name, box in env.spec.observation.items()}
    assert shapes == {"obs": (12,), "action_mask": (6,)}
    actions = np.random.default_rng(0).integers(0, 6, (110, 2, 2))
    first, steps = play(env, actions)
    assert first.obs["obs"].shape == (2, 2, 12)
    assert (steps.reward[..., 0] == steps.reward[..., 1]).all(), "the team's, in equal shares"
    assert np.flatnonzero(steps.truncated[:, 0] | steps.terminated[:, 0])[0] <= 99
    assert set(np.unique(steps.obs["action_mask"])) == {0, 1}


def test_atari_images_are_channels_last():
    env = build("Breakout-v5", [3, 4])
    assert env.spec.observation == Box((84, 84, 4), 0, 255, "uint8")
    first, steps = play(env, np.ones((5, 2), np.int32))
    raw = envpool.make_gymnasium("Breakout-v5", num_envs=2, env_seed=[3, 4], num_threads=1)
    np.testing.assert_array_equal(first.obs, raw.reset()[0].transpose(0, 2, 3, 1))
    for obs in steps.obs:
        np.testing.assert_array_equal(obs, raw.step(np.ones(2, np.int32))[0].transpose(0, 2, 3, 1))


def test_a_lost_life_ends_an_episode_but_not_the_game():
    _, steps = play(build("Breakout-v5", [3], episodic_life=True), np.zeros((300, 1), np.int32))
    ends = np.flatnonzero(steps.terminated[:, 0])
    games = np.flatnonzero(steps.info["episode_over"][:, 0])
    assert games.tolist() == ends[4::5].tolist()  # five lives
    assert len(games) >= 1


def test_a_truncated_game_is_over():
    env = build("Breakout-v5", [3], episodic_life=True, max_episode_steps=10)
    _, steps = play(env, np.zeros((12, 1), np.int32))
    assert (
        steps.info["episode_over"][:, 0].tolist()
        == steps.truncated[:, 0].tolist()
        == [False] * 9 + [True] + [False] * 2
    )


def test_clipped_rewards_keep_their_raw_score():
    described = adapter._adapter("Breakout-v5", {"reward_clip": True})
    assert described.spec.action == Discrete(4)
    zeros, flags = np.zeros(2, np.float32), np.zeros(2, bool)
    told = {"reward": zeros + 7, "terminated": zeros}
    raw = (np.zeros((2, 4, 84, 84), np.uint8), zeros + 1, flags, flags, told)
    step = jax.jit(partial(time_step, described))(raw, over=np.array([False, True]))
    assert step.reward.tolist() == [1.0, 0.0]
    assert step.info["raw_reward"].tolist() == [7.0, 0.0]


def test_a_game_that_ends_on_its_last_frame_is_terminated():
    described = adapter._adapter("Breakout-v5", {})
    no, yes, one = np.zeros(1, bool), np.ones(1, bool), np.ones(1, np.float32)
    raw = (np.zeros((1, 4, 84, 84), np.uint8), one, no, yes, {"reward": one, "terminated": one})
    step = jax.jit(partial(time_step, described))(raw, over=no)
    assert step.terminated.item()
    assert step.info["episode_over"].item()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Go9x9-v1", {}, r"^Go9x9-v1 has 2 players; .*$"),
        ("CartPole-v1", {"num_envs": 3}, r"^CartPole-v1: Shoal decides the option 'num_envs'; leave it out$"),
    ],
)
def test_what_does_not_work_is_said_in_one_line(name, options, message):
    with pytest.raises(ShoalError, match=message):
        envpool_recipe(name, options)


def test_unknown_options_are_named():
    with pytest.raises(
        UnknownOptions, match=r"^envpool:CartPole-v1 does not take wind; it takes max_episode_steps"
    ):
        envpool_recipe("CartPole-v1", {"wind": 1})


def test_missing_qt_is_said_with_its_remedy(monkeypatch):
    def make_spec(name):
        raise ImportError("EnvPool Procgen requires the system Qt 5 runtime on Linux.\nInstall ...")

    monkeypatch.setattr(adapter, "import_envpool", lambda: SimpleNamespace(make_spec=make_spec))
    with pytest.raises(ShoalError, match=r"^BigfishEasy-v0 needs Qt 5: apt-get install libqt5gui5$"):
        envpool_recipe("BigfishEasy-v0", {})


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "BipedalWalker-v3", "HalfCheetah-v4", "Breakout-v5", "BigfishEasy-v0"]
)
def test_pictures_are_in_colour(name):
    try:
        env = build(name, [1, 2], rendering=True)
        state, step = begin(env)
        picture = env.render(state, 1)
    except ShoalError as error:
        if "apt-get" in str(error):
            pytest.skip(str(error))
        raise
    assert picture.dtype == np.uint8
    assert picture.ndim == 3
    assert picture.shape[2] == 3
    assert (picture[..., 0] != picture[..., 2]).any()
    if name == "BigfishEasy-v0":
        np.testing.assert_array_equal(step.obs[1], picture)  # Procgen's observation is its picture


def test_what_cannot_be_drawn_says_so():
    env = build("FrozenLake-v1", [1], rendering=True)
    state, _ = begin(env)
    with pytest.raises(
        ShoalError, match=r"^FrozenLake-v1: EnvPool cannot render it: .*try gym:FrozenLake-v1$"
    ):
        env.render(state, 0)


def test_threads_follow_the_cores_and_the_weight_of_a_step(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert adapter._num_threads(16, 1, "envpool.mujoco.gym") == 8
    assert adapter._num_threads(4, 1, "envpool.mujoco.gym") == 4
    assert adapter._num_threads(16, 4, "envpool.atari") == 2
    assert adapter._num_threads(16, 16, "envpool.atari") == 1
    assert adapter._num_threads(64, 1, "envpool.classic_control") == 1
    monkeypatch.setenv("SHOAL_CORES_SHARED_BY", "4")  # processes
    assert adapter._num_threads(16, 1, "envpool.mujoco.gym") == 2
