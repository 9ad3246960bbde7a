"""A follower records each report, film and checkpoint of a run's folder once; a tracker never stops a run."""

import sys
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest

from shoal.cli.flags import read_start
from shoal.cli.parse import parse_train
from shoal.errors import ShoalError
from shoal.runs import checkpoint
from shoal.runs.config import write_config
from shoal.runs.files import FolderLock
from shoal.runs.metrics import MetricsWriter
from shoal.runs.session import clear_folder
from shoal.runs.summary import write_summary
from shoal.runs.tracking import follow, trackers
from shoal.runs.tracking.follow import Follower, read_known
from shoal.runs.tracking.reports import NewReports, of_learner
from shoal.runs.tracking.trackers import Trackers, is_installed, read_trackers, record_now
from shoal.training.config import TrainConfig

CONFIG = TrainConfig("CartPole-v1", steps=300, learners=2)


class FakeRecord:
    """Remembers all it is given."""

    opened: list["FakeRecord"]

    def __init__(self, title):
        self.title, self.id, self.place = title, title.id or f"id{len(self.opened)}", "here"
        self.rows, self.films, self.files, self.complete = [], [], [], None
        self.opened.append(self)

    def log(self, step, metrics):
        self.rows.append((step, dict(metrics)))

    def add_film(self, step, name, path):
        self.films.append((step, name, path.name))

    def add_files(self, files, about):
        self.files.append((sorted(files), about))

    def close(self, complete):
        self.complete = complete


@pytest.fixture
def opened():
    """The records that were opened, in their order."""
    FakeRecord.opened = []
    return FakeRecord.opened


@pytest.fixture
def folder(tmp_path):
    """A run's folder without a report."""
    write_config(tmp_path / "config.yaml", CONFIG)
    return tmp_path


def write(folder, steps, resume_step=None, **metrics):
    """Reports whose `x` is ten times the step, and one more for the second learner."""
    with MetricsWriter(folder, resume_step) as writer:
        for step in steps:
            writer.write(step, 0.5, {"x": np.array([10.0 * step, 10.0 * step + 1]), **metrics})


def looked(folder) -> Follower:
    follower = Follower(folder, "fake", FakeRecord)
    follower.look()
    return follower


def test_reports_are_read_once_as_they_are_added(folder):
    reports = NewReports(folder / "metrics.csv", 2)
    assert reports.read() == []
    with MetricsWriter(folder, None) as writer:
        writer.write(1, 0.5, {"x": np.array([1.0, np.nan])})
        ((step, columns),) = reports.read()
        assert (step, of_learner(columns, 0)) == (1, {"seconds": 0.5, "x": 1.0})
        assert of_learner(columns, 1) == {"seconds": 0.5}
        assert reports.read() == []
        writer.write(2, 0.5, {"x": np.array([3.0, 4.0])})
        assert [step for step, _ in reports.read()] == [2]
        writer.write(3, 0.5, {"x": np.zeros(2), "new": np.ones(2)})  # a new column: the file is another
        assert [step for step, _ in reports.read()] == [1, 2, 3]


def test_a_report_that_is_half_written_waits(folder):
    write(folder, [1])
    path, reports = folder / "metrics.csv", NewReports(folder / "metrics.csv", 2)
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        assert reports.read() == []
    path.write_bytes(whole)
    assert [step for step, _ in reports.read()] == [1]


def test_a_cohort_is_a_mean_with_a_band_and_a_record_for_each_learner(folder, opened):
    write(folder, [1, 2])
    looked(folder)
    whole, *learners = opened
    band = {"x": 20.5, "x_low": 20.0, "x_high": 21.0, "seconds": 0.5}
    assert whole.rows[1] == (2, band)
    assert [one.rows[1] for one in learners] == [(2, {"x": 20.0 + k, "seconds": 0.5}) for k in range(2)]
    assert {one.title.group for one in opened} == {read_known(folder, "fake").group}
    assert [one.title.whole for one in opened] == [None, "id0", "id0"]
    assert [one.title.name for one in opened] == [
        folder.name,
        f"{folder.name} learner 0",
        f"{folder.name} learner 1",
    ]
    assert whole.title.settings["steps"] == 300


@pytest.mark.parametrize("many", [1, 3])
def test_one_learner_and_too_many_have_a_single_record(folder, opened, monkeypatch, many):
    monkeypatch.setattr(follow, "MANY_LEARNERS", 2)
    write_config(folder / "config.yaml", replace(CONFIG, learners=many))
    with MetricsWriter(folder, None) as writer:
        writer.write(1, 0.5, {"x": np.ones(many)})
    looked(folder)
    (whole,) = opened
    assert ("x_low" in whole.rows[0][1]) == (many > 1)
    assert (whole.title.group is not None) == (many > 1)


def test_a_resumed_run_goes_on_with_its_records(folder, opened):
    write(folder, [1, 2])
    looked(folder)
    write(folder, [2, 3], resume_step=1)  # as after a crash: step 2 is trained again
    looked(folder)
    assert [one.id for one in opened] == ["id0", "id1", "id2"] * 2
    assert [[step for step, _ in one.rows] for one in opened] == [[1, 2]] * 3 + [[3]] * 3
    clear_folder(folder)
    write_config(folder / "config.yaml", CONFIG)
    assert looked(folder).known.ids == ["id6"]  # --clobber: another record


