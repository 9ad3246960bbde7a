"""A run in its folder: stopped and taken up by a new process, damaged, prolonged, refused and cleared."""

import csv
import gc
import os
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from math import nan
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.learners.ppo import PPOConfig
from shoal.runs import cadence, checkpoint
from shoal.runs.checkpoint_removal import KEEP
from shoal.runs.config import from_settings, read_settings
from shoal.runs.divergence import DivergenceCheck
from shoal.runs.learners import choose_learners, load_learners
from shoal.runs.numpy_policy import DESCRIPTION
from shoal.runs.session import clear_folder, finish_session, open_session, run_session
from shoal.training.config import TrainConfig

SMALL = {"num_envs": 2, "num_steps": 32, "num_minibatches": 2, "update_epochs": 2, "hidden": (8,)}
PLAIN = TrainConfig("CartPole-v1", algo=PPOConfig(**SMALL), steps=2048, reports=8)
NORMED = replace(PLAIN, algo=PPOConfig(**SMALL, norm_obs=True, norm_reward=True), learners=2)
CONFIGS = {"plain": PLAIN, "normed": NORMED}
CLOCKS = {"seconds", "steps_per_second", "steps_per_second_compiled"}

ANOTHER_PROCESS = """
import sys
from pathlib import Path

import jax

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_compilation_cache_dir", sys.argv[2])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
jax.devices()

from shoal.runs.config import from_settings, read_settings
from shoal.runs.session import finish_session, open_session, run_session

folder = Path(sys.argv[1])
opened = open_session(from_settings(read_settings(folder / "config.yaml")), folder)
print("resumed at", opened.resumed_step)
for report in run_session(opened):
    pass
finish_session(opened, report)
"""


@pytest.fixture(scope="module", params=[pytest.param("plain", marks=pytest.mark.slow), "normed"])
def whole(request, tmp_path_factory, go_on):
    """A run of 2,048 steps without a break, with a checkpoint at every row."""
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cadence, "SAVE_SECONDS", -1.0)
        go_on(CONFIGS[request.param], folder)
    return CONFIGS[request.param], folder


@pytest.fixture
def copied(whole, tmp_path):
    """The same finished run, to be damaged."""
    config, folder = whole
    shutil.copytree(folder, tmp_path / "run")
    return config, tmp_path / "run"


def final_bits(folder, step=2048):
    return (folder / "checkpoints" / f"step_{step:09d}.safetensors").read_bytes()


def rows(folder):
    """metrics.csv without the columns that tell the time."""
    with open(folder / "metrics.csv", newline="") as file:
        return [{k: v for k, v in row.items() if k not in CLOCKS} for row in csv.DictReader(file)]


def test_a_whole_run_leaves_its_rows_and_checkpoints(whole, go_on):
    config, folder = whole
    steps = [int(row["step"]) for row in rows(folder)]
    assert steps == [step for step in range(256, 2049, 256) for _ in range(config.learners)]
    kept = {path.stem for path in (folder / "checkpoints").glob("*.safetensors")}
    assert {"step_000001536", "step_000001792", "step_000002048"} <= kept
    assert len(kept) <= KEEP + 1
    assert from_settings(read_settings(folder / "config.yaml")) == config
    assert go_on(config, folder) == (2048, None)


def test_half_a_run_and_a_new_process_make_the_whole_bit_for_bit(whole, tmp_path, monkeypatch, go_on):
    """Stopped between two rows, at step 1,088."""
    config, folder = whole
    monkeypatch.setattr(sys.modules["shoal.training.loop"], "PROGRESS_SECONDS", 0.0)
    begun, report = go_on(config, tmp_path, until=1088)
    assert (begun, report.step) == (None, 1088)
    assert [path.stem for path in (tmp_path / "checkpoints").glob("*.json")] == ["step_000001088"]
    cache = jax.config.jax_compilation_cache_dir
    command = [sys.executable, "-P", "-c", ANOTHER_PROCESS, str(tmp_path), cache]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    assert "resumed at 1088" in output
    assert final_bits(tmp_path) == final_bits(folder)
    assert rows(tmp_path) == rows(folder)
    clocks = [meta["clock"] for _, meta in map(latest, (tmp_path, folder))]
    assert clocks[0]["valid_steps"] == clocks[1]["valid_steps"]


def latest(folder):
    return checkpoint.load_latest(folder / "checkpoints", {})


def test_a_damaged_checkpoint_is_passed_over_and_the_run_ends_the_same(copied, whole, go_on):
    """As if the process had died soon after step 1,792, and the disk had spoilt what it saved there."""
    config, folder = copied
    for path in (folder / "checkpoints").glob("step_000002048.*"):
        path.unlink()
    newest = folder / "checkpoints" / "step_000001792.safetensors"
    contents = bytearray(newest.read_bytes())
    contents[-1] ^= 255
    newest.write_bytes(contents)
    with pytest.warns(RuntimeWarning, match=r"step_000001792.*damaged.*before it"):
        begun, report = go_on(config, folder)
    assert (begun, report.step) == (1536, 2048)
    assert final_bits(folder) == final_bits(whole[1])
    assert rows(folder) == rows(whole[1])


