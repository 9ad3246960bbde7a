"""Interrupts the commands at random moments: do they end soon, with code 130, and can they be repeated?

    python bench/interrupts.py [--share 1] [--seed 1] [--out bench/results/interrupts.md]

The iterations of `slow_env:Slow-v0` last 30 s because it sleeps; those of the built-in CartPole compute. A
try that comes too late, because the command has ended, is made again at half the time, so every try that
counts meets its phase.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

ABOUT = (
    "Ctrl-C at random moments of every command, by `python bench/interrupts.py`. A failure is an exit later "
    "than 5 s, another code than 130, a traceback, a half-written file, or a command that does not work when "
    "it is repeated. Made again: tries that came too late, when the command had ended; none of them counts."
)
LIMIT = 5.0
"""Seconds in which a command must end."""
PYTHON_STARTS = 0.3
"""Seconds in which Python starts, before a line of ours runs; a signal then shows a traceback of its own."""
HERE = Path(__file__).parent
SMALL = "--no-preset --num-envs 2 --num-steps 128 --num-minibatches 2 --update-epochs 1 --hidden 8"
LONG = "--no-preset --num-envs 8 --num-steps 262144 --num-minibatches 4 --update-epochs 10 --hidden 64"
LARGE = "--no-preset --num-envs 1 --num-steps 8 --num-minibatches 1 --update-epochs 1 --hidden 3900 3900"
LARGE += " --network.init xavier"
"""Two networks of 15 million weights, each with the moments of its optimiser: a state of 370 MB."""
TRIES = 6
"""How often a try is made until it is not too late."""


class Running(NamedTuple):
    """A command under way in a folder of its own."""

    process: subprocess.Popen
    folder: Path
    said: Path


class Phase(NamedTuple):
    """What is interrupted, and when: `wait(running, random number in 0..1)` returns at the moment."""

    name: str
    tries: int
    command: str
    wait: Callable[[Running, float], None]
    signals: int = 1
    cold: bool = False  # with an empty cache of compiled programs
    pause: float = 0.0  # of slow_env, until the interrupt
    busy_disk: bool = False  # while another process writes and flushes all the time
    number: int = signal.SIGINT


def within(seconds: float) -> Callable[[Running, float], None]:
    """At some moment in so many seconds, once Python itself has started."""
    return lambda running, chance: time.sleep(PYTHON_STARTS + seconds * chance)


def after(seen: Callable[[Running], bool], seconds: float = 0.0) -> Callable[[Running, float], None]:
    """At some moment in so many seconds after something was seen."""

    def wait(running: Running, chance: float) -> None:
        while not seen(running) and running.process.poll() is None:
            time.sleep(0.002)
        time.sleep(seconds * chance)

    return wait


def began(running: Running) -> bool:
    return " -> run" in running.said.read_text()


def has_row(running: Running) -> bool:
    metrics = running.folder / "run" / "metrics.csv"
    return metrics.exists() and metrics.read_bytes().count(b"\n") > 1


def saves(running: Running) -> bool:
    return any((running.folder / "run" / "checkpoints").glob(".tmp-*"))


TRAIN = "train CartPole-v1 --steps 2048 --out run"
SAVING = f"train CartPole-v1 --steps 24 --save-every 8 --out run {LARGE}"
PHASES = [
    Phase("start", 7, f"{TRAIN} {SMALL}", within(2.5)),
    Phase("compile", 7, f"{TRAIN}", after(began, 4.0), cold=True),
    Phase(
        "30 s iteration, Python",
        7,
        f"train slow_env:Slow-v0 --steps 768 --out run {SMALL}",
        after(has_row, 20.0),
        pause=0.23,
    ),
    Phase(
        "SIGTERM in a 30 s iteration, Python",
        3,
        f"train slow_env:Slow-v0 --steps 768 --out run {SMALL}",
        after(has_row, 20.0),
        pause=0.23,
        number=signal.SIGTERM,
    ),
    Phase("long iteration, XLA", 5, f"train CartPole-v1 --steps 4e6 --out run {LONG}", after(has_row, 8.0)),
    Phase("saving 370 MB", 4, SAVING, after(saves, 0.5)),
    Phase("saving 370 MB, busy disk", 4, SAVING, after(saves, 0.5), busy_disk=True),
    Phase("saving 370 MB, two signals", 3, SAVING, after(saves, 0.3), signals=2),
    Phase("evaluation", 4, "eval trained --episodes 50", within(6.0), cold=True),
    Phase("film, GIF", 3, "play trained --gif film.gif", within(4.0)),
    Phase("film, MP4", 3, "play trained --mp4 film.mp4", within(4.0)),
    Phase("plots", 3, "plot trained --out plots", within(4.0)),
]


def start(command: str, folder: Path, cache: Path, pause: float = 0.0) -> Running:
    """Start a command."""
    said = folder / "said.txt"
    path = os.pathsep.join([str(HERE.parent), str(HERE)])
    own = {"PYTHONPATH": path, "XDG_CACHE_HOME": str(cache), "SHOAL_BENCH_PAUSE": str(pause)}
    with said.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal.cli", *command.split()],
            cwd=folder,
            env=os.environ | own,
            stdout=output,
            stderr=output,
        )
    return Running(process, folder, said)


def attempt(phase: Phase, trained: Path, cache: Path, chance: float) -> tuple[float | None, list[str]]:
    """One interrupt: the seconds to the end (None where the command was quicker), and what went wrong."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(trained, folder / "trained")
        running = start(phase.command, folder, folder / "cache" if phase.cold else cache, phase.pause)
        phase.wait(running, chance)
        before = time.monotonic()
        for _ in range(phase.signals):
            running.process.send_signal(phase.number)
            time.sleep(0.3 * (phase.signals > 1))
        try:
            status = running.process.wait(60)
        except subprocess.TimeoutExpired:
            running.process.kill()
            return 60.0, ["did not end"]
        seconds, said = time.monotonic() - before, running.said.read_text()
        late = status in (0, -phase.number)  # Python's last steps know no handlers
        wrong = [] if late or status == 130 else [f"code {status}"]
        wrong += ["slow"] if seconds > LIMIT else []
        wrong += ["a traceback"] if "Traceback" in said or "Exception ignored" in said else []
        again = start(phase.command, folder, cache)
        if again.process.wait():
            wrong += [f"the same command then: code {again.process.returncode}"]
        leftover = [path.name for path in folder.rglob(".tmp-*") if path.parent.name != "cache"]
        wrong += [f"left {leftover}"] if leftover else []
        if wrong:
            print(f"{phase.name} at {chance:.3f}: {wrong}\n{said}\n{again.said.read_text()}", file=sys.stderr)
        return None if late else seconds, wrong


