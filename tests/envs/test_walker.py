"""BipedalWalker among obstacles: Gymnasium's own where there are none or all, and the worlds in between."""

import json
import pickle
from itertools import product
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

pytest.importorskip("Box2D")

import shoal
from shoal.envs.worlds import parameters
from shoal.envs.worlds.walker import KINDS, SPREAD, WORLD, BipedalObstacles, draw_mix, make_terrain

NAME = "shoal/BipedalObstacles-v0"
STEP = 14 / 30
FLAT = dict.fromkeys(KINDS, 0.0)
ALL = {kind: WORLD[kind] for kind in KINDS}
MIXES = [(0.7, 0.3, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0.4, 0, 0.6)]
"""Of stump, stairs and pit, in a published study."""


def terrains(mix, frequency=1.0, num=40):
    random = np.random.default_rng(0)
    return [make_terrain(random, mix, frequency) for _ in range(num)]


def counts(mix, frequency=1.0, num=40):
    """How often each kind comes in a terrain, on average."""
    found = [kind for terrain in terrains(mix, frequency, num) for kind, _ in terrain.obstacles]
    return {kind: found.count(kind) / num for kind in KINDS}


def episode(env, seed, num_steps=150):
    random = np.random.default_rng(seed)
    seen = [env.reset(seed=seed)[0]]
    for _ in range(num_steps):
        obs, reward, terminated, _, _ = env.step(random.uniform(-1, 1, 4).astype(np.float32))
        seen.append(np.append(obs, reward))
        if terminated:
            break
    return np.concatenate(seen)


def blocks(env):
    """Every block that stands whole on the terrain: width, height, and the ground below its top, in steps."""
    bodies = [body for body in env.unwrapped.terrain if len(body.fixtures[0].shape.vertices) > 2]
    found = []
    for corners in (np.array(body.fixtures[0].shape.vertices) for body in bodies):
        (left, _), (_, top) = corners.min(0), corners.max(0)
        width, height = np.round(np.ptp(corners, axis=0) / STEP).tolist()
        start = round(left / STEP)
        ground = np.array(env.unwrapped.terrain_y[start : start + int(width)])
        if len(ground) == width:
            found.append((width, height, *np.round((ground - top) / STEP, 2).tolist()))
    return found


@pytest.mark.parametrize("world", [{"grass": 1}, {}, {"frequency": 0, "pit": 1}])
def test_without_obstacles_it_is_bipedal_walker_step_for_step(world):
    world = FLAT | world
    for seed in range(3):
        ours, theirs = gymnasium.make(NAME, **world), gymnasium.make("BipedalWalker-v3")
        np.testing.assert_array_equal(episode(ours, seed), episode(theirs, seed))
        for _ in range(3):
            ours.reset(), theirs.reset()
            assert ours.unwrapped.terrain_y == theirs.unwrapped.terrain_y
            assert ours.unwrapped.terrain_poly == theirs.unwrapped.terrain_poly
        assert ours.unwrapped.obstacles == []
        assert blocks(ours) == []


def test_with_all_alike_it_is_like_hardcore():
    ours, theirs = gymnasium.make(NAME), gymnasium.make("BipedalWalkerHardcore-v3")
    found, slopes = ([], []), ([], [])
    for env, stands, steep in zip((ours, theirs), found, slopes, strict=True):
        for seed in range(80):
            env.reset(seed=seed)
            stands.append(blocks(env))
            steep.append(np.abs(np.diff(env.unwrapped.terrain_y)).mean())
    kinds = [{block for episode in episodes for block in episode} for episodes in found]
    assert kinds[0] == kinds[1]
    assert len(kinds[0]) == 8
    for kind in kinds[0]:
        mine, other = (np.array([episode.count(kind) for episode in episodes]) for episodes in found)
        assert abs(mine.mean() - other.mean()) < 4 * np.hypot(mine.std(), other.std()) / 80**0.5
    assert np.mean(slopes[0]) == pytest.approx(np.mean(slopes[1]), rel=0.05)


@pytest.mark.parametrize("weights", list(product((0, 0.2), repeat=3)))
def test_a_kind_comes_if_and_only_if_it_has_weight(weights):
    mix = FLAT | dict(zip(KINDS, weights, strict=False))
    assert {kind for kind, often in counts(mix).items() if often} == {k for k in KINDS if mix[k]}