def test_without_a_whole_checkpoint_the_run_is_refused_and_kept(copied):
    config, folder = copied
    for path in (folder / "checkpoints").glob("*.json"):
        path.write_text("{")
    before = rows(folder)
    with pytest.raises(ShoalError, match=r"every checkpoint in .* is damaged"):
        open_session(config, folder)
    assert rows(folder) == before
    assert final_bits(folder)


def test_other_settings_are_refused_and_the_difference_is_shown(whole):
    config, folder = whole
    before = rows(folder), final_bits(folder), (folder / "config.yaml").read_text()
    other = replace(config, seed=9, algo=replace(config.algo, gamma=0.5))
    with pytest.raises(ShoalError, match=r"seed: 1 -> 9; gamma: 0.99 -> 0.5.*--clobber"):
        open_session(other, folder)
    with pytest.raises(ShoalError, match="unknown environment"):
        open_session(replace(config, env="NoSuch-v0"), folder, clobber=True)
    assert (rows(folder), final_bits(folder), (folder / "config.yaml").read_text()) == before


@pytest.mark.parametrize("whole", ["plain"], indirect=True)
def test_more_steps_go_on_from_where_it_ended(copied, whole, go_on):
    config, folder = copied
    longer = replace(config, steps=2 * 2048)
    with pytest.warns(RuntimeWarning, match="learning_rate is annealed to step 2,048 and then keeps its end"):
        begun, report = go_on(longer, folder, until=2048 + 512)
    assert (begun, report.step) == (2048, 2560)
    assert from_settings(read_settings(folder / "config.yaml")) == replace(longer, anneal_to=2048)
    assert rows(folder)[:8] == rows(whole[1])
    assert [row["step"] for row in rows(folder)[8:]] == ["2560"]
    np.testing.assert_allclose(report.metrics["learning_rate"], 2.5e-4 / 32, rtol=1e-5)


@pytest.mark.parametrize("whole", ["plain"], indirect=True)
def test_a_run_that_was_extended_is_one_that_was_longer_from_the_start(copied, whole, go_on, tmp_path):
    """With the same annealing, bit for bit. A command that says nothing about it keeps it."""
    config, folder = copied
    with pytest.warns(RuntimeWarning, match="--anneal-to N changes that"):
        go_on(replace(config, steps=2048 + 256), folder)
    _, last = go_on(replace(config, steps=2048 + 512, anneal_to=4096), folder)
    np.testing.assert_allclose(last.metrics["learning_rate"], 2.5e-4 * (1 - 39 / 64), rtol=1e-5)
    planned = replace(config, steps=2048 + 256, anneal_to=2048)
    go_on(planned, tmp_path / "planned")
    assert final_bits(folder, 2304) == final_bits(tmp_path / "planned", 2304)


@pytest.mark.parametrize("whole", ["plain"], indirect=True)
def test_reports_may_become_more(copied, go_on):
    config, folder = copied
    go_on(replace(config, steps=2048 + 256, anneal_to=2048, reports=36), folder)
    assert [row["step"] for row in rows(folder)[8:]] == ["2112", "2176", "2240", "2304"]


@pytest.mark.parametrize("whole", ["plain"], indirect=True)
def test_clobber_starts_over_and_removes_the_run_alone(copied):
    config, folder = copied
    own = [folder / "notes.txt", folder / "data" / "metrics.csv", folder / "my_config.yaml"]
    for path in own:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    for name in ("plots", "videos"):
        (folder / name).mkdir()
    opened = open_session(config, folder, clobber=True)
    assert opened.resumed_step is None
    assert int(opened.state.iteration) == 0
    left = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert left == {"notes.txt", "data/metrics.csv", "my_config.yaml", "config.yaml", DESCRIPTION}
    clear_folder(folder)
    assert all(path.read_text() == "mine" for path in own)
    assert not (folder / "config.yaml").exists()


@pytest.mark.parametrize("whole", ["plain"], indirect=True)
def test_a_run_under_way_is_left_alone(copied, go_on):
    config, folder = copied
    opened = open_session(config, folder, clobber=True)
    before = (folder / "config.yaml").stat().st_mtime_ns
    with pytest.raises(ShoalError, match="is under way; wait for its end, or choose another folder"):
        open_session(config, folder, clobber=True)
    assert (folder / "config.yaml").stat().st_mtime_ns == before
    reports = run_session(opened)
    step = next(reports).step
    reports.close()
    begun, _ = go_on(config, folder, until=step + 1)
    assert begun == step


@pytest.mark.parametrize("whole", ["plain"], indirect=True)
def test_a_run_that_is_forgotten_lets_others_in(copied):
    config, folder = copied
    open_session(config, folder, clobber=True)
    gc.collect()
    assert open_session(config, folder).resumed_step is None


