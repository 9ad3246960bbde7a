"""Interrupts the commands at random moments: do they end soon, with code 130, and can they be repeated?

    python bench/interrupts.py [--share 1] [--seed 1] [--out bench/results/interrupts.md]

The iterations of `slow_env:Slow-v0` last 30 s because it sleeps; those of the built-in CartPole compute.
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
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ABOUT = (
    "Ctrl-C at random moments of every command, by `python bench/interrupts.py`. A failure is an exit later "
    "than 5 s, another code than 130, a traceback, a half-written file, or a command that does not work when "
    "it is repeated. Too late: the command had ended, or finished within the 2 s that an iteration has."
)
LIMIT = 5.0
"""Seconds in which a command must end."""
PYTHON_STARTS = 0.3
"""Seconds in which Python starts, before a line of ours runs; a signal then shows a traceback of its own."""
HERE = Path(__file__).parent
SMALL = "--no-preset --num-envs 2 --num-steps 128 --num-minibatches 2 --update-epochs 1 --hidden 8"
LONG = "--no-preset --num-envs 8 --num-steps 262144 --num-minibatches 4 --update-epochs 10 --hidden 64"
REPLAY = "--algo td3 --no-preset --num-envs 1 --buffer-size 2000000 --hidden 8"


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
PHASES = [
    Phase("start", 8, f"{TRAIN} {SMALL}", within(2.5)),
    Phase("compile", 8, f"{TRAIN}", after(began, 4.0), cold=True),
    Phase(
        "30 s iteration, Python",
        8,
        f"train slow_env:Slow-v0 --steps 768 --out run {SMALL}",
        after(has_row, 20.0),
        pause=0.23,
    ),
    Phase("long iteration, XLA", 4, f"train CartPole-v1 --steps 4e6 --out run {LONG}", after(has_row, 8.0)),
    Phase("saving", 5, f"train Pendulum-v1 --steps 3000 --out run {REPLAY}", after(saves, 0.03)),
    Phase(
        "saving, two signals", 3, f"train Pendulum-v1 --steps 3000 --out run {REPLAY}", after(saves, 0.03), 2
    ),
    Phase("evaluation", 5, "eval trained --episodes 50", within(6.0), cold=True),
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
            running.process.send_signal(signal.SIGINT)
            time.sleep(0.3 * (phase.signals > 1))
        try:
            status = running.process.wait(60)
        except subprocess.TimeoutExpired:
            running.process.kill()
            return 60.0, ["did not end"]
        seconds, said = time.monotonic() - before, running.said.read_text()
        late = status in (0, -signal.SIGINT)  # Python's last steps know no handlers
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


def measure(phases: list[Phase], share: float, seed: int) -> str:
    """The table."""
    chances = random.Random(seed)
    lines = [
        "| interrupted in | tries | too late | slowest exit, s | failures |",
        "|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as name:
        trained, cache = Path(name) / "trained", Path(name) / "cache"
        first = start(f"train CartPole-v1 --steps 20000 --out trained {SMALL}", Path(name), cache)
        assert first.process.wait() == 0, first.said.read_text()
        for phase in phases:
            tries = max(1, round(phase.tries * share))
            found = [attempt(phase, trained, cache, chances.random()) for _ in range(tries)]
            times = [seconds for seconds, _ in found if seconds is not None]
            late, failures = tries - len(times), sum(bool(wrong) for _, wrong in found)
            slowest = f"{max(times):.1f}" if times else ""
            lines.append(f"| {phase.name} | {tries} | {late} | {slowest} | {failures} |")
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
