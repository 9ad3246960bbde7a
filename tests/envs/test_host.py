"""Gymnasium's environments by callback: every autoreset mode, seeds, devices, and environments that raise."""

from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from jax.sharding import Mesh, PartitionSpec

import shoal
from shoal.envs.adapters.gymnasium import gym_recipe
from shoal.envs.adapters.host import EnvironmentCrashed, take_crash, time_steps
from shoal.envs.adapters.suite import UnknownOptions
from shoal.errors import ShoalError


class Counter(gymnasium.Env):
    """Observes how many steps it has taken; `length` ends it, or the seed does: after 2 + seed % 3 steps."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=None, info=None):
        self.length, self.info = length, info or {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None and self.length is None:
            self.length = 2 + seed % 3
        self.count = 0
        return np.array([0.0]), {}

    def step(self, action):
        self.count += 1
        return np.array([self.count]), 1.0, self.count == self.length, False, self.info


class Lottery(gymnasium.Env):
    """A new episode is a draw of its own generator, and lasts one step."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, True, False, {}


class Echo(gymnasium.Env):
    """Observes the action it was given."""

    observation_space = gymnasium.spaces.Dict(
        {
            "seen": gymnasium.spaces.Box(-9, 9, (1,)),
            "pair": gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(3),) * 2),
        }
    )

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        return {"seen": np.zeros(1, np.float32), "pair": (0, 2)}, {}

    def step(self, action):
        assert self.action_space.contains(action)
        return {"seen": np.reshape(action, 1).astype(np.float32), "pair": (1, 1)}, 0.0, False, False, {}