@pytest.mark.parametrize("gone", ["removed", "replaced"])
@pytest.mark.parametrize("whole", ["plain"], indirect=True)
def test_a_folder_that_disappears_costs_nothing(copied, whole, gone, go_on):
    """One line says where the last state is saved, and the run goes on from there to the same end."""
    config, folder = copied
    reports = run_session(open_session(config, folder, clobber=True))
    next(report for report in reports if report.due)
    folder.rename(folder.with_name("elsewhere"))
    if gone == "replaced":
        folder.mkdir()
    with pytest.raises(ShoalError, match=r"was removed, renamed or replaced .* is saved: shoal train"):
        list(reports)
    rescued = folder.with_name("run__rescued1")
    assert not folder.exists() or not list(folder.iterdir())
    go_on(from_settings(read_settings(rescued / "config.yaml")), rescued)
    assert final_bits(rescued) == final_bits(whole[1])


def test_the_learners_of_a_run_can_be_chosen(whole):
    config, folder = whole
    opened = load_learners(folder)
    assert (opened.config, opened.step) == (config, 2048)
    scores = [float(row["return_mean"]) for row in rows(folder)[-config.learners :]]
    assert opened.best == int(np.argmax(scores))
    for which, names in (("all", [*range(config.learners)]), ("best", [opened.best]), ("mean", ["mean"])):
        chosen, cohort = choose_learners(opened, which)
        assert chosen == names
        assert {leaf.shape[0] for leaf in jax.tree.leaves(cohort)} == {len(names)}
    with pytest.raises(ShoalError, match=f"no learner '{config.learners}'"):
        choose_learners(opened, str(config.learners))


def test_the_summary_tells_how_the_run_ended(copied):
    config, folder = copied
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cadence, "SAVE_SECONDS", 1e9)
        opened = open_session(config, folder, clobber=True)
        reports = run_session(opened)
        report = next(reports)
        reports.close()
    finished = finish_session(opened, report)
    assert finished.summary["steps"] == report.step
    assert finished.interrupted
    assert (folder / "summary.json").exists()
    assert [p.stem for p in (folder / "checkpoints").glob("*.json")] == [f"step_{report.step:09d}"]


def test_learners_lost_to_nan_are_reported_once_each():
    """Learner 0 diverges at the first report, learner 2 at the third, the last one at the fifth."""
    losses = [[nan, 1, 1], [nan, 1, 1], [nan, 1, nan], [nan, 1, nan], [nan, nan, nan]]
    lost, seen = DivergenceCheck(), []
    for step, loss in enumerate(losses[:-1]):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            lost.check(report_with(step, loss))
        seen.append([str(warning.message).split(":")[0] for warning in caught])
    assert seen == [["learner 0 diverged near step 0"], [], ["learner 2 diverged near step 2"], []]
    with pytest.raises(ShoalError, match="learner 0, 1, 2 diverged near step 4: the loss is not finite"):
        lost.check(report_with(4, losses[-1]))


def test_a_bad_observation_is_named_when_its_learner_is_lost():
    """Learner 1's observation is left out of its replay, but it is lost two reports later."""
    lost = DivergenceCheck()
    with pytest.warns(RuntimeWarning, match="gave learner 1 an observation .* left out of the replay"):
        lost.check(report_with(1, [1, 1], bad=[False, True]))
    lost.check(report_with(2, [1, 1]))
    with pytest.warns(
        RuntimeWarning, match="learner 1 diverged near step 3: Robot-v0 gave an observation that"
    ):
        lost.check(report_with(3, [1, nan]))
    alone = DivergenceCheck()
    with pytest.warns(RuntimeWarning) as caught:
        alone.check(report_with(1, [nan, 1], bad=[False, True]))
    assert str(caught[-1].message).startswith("learner 0 diverged near step 1: the loss is not finite")


def test_a_run_that_is_to_stop_stops_at_the_first_lost_learner():
    with pytest.raises(ShoalError, match="learner 1 diverged near step 7"):
        DivergenceCheck().check(report_with(7, [1, nan, 1], on_nan="stop"))
    with pytest.warns(RuntimeWarning, match="learner 0, 1 diverged near step 7: .*; the update is undone"):
        DivergenceCheck().check(report_with(7, [nan, nan], on_nan="restart"))


def report_with(step, loss, bad=False, on_nan="drop"):
    metrics = {"loss/total": np.array(loss, np.float32)}
    parts = SimpleNamespace(config=SimpleNamespace(env="Robot-v0", on_nan=on_nan))
    return SimpleNamespace(
        step=step,
        metrics=metrics,
        bad_rewards=np.zeros(len(loss), bool),
        bad_observations=np.broadcast_to(bad, len(loss)),
        crashes={},
        lost=~np.isfinite(metrics["loss/total"]),
        trainer=SimpleNamespace(parts=parts),
    )