def test_weights_are_shares():
    found = counts(FLAT | {"stump": 0.7, "stairs": 0.3}, num=300)
    assert found["stump"] / (found["stump"] + found["stairs"]) == pytest.approx(0.7, abs=0.02)
    alike = [counts({kind: scale * weight for kind, weight in ALL.items()}) for scale in (1, 10)]
    assert alike[0] == alike[1]
    # Half of the draws are grass. Stumps are 1.5 steps long, so n of them leave 180 - 1.5 n for grass.
    stumps = counts(FLAT | {"stump": 1, "grass": 1}, num=300)["stump"]
    assert stumps == pytest.approx((180 - 1.5 * stumps) / (2 * 7), rel=0.05)


@pytest.mark.parametrize("mix", [FLAT | {"stump": 1}, FLAT | {"pit": 1}, FLAT | {"stairs": 1}, ALL])
def test_a_higher_frequency_has_more_obstacles(mix):
    found = [sum(counts(mix, frequency).values()) for frequency in (0, 0.05, 0.25, 0.5, 1, 2, 4, 20)]
    assert found[0] == 0
    assert all(np.diff(found) > 0)


def test_obstacles_are_as_large_as_gymnasiums():
    """In steps: the ground from where it begins, and the blocks (left, bottom, right, top) on it."""
    for kind in ("stump", "pit", "stairs"):
        for terrain in terrains(FLAT | {kind: 1}, 0.02):
            ((_, start),) = terrain.obstacles  # the first, and then grass to the end
            y = terrain.heights[start - 1]
            blocks = np.round((np.array(terrain.blocks) - [start * STEP, y] * 2) / STEP, 6).tolist()
            ground = np.round((np.array(terrain.heights[start : start + 17]) - y) / STEP, 6).tolist()
            check_shape(kind, blocks, ground)


def check_shape(kind, blocks, ground):
    match kind:
        case "stump":
            assert blocks in ([[0, 0, 1, 1]], [[0, 0, 2, 2]])
            assert ground[:2] == [0, 0]
        case "pit":
            far = int(blocks[1][0])
            assert far in (3, 4)
            assert blocks == [[0, -4, 1, 0], [far, -4, far + 1, 0]]
            assert ground[: far + 3] == [0, *[-4] * far, 0, 0]
        case "stairs":
            num, way = len(blocks), np.sign(blocks[1][3])
            assert num in (3, 4)
            assert blocks == [[4 * i, way * i - 1, 4 * i + 4, way * i] for i in range(num)]
            ramp = [way * (step - way) / 4 for step in range(1, 4 * num)]
            assert ground[: 4 * num + 1] == [0, *ramp, ramp[-1]]


def test_the_start_is_free():
    for terrain in terrains(ALL, 20.0):
        assert len(terrain.heights) == 200
        assert terrain.heights[:20] == [terrain.heights[0]] * 20
        assert min(start for _, start in terrain.obstacles) == 20


def test_a_seed_repeats_its_episode_whatever_came_before():
    used = gymnasium.make(NAME, frequency=2)
    for seed in range(4):
        fresh = episode(gymnasium.make(NAME, frequency=2), seed)
        np.testing.assert_array_equal(episode(used, seed), fresh)
        obstacles = used.unwrapped.obstacles
        np.testing.assert_array_equal(episode(used, seed), fresh)
        assert used.unwrapped.obstacles == obstacles
        used.reset()
        assert used.unwrapped.obstacles != obstacles


def mixes(env, num, **first):
    """The mix of each of `num` episodes."""
    found = []
    for index in range(num):
        env.reset(**first if index == 0 else {})
        found.append(tuple(env.unwrapped.mix.values()))
    return found


def test_the_mix_changes_after_so_many_episodes_and_not_between():
    found = mixes(gymnasium.make(NAME, change_every=3), 9, seed=1)
    assert found[:3] == [(1, 1, 1, 0)] * 3
    assert found[3:6] == [found[3]] * 3
    assert found[6:] == [found[6]] * 3
    assert len(set(found)) == 3
    for mix in (found[3], found[6]):
        assert sum(mix) == pytest.approx(1)
        assert mix[3] == 0
    assert len(set(mixes(gymnasium.make(NAME), 9, seed=1))) == 1


