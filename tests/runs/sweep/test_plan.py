"""Plans of sweeps: axes, trials, programs, and what cannot be."""

import numpy as np
import pytest

from shoal import PPOConfig, ShoalError, TrainConfig, preset
from shoal.exchanges.exploration import PRIORS
from shoal.runs.sweep.axes import Values, draw_trials, read_axes, read_grid
from shoal.runs.sweep.importance import explained, importance
from shoal.runs.sweep.plan import Plan, fitting, together
from shoal.runs.sweep.sweep import default_folder, make_plan
from shoal.runs.sweep.table import Place, Row, best_first, read_trials, write_trials

BASE = TrainConfig("CartPole-v1", PPOConfig(num_envs=2, num_steps=16, num_minibatches=1), steps=320)


def grid(*texts, base=BASE, **how):
    return make_plan(base, read_grid(texts), None, None, (), **how)


def test_hyperparameters_are_rows_of_one_program_and_static_settings_are_programs():
    plan = grid("learning_rate=1e-3,1e-2", "num_steps=16,32", "gamma=0.9,0.99", seeds=3)
    assert [len(group.trials) for group in plan.groups] == [4, 4]
    assert [group.config.algo.num_steps for group in plan.groups] == [16, 32]
    assert plan.describe() == "8 settings x 3 seeds = 24 learners in 2 programs, 320 steps each"


def test_a_value_that_switches_something_on_is_another_program():
    plan = grid("kl.limit=none,0.1,0.2", seeds=1)
    limits = [[trial.values["kl.limit"] for trial in group.trials] for group in plan.groups]
    assert limits == [[None], [0.1, 0.2]]


def test_a_schedule_with_an_end_of_its_own_is_another_program():
    to_zero = TrainConfig("CartPole-v1", PPOConfig(anneal_lr=True))
    to_a_rate = TrainConfig(
        "CartPole-v1", PPOConfig(anneal_lr=False, schedules=("learning_rate=linear(1e-4)",))
    )
    groups = lambda base: len(grid("learning_rate=1e-3,1e-2", base=base).groups)
    assert (groups(to_zero), groups(to_a_rate)) == (1, 2)


def test_seeds_are_paired_and_rows_have_their_own_values():
    plan = grid("learning_rate=1e-3,1e-2", "gamma=0.9,0.99", seeds=2)
    (group,) = plan.groups
    config = together(group, list(group.trials), 2)
    assert config.members == [0, 1] * 4
    assert config.learner_hypers == {
        "learning_rate": [1e-3] * 4 + [1e-2] * 4,
        "gamma": [0.9, 0.9, 0.99, 0.99] * 2,
    }
    assert config.evolving == ("learning_rate", "gamma")


def test_programs_of_a_batch_are_equally_large():
    plan = grid("gamma=0.9,0.91,0.92,0.93,0.94", seeds=2, batch=6)
    assert plan.size(plan.groups[0]) == 3  # 3 + 2, not 3 + 1 + 1
    assert "in 2 programs" in plan.describe()


def test_as_many_learners_as_fit_are_a_program_unless_a_batch_is_given():
    assert fitting(BASE) == 1024
    pixels = preset("CartPole-v1", algo="dqn", buffer_size=10_000_000)
    assert 1 <= fitting(pixels) < 4


def test_random_values_are_within_their_priors_and_the_same_again():
    axes = read_axes("ppo", {"num_steps": [16, 32]}, ["learning_rate", "update_epochs=choice 1 2"])
    trials = draw_trials(axes, 50, seed=3, algo="ppo")
    assert trials == draw_trials(axes, 50, seed=3, algo="ppo")
    rates = np.array([trial["learning_rate"] for trial in trials])
    assert (
        PRIORS["learning_rate"].low <= rates.min() < 1e-4 < 1e-3 < rates.max() <= PRIORS["learning_rate"].high
    )
    assert {trial["num_steps"] for trial in trials} == {16, 32}
    assert {trial["update_epochs"] for trial in trials} == {1, 2}


