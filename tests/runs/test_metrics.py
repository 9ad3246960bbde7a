"""metrics.csv reads back what was written, survives crashes and resumes, and TensorBoard agrees with it."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.runs.metrics import MetricsWriter, read_metrics
from shoal.runs.summary import write_summary

SUMMARY = {"env": "CartPole-v1", "return_mean": 1.0, "best_return": 1.0, "best_learner": 0}


def report(step: int, learners: int = 2) -> dict:
    """A report that is a function of its step."""
    random = np.random.default_rng(step)
    return {
        "return_mean": random.normal(size=learners).astype(np.float32),
        "loss": random.normal(size=learners),
    }


def write_steps(folder: Path, resume_step: int | None, steps: list[int]) -> None:
    with MetricsWriter(folder, resume_step) as writer:
        for step in steps:
            writer.write(step, float(step), report(step))


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows, by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def test_the_file_is_wide_with_columns_in_order(tmp_path):
    with MetricsWriter(tmp_path, None) as writer:
        writer.write(
            512,
            1.25,
            {"return_mean": np.array([0.1, 2], np.float32), "alpha": 3, "done": jnp.array([True, False])},
        )
    assert (tmp_path / "metrics.csv").read_text() == (
        "step,learner,seconds,alpha,done,return_mean\n512,0,1.250,3,1,0.1\n512,1,1.250,3,0,2.0\n"
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, jnp.bfloat16, np.int32])
def test_numbers_read_back_exactly(tmp_path, dtype):
    values = (np.random.default_rng(0).normal(size=50) * 1000).astype(dtype)
    with MetricsWriter(tmp_path, None) as writer:
        writer.write(1, 0.0, {"x": values})
    np.testing.assert_array_equal(read_metrics(tmp_path / "metrics.csv")["x"].astype(dtype), values)


def test_what_is_no_number_reads_back_as_one(tmp_path):
    with MetricsWriter(tmp_path, None) as writer:
        writer.write(1, 0.0, {"x": np.array([np.nan, np.inf, -np.inf])})
    table = read_metrics(tmp_path)
    np.testing.assert_array_equal(table["x"], [np.nan, np.inf, -np.inf])
    assert table["step"].dtype == table["learner"].dtype == np.int64
    assert (tmp_path / "metrics.csv").read_text().splitlines()[1] == "1,0,0.000,nan"


def test_a_metric_may_come_late_or_miss_a_report(tmp_path):
    with MetricsWriter(tmp_path, None) as writer:
        writer.write(1, 1.0, {"b": np.array([1, 2])})
        writer.write(2, 2.0, {"b": np.array([3, 4]), "a": np.array([5, 6])})
        writer.write(3, 3.0, {"a": np.array([7, 8])})
    assert (tmp_path / "metrics.csv").read_text().splitlines()[0] == "step,learner,seconds,a,b"
    table = read_metrics(tmp_path)
    np.testing.assert_array_equal(table["a"], [np.nan, np.nan, 5, 6, 7, 8])
    np.testing.assert_array_equal(table["b"], [1, 2, 3, 4, np.nan, np.nan])


def test_a_metric_with_a_shape_or_a_name_of_ours_is_refused(tmp_path):
    with MetricsWriter(tmp_path, None) as writer:
        with pytest.raises(ValueError, match="one number per learner"):
            writer.write(1, 0.0, {"x": np.zeros((2, 2))})
        with pytest.raises(ValueError, match="may not be called step"):
            writer.write(1, 0.0, {"step": 1})
        with pytest.raises(ValueError, match="broadcast"):
            writer.write(1, 0.0, {"x": np.zeros(2), "y": np.zeros(3)})


@pytest.mark.parametrize("stop", [0, 2, 3, 5])
def test_interrupted_and_resumed_equals_unbroken(tmp_path, stop):
    write_steps(tmp_path / "whole", None, [1, 2, 3, 4, 5, 6])
    write_steps(tmp_path / "broken", None, [1, 2, 3, 4, 5])
    write_steps(tmp_path / "broken", stop, [step for step in range(1, 7) if step > stop])
    whole, broken = ((tmp_path / name / "metrics.csv").read_bytes() for name in ("whole", "broken"))
    assert whole == broken
    assert scalars(tmp_path / "whole") == scalars(tmp_path / "broken")


def test_starting_over_forgets_the_run_before(tmp_path):
    write_steps(tmp_path, None, [1, 2, 3])
    write_steps(tmp_path, None, [1])
    assert read_metrics(tmp_path)["step"].tolist() == [1, 1]
    assert [step for step, _ in scalars(tmp_path)["charts/loss"]] == [1]


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_row_cut_short_by_a_crash_is_left_out_and_mended(tmp_path, cut):
    write_steps(tmp_path, None, [1, 2])
    path = tmp_path / "metrics.csv"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert read_metrics(tmp_path)["step"].tolist() == [1, 1, 2, 2][:3]
    write_steps(tmp_path, 1, [2])
    assert path.read_bytes() == whole


@pytest.mark.parametrize("contents", ["", "step,lear", "step,learner,seconds\n"])
def test_resuming_a_file_with_no_row(tmp_path, contents):
    (tmp_path / "metrics.csv").write_text(contents)
    write_steps(tmp_path, 0, [1])
    assert read_metrics(tmp_path)["step"].tolist() == [1, 1]


KILLED = """
import os, sys
from pathlib import Path
from shoal.runs.metrics import MetricsWriter
writer = MetricsWriter(Path(sys.argv[1]), None)
for step in range(1, 4):
    writer.write(step, 0.0, {"x": step})