def test_a_seed_or_another_world_begins_the_changes_anew():
    env = gymnasium.make(NAME, change_every=2)
    found = mixes(env, 5, seed=1)
    assert mixes(env, 5, seed=1) == found
    world = {"change_every": 2}  # the one it is in
    assert mixes(env, 1, options={"world": world}) == [found[4]]
    env.reset(options={"world": world})
    assert tuple(env.unwrapped.mix.values()) not in found
    assert mixes(env, 3, options={"world": world | {"pit": 0}})[:2] == [(1, 1, 0, 0)] * 2


def test_a_changed_mix_is_a_draw_from_the_weights():
    random = np.random.default_rng(0)
    drawn = [draw_mix(random, FLAT | {"stump": 6, "pit": 2}) for _ in range(2000)]
    stumps = np.array([mix["stump"] for mix in drawn])
    assert all(mix["stairs"] == mix["grass"] == 0 for mix in drawn)
    assert stumps.mean() == pytest.approx(6 / 8, abs=0.01)
    assert stumps.var() == pytest.approx(6 * 2 / 8**2 / 9, rel=0.1)
    assert draw_mix(random, FLAT) == FLAT


def test_a_world_lasts_until_another_is_told():
    env = gymnasium.make(NAME, pit=0)
    kinds = lambda: {kind for kind, _ in env.unwrapped.obstacles}
    env.reset(seed=1, options={"world": {"stairs": 0, "frequency": 3}})
    assert kinds() == {"stump"}
    env.reset()
    assert kinds() == {"stump"}
    env.reset(options={"world": {"pit": 1, "stump": 0, "stairs": 0}})
    assert kinds() == {"pit"}
    env.reset(options={"world": {}})
    assert env.unwrapped.current == WORLD | {"pit": 0}


def test_worlds_that_cannot_be():
    with pytest.raises(ValueError, match=r"^stump must be a finite number of at least 0, not -1"):
        BipedalObstacles(stump=-1)
    env = BipedalObstacles()
    with pytest.raises(ValueError, match=r"^change_every must be a whole number of episodes, not 1.5"):
        env.reset(options={"world": {"change_every": 1.5}})
    with pytest.raises(ValueError, match=r"^frequency must be a finite number of at least 0, not inf"):
        env.reset(options={"world": {"frequency": np.inf}})


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_gymnasium_finds_nothing_wrong():
    env, theirs = gymnasium.make(NAME, change_every=1), gymnasium.make("BipedalWalker-v3")
    assert env.observation_space == theirs.observation_space
    assert env.action_space == theirs.action_space
    assert env.spec.max_episode_steps == 1600
    check_env(env.unwrapped, skip_render_check=True)
    copy = pickle.loads(pickle.dumps(BipedalObstacles(pit=0.5)))
    assert copy.world_params["pit"] == 0.5


@pytest.mark.filterwarnings("ignore:pkg_resources is deprecated:UserWarning")
def test_obstacles_are_in_the_picture():
    grey = {}
    for kind in KINDS:
        env = gymnasium.make(NAME, render_mode="rgb_array", frequency=4, **FLAT | {kind: 1})
        env.reset(seed=1)
        picture = env.render()
        assert picture.shape == (400, 600, 3)
        grey[kind] = (picture == 153).all(-1).sum()
    assert grey.pop("grass") == 0
    assert min(grey.values()) > 20


def test_a_learner_finds_its_parameters():
    spec = shoal.make(NAME).spec
    assert (spec.params, spec.spread, spec.max_episode_steps) == (WORLD, SPREAD, 1600)
    path = Path(__file__).parents[2] / "examples" / "worlds" / "walker.json"
    given = parameters.read_worlds(spec, json.loads(path.read_text()), range(5))
    np.testing.assert_allclose(np.transpose([given[kind] for kind in KINDS[:3]]), MIXES, rtol=1e-6)
    assert set(given["grass"]) == set(given["change_every"]) == {0}
