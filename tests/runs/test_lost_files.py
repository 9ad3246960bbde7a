"""What a crash leaves in a run's folder, and what becomes of it with the next command."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

import shoal
from shoal.errors import ShoalError
from shoal.exchanges.config import ExchangeConfig
from shoal.learners.ppo import PPOConfig
from shoal.runs import checkpoint, session
from shoal.runs.folder import find_checkpoint
from shoal.runs.lineage import read_lineage
from shoal.runs.records import checksum_of
from shoal.runs.session import Finished, open_session
from shoal.runs.summary import read_summary
from shoal.settings import with_settings
from shoal.training.config import TrainConfig

SMALL = PPOConfig(
    num_envs=4, num_steps=16, num_minibatches=1, update_epochs=1, hidden=(4,), learning_rate=0.05
)
SELECT = with_settings(ExchangeConfig(exchange="truncation", local_updates=2), min_episodes=1, fraction=0.5)
CONFIG = TrainConfig("jax:CartPole-v1", algo=SMALL, steps=512, learners=4, reports=4, exchanges=(SELECT,))
LAST = "checkpoints/step_000000512.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A population's run of 512 steps with checkpoints at 128, 256, 384 and 512."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    shoal.run(CONFIG, folder=folder, save_every=128)
    return folder


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def keep_only(run, *steps):
    for path in (run / "checkpoints").iterdir():
        if int(path.name[5:14]) not in steps:
            path.unlink()


def goes_on_to_the_same_end(run, whole, resumed):
    opened = open_session(CONFIG, run)
    assert opened.resumed_step == resumed
    session.train_session(opened, lambda report: None)
    assert (run / LAST).read_bytes() == (whole / LAST).read_bytes()


@pytest.mark.parametrize("state", ["no record", "empty record", "half the data", "no data"])
def test_a_first_checkpoint_that_is_half_written_starts_over(run, whole, state):
    keep_only(run, 128)
    data = run / "checkpoints" / "step_000000128.safetensors"
    match state:
        case "no record":
            data.with_suffix(".json").unlink()
        case "empty record":
            data.with_suffix(".json").write_bytes(b"")
        case "half the data":
            data.write_bytes(data.read_bytes()[:100])
        case "no data":
            data.unlink()
    with pytest.warns(RuntimeWarning, match="is incomplete.*the run starts over"):
        goes_on_to_the_same_end(run, whole, None)


def test_one_of_several_that_is_half_written_does_not(run):
    """They may come back, from a copy."""
    for record in (run / "checkpoints").glob("*.json"):
        record.unlink()
    with pytest.raises(ShoalError, match=r"every checkpoint in .* is damaged"):
        open_session(CONFIG, run)
    assert len(list((run / "checkpoints").iterdir())) == 4


@pytest.mark.parametrize("contents", [None, "", "[]", '{"steps": 384, "return_mean": [1, 1, 1, 1]}'])
def test_a_run_that_ended_without_a_summary_gets_it(run, whole, contents):
    (run / "summary.json").unlink()
    if contents is not None:
        (run / "summary.json").write_text(contents)
    ended = open_session(CONFIG, run)
    assert isinstance(ended, Finished)
    assert ended.summary == read_summary(run) == read_summary(whole)


def test_what_dead_writers_left_is_removed(run):
    keep_only(run, 384)
    leftovers = [run / ".tmp-1-metrics.csv", run / "checkpoints" / ".tmp-1-step_000000512.safetensors"]
    for path in leftovers:
        path.write_text("half")
    (run / ".film" / "128").mkdir(parents=True)
    open_session(CONFIG, run)
    assert not any(path.exists() for path in (*leftovers, run / ".film"))


def test_a_run_that_another_process_ended_meanwhile_is_not_begun_again(run, monkeypatch):
    """Between the look at the folder and its lock."""
    other = run.with_name("other")
    before = find_checkpoint(other, CONFIG)
    assert before is None
    monkeypatch.setattr(
        session,
        "make_trainer",
        lambda *args, _make=session.make_trainer, **how: shutil.copytree(run, other) and _make(*args, **how),
    )
    with pytest.raises(
        ShoalError, match=r"another run has saved in .* just now; give the same command again"
    ):
        open_session(CONFIG, other)
    assert (other / LAST).read_bytes() == (run / LAST).read_bytes()
    assert (other / "metrics.csv").read_bytes() == (run / "metrics.csv").read_bytes()


@pytest.mark.parametrize("damage", ["gone", "binary", "cut in the middle", "wrong columns"])
def test_a_damaged_lineage_costs_neither_the_run_nor_the_file(run, whole, damage):
    keep_only(run, 256)
    path = run / "lineage.csv"
    before = path.read_bytes()
    match damage:
        case "gone":
            path.unlink()
        case "binary":
            path.write_bytes(bytes(range(256)) * 9)
        case "cut in the middle":
            path.write_bytes(before.replace(b"128,2,", b"12"))
        case "wrong columns":
            path.write_bytes(before.replace(b"parent", b"mother"))
    with pytest.warns(RuntimeWarning, match=r"lineage\.csv"):
        goes_on_to_the_same_end(run, whole, 256)
    assert damage == "gone" or (run / "lineage.csv.damaged").exists()
    lineage, expected = read_lineage(run), read_lineage(whole)
    assert lineage.steps[-3:].tolist() == [256, 384, 512]
    np.testing.assert_array_equal(lineage.parent[-2:], expected.parent[-2:])
    for name, values in lineage.hypers.items():
        np.testing.assert_array_equal(values[-3:], expected.hypers[name][-3:])


@pytest.mark.parametrize("damage", ["a bad line", "zeros at the end", "binary"])
def test_damaged_metrics_cost_neither_the_run_nor_the_file(run, whole, damage):
    keep_only(run, 256)
    path = run / "metrics.csv"
    lines = path.read_bytes().splitlines(keepends=True)
    match damage:
        case "a bad line":
            path.write_bytes(b"".join([*lines[:2], b"128,1\n", *lines[3:]]))
        case "zeros at the end":
            path.write_bytes(b"".join(lines[:9]) + b"\0" * 500 + b"\n" + b"\0" * 99)
        case "binary":
            path.write_bytes(bytes(range(256)) * 9)
    with pytest.warns(RuntimeWarning, match=r"what is damaged is left out; metrics\.csv\.damaged"):
        goes_on_to_the_same_end(run, whole, 256)
    steps = shoal.load(run).metrics["step"].tolist()
    expected = [step for step in (128, 256, 384, 512) for _ in range(4)]
    kept = {"a bad line": [128, *expected[2:]], "zeros at the end": expected, "binary": expected[8:]}
    assert steps == kept[damage]


def test_milestones_that_cannot_be_read_are_named(run):
    for contents in ("[1]", '{"eval_every": "often"}', '{"evaluate": 1}', '{"eval_every": -1}', "{"):
        (run / "milestones.json").write_text(contents)
        with pytest.raises(ShoalError, match=r"milestones\.json"):
            open_session(replace(CONFIG, steps=1024, anneal_to=512), run)


def test_a_record_that_is_not_of_its_data_is_passed_over(run):
    """With a checksum that is right: the step, the types."""
    for name, value in (("step", 384), ("meta", []), ("meta", {"scores": "high"}), ("bytes", "many")):
        record = checkpoint.newest_meta(run / "checkpoints")
        data = run / "checkpoints" / "step_000000512.json"
        whole = json.loads(data.read_text())
        changed = {key: x for key, x in whole.items() if key != "record_crc32"} | {name: value}
        data.write_text(json.dumps(changed | {"record_crc32": checksum_of(changed)}))
        assert checkpoint.newest_meta(run / "checkpoints")["iteration"] < record["iteration"]
        data.write_text(json.dumps(whole))
