"""Gymnasium environments with worlds: what they declare, who is told what, and that it lasts."""

import json
import re
from dataclasses import replace
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.cli.main import main
from shoal.envs.adapters.gymnasium import gym_recipe, import_gymnasium
from shoal.envs.worlds import parameters
from shoal.envs.worlds.gymnasium import OURS, complete_world, register_ours, worlds_by_env
from shoal.errors import ShoalError
from shoal.learners.context import LearnerContext
from shoal.training.episode import episode
from shoal.training.evaluate import assign_worlds, evaluate_worlds, play_episodes
from shoal.training.program import make_trainer
from tests.exchanges.meetings import made_up

LENGTH = 3


class Hill(gymnasium.Env):
    """Pays its slope plus the start it drew, three times; forgets its world with every reset."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-100, 100, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)
    world_params = {"slope": 0.6, "colour": 7}  # noqa: RUF012
    world_spread = {"slope": (2.0, -10.0, 10.0)}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.here = (options or {}).get("world", self.world_params)
        self.start = self.np_random.integers(100) / 128
        self.steps = 0
        return self.look(), {}

    def step(self, action):
        self.steps += 1
        return self.look(), self.here["slope"] + self.start, self.steps == LENGTH, False, {}

    def look(self):
        return np.array([self.here["slope"], self.here["colour"], self.start])

    def render(self):
        return np.full((4, 4, 3), self.here["colour"], np.uint8)


class Plain(Hill):
    world_params = {}  # noqa: RUF012
    world_spread = {}  # noqa: RUF012

    def reset(self, *, seed=None):  # as before there were options
        super().reset(seed=seed, options={"world": Hill.world_params})
        return self.look(), {}


class Unspread(Hill):
    world_spread = {}  # noqa: RUF012


class Odd(Hill):
    def __init__(self, params, spread=()):
        self.world_params, self.world_spread = params, dict(spread)


def hills(num_envs, **options):
    vector = gymnasium.vector.SyncVectorEnv([Hill] * num_envs)
    vector.world_params = Hill.world_params
    return vector


@pytest.fixture(scope="module", autouse=True)
def registered():
    names = {f"test/{kind.__name__}-v0": {"entry_point": kind} for kind in (Hill, Plain, Unspread, Odd)}
    names["test/Hills-v0"] = {"vector_entry_point": hills}
    for name, how in names.items():
        gymnasium.register(name, **how)
    yield
    for name in names:
        del gymnasium.registry[name]


def columns(slopes, colours=None):
    slopes = np.float32(slopes)
    return {"slope": slopes, "colour": np.full_like(slopes, 7) if colours is None else np.float32(colours)}


def play(env, params, num_steps):
    @jax.jit
    def run(params):
        state, first = env.reset(None, params)
        actions = jnp.zeros((num_steps, len(params["slope"])), jnp.int32)
        return first, jax.lax.scan(lambda state, action: env.step(state, action, ()), state, actions)[1]

    return jax.device_get(run(params))


def test_an_environment_declares_its_worlds():
    spec = gym_recipe("test/Hill-v0", {}).spec
    assert spec.params == {"slope": 0.6, "colour": 7.0}
    assert spec.spread == {"slope": (2.0, -10.0, 10.0)}
    assert parameters.draw_worlds(spec, 1.0, range(3), seed=1)["slope"].shape == (3,)
    for without in ("test/Plain-v0", "test/Hills-v0"):
        spec = gym_recipe(without, {}).spec
        assert (spec.params, spec.spread) == ((), {})


def test_a_specification_with_worlds_can_be_hashed():
    spec = gym_recipe("test/Hill-v0", {}).spec
    simple = replace(spec, observation=shoal.Box((3,)))  # arrays of bounds cannot
    assert hash(simple) == hash(replace(simple, params={"slope": 1.0}))
    assert simple != replace(simple, params={"slope": 1.0})


@pytest.mark.parametrize(
    ("params", "spread", "said"),
    [
        ([1.0], {}, "`world_params` must be numbers by name, {'gravity': 9.8}, not [1.0]"),
        ({"a": "b"}, {}, "`world_params` must be numbers by name, {'gravity': 9.8}, not {'a': 'b'}"),
        ({"a": True}, {}, "`world_params` must be numbers by name, {'gravity': 9.8}, not {'a': True}"),
        ({"a": 1}, {"a": 2.0}, "`world_spread` must be (scale, low, high) by name, not {'a': 2.0}"),
    ],
)
def test_what_is_declared_otherwise_is_refused(params, spread, said):
    with pytest.raises(ShoalError) as caught:
        gym_recipe("test/Odd-v0", {"params": params, "spread": spread})
    assert str(caught.value) == f"test/Odd-v0: {said}"


def test_every_row_is_in_its_own_world_and_stays_there():
    env = gym_recipe("test/Hill-v0", {}).build(np.array([[1, 2, 3]], np.uint32), False)
    first, steps = play(env, columns([0.5, -2.0, 0.75], [1, 2, 3]), 4 * (LENGTH + 1))
    np.testing.assert_array_equal(first.obs[:, :2], [[0.5, 1], [-2.0, 2], [0.75, 3]])
    assert (~steps.valid).sum(0).tolist() == [4, 4, 4]  # resets nobody asked for
    np.testing.assert_array_equal(steps.obs[..., 0], np.tile([0.5, -2.0, 0.75], (16, 1)))
    np.testing.assert_array_equal(steps.obs[..., 1], np.tile([1, 2, 3], (16, 1)))


def test_a_world_arrives_in_the_numbers_it_was_declared_in():
    assert worlds_by_env({"a": np.float32([0.6, 13, -1e-3]), "b": np.float32([1 / 3, 0, 2])}) == [
        {"a": 0.6, "b": 0.33333334},
        {"a": 13.0, "b": 0.0},
        {"a": -0.001, "b": 2.0},
    ]
    assert worlds_by_env(()) == worlds_by_env(None) == []


def test_another_world_is_entered_from_the_same_start():
    env = gym_recipe("test/Hill-v0", {}).build(np.array([[1, 2]], np.uint32), False)
    first, steps = play(env, columns([1.0, 2.0]), 9)
    again, steps_again = play(env, columns([5.0, -5.0]), 9)
    np.testing.assert_array_equal(first.obs[:, 2], again.obs[:, 2])
    np.testing.assert_array_equal(steps.obs[..., 2], steps_again.obs[..., 2])
    assert again.obs[:, 0].tolist() == [5.0, -5.0]
    assert len(np.unique(steps.obs[..., 2])) == 6  # of three episodes in two rows


def test_learners_begin_in_their_own_worlds():
    algo = shoal.PPOConfig(num_envs=2, num_steps=8, num_minibatches=1)
    given = [{"slope": 2}, {"slope": -1}, {}]
    config = shoal.TrainConfig("test/Hill-v0", algo, steps=32, learners=3, env_params=given)
    obs = np.asarray(make_trainer(config).init().envs.step.obs)  # (L, E, 3)
    np.testing.assert_array_equal(obs[..., 0], np.float32([[2, 2], [-1, -1], [0.6, 0.6]]))


def test_learners_are_evaluated_in_the_worlds_they_visit():
    recipe = gym_recipe("test/Hill-v0", {})
    learner = shoal.ppo(shoal.PPOConfig(), recipe.spec, LearnerContext(1))
    cohort = made_up(learner, 2)
    own = parameters.read_worlds(recipe.spec, [{"slope": 2}, {"slope": -1}], [0, 1])
    fresh = parameters.read_worlds(recipe.spec, [{"slope": 4}, {"slope": 6}], [0, 1])
    places = assign_worlds([0, 1], own, 4, fresh, each=True)
    found = {
        (row.learner, row.world): row for row in evaluate_worlds(recipe, learner, cohort, [0, 1], places)
    }
    drawn, _ = play_episodes(recipe, learner, cohort, 4, params=jax.tree.map(np.zeros_like, places["own"]))
    mean = lambda name, world: found[name, world].return_mean
    for name in (0, 1):
        for world, slope in {
            "own": (2, -1)[name],
            "seen": 0.5,
            "unseen": 5,
            "world 0": 2,
            "world 1": -1,
        }.items():
            expected = LENGTH * slope + drawn[name].mean()
            assert mean(name, world) == pytest.approx(expected, abs=1e-5)
        assert found[name, "own"]._replace(world="") == found[name, f"world {name}"]._replace(world="")


def test_an_episode_is_watched_in_the_world_asked_for():
    recipe = gym_recipe("test/Hill-v0", {})
    learner = shoal.ppo(shoal.PPOConfig(), recipe.spec, LearnerContext(1))
    cohort = made_up(learner, 1)
    world = {"slope": np.float32(1), "colour": 42}
    frames = [step.picture for step in episode(recipe, learner, cohort, params=world, pictures=True)]
    assert len(frames) == LENGTH + 1
    assert all((frame == 42).all() for frame in frames)


@pytest.mark.slow
def test_the_command_line_trains_and_evaluates_in_drawn_worlds(tmp_path, capsys):
    run = str(tmp_path / "run")
    small = {"num-envs": 2, "num-steps": 8, "num-minibatches": 1, "update-epochs": 1, "steps": 16}
    flags = [f"--{name}={value}" for name, value in small.items()]
    worlds = ["--learners", "2", "--env-spread", "1"]
    assert main(["train", "test/Hill-v0", *worlds, *flags, "--out", run]) == 0
    capsys.readouterr()
    assert main(["eval", run, "--episodes", "2", "--each-world", "--json"]) == 0
    rows = {(row["learner"], row["world"]): row["return_mean"] for row in json.loads(capsys.readouterr().out)}
    assert rows[0, "own"] == rows[0, "world 0"] != rows[0, "world 1"]
    assert rows[1, "own"] == rows[1, "world 1"] != rows[1, "unseen"]


def test_mistakes_are_said_in_gymnasiums_terms():
    with pytest.raises(ShoalError, match=r"does not say how .* fill its `world_spread`, or give the worlds"):
        parameters.draw_worlds(gym_recipe("test/Unspread-v0", {}).spec, 1.0, [0], 1)
    with pytest.raises(ShoalError, match=r"^learner 0: no parameter 'slop'; test/Hill-v0 has slope, colour$"):
        parameters.read_worlds(gym_recipe("test/Hill-v0", {}).spec, [{"slop": 1}], [0])
    with pytest.raises(TypeError, match=r"^unexpected keyword 'slop': a world here has slope, colour$"):
        complete_world({"slop": 1}, Hill.world_params)


def test_ours_are_in_gymnasiums_registry_once():
    registry = import_gymnasium().registry
    before = {name: registry[name] for name in OURS}
    register_ours(gymnasium)
    assert {name: registry[name] for name in OURS} == before
    assert {(name, "gym") for name in OURS} <= set(shoal.envs.registry.list_environments("shoal/"))


def test_the_environment_in_the_documentation_works():
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "worlds-that-differ.md").read_text()
    *_, block = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(block.partition("for report")[0], "docs/how-to/worlds-that-differ.md", "exec"), {})
    recipe = gym_recipe("Sledge-v0", {})
    env = recipe.build(np.array([[1, 1]], np.uint32), False)
    params = parameters.read_worlds(recipe.spec, [{"mass": 1}, {"mass": 2}], [0, 1])
    state, first = env.reset(None, params)
    _, then = env.step(state, jnp.ones((2, 1)), ())
    del gymnasium.registry["Sledge-v0"]
    np.testing.assert_array_equal(first.obs[0], first.obs[1])
    np.testing.assert_allclose(then.obs[:, 1], [0.1, 0.05], rtol=1e-6)
