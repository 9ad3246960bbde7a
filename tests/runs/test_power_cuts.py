"""A run that is killed, or loses power, after any of its file operations ends with the same bits.

    python -m tests.runs.test_power_cuts [--sample 0]

Every rename, flush, removal and new folder of a run is recorded with what its files hold then. From each such
state, also with what was not yet flushed lost or cut in half, the run is resumed.
"""

import argparse
import os
import random
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import shoal
from shoal.exchanges.config import ExchangeConfig
from shoal.learners.ppo import PPOConfig
from shoal.runs import cadence
from shoal.runs.lineage import read_lineage
from shoal.runs.session import Finished, open_session, train_session
from shoal.settings import with_settings
from shoal.training.config import TrainConfig

SMALL = PPOConfig(
    num_envs=4, num_steps=16, num_minibatches=1, update_epochs=1, hidden=(4,), learning_rate=0.05
)
SELECT = with_settings(ExchangeConfig(exchange="truncation", local_updates=2), min_episodes=1, fraction=0.5)
CONFIG = TrainConfig("jax:CartPole-v1", algo=SMALL, steps=512, learners=4, reports=4, exchanges=(SELECT,))
LAST = "checkpoints/step_000000512.safetensors"
SAMPLE = 24
"""How many states the test resumes from; the script takes all of them."""


class Stop(NamedTuple):
    """What a run's folder holds after an operation; by paths relative to it."""

    after: str
    files: dict[str, bytes]
    flushed: dict[str, bytes]  # as much of it as survives a power cut


class Recorder:
    """Records the operations in a folder."""

    def __init__(self, folder: Path):
        self.folder, self.stops = folder, []
        self.safe: dict[int, bytes] = {}  # by the number of the file

    def note(self, operation: str) -> None:
        files, flushed = {}, {}
        for path in sorted(self.folder.rglob("*")):
            try:
                if path.is_file():
                    name, number = str(path.relative_to(self.folder)), path.stat().st_ino
                    files[name] = path.read_bytes()
                    flushed[name] = self.safe.get(number, b"")
            except OSError:  # the writing thread has just renamed it
                continue
        self.stops.append(Stop(operation, files, flushed))

    def flush(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_file() and self.folder in path.parents:
            self.safe[path.stat().st_ino] = path.read_bytes()


@contextmanager
def recording(folder: Path) -> Iterator[Recorder]:
    """Records what happens in a folder, while the block runs."""
    recorder, patch = Recorder(folder), pytest.MonkeyPatch()

    def recorded(name):
        original = getattr(os, name)

        def call(*arguments, **how):
            recorder.note(f"before {name}")
            result = original(*arguments, **how)
            if name == "fsync":
                recorder.flush(arguments[0])
            recorder.note(f"after {name} {arguments[0]}")
            return result

        return call

    for name in ("replace", "fsync", "unlink", "mkdir", "ftruncate"):
        patch.setattr(os, name, recorded(name))
    try:
        yield recorder
    finally:
        patch.undo()


def states(stops: list[Stop]) -> dict[str, dict[str, bytes]]:
    """What a kill and a power cut leave, each once, by names that say what happened."""
    found: dict[int, tuple[str, dict[str, bytes]]] = {}
    for number, stop in enumerate(stops):
        half = {
            name: max(stop.flushed[name], content[: (len(stop.flushed[name]) + len(content)) // 2], key=len)
            for name, content in stop.files.items()
        }
        zeros = {name: stop.flushed[name].ljust(len(content), b"\0") for name, content in stop.files.items()}
        variants = {"killed": stop.files, "unflushed lost": stop.flushed, "cut in half": half, "zeros": zeros}
        for what, files in variants.items():
            found.setdefault(hash(tuple(sorted(files.items()))), (f"{number} {stop.after}: {what}", files))
    return dict(found.values())


def resume(files: dict[str, bytes], folder: Path) -> Path:
    """The run that goes on from these files."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # it may say what it leaves out
        opened = open_session(CONFIG, folder)
        if not isinstance(opened, Finished):
            train_session(opened, lambda report: None)
    return folder


def record(folder: Path) -> tuple[bytes, dict[str, dict[str, bytes]]]:
    """An unbroken run: its last parameters, and the states of its folder."""
    folder.mkdir(parents=True)
    with recording(folder) as recorder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cadence, "SAVE_SECONDS", -1.0)
        shoal.run(CONFIG, folder=folder)
    return (folder / LAST).read_bytes(), states(recorder.stops)


def check(files: dict[str, bytes], expected: bytes, folder: Path) -> None:
    """Resume and compare."""
    resume(files, folder)
    assert (folder / LAST).read_bytes() == expected
    assert (folder / "summary.json").exists()
    assert read_lineage(folder).steps[-1] == 512
    assert shoal.load(folder).metrics["step"][-1] == 512
    assert not list(folder.rglob(".tmp-*"))


@pytest.mark.slow
def test_a_run_that_stops_after_any_operation_ends_the_same(tmp_path):
    expected, found = record(tmp_path / "whole")
    assert len(found) > 50
    for number, name in enumerate(random.Random(1).sample(sorted(found), SAMPLE)):
        check(found[name], expected, tmp_path / str(number))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sample", type=int, default=0, help="of the states; 0 is all")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        expected, found = record(Path(place) / "whole")
        names = random.Random(1).sample(sorted(found), options.sample or len(found))
        failed = 0
        for number, name in enumerate(names):
            try:
                check(found[name], expected, Path(place) / str(number))
            except (Exception, SystemExit) as error:
                failed += 1
                print(f"{name}: {type(error).__name__} {str(error)[:300]}", flush=True)
            if number % 20 == 19:
                print(f"{number + 1} of {len(names)}, {failed} failed", flush=True)
        print(f"{len(names)} states resumed, {failed} failed")


if __name__ == "__main__":
    main()
