"""Halving by hand: scores are a known function of the settings, and nothing is trained."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from shoal import PPOConfig, TrainConfig
from shoal.runs import checkpoint
from shoal.runs.metrics import MetricsWriter
from shoal.runs.sweep import execute
from shoal.runs.sweep.axes import read_grid
from shoal.runs.sweep.execute import Interrupted, run_plan
from shoal.runs.sweep.sweep import make_plan

ALGO = PPOConfig(num_envs=1, num_steps=10, num_minibatches=1, update_epochs=1)
BASE = TrainConfig("CartPole-v1", ALGO, steps=900, reports=90, env_options={"max_episode_steps": 50})
"""Rungs at 100, 300 and 900 steps."""


@pytest.fixture
def jobs(monkeypatch):
    """The programs in order, (steps, gamma of each trial, rows they go on from); the score is 10 gamma."""
    seen = []

    def open_job(config, folder, rows, trainers, mesh):
        return config, folder, [row.places[-1].learner if row.places else None for row in rows]

    def train_job(session, until, train):
        config, folder, rows = session
        train(session, until)
        gammas = config.learner_hypers["gamma"]
        seeds = config.distinct_seeds
        with MetricsWriter(folder, None) as writer:
            scores = np.array([10 * gamma + 0.1 * (i % seeds) for i, gamma in enumerate(gammas)])
            writer.write(until, 1.0, {"return_mean": scores, "loss/total": np.zeros(len(gammas))})
        checkpoint.save(folder / "checkpoints", until, {}, {})
        seen.append((until, gammas[::seeds], rows))

    monkeypatch.setattr(execute, "open_job", open_job)
    monkeypatch.setattr(execute, "train_job", train_job)
    return seen


GAMMAS = [round(0.1 * k, 1) for k in (3, 7, 1, 9, 5, 2, 8, 4, 6)]


def plan(**how):
    text = "gamma=" + ",".join(map(str, GAMMAS))
    return make_plan(BASE, read_grid([text]), None, None, (), **{"seeds": 2, "halving": True} | how)


def always(session, until):
    return None


def test_the_best_third_goes_on_twice(tmp_path, jobs):
    rows = run_plan(plan(batch=6), tmp_path, always)  # three trials at once
    assert jobs == [
        (100, GAMMAS[0:3], [None] * 3),
        (100, GAMMAS[3:6], [None] * 3),
        (100, GAMMAS[6:9], [None] * 3),
        (300, [0.9, 0.8, 0.7], [0, 0, 2]),  # each from its row: seeds are two learners a trial
        (900, [0.9, 0.8, 0.7], [0, 2, 4]),  # only one had to go on, two fill its program
    ]
    assert {n: (row.state, row.steps) for n, row in rows.items() if row.steps > 100} == {
        1: ("done", 900),
        3: ("done", 900),
        6: ("done", 900),
    }
    assert {row.state for row in rows.values() if row.steps == 100} == {"stopped"}
    assert rows[3].mean == pytest.approx(9.05)
    assert [place.folder.name for place in rows[3].places] == ["001", "003", "004"]


def test_small_programs_stop_more(tmp_path, jobs):
    halved = plan()
    assert halved.size(halved.groups[0]) == 1
    rows = run_plan(halved, tmp_path, always)
    assert [until for until, _, _ in jobs] == [100] * 9 + [300] * 3 + [900]
    assert [row.number for row in rows.values() if row.state == "done"] == [3]
    assert sum(row.steps for row in rows.values()) == 6 * 100 + 2 * 300 + 900  # 2,100 of 8,100: 26 %
    assert "4,200 steps in all, 26 % of the whole grid's" in halved.describe()


def test_the_last_program_is_filled_with_a_trial_that_does_not_count(tmp_path, jobs):
    small = make_plan(
        replace(BASE, steps=100), read_grid(["gamma=0.1,0.2,0.3"]), None, None, (), seeds=2, batch=4
    )
    rows = run_plan(small, tmp_path, always)
    assert [gammas for _, gammas, _ in jobs] == [[0.1, 0.2], [0.3, 0.3]]
    assert [row.mean for row in rows.values()] == pytest.approx([1.05, 2.05, 3.05])


@pytest.mark.parametrize("last", [0, 2, 3, 4])
def test_an_interrupted_sweep_ends_as_one_that_was_not(tmp_path, jobs, last):
    whole = run_plan(plan(batch=6), tmp_path / "whole", always)

    def stop(session, until):
        if session[1].name == f"{last:03d}":
            raise Interrupted

    with pytest.raises(Interrupted):
        run_plan(plan(batch=6), tmp_path / "parts", stop)
    trained = len(jobs)
    run_plan(plan(batch=6), tmp_path / "parts", always)
    assert len(jobs) - trained == 5 - last
    tables = [(tmp_path / name / "trials.csv").read_text() for name in ("whole", "parts")]
    assert tables[0] == tables[1]
    assert len(list(csv.DictReader(tables[0].splitlines()))) == len(whole)


def test_a_trial_without_a_score_stops(tmp_path, jobs, monkeypatch):
    real = execute.read_scores

    def read(folder, until, learners):
        scores, finite = real(folder, until, learners)
        return np.where(scores > 8.5, np.nan, scores), finite & (scores <= 8.5)

    monkeypatch.setattr(execute, "read_scores", read)
    rows = run_plan(plan(), tmp_path, always)
    assert rows[3].state == "diverged"
    assert [row.values["gamma"] for row in rows.values() if row.state == "done"] == [0.8]


def test_trials_are_compared_when_all_have_finished_an_episode(tmp_path, jobs):
    """An episode of CartPole-v1 may take 500 steps, so nothing is compared at 100 or at 300."""
    late = replace(BASE, env_options={})
    rows = run_plan(
        make_plan(late, read_grid(["gamma=0.1,0.5,0.9"]), None, None, (), seeds=2, halving=True),
        tmp_path,
        always,
    )
    assert [until for until, _, _ in jobs] == [500, 500, 500, 900]
    assert [row.state for row in rows.values()] == ["stopped", "stopped", "done"]


def test_without_a_score_a_trial_has_not_diverged_and_all_go_on(tmp_path, jobs, monkeypatch):
    """Where episodes have no limit there may be no score at a rung; the best are found at the next one."""
    real = execute.read_scores

    def read(folder, until, learners):
        scores, finite = real(folder, until, learners)
        return scores if until > 100 else np.full_like(scores, np.nan), finite

    monkeypatch.setattr(execute, "read_scores", read)
    rows = run_plan(plan(), tmp_path, always)
    assert [until for until, _, _ in jobs] == [100] * 9 + [300] * 9 + [900]
    assert [row.values["gamma"] for row in rows.values() if row.state == "done"] == [0.9]
    assert {row.state for row in rows.values()} == {"done", "stopped"}


def test_optuna_asks_in_batches_and_goes_on(tmp_path, jobs):
    pytest.importorskip("optuna")
    asked = make_plan(BASE, {}, None, 12, ["gamma"], seeds=1, batch=4)

    def stop(session, until):
        if session[1].name == "002":
            raise Interrupted

    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = run_plan(asked, tmp_path / "whole", always)
    with pytest.raises(Interrupted):
        run_plan(asked, tmp_path / "parts", stop)
    parts = run_plan(asked, tmp_path / "parts", always)
    assert [len(gammas) for _, gammas, _ in jobs] == [4] * 6
    values = [[row.values["gamma"] for row in rows.values()] for rows in (whole, parts)]
    assert values[0] == values[1]
    assert len(set(values[0])) == 12
    assert all(0.9 <= gamma < 1 for gamma in values[0])
