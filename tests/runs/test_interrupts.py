"""A run that is interrupted inside a long iteration keeps what it had before, and goes on from there."""

import os
import re
import signal
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from rich.console import Console

import shoal
from shoal.cli.show import given_up
from shoal.learners.ppo import PPOConfig
from shoal.runs import progress
from shoal.runs.files import _unfinished, remove_unfinished, replacing
from shoal.runs.milestones import Milestones
from shoal.runs.progress import ProgressBar
from shoal.runs.session import Finished, describe_stop, open_session, train_session
from shoal.runs.summary import read_summary
from shoal.training import waiting as module
from shoal.training.loop import Clock
from shoal.training.waiting import Waiting

GO_ON = threading.Event()


class Hangs(gymnasium.Env):
    """Sends Ctrl-C in its 40th step, which then lasts until the test allows the rest."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 40 and not GO_ON.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            GO_ON.wait()
        return np.zeros(3, np.float32), 1.0, self.steps % 10 == 0, False, {}


gymnasium.register("tests/Hangs-v0", entry_point=Hangs)
SMALL = PPOConfig(num_envs=1, num_steps=16, num_minibatches=1, update_epochs=1, hidden=(8,))
CONFIG = shoal.TrainConfig("tests/Hangs-v0", algo=SMALL, steps=64, reports=4)


@pytest.fixture
def hanging(monkeypatch):
    """The environment hangs during the test."""
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.2)
    GO_ON.clear()
    yield
    GO_ON.set()
    while module._running:
        time.sleep(0.01)


def test_what_was_reached_before_a_long_iteration_is_saved_and_the_same_call_goes_on(tmp_path, hanging):
    """The 40th step is in the third of four iterations of 16 steps."""
    with pytest.raises(KeyboardInterrupt, match=r"stopped inside an iteration; .* is saved at step 32"):
        shoal.run(CONFIG, folder=tmp_path)
    assert read_summary(tmp_path)["steps"] == 32
    assert read_summary(tmp_path)["interrupted"] is True
    GO_ON.set()
    assert shoal.run(CONFIG, folder=tmp_path).step == 64
    assert read_summary(tmp_path)["interrupted"] is False


def test_without_a_finished_iteration_nothing_is_saved(tmp_path, hanging, capsys):
    longer = replace(CONFIG, algo=replace(SMALL, num_steps=64))
    finished = train_session(open_session(longer, tmp_path), lambda report: None)
    assert finished == Finished(tmp_path, 0, {}, True, given_up="training")
    given_up(finished)
    expected = "stopped inside the first iteration; nothing is saved yet; the same command starts again\n"
    assert capsys.readouterr().out == expected
    assert not (tmp_path / "checkpoints").exists()
    GO_ON.set()
    assert open_session(longer, tmp_path).resumed_step is None


def test_a_run_stopped_while_it_compiles_says_so(tmp_path):
    finished = Finished(tmp_path, 0, {}, True, given_up="compiling")
    assert describe_stop(finished) == "stopped while compiling; nothing is saved yet"


def test_files_half_written_are_removed_before_the_process_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.runs.files._renaming", threading.Lock())
    (tmp_path / "a.txt").write_text("old")

    def write_half():
        with replacing(tmp_path / "a.txt") as (temporary,):
            temporary.write_text("half")
            remove_unfinished()

    with pytest.raises(shoal.ShoalError, match=r"cannot write .*a\.txt: No such file"):
        write_half()
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"
    assert not _unfinished


@pytest.fixture
def bar(capsys):
    """A progress bar without a terminal, of a run of 10 million steps in iterations of 1,000."""
    config = shoal.TrainConfig("Slow-v0", PPOConfig(num_envs=8, num_steps=125), steps=10_000_000)
    spec = SimpleNamespace(name="Slow-v0", backend="gym", exact_resume=False)
    mesh = SimpleNamespace(devices=np.array([[SimpleNamespace(platform="cpu")]]))
    parts = SimpleNamespace(config=config, recipe=SimpleNamespace(spec=spec), mesh=mesh)
    trainer, waiting = SimpleNamespace(parts=parts), Waiting()
    session = SimpleNamespace(
        trainer=trainer,
        waiting=waiting,
        watch=SimpleNamespace(milestones=Milestones()),
        resumed_step=None,
        clock=Clock(),
        folder="runs/slow",
    )
    shown = ProgressBar(session)
    shown.last_line = -np.inf
    capsys.readouterr()
    return shown


def report(step, seconds):
    """A report of a run that compiled for 10 s."""
    clock = Clock(seconds, 10.0, step)
    metrics = {"return_mean": np.array([1.5])}
    return SimpleNamespace(
        step=step,
        clock=clock,
        metrics=metrics,
        evaluated=False,
        due=True,
        steps_per_second_compiled=step / (seconds - 10),
    )


def test_a_long_iteration_tells_about_how_far_it_is(bar, monkeypatch, capsys):
    """After 1,000 steps in 100 s, 50 s inside the next 1,000."""
    now = bar.waiting.since
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    bar._show()
    assert capsys.readouterr().err == "compiling 0 s\n"
    bar.waiting.begin("training")
    now += 30
    bar._show()
    assert capsys.readouterr().err == "first iteration 30 s\n"
    bar.update(report(1000, 110.0))
    now += 5
    bar._show()
    assert "step 1,000 of" in capsys.readouterr().err, "nothing has begun since"
    bar.waiting.begin("training")
    now += 50
    bar._show()
    told = capsys.readouterr().err
    steps = "step ~1,500 of 10,000,000"
    assert told == f"{steps}  return 1.50  10 steps/s  11 d 13 h left  iteration 50 s\n"
    now += 1000
    bar.waiting.stop()
    bar._show()
    assert re.match(r"step ~1,999 of .*  iteration 17 min 30 s  stopping\n", capsys.readouterr().err)


def test_steps_of_environments_in_python_are_counted(bar, monkeypatch, capsys):
    """8 environments: 10 time steps in the first 20 s, which makes a run of 28.9 days."""
    now, taken = bar.waiting.since, 100
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    monkeypatch.setattr(module, "time_steps", lambda: taken)
    bar.waiting.begin("training")
    now, taken = now + 20, taken + 10
    bar._warn_of_days()
    bar._show()
    days, line = capsys.readouterr().err.splitlines()
    assert days == "at 4 steps/s this run takes 28 d 22 h; --steps 14000 takes 58 min 20 s"
    assert line == "first iteration 20 s  80 of 1,000 steps  ~28 d 22 h left"
    bar.update(report(1000, 260.0))
    now += 1
    bar.waiting.begin("training")
    now, taken = now + 30, taken + 60
    capsys.readouterr()
    bar._show()
    assert "step 1,480 of 10,000,000  return 1.50" in capsys.readouterr().err


def test_every_report_is_a_line_in_a_file(bar, capsys):
    bar.last_line = progress.time.monotonic()
    for iterations in (1, 2, 3):
        bar.update(report(1000 * iterations, 10.0 + iterations))
    told = capsys.readouterr().err.splitlines()
    assert told[1] == "step 2,000 of 10,000,000  return 1.50  1k steps/s"
    assert len(told) == 3


@pytest.mark.parametrize("width", [50, 60, 80])
def test_the_line_of_a_terminal_fits_its_width(bar, width):
    """What matters most stays: how far, how good, how long."""
    bar.console = Console(width=width, force_terminal=True)
    for iterations in (1, 2, 3):
        bar.report = report(1000 * iterations, 10.0 + 100 * iterations)
        bar.report.metrics["return_mean"] = np.array([iterations, -1234.5, np.nan])
        bar.spent, bar.returns = 300.0, [*bar.returns, float(iterations)]
    text = bar._text()
    assert len(text) <= width - progress.BAR - 1
    assert re.match(r"3k/10M  return -615.8  .*11 d 13 h left", text)
    assert ("best 3.00" in text) == (width >= 60)
    assert ("▁▅█" in text) == (width >= 80)


def test_a_run_that_takes_days_says_so_once(bar, capsys):
    for iterations in (1, 2):
        bar.update(report(1000 * iterations, 10.0 + 100 * iterations))
    told = capsys.readouterr().err
    assert told.count("--steps") == 1
    assert "at 10 steps/s this run takes 11 d 13 h; --steps 36000 takes 1 h\n" in told
