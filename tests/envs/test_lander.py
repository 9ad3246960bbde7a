"""LunarLander in worlds that differ: Gymnasium's own by default, and what each parameter does."""

import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

pytest.importorskip("Box2D")

from gymnasium.envs.box2d import lunar_lander

import shoal
from shoal.envs.worlds.lander import ENGINES, SPREAD, WORLD, LunarLanderWorlds

NAME = "shoal/LunarLanderWorlds-v0"
MAIN, RIGHT = np.array([1.0, 0.0]), np.array([-1.0, 1.0])


def episode(env, seed, **options):
    env.action_space.seed(seed)
    seen = [env.reset(seed=seed, **options)[0]]
    for _ in range(300):
        obs, reward, terminated, _, _ = env.step(env.action_space.sample())
        seen.append(np.append(obs, reward))
        if terminated:
            break
    return np.concatenate(seen)


@pytest.mark.parametrize("continuous", [True, False])
def test_by_default_it_is_gymnasiums_step_for_step(continuous):
    ours = gymnasium.make(NAME, continuous=continuous)
    theirs = gymnasium.make("LunarLander-v3", continuous=continuous)
    assert ours.action_space == theirs.action_space
    assert ours.observation_space == theirs.observation_space
    assert ours.spec.max_episode_steps == theirs.spec.max_episode_steps
    for seed in range(5):
        np.testing.assert_array_equal(episode(ours, seed), episode(theirs, seed))


def test_gravity_and_wind_are_gymnasiums():
    ours = gymnasium.make(NAME, gravity=-6, wind_power=12, turbulence_power=1)
    theirs = gymnasium.make(
        "LunarLander-v3", continuous=True, gravity=-6.0, enable_wind=True, wind_power=12, turbulence_power=1
    )
    for seed in range(3):
        np.testing.assert_array_equal(episode(ours, seed), episode(theirs, seed))
    assert (episode(gymnasium.make(NAME, gravity=-6), 0)[:100] != episode(theirs, 0)[:100]).any()


def flown(action, num_steps=15, **world):
    """Height, sideways speed and angular velocity after the same action over and over."""
    env = LunarLanderWorlds(**world)
    env.reset(seed=3)
    for _ in range(num_steps):
        obs, *_ = env.step(action)
    return obs[1], obs[2], obs[5]


def test_a_stronger_main_engine_lifts_more_and_gravity_pulls():
    heights = [flown(MAIN, main_engine_power=power)[0] for power in (10, 13, 16)]
    assert all(np.diff(heights) > 0)
    falls = [flown(np.zeros(2), gravity=gravity)[0] for gravity in (-11, -10, -5)]
    assert all(np.diff(falls) > 0)
    assert flown(np.zeros(2), main_engine_power=16) == flown(np.zeros(2)), (
        "an engine that is off does nothing"
    )


@pytest.mark.parametrize(
    ("name", "values"), [("side_engine_power", (0.3, 0.6, 0.9)), ("side_engine_away", (6, 12, 18))]
)
def test_a_stronger_side_engine_pushes_and_turns_more(name, values):
    flights = np.abs([flown(RIGHT, **{name: value}) for value in values])
    assert all(np.diff(flights[:, 1]) > 0)
    assert all(np.diff(flights[:, 2]) > 0)


def test_a_higher_side_engine_turns_more():
    turns = np.abs([flown(RIGHT, side_engine_height=height)[2] for height in (8, 14, 20)])
    assert all(np.diff(turns) > 0)


def test_worlds_in_one_process_do_not_see_each_other():
    before = {name: vars(lunar_lander)[name] for name in ENGINES.values()}
    strong, weak = LunarLanderWorlds(main_engine_power=16), LunarLanderWorlds(main_engine_power=10)
    alone = [flown(MAIN, main_engine_power=power)[0] for power in (16, 10)]
    strong.reset(seed=3), weak.reset(seed=3)
    for _ in range(15):
        together = [env.step(MAIN)[0][1] for env in (strong, weak)]
    assert together == alone
    assert {name: vars(lunar_lander)[name] for name in ENGINES.values()} == before


def test_a_world_lasts_until_another_is_told():
    env = LunarLanderWorlds(gravity=-9)
    weak = {"world": {"main_engine_power": 11, "wind_power": 3}}
    told = episode(env, 4, options=weak)
    np.testing.assert_array_equal(episode(env, 4), told)
    assert env.current == WORLD | {"gravity": -9, "main_engine_power": 11, "wind_power": 3}
    assert env.enable_wind
    assert (episode(env, 4, options={"world": {}})[:100] != told[:100]).any()
    assert env.current == WORLD | {"gravity": -9}
    assert not env.enable_wind


def test_gravity_stays_where_gymnasium_wants_it():
    with pytest.raises(ValueError, match=r"^gravity must be between -12 and 0, not 1.0$"):
        LunarLanderWorlds().reset(options={"world": {"gravity": 1}})


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_gymnasium_finds_nothing_wrong():
    check_env(gymnasium.make(NAME).unwrapped, skip_render_check=True)
    assert pickle.loads(pickle.dumps(LunarLanderWorlds(gravity=-7))).world_params["gravity"] == -7


@pytest.mark.filterwarnings("ignore:pkg_resources is deprecated:UserWarning")
def test_it_is_drawn():
    env = LunarLanderWorlds(render_mode="rgb_array", main_engine_power=15)
    env.reset(seed=1)
    before = env.render()
    env.step(MAIN)
    assert before.shape == (400, 600, 3)
    assert (env.render() != before).any()


def test_a_learner_finds_its_parameters():
    spec = shoal.make(NAME).spec
    assert (spec.params, spec.spread) == (WORLD, SPREAD)
    assert spec.action.shape == (2,)
    assert shoal.make(NAME, continuous=False).spec.action.num == 4
