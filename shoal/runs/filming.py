"""Films of the best learner while a run trains: another process plays a checkpoint, training goes on.

`python -m shoal.runs.filming RUN VIDEOS` writes one film, on the CPU, after everything else that runs there.
"""

import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from textwrap import shorten

from shoal.runs.checkpoint import path_of
from shoal.runs.config import load_config
from shoal.runs.files import disk_errors
from shoal.runs.films import play
from shoal.runs.learners import find_parts
from shoal.runs.video import write_video

FILMING = ".film"
"""The folder, in that of a run, of the checkpoints that are filmed."""
LAST_SECONDS = 120.0
"""Seconds that a complete run waits for its last film."""
MOST_STEPS = 1000
FPS = 30


class Films:
    """Films one checkpoint after the other; a context manager.

    While one is filmed the next one waits, and a later one takes its place: training never waits. One that
    fails is reported once, and there are no more.
    """

    def __init__(self, folder: Path):
        self.folder, self.place = folder, folder / FILMING
        self.process: subprocess.Popen | None = None
        self.filmed: int | None = None  # the step of the checkpoint that the process plays
        self.next: int | None = None
        self.awaited: int | None = None  # the step of a checkpoint that may not be written yet
        self.failed = False

    def __enter__(self) -> "Films":
        return self

    def __exit__(self, *exception) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        shutil.rmtree(self.place, ignore_errors=True)

    def check(self, step: int | None = None) -> None:
        """Film the checkpoint at a step as soon as it is written and the film before is done."""
        self.awaited = self.awaited if step is None else step
        if self.awaited is not None and not self.failed and is_saved(self.folder, self.awaited):
            self._forget(self.next)
            keep_checkpoint(self.folder, self.awaited, self._kept(self.awaited))
            self.next, self.awaited = self.awaited, None
        if self.process is not None and self.process.poll() is not None:
            self._end(self.process)
        if self.process is None and self.next is not None:
            self.process = start(self._kept(self.next), self.folder / "videos")
            self.filmed, self.next = self.next, None

    def finish(self, stopping: Callable[[], bool]) -> None:
        """Wait for the film that is made, and for the one after it, unless a stop is requested."""
        deadline = time.monotonic() + LAST_SECONDS
        self.check()
        while self.process is not None and time.monotonic() < deadline and not stopping():
            time.sleep(0.05)
            self.check()
        if self.process is not None and not stopping():
            warnings.warn(f"the last film took over {LAST_SECONDS:.0f} s and was left out", RuntimeWarning)

    def _kept(self, step: int) -> Path:
        """Where the checkpoint at a step is kept for its film."""
        return self.place / str(step)

    def _forget(self, step: int | None) -> None:
        """Keep it no longer."""
        if step is not None:
            shutil.rmtree(self._kept(step), ignore_errors=True)

    def _end(self, process: subprocess.Popen) -> None:
        self._forget(self.filmed)
        self.process, self.filmed = None, None
        printed = process.communicate()[1].decode(errors="replace").strip().splitlines()
        if process.returncode and not self.failed:
            self.failed, self.next = True, None
            reason = printed[-1] if printed else f"code {process.returncode}"
            warnings.warn(f"the run is not filmed: {shorten(reason, 160)}", RuntimeWarning)


def is_saved(folder: Path, step: int) -> bool:
    """Whether a run's checkpoint at a step is written whole."""
    return path_of(folder / "checkpoints", step).with_suffix(".json").exists()


def keep_checkpoint(folder: Path, step: int, place: Path) -> None:
    """Keep a run's settings and one of its checkpoints in another folder, as links where it can."""
    saved = path_of(folder / "checkpoints", step)
    with disk_errors("write", place):
        (place / "checkpoints").mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "config.yaml", place)
        for path in (saved.with_suffix(".safetensors"), saved.with_suffix(".json")):
            try:
                os.link(path, place / "checkpoints" / path.name)
            except OSError:
                shutil.copy(path, place / "checkpoints")


def start(run: Path, videos: Path) -> subprocess.Popen:
    """Start the process of a film, in a group of its own, so that Ctrl-C does not reach it."""
    command = [sys.executable, "-m", "shoal.runs.filming", str(run), str(videos)]
    surroundings = os.environ | {"JAX_PLATFORMS": "cpu"}
    nothing = subprocess.DEVNULL
    return subprocess.Popen(
        command, env=surroundings, process_group=0, stdin=nothing, stdout=nothing, stderr=subprocess.PIPE
    )


def film(run: Path, videos: Path) -> Path:
    """Write a film of the best learner of a run."""
    parts = find_parts(run, load_config(run / "config.yaml"))
    played = play(run, parts, steps=MOST_STEPS)
    path = videos / f"step_{played.step:09d}_learner_{played.learner}.mp4"
    return write_video(played.frames, path, FPS)


def main(run: str, videos: str) -> int:
    """Write one film; a failure is one line."""
    os.nice(19)
    with suppress(AttributeError, OSError):  # one core is enough, where a process can choose
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    try:
        film(Path(run), Path(videos))
    except Exception as error:
        print(" ".join(str(error).split()) or type(error).__name__, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