class Faulty(gymnasium.Env):
    """Raises where it is told to."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, where, error=None):
        self.where, self.error = where, error or ZeroDivisionError("the wheel came off\nsomewhere")
        self.fail_at("init")

    def fail_at(self, here):
        if here == self.where:
            raise self.error

    def reset(self, *, seed=None, options=None):
        self.fail_at("reset")
        self.left = 3
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        if self.left == 0:
            self.fail_at("step")
        obs = np.zeros(2 if self.where == "shape" else 1, np.float32)
        return obs, 0.0, False, False, {}


def vector_counter(mode):
    def make(num_envs, max_episode_steps=None, **options):
        limited = lambda: gymnasium.wrappers.TimeLimit(Counter(**options), max_episode_steps)
        return SyncVectorEnv([limited] * num_envs, autoreset_mode=mode)

    return make


def unlabelled_counter(num_envs, **options):
    vector = SyncVectorEnv([Counter] * num_envs)
    vector.metadata["autoreset_mode"] = "whenever"
    return vector


MODES = ["single", "NEXT_STEP", "SAME_STEP", "DISABLED"]


@pytest.fixture(scope="module", autouse=True)
def registered():
    names = {
        "test/Counter-single-v0": {"entry_point": Counter, "max_episode_steps": 4},
        "test/Unlabelled-v0": {"vector_entry_point": unlabelled_counter},
        "test/Lottery-v0": {"entry_point": Lottery},
        "test/Echo-v0": {"entry_point": Echo},
        "test/Faulty-v0": {"entry_point": Faulty},
    }
    for mode in AutoresetMode:
        vector = {"vector_entry_point": vector_counter(mode), "max_episode_steps": 4}
        names[f"test/Counter-{mode.name}-v0"] = vector
    for name, how in names.items():
        gymnasium.register(name, **how)
    yield
    for name in names:
        del gymnasium.registry[name]


@pytest.fixture(autouse=True)
def no_crash_is_left_over():
    yield
    assert take_crash() is None


def build(name, seeds, rendering=False, **options):
    return gym_recipe(name, options).build(np.atleast_2d(np.asarray(seeds, np.uint32)), rendering)


def program(env):
    def play(actions):
        state, first = env.reset(None, None)
        state, steps = jax.lax.scan(lambda state, action: env.step(state, action, ()), state, actions)
        return first, state, steps

    return play


def play(env, actions):
    first, _, steps = jax.device_get(jax.jit(program(env))(jnp.asarray(actions)))
    return first, steps


def on_two_devices(function, out_specs):
    mesh = Mesh(np.array(jax.devices()[:2]).reshape(2, 1), ("learners", "data"))
    rows = PartitionSpec(None, ("learners", "data"))
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=rows, out_specs=out_specs, check_vma=False))


def counts(length, num_steps):
    """What a counter of this length shows after each step: 1, 2, ..., length, 0 (the reset), 1..."""
    return [step % (length + 1) for step in range(1, num_steps + 1)]


@pytest.mark.parametrize("mode", MODES)
def test_the_final_observation_is_seen_and_nobody_learns_from_it(mode):
    first, steps = play(build(f"test/Counter-{mode}-v0", [0, 1], length=99), np.zeros((11, 2), np.int32))
    assert first.obs[:, 0].tolist() == [0.0, 0.0]
    assert not (first.valid | first.terminated | first.truncated).any()
    for row in range(2):
        assert steps.obs[:, row, 0].tolist() == counts(4, 11)
        assert steps.valid[:, row].tolist() == [count != 0 for count in counts(4, 11)]
        assert steps.truncated[:, row].tolist() == [count == 4 for count in counts(4, 11)]
    assert not steps.terminated.any()
    assert (steps.reward == steps.valid).all()
    assert steps.obs.dtype == steps.reward.dtype == np.float32


@pytest.mark.parametrize("mode", MODES)
def test_rows_end_each_in_its_own_time(mode):
    _, steps = play(build(f"test/Counter-{mode}-v0", [0, 1, 2]), np.zeros((23, 3), np.int32))
    for row, length in enumerate([2, 3, 4]):
        assert steps.obs[:, row, 0].tolist() == counts(length, 23)
        assert steps.terminated[:, row].tolist() == [count == length for count in counts(length, 23)]
        assert steps.valid[:, row].tolist() == [count != 0 for count in counts(length, 23)]
    assert steps.truncated[
        :, 2
    ].any()  # the third ends on its last permitted step: both, which means terminated


@pytest.mark.parametrize("mode", MODES)
def test_a_non_terminal_done_is_a_truncation(mode):
    env = build(f"test/Counter-{mode}-v0", [0], length=2, info={"non-terminal done": True})
    _, steps = play(env, np.zeros((3, 1), np.int32))
    assert not steps.terminated.any()
    assert steps.truncated[:, 0].tolist() == [False, True, False]


def test_an_unknown_autoreset_mode_is_refused():
    with pytest.raises(ShoalError, match=r"^test/Unlabelled-v0: unknown autoreset_mode 'whenever'; .*$"):
        gym_recipe("test/Unlabelled-v0", {})


def test_the_specification():
    spec = gym_recipe("test/Counter-single-v0", {}).spec
    assert (spec.name, spec.backend, spec.max_episode_steps) == ("test/Counter-single-v0", "gym", 4)
    assert not spec.exact_resume
    assert gym_recipe("test/Counter-single-v0", {"max_episode_steps": 7}).spec.max_episode_steps == 7


def test_rows_are_seeded_once_each_with_their_own():
    actions = np.zeros((6, 3), np.int32)
    first, steps = play(build("test/Lottery-v0", [1, 2, 2**32 - 1]), actions)
    again, steps_again = play(build("test/Lottery-v0", [1, 2, 2**32 - 1]), actions)
    np.testing.assert_array_equal(first.obs, again.obs)
    np.testing.assert_array_equal(steps.obs, steps_again.obs)
    draws = np.concatenate([first.obs.reshape(-1), steps.obs[~steps.valid].reshape(-1)])
    assert len(np.unique(draws)) == len(draws) == 12


def test_two_devices_play_the_episodes_of_one():
    actions = np.zeros((9, 4), np.int32)
    devices, rows = PartitionSpec(("learners", "data")), PartitionSpec(None, ("learners", "data"))
    run = on_two_devices(program(build("test/Lottery-v0", [[1, 2], [3, 4]])), (devices, devices, rows))
    before = time_steps()
    first, state, steps = jax.device_get(run(actions))
    assert time_steps() - before == 9, "one device's"
    alone, alone_steps = play(build("test/Lottery-v0", [1, 2, 3, 4]), actions)
    np.testing.assert_array_equal(first.obs, alone.obs)
    np.testing.assert_array_equal(steps.obs, alone_steps.obs)
    assert state.token.tolist() == [[0, 9], [1, 9]]


def test_actions_arrive_as_the_environment_wants_them():
    env = build("test/Echo-v0", [0, 0], action_space=gymnasium.spaces.Discrete(3, start=5))
    _, steps = play(env, np.array([[0, 2]], np.int32))
    assert steps.obs["seen"].tolist() == [[[5.0], [7.0]]]
    env = build("test/Echo-v0", [0, 0], action_space=gymnasium.spaces.Box(-1, 1, (1,), np.float64))
    _, steps = play(env, np.array([[[5.0], [0.5]]], np.float32))
    assert steps.obs["seen"].tolist() == [[[1.0], [0.5]]]


def test_named_observations():
    env = build("test/Echo-v0", [0, 0], action_space=gymnasium.spaces.Discrete(3))
    first, _ = play(env, np.zeros((1, 2), np.int32))
    assert {key: value.tolist() for key, value in first.obs.items()} == {
        "seen": [[0.0]] * 2,
        "pair/0": [[1.0, 0.0, 0.0]] * 2,
        "pair/1": [[0.0, 0.0, 1.0]] * 2,
    }


@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_crash_is_one_line_and_keeps_its_traceback(where):
    env = build("test/Faulty-v0", [0, 1], where=where)
    _, steps = play(env, np.zeros((5, 2), np.int32))
    crash = take_crash()
    assert isinstance(crash, EnvironmentCrashed)
    assert str(crash) == "test/Faulty-v0 raised ZeroDivisionError: the wheel came off"
    assert "fail_at" in crash.traceback_text
    assert str(Path(shoal.__file__).parent) not in crash.traceback_text
    assert not steps.valid[-1].any()
    assert take_crash() is None
    play(env, np.zeros((1, 2), np.int32))
    assert str(take_crash()) == str(crash)  # it stays broken, and says so each time


def test_a_crash_leaves_no_device_waiting():
    env = build("test/Faulty-v0", [[0], [1]], where="step", error=SystemExit(3))

    def total(actions):
        return jax.lax.psum(program(env)(actions)[2].reward.sum(), ("learners", "data"))

    assert on_two_devices(total, PartitionSpec())(np.zeros((5, 2), np.int32)) == 0.0
    assert str(take_crash()) == "test/Faulty-v0 raised SystemExit: 3"


def test_an_observation_of_the_wrong_shape_is_a_crash():
    play(build("test/Faulty-v0", [0, 1], where="shape"), np.zeros((2, 2), np.int32))
    found = "float32 of shape (2,), but observation_space says float32 of shape (1,)"
    assert str(take_crash()) == f"test/Faulty-v0: observation is {found}"


def test_a_crash_while_building_is_raised():
    with pytest.raises(
        EnvironmentCrashed, match=r"^test/Faulty-v0 raised ZeroDivisionError: the wheel came off$"
    ):
        gym_recipe("test/Faulty-v0", {"where": "init"})


def test_a_missing_package_is_named_with_its_remedy():
    with pytest.raises(ShoalError, match=r"^test/Faulty-v0 needs flax: pip install flax$"):
        gym_recipe("test/Faulty-v0", {"where": "init", "error": ModuleNotFoundError("no", name="flax")})


def test_unknown_options_are_named():
    with pytest.raises(
        UnknownOptions, match=r"^gym:test/Counter-single-v0 does not take these options: .*'wind'"
    ):
        gym_recipe("test/Counter-single-v0", {"wind": 1})


@pytest.mark.filterwarnings("ignore:pkg_resources is deprecated:UserWarning")
def test_pictures_are_in_colour():
    env = build("CartPole-v1", [1, 2], rendering=True)
    state, _ = env.reset(None, None)
    picture = env.render(state, 1)
    assert picture.shape == (400, 600, 3)
    assert picture.dtype == np.uint8
    assert (picture[..., 0] != picture[..., 2]).any()


@pytest.mark.filterwarnings("ignore:.*render.*:UserWarning")
def test_what_draws_no_pictures_says_so():
    class Blind(Counter):
        def __init__(self, render_mode=None):
            super().__init__()
            self.render_mode = render_mode

        def render(self):
            return None

    gymnasium.register("test/Blind-v0", entry_point=Blind)
    env = build("test/Blind-v0", [1], rendering=True)
    del gymnasium.registry["test/Blind-v0"]
    state, _ = env.reset(None, None)
    with pytest.raises(ShoalError, match=r"^test/Blind-v0 has no pictures"):
        env.render(state, 0)
