"""Signals to the command in each of its phases: it ends soon with code 130 and one line, and starts again."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

SMALL = ["--no-preset", "--num-envs", "2", "--num-steps", "16", "--num-minibatches", "1", "--hidden", "8"]
TRAIN = ["train", "CartPole-v1", "--steps", "1e8", "--out", "run", *SMALL]
LIMIT = 30.0
"""Seconds after which a test gives up; `bench/interrupts.py` measures how soon the command ends."""
COMMAND = """
import sys
from shoal.cli.interrupts import end_at_signals
end_at_signals()
print("ready", file=sys.stderr, flush=True)
from shoal.cli.main import main
sys.exit(main())
"""
"""The command, which says when it notices signals: Python itself may take long to start."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small run."""
    folder = tmp_path_factory.mktemp("trained")
    with start(folder, ["train", "CartPole-v1", "--steps", "64", "--out", "run", *SMALL]) as process:
        process.communicate()
    return folder


def start(folder, arguments):
    """The command in a process of its own, which has compiled nothing before."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "XDG_CACHE_HOME": str(folder)}
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    return process


def interrupt(process, *numbers):
    """What it says from the first signal on."""
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.3)
    said = last_words(process)
    assert process.returncode == 130
    return said


def last_words(process):
    """What it says until it ends."""
    try:
        return process.communicate(timeout=LIMIT)[1]
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("number", "moment"), [(signal.SIGINT, 0.0), (signal.SIGINT, 0.5), (signal.SIGTERM, 0.5)]
)
def test_a_start_is_interrupted(tmp_path, number, moment):
    process = start(tmp_path, TRAIN)
    time.sleep(moment)
    assert interrupt(process, number) == "shoal: interrupted\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("numbers", [[signal.SIGINT], [signal.SIGINT, signal.SIGINT]])
def test_compiling_is_interrupted(tmp_path, numbers):
    """Before or after the first signal is noted, and whether or not the first iteration has ended."""
    process = start(tmp_path, TRAIN)
    assert process.stderr is not None
    assert "-> run" in process.stderr.readline()
    said = interrupt(process, *numbers)
    assert said in ("", "shoal: interrupted\n")
    assert not list(tmp_path.rglob(".tmp-*"))


@pytest.mark.parametrize(
    ("arguments", "moment"),
    [
        (["eval", "run", "--episodes", "2000"], 0.5),
        (["eval", "run", "--episodes", "2000"], 3.0),
        (["play", "run", "--gif", "a.gif"], 3.0),
        (["plot", "run"], 3.0),
    ],
)
def test_what_is_done_with_a_run_is_interrupted_and_leaves_no_half_files(trained, arguments, moment):
    process = start(trained, arguments)
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    said = last_words(process)
    had_ended = process.returncode in (0, -signal.SIGINT)  # Python's last steps know no handlers
    assert had_ended or (process.returncode, said) == (130, "shoal: interrupted\n")
    assert not list(trained.rglob(".tmp-*"))