def hit(phase: Phase, trained: Path, cache: Path, chance: float) -> tuple[float, list[str], int]:
    """A try that meets its phase: seconds to the end, what went wrong, how many came too late before."""
    for late in range(TRIES):
        seconds, wrong = attempt(phase, trained, cache, chance / 2**late)
        if seconds is not None or wrong:
            return seconds or 0.0, wrong, late
    return 0.0, ["always too late"], TRIES


@contextmanager
def busy_disk(folder: Path, busy: bool) -> Iterator[None]:
    """Another process writes and flushes 64 MB again and again, if asked."""
    code = "import os\nfile = open('busy', 'wb')\nwhile True:\n    file.seek(0)\n    "
    code += "file.write(os.urandom(1 << 26))\n    file.flush()\n    os.fsync(file.fileno())\n"
    writers = [subprocess.Popen([sys.executable, "-c", code], cwd=folder)] if busy else []
    try:
        yield
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()


def measure(phases: list[Phase], share: float, seed: int) -> str:
    """The table."""
    chances = random.Random(seed)
    lines = [
        "| interrupted in | tries | made again | median exit, s | slowest exit, s | failures |",
        "|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as name:
        trained, cache = Path(name) / "trained", Path(name) / "cache"
        first = start(f"train CartPole-v1 --steps 20000 --out trained {SMALL}", Path(name), cache)
        assert first.process.wait() == 0, first.said.read_text()
        for phase in phases:
            tries = max(1, round(phase.tries * share))
            with busy_disk(Path(name), phase.busy_disk):
                found = [hit(phase, trained, cache, chances.random()) for _ in range(tries)]
            times, late = [seconds for seconds, _, _ in found], sum(late for _, _, late in found)
            failures = sum(bool(wrong) for _, wrong, _ in found)
            spread = f"{median(times):.1f} | {max(times):.1f}"
            lines.append(f"| {phase.name} | {tries} | {late} | {spread} | {failures} |")
            print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", type=float, default=1.0, help="of the 50 tries")
    parser.add_argument("--only", default="", help="phases whose names begin so")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    text = measure([p for p in PHASES if p.name.startswith(options.only)], options.share, options.seed)
    if options.out:
        options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
