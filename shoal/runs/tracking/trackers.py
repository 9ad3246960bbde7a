"""Trackers of a run: which there are, and the processes that feed them."""

import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten

from shoal.errors import ShoalError
from shoal.runs.files import FolderLock, disk_errors, make_folder
from shoal.runs.summary import read_summary
from shoal.runs.tracking.follow import known_path, read_known

TRACKERS = ("wandb", "mlflow", "trackio")
LAST_SECONDS = 60.0
"""Seconds that a complete run waits for its trackers to send what is left."""
STOPPED_SECONDS = 2.0
"""The same of a run that was stopped."""


def read_trackers(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Trackers by name, each once; `given` is one of them, several with commas, or a list.

    >>> read_trackers(None), read_trackers([])
    ((), ())
    """
    words = [given] if isinstance(given, str) else given or ()
    if not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise ShoalError(f"track names trackers, {', '.join(TRACKERS)}, not {given!r}")
    names = tuple(dict.fromkeys(name for word in words for name in word.split(",") if name))
    for name in names:
        if name not in TRACKERS:
            raise ShoalError(f"no tracker is called {name!r}; choose from {', '.join(TRACKERS)}")
        if not is_installed(name):
            raise ShoalError(f"--track {name} needs {name}: pip install 'shoal[{name}]'")
    return names


def is_installed(name: str) -> bool:
    """Whether there is such a package; a folder wandb/ with a tracker's files is none."""
    spec = find_spec(name)
    return spec is not None and spec.origin is not None


class Trackers:
    """Processes that record a run's folder while it trains; a context manager.

    One that fails is reported once, and the run goes on. At the end they send what is left: those that take
    too long go on by themselves.
    """

    def __init__(self, folder: Path, names: Sequence[str]):
        self.folder = folder
        self.processes = {name: start(folder, name) for name in names}

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(self, *exception) -> None:
        for process in self.processes.values():
            tell_the_end(process)
        interrupted = read_summary(self.folder).get("interrupted", True)
        deadline = time.monotonic() + (STOPPED_SECONDS if interrupted else LAST_SECONDS)
        while self.processes and time.monotonic() < deadline:
            self.check()
            time.sleep(0.05)
        for name, process in self.processes.items():
            warnings.warn(f"{name}: still sending; process {process.pid} goes on with it", RuntimeWarning)

    def check(self) -> None:
        """Warn of those that failed."""
        for name, process in list(self.processes.items()):
            if process.poll() is None:
                continue
            del self.processes[name]
            tell_the_end(process)
            if process.returncode:
                log = log_path(self.folder, name)
                lines = log.read_text(errors="replace").strip().splitlines() or [f"code {process.returncode}"]
                reason = shorten(lines[-1], 100, placeholder=" ...")
                warnings.warn(f"{name}: {reason}; the run is not recorded there ({log})", RuntimeWarning)


def start(folder: Path, name: str) -> subprocess.Popen:
    """Start the process of a tracker, in a group of its own, so that Ctrl-C does not stop it."""
    command = [sys.executable, "-m", "shoal.runs.tracking", str(folder), name]
    path = log_path(folder, name)
    make_folder(path.parent)
    with disk_errors("write", path), path.open("w") as log:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, process_group=0)


def tell_the_end(process: subprocess.Popen) -> None:
    """Close the standard input of a tracker's process."""
    assert process.stdin is not None
    process.stdin.close()


def log_path(folder: Path, name: str) -> Path:
    """What a tracker's process prints."""
    return known_path(folder, name).with_suffix(".log")


def record_now(folder: Path, names: Sequence[str]) -> None:
    """Record what a run's folder has and these trackers lack; of a run that trains, its own processes do."""
    lock = FolderLock()
    try:
        if names:
            lock.take(folder)
    except ShoalError:
        return
    lock.release()
    with Trackers(folder, names):
        pass


def places(folder: Path) -> dict[str, str]:
    """Where a run is recorded, by tracker."""
    return {name: read_known(folder, name).place for name in TRACKERS if known_path(folder, name).is_file()}