def test_films_and_lasting_checkpoints_are_sent_once(folder, opened, monkeypatch):
    write(folder, [100])
    saved = folder / "checkpoints"
    for step, kept in ((100, False), (200, True), (250, False), (300, False)):
        checkpoint.save(saved, step, {"x": np.zeros(3)}, {"score": -step, "kept": kept})
    (folder / "videos").mkdir()
    (folder / "videos" / "learner_0.gif").write_bytes(b"film")
    for _ in range(2):
        looked(folder).close()
    first, _, _, second = opened  # learners are not opened again for nothing
    assert first.films == [(101, "film/learner_0", "learner_0.gif")]
    names = [
        f"checkpoints/step_000000{step}.{end}" for step in (100, 200, 300) for end in ("json", "safetensors")
    ]
    assert first.files == [([*names, "config.yaml"], {"step": 300, "checkpoints": [100, 200, 300]})]
    assert second.films == second.files == []
    monkeypatch.setattr(follow, "LARGEST", 10)
    checkpoint.save(saved, 400, {"x": np.zeros(3)}, {"score": 1})
    looked(folder).close()
    assert opened[-1].files == []


@pytest.mark.parametrize(
    ("summary", "complete"),
    [
        ({}, False),
        ({"steps": 300, "return_mean": [1.0], "interrupted": True}, False),
        ({"steps": 200, "return_mean": [1.0], "interrupted": False}, False),  # of the shorter run before
        ({"steps": 300, "return_mean": [1.0], "interrupted": False}, True),
    ],
)
def test_a_record_is_complete_where_the_run_is(folder, opened, summary, complete):
    write(folder, [300])
    write_summary(folder, summary)
    looked(folder).close()
    assert [one.complete for one in opened] == [complete] * 3


def in_place_of_a_tracker(monkeypatch, code):
    """Another program in place of the process of a tracker."""
    original = trackers.subprocess.Popen
    monkeypatch.setattr(
        trackers.subprocess, "Popen", lambda command, **how: original([sys.executable, "-c", code], **how)
    )


def test_a_tracker_that_fails_is_reported_once(folder, monkeypatch):
    in_place_of_a_tracker(monkeypatch, "print('no network'); raise SystemExit(1)")
    with Trackers(folder, ["wandb"]) as running:
        running.processes["wandb"].wait()
        with pytest.warns(RuntimeWarning, match="^wandb: no network; the run is not recorded there"):
            running.check()
        running.check()


def test_a_tracker_that_hangs_is_left_behind(folder, monkeypatch):
    in_place_of_a_tracker(monkeypatch, "import time; time.sleep(60)")
    monkeypatch.setattr(trackers, "STOPPED_SECONDS", 0.0)
    running = Trackers(folder, ["wandb"])
    process, before = running.processes["wandb"], time.monotonic()
    with pytest.warns(RuntimeWarning, match="wandb: still sending"):
        running.__exit__()
    assert time.monotonic() - before < 30
    process.kill()
    process.wait()


def test_a_tracker_ends_with_its_run(folder, monkeypatch):
    in_place_of_a_tracker(monkeypatch, "import sys; sys.stdin.read()")
    monkeypatch.setattr(trackers, "STOPPED_SECONDS", 60.0)
    with warnings.catch_warnings(), Trackers(folder, ["wandb", "mlflow"]) as running:
        processes = list(running.processes.values())
    assert [process.returncode for process in processes] == [0, 0]


def test_trackers_are_checked_before_anything_else(monkeypatch):
    monkeypatch.setattr(trackers, "is_installed", lambda name: name == "mlflow")
    assert read_trackers(["mlflow,mlflow", "mlflow"]) == ("mlflow",)
    with pytest.raises(ShoalError, match=r"--track wandb needs wandb: pip install 'shoal\[wandb\]'"):
        read_trackers("mlflow,wandb")
    with pytest.raises(ShoalError, match="no tracker is called 'tensorboard'; choose from wandb"):
        read_trackers("tensorboard")
    with pytest.raises(ShoalError, match="track names trackers, wandb, mlflow, trackio, not True"):
        read_trackers(True)  # type: ignore[arg-type]


def test_the_files_of_a_tracker_are_no_package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name, source in (("tracked_files", ""), ("tracked_package", "__init__.py")):
        (tmp_path / name).mkdir()
        (tmp_path / name / (source or "run.txt")).touch()
    found = [is_installed(name) for name in ("tracked_files", "tracked_package", "tracked_nowhere")]
    assert found == [False, True, False]


def test_a_run_that_does_not_train_is_recorded_at_once(folder, monkeypatch):
    in_place_of_a_tracker(monkeypatch, f"open({str(folder / 'ran')!r}, 'w')")
    monkeypatch.setattr(trackers, "STOPPED_SECONDS", 60.0)
    lock = FolderLock()
    lock.take(folder)
    record_now(folder, ["wandb"])
    assert not (folder / "ran").exists()  # its own process does that
    lock.release()
    record_now(folder, ["wandb"])
    assert (folder / "ran").exists()


def test_flags_of_trackers_leave_the_environment_alone():
    arguments = ["--track", "wandb", "--track=mlflow,trackio", "CartPole-v1"]
    assert read_start(arguments)[0] == "CartPole-v1"
    config, (output, _) = parse_train(arguments)
    assert (config.env, output.track) == ("CartPole-v1", ("wandb", "mlflow,trackio"))
    assert parse_train(["CartPole-v1"])[1][0].track == ()
