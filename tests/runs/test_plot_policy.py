"""Portraits: maps that are the networks' own numbers, and figures of every kind of learner."""

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

import shoal
from shoal.cli.main import main
from shoal.envs.classic import BUILTIN
from shoal.envs.classic.views import VIEWS
from shoal.ops import trees
from shoal.runs import checkpoint
from shoal.runs.config import from_settings, read_settings, write_config
from shoal.runs.learners import choose_learners, load_learners
from shoal.runs.plots.policy import CELLS, evaluate_plane, find_view, make_judge, plot_policy
from shoal.runs.presets import preset
from shoal.runs.session import open_session, run_session
from shoal.training.episode import episode, trajectory
from shoal.training.parts import make_learner
from shoal.types import Box, Discrete

CONFIGS = sorted((Path(__file__).parent.parent.parent / "examples" / "configs").glob("*.yaml"))


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory) -> Path:
    """A run of two learners and two updates."""
    folder = tmp_path_factory.mktemp("runs") / "pendulum"
    small = {"num_envs": 2, "num_steps": 16, "num_minibatches": 1, "hidden": [8], "steps": 64}
    session = open_session(preset("Pendulum-v1", learners=2, norm_reward=True, **small), folder)
    assert not isinstance(session, int)
    for _ in run_session(session):
        pass
    return folder


def untrained(folder: Path, env: str, **settings) -> Path:
    """A checkpoint of a learner that has seen nothing, for which nothing but its `init` is compiled."""
    config = preset(env, hidden=[8], env_options={"max_episode_steps": 20}, **settings)
    learner = make_learner(config, shoal.make(env).spec)
    cohort = jax.jit(jax.vmap(learner.init))(jax.random.split(jax.random.key(0), 1))
    meta = {"iteration": 0, "score": None, "scores": [None]}
    checkpoint.save(folder / "checkpoints", 0, {"cohort": cohort}, meta)
    write_config(folder / "config.yaml", config)
    return folder


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_fits_its_environment(name):
    """What `observe` makes is an observation, and `locate` finds the point it was made of."""
    view, spec = VIEWS[name], BUILTIN[name].spec
    assert find_view(spec) is view
    assert len(view.choices) == (spec.action.num if isinstance(spec.action, Discrete) else 0)
    points = np.random.default_rng(0).uniform(*zip(*(axis[1:3] for axis in view.axes), strict=True), (9, 2))
    for x, y in points:
        obs = np.array(view.observe(x, y), np.float32)
        assert isinstance(spec.observation, Box)
        assert np.all((obs >= spec.observation.low) & (obs <= spec.observation.high))
        np.testing.assert_allclose(view.locate(*obs), (x, y), rtol=1e-5)


def test_an_environment_with_other_observations_has_no_view():
    spec = BUILTIN["Pendulum-v1"].spec
    assert find_view(replace(spec, observation=Box((4,)))) is None
    assert find_view(replace(spec, name="Another-v0")) is None


