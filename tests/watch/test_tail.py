"""A growing metrics.csv: read on, half lines left alone, damage told, always as `read_metrics` has it."""

import os

import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.runs import rows
from shoal.runs.metrics import read_metrics
from shoal.watch.tail import MetricsTail
from tests.watch.folders import add_report, write_run

ALL = ("step", "learner", "seconds", "return_mean", "loss/total")


def assert_same(found, folder):
    expected = read_metrics(folder)
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        np.testing.assert_array_equal(found[name], column)


def test_reads_on_as_the_file_grows(tmp_path):
    folder = write_run(tmp_path / "run", learners=3, reports=1)
    read = MetricsTail(folder / "metrics.csv")
    assert_same(read.read(*ALL), folder)
    for report in (1, 2):
        add_report(folder, report, learners=3)
        assert_same(read.read(*ALL), folder)
    assert read.names() == list(read_metrics(folder))


def test_small_pieces_are_as_good_as_one(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run", learners=5, reports=4)
    monkeypatch.setattr(rows, "CHUNK", 64)
    assert_same(MetricsTail(folder / "metrics.csv").read(*ALL), folder)


def test_a_half_written_line_waits(tmp_path):
    folder = write_run(tmp_path / "run")
    read = MetricsTail(folder / "metrics.csv")
    with (folder / "metrics.csv").open("a") as file:
        file.write("4096,0,4.0,-4")
        file.flush()
        assert len(read.read("step")["step"]) == 3
        file.write("0.0,40.0\n")
    assert read.read("step", "loss/total")["loss/total"].tolist() == [-10, -20, -30, -40]


def test_a_column_asked_for_later(tmp_path):
    folder = write_run(tmp_path / "run", learners=2)
    read = MetricsTail(folder / "metrics.csv")
    read.read("step")
    assert_same(read.read(*ALL), folder)


def test_written_anew_with_another_column(tmp_path):
    folder = write_run(tmp_path / "run", reports=2)
    read = MetricsTail(folder / "metrics.csv")
    read.read(*ALL)
    add_report(folder, 2, columns=1)
    found = read.read(*ALL, "loss/part0")
    assert_same(found, folder)
    assert np.isnan(found["loss/part0"][:2]).all()


@pytest.mark.parametrize(("before", "after"), [("loss/total", "loss/other"), (",10.0\n", ",11.0\n")])
def test_written_anew_in_the_same_file(tmp_path, before, after):
    """A file that replaces another may have its number."""
    path = write_run(tmp_path / "run", reports=3) / "metrics.csv"
    names = [*ALL, "loss/other"]
    read = MetricsTail(path)
    read.read(*names)
    text = path.read_text().replace(before, after)
    path.write_text(text + "4096,0,4.0,-40.0,40.0\n")
    assert_same(read.read(*names), path.parent)


def test_nothing_yet(tmp_path):
    read = MetricsTail(tmp_path / "metrics.csv")
    assert read.read(*ALL) == {}
    (tmp_path / "metrics.csv").write_text("step,learner,sec")
    assert read.read(*ALL) == {}
    (tmp_path / "metrics.csv").write_text("step,learner,seconds,return_mean\n")
    assert read.read(*ALL) == {}
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("8,0,1.5,nan\n")
    assert read.read("step")["step"].tolist() == [8]


@pytest.mark.parametrize("line", ["4096,0,4.0\n", "4096,0,4.0,1,2,3\n", "4096,0,4.0,1,x\n"])
def test_a_damaged_line_is_told(tmp_path, line):
    folder = write_run(tmp_path / "run")
    with (folder / "metrics.csv").open("a") as file:
        file.write(line)
    with pytest.raises(ShoalError, match=r"damaged in line 5"):
        MetricsTail(folder / "metrics.csv").read(*ALL)


def test_only_what_is_new_is_read(tmp_path):
    folder = write_run(tmp_path / "run", learners=50, reports=20)
    read = MetricsTail(folder / "metrics.csv")
    read.read("step", "return_mean")
    size = os.path.getsize(folder / "metrics.csv")
    add = "21504,0,9.0,1.0,2.0\n"
    seen = []
    parsed = read._parsed
    read._parsed = lambda file, begin, end, names: seen.append(end - begin) or parsed(file, begin, end, names)
    with (folder / "metrics.csv").open("a") as file:
        file.write(add)
    assert read.read("step")["step"][-1] == 21504
    assert seen == [len(add)]
    assert size > 100 * len(add)
