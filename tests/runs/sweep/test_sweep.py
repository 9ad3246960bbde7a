"""Sweeps that train: equal seeds, resuming, halving without a trace, the best settings on their own."""

import csv
from dataclasses import replace

import jax
import numpy as np
import pytest

import shoal
from shoal.cli.main import main
from shoal.runs.checkpoint import load_best, saved_steps
from shoal.runs.config import from_settings, read_settings
from shoal.runs.metrics import read_metrics
from shoal.runs.sweep import sweep as sweeping
from shoal.training.program import make_trainer

ALGO = shoal.PPOConfig(
    num_envs=2, num_steps=16, num_minibatches=1, update_epochs=1, hidden=(8,), learning_rate=0.01
)
SHORT = {"max_episode_steps": 20}  # so that every trial has a score at the first rung
BASE = shoal.TrainConfig("CartPole-v1", ALGO, steps=32 * 18, reports=18, seed=5, env_options=SHORT)
GRID = {"learning_rate": [1e-4, 1e-2, 1e-1], "gamma": [0.9, 0.99]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Six settings with two seeds each, in one program."""
    return shoal.sweep(BASE, GRID, seeds=2, folder=tmp_path_factory.mktemp("sweep") / "whole")


def curves(found, number):
    """What the learners of a trial reported: (step, seed, return, loss, entropy) over all its programs."""
    lines = []
    for place in found.trials[number].places:
        table = read_metrics(place.folder)
        for row in range(len(table["step"])):
            seed = table["learner"][row] - place.learner
            if seed in (0, 1):
                names = ("return_mean", "loss/total", "entropy")
                lines.append((table["step"][row], seed, *(table[name][row] for name in names)))
    return np.array(lines)


def test_a_sweep_writes_its_results(whole):
    assert {path.name for path in whole.folder.iterdir()} == {
        "sweep.yaml",
        "trials.csv",
        "best.yaml",
        "parallel.png",
        "importance.png",
        "curves.png",
        "programs",
    }
    with (whole.folder / "trials.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [(float(one["learning_rate"]), float(one["gamma"])) for one in table] == [
        (rate, gamma) for rate in GRID["learning_rate"] for gamma in GRID["gamma"]
    ]
    assert {(one["state"], one["steps"], one["seeds"]) for one in table} == {("done", "576", "2")}
    best = from_settings(read_settings(whole.folder / "best.yaml"))
    assert best == whole.config
    assert (best.algo.learning_rate, best.algo.gamma) == tuple(whole.best.values.values())
    assert whole.best.mean == max(row.mean for row in whole.trials)


def test_settings_share_starts_and_first_networks(whole):
    config = from_settings(read_settings(whole.folder / "programs" / "000" / "config.yaml"))
    state = make_trainer(config, mesh="1x1").init()
    for leaf in jax.tree.leaves((state.cohort.params, state.envs.step.obs)):
        each = np.asarray(leaf).reshape(6, 2, -1)
        np.testing.assert_array_equal(each, np.broadcast_to(each[:1], each.shape))
    obs = np.asarray(state.envs.step.obs)
    assert not np.array_equal(obs[0], obs[1])
    assert np.asarray(state.cohort.hypers.gamma)[:4].tolist() == pytest.approx([0.9, 0.9, 0.99, 0.99])


def test_the_same_sweep_again_reads_what_it_found(whole, compilations):
    with compilations() as seen:
        again = shoal.sweep(BASE, GRID, seeds=2, folder=whole.folder)
    assert not seen
    assert [row.mean for row in again.trials] == [row.mean for row in whole.trials]


def test_another_sweep_in_its_folder_is_refused(whole):
    with pytest.raises(shoal.ShoalError, match=r"another sweep .*differs in seeds"):
        shoal.sweep(BASE, GRID, seeds=3, folder=whole.folder)


def test_an_interrupted_sweep_goes_on_to_the_same_trials(whole, tmp_path, monkeypatch):
    def stop(session, until):
        return sweeping.train_session(session, lambda report: None, until=until // 2)

    monkeypatch.setattr(sweeping, "train_silently", stop)
    with pytest.raises(KeyboardInterrupt):
        shoal.sweep(BASE, GRID, seeds=2, folder=tmp_path)
    monkeypatch.undo()
    assert saved_steps(tmp_path / "programs" / "000" / "checkpoints")[-1] == 288
    shoal.sweep(BASE, GRID, seeds=2, folder=tmp_path)
    assert (tmp_path / "trials.csv").read_text() == (whole.folder / "trials.csv").read_text()


def test_a_halved_trial_has_the_numbers_of_the_whole_grid(whole, tmp_path):
    found = shoal.sweep(BASE, GRID, seeds=2, folder=tmp_path, halving=True, batch=12)
    assert {len(row.places) for row in found.trials} == {3}  # the program of all six is full each time
    for row in found.trials:
        np.testing.assert_array_equal(curves(found, row.number), curves(whole, row.number))


@pytest.mark.slow
def test_trials_that_change_rows_keep_their_numbers_and_their_program(
    whole, tmp_path, compilations, monkeypatch
):
    silently, compiled = sweeping.train_silently, []

    def train(session, until):
        with compilations() as seen:
            finished = silently(session, until)
        compiled.append(len(seen))
        return finished

    monkeypatch.setattr(sweeping, "train_silently", train)
    found = shoal.sweep(BASE, GRID, seeds=2, folder=tmp_path, halving=True, batch=4)
    assert compiled[0] > 0
    assert compiled[1:] == [0] * 4  # two more at the first rung, and one at each of the others
    assert [row.state for row in found.trials].count("stopped") == 4
    for row in found.trials:
        own, other = curves(found, row.number), curves(whole, row.number)
        np.testing.assert_allclose(own, other[: len(own)], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_best_settings_alone_are_the_trial(whole, tmp_path):
    best = whole.best
    run = shoal.run(replace(whole.config, learners=2), folder=tmp_path)
    assert run.metrics["return_mean"][-2:] == pytest.approx(best.scores, rel=1e-3)


def test_a_sweep_on_the_command_line(whole, tmp_path, capsys):
    flags = "--no-preset --num-envs 2 --num-steps 16 --num-minibatches 1 --update-epochs 1 --hidden 8"
    flags += (
        " --learning-rate 0.01 --steps 576 --reports 18 --seed 5 --seeds 2 --env-options max_episode_steps=20"
    )
    grid = "CartPole-v1 --grid learning_rate=1e-4,1e-2,1e-1 gamma=0.9,0.99"
    command = ["sweep", *grid.split(), *flags.split(), "--out", str(tmp_path)]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert "6 settings x 2 seeds = 12 learners in 1 program, 576 steps each" in printed.err
    assert f"shoal train --config {tmp_path}/best.yaml" in printed.out
    assert (tmp_path / "trials.csv").read_text() == (whole.folder / "trials.csv").read_text()
    for more, complaint in {"--girds gamma=1": "--girds", "--save-every 8": "leave out save_every"}.items():
        assert main([*command, *more.split()]) == 2
        assert complaint in capsys.readouterr().err


def test_checkpoints_of_a_program_are_those_of_a_run(whole):
    folder = whole.folder / "programs" / "000"
    assert shoal.load(folder).learners == 12
    assert load_best(folder / "checkpoints", {"key": jax.eval_shape(lambda: jax.random.key(0))}) is not None
