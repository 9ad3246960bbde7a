"""Weights & Biases, MLflow and Trackio hold a run's curves after training, read back by their own readers."""

import csv
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.runs.milestones import Milestones
from shoal.runs.session import open_session, train_session
from shoal.runs.tracking import trackers
from shoal.runs.tracking.trackers import TRACKERS
from shoal.training.config import TrainConfig

ROOT = Path(__file__).parents[2]
TINY = shoal.PPOConfig(num_envs=2, num_steps=16, num_minibatches=2, update_epochs=1, hidden=(4,))
CONFIG = TrainConfig("CartPole-v1", algo=TINY, steps=320, learners=2, reports=10)


@pytest.fixture
def stores(tmp_path, monkeypatch):
    """Every tracker keeps what it gets in the test's own folder, and has the time to."""
    monkeypatch.setattr(trackers, "STOPPED_SECONDS", 300.0)
    monkeypatch.setattr(trackers, "LAST_SECONDS", 300.0)
    store = tmp_path / "store"
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "TRACKIO_DIR"):
        monkeypatch.setenv(name, str(store))
    store.mkdir()
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (store / "mlflow").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, sys.path)]))


def records(tracker: str) -> list[dict]:
    """What a tracker has, the whole run first, then the learners."""
    command = [sys.executable, "-m", "tests.tracking.read_records", tracker]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return sorted(found, key=lambda record: ("learner" in record["name"], record["name"]))


def column(folder: Path, name: str, learner: int) -> list[list[float]]:
    """A learner's finite values in metrics.csv, with their steps."""
    with open(folder / "metrics.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if int(row["learner"]) == learner]
    pairs = [[int(row["step"]), float(row[name] or "nan")] for row in rows]
    return [pair for pair in pairs if np.isfinite(pair[1])]


@pytest.mark.slow
@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_tracker_holds_the_curves_of_a_run_that_was_interrupted(tracker, tmp_path, stores):
    if not find_spec(tracker):
        pytest.skip(f"{tracker} is not installed")
    folder = tmp_path / "runs" / "curves"
    session = open_session(CONFIG, folder, milestones=Milestones(save_every=128), track=tracker)
    ended = train_session(session, lambda report: report.step >= 160 and os.kill(os.getpid(), signal.SIGINT))
    assert 160 <= ended.step < 320
    shoal.run(CONFIG, folder=folder, track=[tracker])
    shoal.load(folder).video(steps=5)
    assert not (folder / "tracking" / f"{tracker}.log").read_text().count("Traceback")
    whole, *learners = records(tracker)
    assert len(learners) == 2  # no record twice

    means = {step: [] for step, _ in column(folder, "loss/value", 0)}
    for learner, record in enumerate(learners):
        wanted = column(folder, "loss/value", learner)
        assert len(wanted) == 10
        assert record["metrics"]["loss/value"] == wanted
        assert record["metrics"]["return_mean"] == column(folder, "return_mean", learner)
        for step, value in wanted:
            means[step].append(value)
    for suffix, reduce in {"": np.mean, "_low": np.min, "_high": np.max}.items():
        found = whole["metrics"][f"loss/value{suffix}"]
        assert found == [[step, pytest.approx(reduce(values))] for step, values in means.items()]
    assert [step for step, _ in whole["metrics"]["steps_per_second"]] == list(means)

    assert len({record["group"] for record in learners}) == 1
    assert learners[0]["group"]
    assert str(whole["settings"]["env"]) == "CartPole-v1"
    assert int(whole["settings"]["steps"]) == 320
    kept = {"config.yaml", "checkpoints/step_000000128.safetensors", "checkpoints/step_000000320.json"}
    assert kept <= set(whole["files"])
    film = "videos/learner_" if tracker == "mlflow" else "film/learner_"
    assert [name for name in (*whole["files"], *whole["metrics"]) if name.startswith(film)]


@pytest.mark.slow
def test_a_tracker_that_cannot_be_reached_does_not_stop_the_run(tmp_path, stores, monkeypatch):
    if not find_spec("mlflow"):
        pytest.skip("mlflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    session = open_session(CONFIG, tmp_path / "run", track="mlflow")
    with pytest.warns(RuntimeWarning, match=r"mlflow: .*; the run is not recorded there"):
        assert train_session(session, lambda report: None).step == 320
