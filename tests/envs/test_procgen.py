"""Procgen: which levels are shown in training, which never, and how a run is evaluated on either."""

import json
import warnings

import numpy as np
import pytest

from shoal import ShoalError
from shoal.cli.main import main
from shoal.envs.adapters.envpool import envpool_recipe, import_envpool, option_names
from shoal.envs.levels import NUM_LEVELS, has_levels, level_options
from shoal.envs.registry import make
from shoal.runs.evaluation import choose_levels
from shoal.runs.learners import load_learners
from shoal.training.config import TrainConfig

GAME = "BigfishEasy-v0"
SEEDS = np.arange(16)[None]
SIZES = ["--num-envs", "2", "--num-steps", "8", "--num-minibatches", "2", "--update-epochs", "1"]
SMALL = ["--network", "mlp", "--hidden", "4", "--grad-accumulation", "2", *SIZES]
LEVELS = ["--env-options", "num_levels=1", "start_level=7"]


@pytest.fixture(scope="module", autouse=True)
def _with_qt():
    pytest.importorskip("envpool")
    try:
        make(GAME)
    except ShoalError as error:
        pytest.skip(str(error))


def shoal(*arguments) -> int:
    return main([str(argument) for argument in arguments])


def undisturbed(patch):
    patch.setattr("warnings.showwarning", warnings.showwarning)