def test_short_names_and_lists_are_settings():
    axes = read_axes("ppo", read_grid(["kl_coef=0.1,0.2", "hidden=64-64,8"]), [])
    assert axes == {"kl.coef": Values((0.1, 0.2)), "hidden": Values(((64, 64), (8,)))}


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        (["learning_rat=1"], "did you mean learning_rate"),
        (["learning_rate=fast"], "must be a number"),
        (["learning_rate=-1"], "must be a number above 0"),
        (["learning_rate"], "NAME=VALUE"),
        (["gamma=0.9", "gamma=0.8"], "twice"),
        (["seed=1,2"], "--seeds N"),
        (["exchange=average"], "cannot vary exchange"),
        (["num_minibatches=3"], "does not divide"),
        ([], "nothing varies"),
    ],
)
def test_bad_grids_are_refused(texts, complaint):
    with pytest.raises(ShoalError, match=complaint):
        grid(*texts, seeds=1).describe()


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ({"random": 2, "tpe": 2, "priors": ["gamma"]}, "two ways"),
        (
            {"random": 0, "tpe": None, "priors": ["gamma"]},
            "random must be a whole number from 1 to 10,000",
        ),
        ({"random": None, "tpe": None, "priors": ["gamma"]}, "--random N"),
        ({"random": None, "tpe": 4, "priors": ["num_steps=choice 16 32"]}, "a program for each value"),
        ({"random": None, "tpe": 4, "priors": ["gamma"], "halving": True}, "whole trials"),
        ({"random": 4, "tpe": None, "priors": ["gamma"], "batch": 3}, "no room for 4 seeds"),
        (
            {"random": 2, "tpe": None, "priors": ["update_epochs"]},
            "give one, e.g. update_epochs=choice 1 2 4$",
        ),
        (
            {"random": 2, "tpe": None, "priors": ["update_epochs=log 1 8"]},
            "be drawn from 'log 1 8'; give one",
        ),
        (
            {"random": 2, "tpe": None, "priors": ["norm_obs"]},
            "list its values instead: --grid norm_obs=VALUE",
        ),
        ({"random": 2, "tpe": None, "priors": ["kl_goal"]}, "prior; give one, e.g. kl_goal=log 1e-5 1e-2$"),
    ],
)
def test_bad_plans_are_refused(how, complaint):
    with pytest.raises(ShoalError, match=complaint):
        make_plan(BASE, {}, **how).describe()


def test_what_the_complaints_suggest_is_taken():
    suggested = ["update_epochs=choice 1 2 4", "kl_goal=log 1e-5 1e-2"]
    assert len(draw_trials(read_axes("ppo", {}, suggested), 3, seed=1, algo="ppo")) == 3


def test_learners_of_a_sweep_train_alone():
    with pytest.raises(ShoalError, match="leave out exchange"):
        grid("gamma=0.9", base=preset("CartPole-v1", learners=1, exchange="average"))


def test_another_sweep_has_another_folder():
    one, other = grid("gamma=0.9,0.8"), grid("gamma=0.9,0.7")
    assert default_folder(one) == default_folder(grid("gamma=0.9,0.8")) != default_folder(other)


def test_importance_of_a_score_that_one_setting_decides():
    axes = {"a": Values((1, 2, 3)), "b": Values((1, 2))}
    rows = [
        Row(0, {"a": a, "b": b}, "done", 10, np.array([10.0 * a + 0.1 * b]))
        for a in (1, 2, 3)
        for b in (1, 2)
    ]
    found = importance(rows, axes)
    assert found["a"] > 0.85
    assert found["b"] == 0
    assert importance([row._replace(scores=np.ones(1)) for row in rows], axes) == {}


def test_noise_explains_nothing_on_average():
    random = np.random.default_rng(0)
    level = np.arange(40) % 4
    shares = [explained(level, random.normal(size=40)) for _ in range(200)]
    assert np.mean(shares) < 0.05


def test_trials_csv(tmp_path):
    rows = [
        Row(0, {"hidden": (8, 8), "kl.limit": None}, "done", 320, np.array([1.0, 2.0])),
        Row(1, {"hidden": (8,), "kl.limit": 0.1}, "diverged", 320, np.array([1.0, np.nan])),
    ]
    lines = write_trials(tmp_path, rows).read_text().splitlines()
    assert lines[0] == "trial,hidden,kl.limit,seeds,state,steps,mean,iqm,low,high,scores,programs"
    assert lines[1] == "0,8-8,none,2,done,320,1.5,1.5,1,2,1 2,"
    assert lines[2] == "1,8,0.1,2,diverged,320,,,,,1 ,"


def test_the_best_trial_has_gone_on_most_often(tmp_path):
    """Whatever its steps: programs of other kinds round them up otherwise."""
    row = lambda number, state, steps, score, rungs: Row(
        number, {}, state, steps, np.array([score]), (Place(tmp_path / "000", 0),) * rungs
    )
    rows = [row(0, "stopped", 10, 9.0, 1), row(1, "done", 31, 5.0, 3), row(2, "done", 30, 6.0, 3)]
    rows += [row(3, "done", 30, np.nan, 3), row(4, "stopped", 11, 1.0, 1), row(5, "done", 30, 5.5, 2)]
    rows.append(row(6, "stopped", 20, 0.5, 2))
    assert [one.number for one in best_first(rows)] == [2, 5, 1, 6, 0, 4, 3]
    again = read_trials(write_trials(tmp_path, rows))
    assert [one.number for one in best_first(again)] == [2, 5, 1, 6, 0, 4, 3]


def test_a_plan_as_yaml_says_everything():
    said = Plan(BASE, {"gamma": PRIORS["gamma"]}, "random", 3).to_dict()
    assert said["axes"] == {"gamma": "one-minus-log 0.9 0.9999"}
    assert said["settings"]["steps"] == 320
