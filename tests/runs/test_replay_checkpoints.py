"""Large replays are saved seldom; a run that was killed resumes from the last one, to the same bits."""

import csv
import json
import shutil
import sys
import time

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import shoal
from shoal.learners.dqn import DQNConfig
from shoal.runs import cadence, checkpoint, checkpoint_removal, leaves
from shoal.runs.catalogue import describe
from shoal.runs.learners import load_learners
from shoal.runs.session import open_session, run_session
from shoal.training.config import TrainConfig

jax.devices()  # two of them, before a trainer divides the cores its own way

ALGO = DQNConfig(
    num_envs=2, num_steps=4, batch_size=8, buffer_size=512, learning_starts=16, n_step=2, hidden=(8,)
)
CONFIG = TrainConfig("jax:CartPole-v1", algo=ALGO, steps=8 * 20, learners=2, reports=20)
CLOCKS = {"seconds", "steps_per_second", "steps_per_second_compiled"}


@pytest.fixture(autouse=True)
def save_often(monkeypatch):
    """A checkpoint at every report, and none of them with the replay, until `replay_at_step` says so."""
    monkeypatch.setattr(sys.modules["shoal.training.loop"], "PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(cadence, "SAVE_SECONDS", -1.0)
    monkeypatch.setattr(cadence, "SMALL_REPLAY", 0)
    monkeypatch.setattr(cadence, "REPLAY_SECONDS", 1e9)


def replay_at_step(monkeypatch, step):
    """From now on checkpoints at this step, and no others, have the replay."""
    monkeypatch.setattr(cadence.Cadence, "takes_replay", lambda self, report: report.step == step)


def killed(folder, copy, step):
    """What a run leaves in its folder that is killed after a step; the run itself goes on to its end."""
    reports = run_session(open_session(CONFIG, folder))
    for report in reports:
        if report.step == step:
            break
    saved = folder / "checkpoints" / f"step_{step:09d}.json"
    while not saved.exists():  # it is written while training goes on
        time.sleep(0.01)
    shutil.copytree(folder, copy)
    for _ in reports:
        pass


def replays(folder):
    return sorted(int(path.stem[5:14]) for path in folder.glob("checkpoints/*_replay.safetensors"))


def final_bits(folder):
    return [path.read_bytes() for path in sorted(folder.glob("checkpoints/step_000000160*.safetensors"))]


def rows(folder):
    """metrics.csv without the columns that tell the time."""
    with open(folder / "metrics.csv", newline="") as file:
        return [{k: v for k, v in row.items() if k not in CLOCKS} for row in csv.DictReader(file)]


@pytest.mark.parametrize("saved_at", [None, 64])
def test_a_killed_run_goes_back_to_its_last_replay_and_ends_the_same(saved_at, tmp_path, monkeypatch, go_on):
    """From its beginning where no replay was saved yet; what it had beyond is not left behind."""
    whole, part = tmp_path / "whole", tmp_path / "part"
    replay_at_step(monkeypatch, saved_at)
    killed(whole, part, step=104)
    assert replays(part) == ([] if saved_at is None else [64])
    assert (describe(part).state, describe(part).step) == ("lost", 104)
    resumed, report = go_on(CONFIG, part, until=72)
    assert (resumed, report.step) == (saved_at, 72)
    assert max(shoal.load(part).checkpoints) == 72
    assert go_on(CONFIG, part)[0] == 72
    assert final_bits(part) == final_bits(whole)
    assert len(final_bits(part)) == 2
    assert rows(part) == rows(whole)


def test_a_checkpoint_without_its_replay_is_evaluated_like_any(tmp_path, go_on):
    whole, part = tmp_path / "whole", tmp_path / "part"
    killed(whole, part, step=104)
    assert replays(part) == []
    run = shoal.load(part)
    assert run.step == 104
    assert len(run.evaluate(2, "all")) == 2
    opened = load_learners(part)
    assert opened.step == 104
    with pytest.raises(shoal.ShoalError, match="holds no checkpoint to go on from"):
        next(shoal.train(CONFIG, state=run))
    assert next(shoal.train(CONFIG, steps=168, state=shoal.load(whole))).step == 168


def test_only_the_filled_part_is_written_and_the_last_two_stay(tmp_path, go_on, monkeypatch):
    monkeypatch.setattr(cadence, "SMALL_REPLAY", 1e9)
    go_on(CONFIG, tmp_path)
    assert replays(tmp_path) == [152, 160]
    data = checkpoint.path_of(tmp_path / "checkpoints", 160)
    stored, count = load_file(checkpoint.replay_of(data)), load_file(data)["cohort/private/ring/count"]
    assert 100 < count.max() < 160
    assert {x.shape[:2] for x in stored.values()} == {(2, count.max())}
    assert not any(leaves.REPLAY.match(name) for name in load_file(data))


def test_a_small_replay_is_in_every_checkpoint_and_a_large_one_when_its_time_has_come(monkeypatch, tmp_path):
    reports = run_session(open_session(CONFIG, tmp_path))
    report = next(reports)
    saves = cadence.Cadence(open_session(CONFIG, tmp_path / "other").watch, None)
    assert not saves.takes_replay(report)
    monkeypatch.setattr(cadence, "SMALL_REPLAY", 1e6)
    assert saves.takes_replay(report)
    monkeypatch.setattr(cadence, "SMALL_REPLAY", 0)
    monkeypatch.setattr(cadence, "REPLAY_SECONDS", -1.0)
    assert saves.takes_replay(report)
    reports.close()


def test_a_run_that_saved_its_whole_buffer_in_one_file_resumes(tmp_path, monkeypatch, go_on):
    """As all did until transitions had a file of their own."""
    whole, part = tmp_path / "whole", tmp_path / "part"
    go_on(CONFIG, whole)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "take_replay", lambda arrays: {})
        go_on(CONFIG, part, until=80)
    assert replays(part) == []
    assert go_on(CONFIG, part)[0] == 80
    assert final_bits(part) == final_bits(whole)


def test_a_damaged_replay_falls_back_to_the_one_before(tmp_path, monkeypatch, go_on):
    monkeypatch.setattr(cadence, "SMALL_REPLAY", 1e9)
    go_on(CONFIG, tmp_path, until=80)
    path = checkpoint.replay_of(checkpoint.path_of(tmp_path / "checkpoints", 80))
    contents = bytearray(path.read_bytes())
    contents[-1] ^= 1
    path.write_bytes(contents)
    with pytest.warns(RuntimeWarning, match="step_000000080_replay.* is damaged"):
        session = open_session(CONFIG, tmp_path)
    assert int(session.state.iteration) == 9


def test_a_stop_does_not_wait_for_the_disk(tmp_path, monkeypatch):
    """Older checkpoints stay, and are removed by the next save that has time for it."""
    flushed = []
    monkeypatch.setattr(checkpoint_removal, "sync", lambda path: flushed.append(path.name))
    session = open_session(CONFIG, tmp_path)
    reports = run_session(session)
    for report in reports:
        if report.step == 48:
            break
    deadline = time.monotonic() + 10
    while "step_000000016.safetensors" not in flushed and time.monotonic() < deadline:
        time.sleep(0.01)  # one that stays, before older ones are removed
    assert "step_000000016.safetensors" in flushed
    time.sleep(0.2)
    flushed.clear()
    session.waiting.stop()
    assert next(reports).step == 56
    reports.close()
    assert not flushed
    record = json.loads((tmp_path / "checkpoints" / "step_000000056.json").read_text())
    assert record["replay"]["bytes"] > 0
    assert np.isfinite(record["meta"]["clock"]["seconds"])