@pytest.fixture(autouse=True)
def _with_the_tests_own_cache(monkeypatch):
    undisturbed(monkeypatch)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One learner that sees one level."""
    folder = tmp_path_factory.mktemp("procgen")
    with pytest.MonkeyPatch.context() as patch:
        undisturbed(patch)
        assert shoal("train", GAME, *SMALL, *LEVELS, "--steps", 16, "--out", folder) == 0
    return folder


def shown(recipe) -> np.ndarray:
    """The first frames of sixteen environments."""
    return np.asarray(recipe.build(SEEDS, False).reset(None, None)[1].obs)


def first_frames(options) -> np.ndarray:
    return shown(make(GAME, **options))


def level_numbers(options) -> np.ndarray:
    """Which levels sixteen environments begin with, as EnvPool tells them."""
    pool = import_envpool().make_gymnasium(GAME, num_envs=16, env_seed=SEEDS[0].tolist(), **options)
    return pool.reset()[1]["level_seed"]


def test_one_level_always_begins_alike_and_unseen_levels_all_differ_from_it():
    options = {"num_levels": 1, "start_level": 7}
    _, seen = level_options(GAME, options, "seen")
    _, unseen = level_options(GAME, options, "unseen")
    frames = first_frames(seen)
    assert (frames == frames[0]).all()
    others = first_frames(unseen)
    assert not (others == frames[0]).all((1, 2, 3)).any()
    assert len(np.unique(others.reshape(16, -1), axis=0)) == 16


@pytest.mark.parametrize("start", [0, 3, NUM_LEVELS - 400])
def test_seen_and_unseen_levels_meet_nowhere(start):
    options = {"num_levels": 200, "start_level": start}
    seen = level_numbers(level_options(GAME, options, "seen")[1])
    unseen = level_numbers(level_options(GAME, options, "unseen")[1])
    assert (seen >= start).all()
    assert (seen < start + 200).all()
    assert (unseen >= start + 200).all()


def test_the_lowest_unseen_level_comes_right_after_the_seen_ones_and_the_highest_is_the_last():
    _, unseen = level_options(GAME, {"num_levels": 200, "start_level": 5}, "unseen")
    assert unseen == {"start_level": 205, "num_levels": NUM_LEVELS - 205}


def test_num_levels_of_0_is_every_level_whatever_start_level_says():
    everything = level_numbers({"num_levels": 0, "start_level": 0})
    assert everything.tolist() == level_numbers({"num_levels": 0, "start_level": NUM_LEVELS}).tolist()
    options = {"num_levels": 200, "start_level": 5}
    assert everything.tolist() == level_numbers(level_options(GAME, options, "all")[1]).tolist()
    assert level_options(GAME, {}, "seen")[0] == "all levels"


@pytest.mark.parametrize(
    "options", [{}, {"num_levels": 0, "start_level": 3}, {"num_levels": 9, "start_level": NUM_LEVELS - 9}]
)
def test_where_training_shows_all_levels_none_is_unseen(options):
    with pytest.raises(ShoalError, match=r"^BigfishEasy-v0: all levels are seen"):
        level_options(GAME, options, "unseen")


def test_sequential_levels_go_beyond_those_asked_for():
    options = {"num_levels": 1, "start_level": 0, "use_sequential_levels": True}
    with pytest.raises(ShoalError, match="use_sequential_levels"):
        level_options(GAME, options, "unseen")


def test_who_has_levels():
    assert has_levels(GAME, {})
    assert has_levels(f"envpool:{GAME}", {})
    assert has_levels("gym:Mine-v0", {"num_levels": 3, "start_level": 0})
    assert not has_levels("Breakout-v5", {})
    assert not has_levels("Mine-v0", {"num_levels": 3})


def test_the_options_of_a_pool_leave_out_what_the_cohort_decides():
    names = option_names(GAME)
    assert {"num_levels", "start_level", "distribution_mode", "max_episode_steps"} <= names
    assert not names & {"num_envs", "seed", "env_seed", "render_mode"}
    assert option_names("gym:CartPole-v1") == set()


def test_the_distribution_in_the_id_is_the_option():
    hard = {"num_levels": 1, "start_level": 0, "distribution_mode": 1}
    from_id = shown(make("BigfishHard-v0", num_levels=1, start_level=0))
    np.testing.assert_array_equal(first_frames(hard), from_id)
    assert (first_frames(hard | {"distribution_mode": 0}) != from_id).any()


def test_a_mode_by_name_is_its_number():
    by_name = shown(make("bigfish", num_levels=1, start_level=0, distribution_mode="easy"))
    np.testing.assert_array_equal(by_name, first_frames({"num_levels": 1, "start_level": 0}))
    assert make("bigfish").spec.name == "BigfishHard-v0"


def test_an_option_of_the_wrong_type_is_named():
    with pytest.raises(ShoalError, match=r"^BigfishEasy-v0: the option distribution_mode is of type int, "):
        envpool_recipe(GAME, {"num_levels": 3, "distribution_mode": "easy"})


@pytest.mark.parametrize(
    ("flags", "world"),
    [((), "seen levels"), (("--levels", "unseen"), "unseen levels"), (("--levels", "all"), "all levels")],
)
def test_the_table_says_which_levels(run, flags, world, capsys):
    assert shoal("eval", run, "--episodes", 4, "--json", *flags) == 0
    assert [row["world"] for row in json.loads(capsys.readouterr().out)] == [world]


def test_a_run_is_evaluated_on_the_levels_asked_for(run):
    opened = load_learners(run)
    frames = {
        which: shown(choose_levels(opened, which)[0].recipe) for which in (None, "seen", "unseen", "all")
    }
    trained = first_frames({"num_levels": 1, "start_level": 7})[0]
    alike = {which: (pictures == trained).all((1, 2, 3)).mean() for which, pictures in frames.items()}
    assert alike == {None: 1, "seen": 1, "unseen": 0, "all": 0}


def test_levels_where_there_are_none_are_refused_in_one_line(run):
    opened = load_learners(run)._replace(config=TrainConfig("CartPole-v1"))
    with pytest.raises(ShoalError, match=r"^CartPole-v1 has no levels .*$"):
        choose_levels(opened, "seen")
    assert choose_levels(opened, None) == (opened, "default")


def test_a_run_is_drawn(run, tmp_path):
    assert shoal("play", run, "--gif", tmp_path / "fish.gif", "--steps", 3) == 0
    assert (tmp_path / "fish.gif").stat().st_size > 1000
