"""Runs written by version 0.1 load, evaluate and resume as they would have gone on there.

Each archive holds a run of 256 steps that was stopped at 128, and the last checkpoint of one that was not.
"""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import shoal
from shoal.runs.leaves import ADDED, DROPPED, REPLAY
from shoal.runs.stored_leaves import current_name

DATA = Path(__file__).parent.parent / "data"
BYTES = {"exchange/per_learner/0/0/0/1", "exchange/per_learner/0/1/exchange/bytes"}
"""What neighbours have sent: fewer bytes than in version 0.1, which sent critics too."""


@pytest.fixture(
    scope="module",
    params=["neighbours", *(pytest.param(k, marks=pytest.mark.slow) for k in ("gossip", "td3"))],
)
def old_run(request, tmp_path_factory):
    """Four learners that gossip, compressed; four with neighbours' policies; TD3 with its replay."""
    folder = tmp_path_factory.mktemp(request.param)
    with zipfile.ZipFile(DATA / f"run_0_1_{request.param}.zip") as archive:
        archive.extractall(folder)
    return folder


def test_an_old_run_loads_evaluates_and_resumes(old_run):
    run = shoal.load(old_run)
    assert run.step == 128
    rows = run.evaluate(episodes=2, learner="best")
    assert [row.episodes for row in rows] == [2]
    assert shoal.run(run.config, folder=old_run).step == 256
    assert np.unique(run.metrics["step"]).tolist() == [64, 128, 192, 256]
    expected = load_file(old_run / "reference" / "step_000000256.safetensors")
    found = {}
    for path in (old_run / "checkpoints").glob("step_000000256*.safetensors"):
        found |= load_file(path)
    expected = {current_name(name): value for name, value in expected.items()}
    assert all(ADDED.match(name) for name in found.keys() - expected.keys())
    dropped = expected.keys() - found.keys()
    assert all(DROPPED.match(name) for name in dropped)
    for name in found.keys() & expected.keys():
        if dropped and name in BYTES:
            assert (found[name] < expected[name]).all()
        else:
            filled = found[name].shape[1] if REPLAY.match(name) else None
            before = expected[name] if filled is None else expected[name][:, :filled]
            np.testing.assert_allclose(found[name], before, rtol=1e-3, atol=1e-4, err_msg=name)
