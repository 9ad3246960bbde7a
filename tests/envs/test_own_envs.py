"""Environments given as objects or by import path: a class, a factory, an instance, a `JaxEnv`."""

import sys
import types

import gymnasium
import numpy as np
import pytest

import shoal
from shoal.envs.adapters.host import EnvironmentCrashed, raise_crash
from shoal.envs.adapters.suite import UnknownOptions
from shoal.envs.classic import CARTPOLE
from shoal.envs.registry import env_name
from shoal.imports import import_path

SHORT = CARTPOLE._replace(render=None)


class Line(gymnasium.Env):
    """Its observation is its length."""

    observation_space = gymnasium.spaces.Box(-9, 9, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=1.0):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.float32([self.length]), {}

    def step(self, action):
        self.length += 1
        return np.float32([self.length]), 1.0, False, False, {}


class Held(Line):
    def __deepcopy__(self, memo):
        raise TypeError("a handle of C++")


def in_jax(limit=7):
    return CARTPOLE._replace(spec=shoal.make("CartPole-v1", max_episode_steps=limit).spec)


def first_obs(env, **options):
    built = shoal.make(env, **options).build(np.zeros((1, 2), np.uint32), False)
    return np.asarray(built.reset(None, ())[1].obs).ravel().tolist()


def test_a_class_a_factory_and_an_instance():
    assert first_obs(Line) == first_obs(lambda: Line()) == first_obs(f"{__name__}:Line") == [1.0, 1.0]
    assert first_obs(Line, length=3.0) == first_obs(Line(3.0)) == [3.0, 3.0]
    assert shoal.make(Line, max_episode_steps=5).spec.max_episode_steps == 5
    limited = shoal.make(lambda: gymnasium.wrappers.TimeLimit(Line(), 6))
    assert limited.spec.max_episode_steps == 6


def test_an_instance_stays_as_it_was():
    given = Line()
    env = shoal.make(given).build(np.zeros((1, 2), np.uint32), False)
    state, _ = env.reset(None, ())
    for _ in range(2):
        state, step = env.step(state, np.zeros(2, int), ())
    assert np.asarray(step.obs).ravel().tolist() == [3.0, 3.0]  # each has its own length
    assert given.length == 1.0


def test_jax_environments():
    for env in (SHORT, f"{__name__}:SHORT", lambda: SHORT, in_jax):
        assert shoal.make(env).spec.backend == "jax"
    assert shoal.make(in_jax).spec.max_episode_steps == 7
    assert shoal.make(in_jax, limit=8).spec.max_episode_steps == 8
    assert shoal.make(SHORT, max_episode_steps=9, frame_stack=2).spec.observation.shape == (8,)


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        (Held(), {}, r"Held\(\) cannot be copied, and several are needed: give its class or a factory"),
        (Line(), {"length": 2}, "made already and takes no length: give its class or a factory"),
        (SHORT, {"length": 2}, "made already"),
        (Line, {"width": 2}, "does not take these options"),
        (3, {}, "3 is no environment; give a JaxEnv, or a gymnasium.Env, its class or a function"),
        (list, {}, r"\[\] is no environment"),
        (f"{__name__}:np", {}, "module 'numpy' .* is no environment"),
        (f"{__name__}:Lien", {}, "unknown environment .*:Lien"),
        ("envpool:make", {}, "unknown environment"),
    ],
)
def test_what_is_no_environment_is_refused(env, options, message):
    with pytest.raises(shoal.ShoalError, match=message):
        shoal.make(env, **options)


def test_options_of_an_instance_are_unknown_ones():
    with pytest.raises(UnknownOptions):
        shoal.make(Line(), length=2)


def test_names_are_import_paths_where_there_is_one(monkeypatch):
    assert env_name("CartPole-v1") == "CartPole-v1"
    assert env_name(Line) == f"{__name__}:Line"
    assert env_name(Line()) == f"{__name__}:Line()"
    assert env_name(lambda: None).endswith("<lambda>")
    assert env_name(SHORT) == f"{__name__}:SHORT"
    assert env_name(CARTPOLE._replace(augment=abs)) == "CartPole-v1()"
    script, library = types.ModuleType("__main__"), types.ModuleType("library")
    script.ENV = library.WORLD = world = CARTPOLE._replace(augment=min)
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert import_path(world) == "__main__:ENV"
    monkeypatch.setitem(sys.modules, "library", library)
    assert import_path(world) == "library:WORLD"


class Wide(Line):
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}


def test_an_observation_of_the_wrong_shape_names_the_environment_and_both_shapes():
    first_obs(Wide)
    shapes = r"observation is float32 of shape \(2,\), but observation_space says float32 of shape \(1,\)"
    with pytest.raises(EnvironmentCrashed, match=f"^{__name__}:Wide: {shapes}$"):
        raise_crash()


def test_an_environment_without_pictures_says_so():
    env = shoal.make(Line).build(np.zeros((1, 1), np.uint32), True)
    with pytest.raises(shoal.ShoalError, match="has no pictures; it must support the render_mode rgb_array"):
        env.render(env.reset(None, ())[0], 0)