def test_maps_are_what_the_networks_say(pendulum):
    opened = load_learners(pendulum)
    state = trees.take(choose_learners(opened, "best")[1], 0)
    maps = evaluate_plane(VIEWS["Pendulum-v1"], opened.recipe.spec, make_judge(opened.learner, state))
    scale = np.sqrt(state.statistics.returns.m2 / state.statistics.returns.count)
    for row, column in ((0, 0), (CELLS - 1, 3), (CELLS // 2, 40)):
        angle, speed = np.linspace(-np.pi, np.pi, CELLS)[column], np.linspace(-8, 8, CELLS)[row]
        outputs, value = state.params(np.float32([np.cos(angle), np.sin(angle), speed]))
        np.testing.assert_allclose(maps.action[row, column], np.clip(outputs[0], -2, 2), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(maps.value[row, column], value * scale, rtol=1e-4, atol=1e-5)


def test_td3_expects_what_its_first_critic_says():
    spec = shoal.make("Pendulum-v1").spec
    learner = shoal.td3(shoal.TD3Config(hidden=(8,), buffer_size=10), spec)
    state, obs = learner.init(jax.random.key(0)), np.float32([[1, 0, 0.5], [0, 1, -3]])
    action, _ = learner.act(learner.for_evaluation(state, 2), obs, np.zeros((2, 1)))
    assert learner.value is not None
    np.testing.assert_allclose(learner.value(state, obs), state.params.critic[0](obs, action / 2), rtol=1e-5)


def test_the_trajectory_is_the_episode_that_is_played(pendulum):
    opened = load_learners(pendulum)
    cohort = choose_learners(opened, "best")[1]
    play = partial(episode, opened.recipe, opened.learner, cohort, seed=5, max_steps=20)
    played = trajectory(play())
    assert played.obs.shape == (21, 3)
    assert played.action.shape == (20, 1)
    rewards = [step.reward for step in play(pictures=True)]
    np.testing.assert_array_equal(played.reward, rewards[1:])
    cos, _, speed = played.obs[0]
    cost = np.arccos(cos) ** 2 + 0.1 * speed**2 + 0.001 * np.clip(played.action[0, 0], -2, 2) ** 2
    np.testing.assert_allclose(played.reward[0], -cost, rtol=1e-4)


def assert_drawn(paths: list[Path], *names: str) -> None:
    assert [path.name for path in paths] == list(names)
    for path in paths:
        with Image.open(path) as picture:
            assert len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) > 50


@pytest.mark.parametrize(("env", "algo"), [("Pendulum-v1", "td3"), ("CartPole-v1", "dqn")])
@pytest.mark.slow
def test_figures_of_every_kind_of_learner(tmp_path, env, algo):
    run = untrained(tmp_path / "run", env, algo=algo)
    assert_drawn(plot_policy(run, tmp_path / "out"), "trajectory.png", "state_space.png")


@pytest.mark.slow
def test_of_a_learner_with_memory_there_is_the_episode_alone(tmp_path):
    run = untrained(tmp_path / "run", "CartPole-v1", memory="lstm", memory_size=4)
    assert_drawn(plot_policy(run, tmp_path / "out"), "trajectory.png")


def test_plot_draws_the_best_learner_unless_told_not_to(pendulum, tmp_path, capsys):
    assert main(["plot", str(pendulum), "--out", str(tmp_path), "--no-episode"]) == 0
    without = capsys.readouterr().out.splitlines()
    assert main(["plot", str(pendulum), "--out", str(tmp_path)]) == 0
    paths = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert_drawn(paths[len(without) :], "trajectory.png", "state_space.png")


def test_an_environment_without_a_view_has_its_trajectory_alone(tmp_path):
    shoal.register("Viewless-v0", BUILTIN["MountainCar-v0"])
    run = untrained(tmp_path / "run", "Viewless-v0")
    assert_drawn(plot_policy(run, tmp_path / "out"), "trajectory.png")


def test_nothing_is_drawn_of_what_is_not_there(tmp_path, pendulum):
    assert plot_policy(tmp_path, tmp_path / "out") == []
    (tmp_path / "config.yaml").write_text((pendulum / "config.yaml").read_text())
    with warnings.catch_warnings(action="error"):
        assert plot_policy(tmp_path, tmp_path / "out") == []
    settings = (pendulum / "config.yaml").read_text().replace("Pendulum-v1", "nowhere:Pendulum-v1")
    (tmp_path / "config.yaml").write_text(settings)
    with pytest.warns(
        RuntimeWarning,
        match=r"no episode of .* is plotted: .* would import nowhere \(env nowhere:Pendulum-v1\)",
    ):
        assert plot_policy(tmp_path, tmp_path / "out") == []


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_example_configs_are_whole(path):
    config = from_settings(read_settings(path))
    config.check()
    assert config.algo.num_envs % 8 == 0
    assert f"shoal train --config examples/configs/{path.name}" in path.read_text()


def test_there_are_example_configs():
    assert {"pendulum_dense", "pendulum_sparse"} <= {path.stem for path in CONFIGS}
