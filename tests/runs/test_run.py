"""A run in Python: trained in a folder, resumed, loaded, evaluated, filmed, drawn."""

import json
import shutil

import numpy as np
import pytest

import shoal
from shoal.cli.main import main
from shoal.runs import run as module
from shoal.training.evaluate import Evaluation

TINY = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "update_epochs": 1, "hidden": (4,)}
SETTINGS = TINY | {"steps": 128, "learners": 2, "reports": 4, "env_spread": 0.2, "exchange": "average"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return shoal.run("CartPole-v1", folder=tmp_path_factory.mktemp("run"), **SETTINGS)


def test_a_run_is_what_its_folder_says(trained):
    assert (trained.learners, trained.step) == (2, 128)
    assert trained.config == shoal.preset("CartPole-v1", **SETTINGS)
    assert trained.summary["steps"] == 128
    assert trained.summary["best_learner"] == trained.best == np.argmax(trained.metrics["return_mean"][-2:])
    assert {len(column) for column in trained.metrics.values()} == {4 * 2}
    assert trained.metrics["step"].tolist() == [32, 32, 64, 64, 96, 96, 128, 128]
    assert repr(shoal.load(trained.folder)).endswith(": CartPole-v1, 2 learners, step 128 of 128)")


def test_the_same_call_trains_nothing_and_a_longer_one_resumes(trained, tmp_path, monkeypatch):
    folder = shutil.copytree(trained.folder, tmp_path / "run")
    before = trained.metrics
    with pytest.warns(RuntimeWarning, match="learning_rate and clip_coef are annealed to step 128 and then"):
        longer = shoal.run(trained.config, folder=str(folder), steps=160)
    assert longer.step == 160
    np.testing.assert_array_equal(longer.metrics["return_mean"][:8], before["return_mean"])
    monkeypatch.setattr(module, "train_session", None)
    assert shoal.run(trained.config, folder=trained.folder).step == 128
    with pytest.raises(shoal.ShoalError, match="holds a run with other settings"):
        shoal.run(trained.config, folder=trained.folder, seed=7)


def test_a_run_can_be_stopped_and_says_where(tmp_path, monkeypatch):
    """A first Ctrl-C is noted, what was reached is saved, then it is raised."""
    shown = []

    class Bar:
        def __init__(self, session): ...
        def __enter__(self): ...
        def __exit__(self, *exception): ...

        def update(self, report):
            shown.append(report.step)
            if report.step == 64:
                import signal

                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(module, "ProgressBar", Bar)
    monkeypatch.setattr(module, "on_terminal", lambda: True)
    with pytest.raises(KeyboardInterrupt, match="is saved at step 64"):
        shoal.run("CartPole-v1", folder=tmp_path, **SETTINGS)
    stopped = shoal.load(tmp_path)
    assert (stopped.step, shown[-1], stopped.summary["interrupted"]) == (64, 64, True)


def test_rows_are_those_of_the_command(trained, capsys):
    rows = trained.evaluate(episodes=3, seed=2)
    assert all(isinstance(row, Evaluation) for row in rows)
    worlds = ["own", "seen", "unseen"]
    expected = [(k, world) for k in range(2) for world in worlds] + [("mean", world) for world in worlds[1:]]
    assert [(row.learner, row.world) for row in rows] == expected
    assert main(["eval", str(trained.folder), "--episodes", "3", "--seed", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [row.to_dict() for row in rows]
    assert shoal.evaluate(trained, 3, seed=2) == rows
    with pytest.raises(shoal.ShoalError, match="episodes must be at least 1"):
        trained.evaluate(episodes=0)


def test_a_report_is_evaluated_like_the_run(trained):
    *_, report = shoal.train(trained.config)
    rows = shoal.evaluate(report, episodes=3, learner="best")
    assert rows == trained.evaluate(episodes=3, learner="best")
    assert {row.learner for row in rows} == {trained.best}


def test_a_film_and_the_pictures(trained, tmp_path):
    film = trained.video(tmp_path / "film.gif", learner=1, steps=3)
    assert film.read_bytes().startswith(b"GIF8")
    assert trained.video(steps=2) == trained.folder / "videos" / f"learner_{trained.best}.gif"
    played = trained.play(1, steps=3)
    assert (played.learner, len(played.frames), played.total) == (1, 4, 3.0)
    drawn = trained.plot(tmp_path, episode=False)
    assert drawn
    assert all(path.parent == tmp_path and path.is_file() for path in drawn)


def test_a_folder_without_a_run_is_refused_at_once(tmp_path):
    with pytest.raises(shoal.ShoalError, match="a run's folder holds config"):
        shoal.load(tmp_path)


@pytest.mark.slow
def test_a_team_against_chance(tmp_path):
    run = shoal.run("simple_tag_v3", steps=32, folder=tmp_path / "tag", **TINY)
    first, second = run.evaluate(20, against="random")
    assert (first.learner, second.learner) == ("this 0, random", "random, this 0")
    assert first.return_mean != second.return_mean
    assert first.length_mean == second.length_mean == 25