os._exit(9)
"""


def test_a_killed_process_loses_no_report_it_has_written(tmp_path):
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False).returncode == 9
    assert read_metrics(tmp_path)["x"].tolist() == [1, 2, 3]
    assert scalars(tmp_path)["charts/x"] == [(1, 1), (2, 2), (3, 3)]


def test_a_full_disk_keeps_the_rows_there_are(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with MetricsWriter(tmp_path, None) as writer:
        writer.write(1, 0.0, report(1))
        before = (tmp_path / "metrics.csv").read_bytes()
        monkeypatch.setattr(os, "fsync", full)
        for late in ({"new": 1.0}, {}):
            with pytest.raises(ShoalError, match=r"metrics\.csv: No space left on device; free some space"):
                writer.write(2, 0.0, report(2) | late)
            assert (tmp_path / "metrics.csv").read_bytes() == before


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(ShoalError, match="move the file that is in the way"):
        MetricsWriter(tmp_path / "run", None)
    with pytest.raises(ShoalError, match="move the file that is in the way"):
        write_summary(tmp_path / "run", SUMMARY)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (None, "is not there"),
        ("", "no records yet"),
        ("step,learner,seconds,x\n", "no records yet"),
        ("a,b\n1,2\n", "not a metrics file"),
        ("step,learner,seconds\n1,0,0.0\n1,0\n", "damaged in line 3"),
        ("step,learner,seconds\n1,0,0.0\n\0\0,0,1\n", "damaged in line 3"),
        ("step,learner,seconds,x\n1,0,0.0,high\n", "damaged in line 2"),
        ("step,learner,seconds,x\n1,0,0.0,1\0\n", "damaged in line 2"),
        ("step,learner,seconds,x\n1,0,0.0,1\n2,7,0.0,1\n", "damaged in line 3"),
        ("step,learner,seconds,x\n1,0,0.0,1\n1e99,0,0.0,1\n", "damaged in line 3"),
        (f"step,learner,seconds,x\n1,0,0.0,{'9' * 99}\n", "damaged in line 2"),
        ("step,learner,seconds,x,x\n1,0,0.0,1,1\n", "damaged in line 1: two columns have one name"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, contents, message):
    if contents is not None:
        (tmp_path / "metrics.csv").write_text(contents)
    with pytest.raises(ShoalError, match=message) as caught:
        read_metrics(tmp_path)
    assert "metrics.csv" in str(caught.value)


def test_tensorboard_one_learner(tmp_path):
    with MetricsWriter(tmp_path, None) as writer:
        writer.write(10, 0.0, {"loss/total": np.array([0.5]), "nan": np.nan})
        writer.write(20, 0.0, {"loss/total": 0.25})
    assert scalars(tmp_path) == {"losses/total": [(10, 0.5), (20, 0.25)]}


def test_tensorboard_a_few_learners_and_their_mean(tmp_path):
    with MetricsWriter(tmp_path, None) as writer:
        writer.write(10, 0.0, {"loss/total": np.array([1.0, np.nan, 2.0])})
    assert scalars(tmp_path) == {
        "losses/total": [(10, 1.5)],
        "learners/losses/total/000": [(10, 1.0)],
        "learners/losses/total/002": [(10, 2.0)],
    }


def test_tensorboard_many_learners(tmp_path):
    with MetricsWriter(tmp_path, None) as writer:
        writer.write(
            10, 0.0, {"loss/total": np.arange(33), "infinite": np.array([np.inf, -np.inf] * 16 + [0])}
        )
    found = scalars(tmp_path)
    assert {tag: found[tag] for tag in found if tag.startswith("loss")} == {
        "losses/total": [(10, 16.0)],
        "losses/total/min": [(10, 0.0)],
        "losses/total/max": [(10, 32.0)],
    }


def test_without_tensorboard_the_csv_is_still_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.warns(RuntimeWarning, match="no TensorBoard events"), MetricsWriter(tmp_path, None) as writer:
        writer.write(1, 0.0, {"x": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


def test_the_summary_is_plain_json_in_order(tmp_path):
    summary = {
        "extra": {"nested": np.int64(3)},
        **SUMMARY,
        "env": "CartPole-v1",
        "return_mean": np.array([1.5, np.nan]),
        "best_learner": jnp.int32(1),
        "best_return": float("inf"),
    }
    found = json.loads(write_summary(tmp_path / "run", summary).read_text())
    assert list(found) == list(summary)
    assert found["return_mean"] == [1.5, None]
    assert found["best_return"] is None
    assert (found["env"], found["best_learner"], found["extra"]) == ("CartPole-v1", 1, {"nested": 3})
