"""Kills runs at random moments and resumes them: do they end as unbroken ones, bit for bit?

    python bench/kills.py [--minutes 20] [--seed 1] [--only NAME] [--out bench/results/kills.md]

Each kind of run is trained once unbroken. Then it is trained again, killed two to four times at random
moments (by SIGKILL in half of them, else SIGTERM or SIGINT), each time started again, and at last left to
end. Its metrics without times, its lineage and its last checkpoint are compared with the unbroken run's. The
kinds come in turns until the time is over.
"""

import argparse
import csv
import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ABOUT = (
    "Runs killed at random moments and resumed, by `python bench/kills.py`, against unbroken ones. A "
    "difference is another number in metrics.csv (but times), lineage.csv or the last checkpoint, or a run "
    "that cannot be resumed. Late: the run had ended when the signal came."
)
SMALL = "--no-preset --num-envs 2 --num-steps 64 --num-minibatches 2 --update-epochs 2 --hidden 16"
REPLAY = "--no-preset --num-envs 2 --num-steps 16 --batch-size 32 --hidden 16 --learning-starts 256"
CARTPOLE = f"CartPole-v1 {SMALL} --steps 24000 --reports 40"
COHORT = f"{CARTPOLE} --learners 4"
KINDS = {
    "one learner": CARTPOLE,
    "average": f"{COHORT} --exchange average --local-updates 2",
    "gossip, compressed": f"{COHORT} --exchange gossip --compress.kind top-k --compress.keep 0.1",
    "trimmed mean, liars": f"{COHORT} --exchange trimmed-mean --attack.count 1 --attack.kind noise",
    "neighbours' policies": f"{COHORT} --exchange neighbours --topology ring",
    "population": f"{COHORT} --exchange truncation --local-updates 20 --population.min-episodes 2",
    "worlds that differ": f"{COHORT} --env-spread 0.5 --exchange average",
    "memory": f"CartPole-v1 {SMALL} --memory gru --memory.size 8 --steps 16000 --reports 40",
    "evaluations": f"{COHORT} --eval-every 6000 --eval-episodes 2 --save-every 6000",
    "TD3": f"Pendulum-v1 --algo td3 {REPLAY} --steps 3000 --reports 30",
    "SAC": f"Pendulum-v1 --algo sac {REPLAY} --learners 2 --exchange average --steps 2000 --reports 30",
    "DQN": f"CartPole-v1 --algo dqn {REPLAY} --steps 6000 --reports 40",
    "two processes": f"{COHORT} --exchange gossip --processes 2",
    "two islands": f"{COHORT} --exchange average --local-updates 2 --islands 2",
}
HASTE = "--xla_backend_optimization_level=0"
"""Most of the time of such short runs is compiling."""
TIMES = ("seconds", "steps_per_second")
"""The beginnings of columns that no two runs share."""
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


class Count(NamedTuple):
    """What happened to runs of one kind."""

    runs: int = 0
    kills: int = 0
    terms: int = 0
    interrupts: int = 0
    late: int = 0
    slowest: float = 0.0  # seconds from SIGTERM or SIGINT to the end
    differences: int = 0


def start(arguments: str, folder: Path, cache: Path) -> subprocess.Popen:
    """Begin a run, or resume it."""
    own = {"PYTHONPATH": str(HERE.parent), "XDG_CACHE_HOME": str(cache), "XLA_FLAGS": HASTE}
    with (folder / "said.txt").open("a") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "shoal.cli", "train", *arguments.split(), "--out", "run"],
            cwd=folder,
            env=os.environ | own,
            stdout=said,
            stderr=said,
        )


def result(run: Path) -> dict[str, str]:
    """What a run has to have in common with another, as hashes by name."""
    found = {}
    with (run / "metrics.csv").open() as file:
        rows = [
            {name: x for name, x in row.items() if not name.startswith(TIMES)} for row in csv.DictReader(file)
        ]
    found["metrics.csv"] = digest(repr(rows).encode())
    if (run / "lineage.csv").is_file():
        found["lineage.csv"] = digest((run / "lineage.csv").read_bytes())
    for path in sorted((run / "checkpoints").glob("step_*.safetensors"))[-1:]:
        found[path.name] = digest(path.read_bytes())
    return found


def digest(data: bytes) -> str:
    """A short hash."""
    return hashlib.sha256(data).hexdigest()[:12]


def broken(arguments: str, folder: Path, cache: Path, seconds: float, chances: random.Random) -> Count:
    """A run that is killed a few times, and then left to end; `seconds` are those of the unbroken one."""
    count = Count(runs=1)
    for _ in range(chances.randint(2, 4)):
        process, number = start(arguments, folder, cache), chances.choice(SIGNALS)
        time.sleep(seconds * chances.uniform(0.1, 0.9))
        sent = time.monotonic()
        process.send_signal(number)
        status = process.wait(150)
        if status == 0:
            count = count._replace(late=count.late + 1)
            break
        match number:
            case signal.SIGKILL:
                count = count._replace(kills=count.kills + 1)
                time.sleep(4.0 * ("--processes" in arguments or "--islands" in arguments))  # the others end
            case signal.SIGTERM:
                count = count._replace(terms=count.terms + 1)
            case _:
                count = count._replace(interrupts=count.interrupts + 1)
        if number != signal.SIGKILL:
            count = count._replace(slowest=max(count.slowest, time.monotonic() - sent))
    ended = start(arguments, folder, cache).wait(600)
    return count._replace(differences=int(ended != 0))


def measured(kinds: dict[str, str], minutes: float, seed: int) -> Iterator[dict[str, Count]]:
    """What happened so far, after each run."""
    chances, deadline = random.Random(seed), time.monotonic() + 60 * minutes
    counts, whole = dict.fromkeys(kinds, Count()), {}
    with tempfile.TemporaryDirectory() as name:
        cache = Path(name) / "cache"
        while time.monotonic() < deadline:
            for kind, arguments in kinds.items():
                if time.monotonic() > deadline:
                    return
                if kind not in whole:
                    whole[kind] = unbroken(arguments, Path(name) / digest(kind.encode()), cache)
                expected, seconds = whole[kind]
                folder = Path(tempfile.mkdtemp(dir=name))
                one = broken(arguments, folder, cache, seconds, chances)
                found = result(folder / "run") if not one.differences else {}
                if found != expected:
                    print(f"{kind}: {folder}: {expected} {found}", file=sys.stderr)
                    print((folder / "said.txt").read_text()[-2000:], file=sys.stderr)
                    one = one._replace(differences=1)
                old = counts[kind]
                slowest = max(old.slowest, one.slowest)
                summed = [a + b for a, b in zip(old, one, strict=True)]
                counts[kind] = Count(*summed)._replace(slowest=slowest)  # pyright: ignore[reportArgumentType]
                yield counts


def unbroken(arguments: str, folder: Path, cache: Path) -> tuple[dict[str, str], float]:
    """What an unbroken run ends with, and the seconds that it takes once its programs are compiled."""
    folder.mkdir()
    if start(arguments, folder, cache).wait():
        raise SystemExit((folder / "said.txt").read_text())
    said = (folder / "said.txt").read_text()
    again = time.monotonic()
    start(arguments, folder, cache).wait()  # which finds that nothing is left to do
    begins, found = time.monotonic() - again, re.findall(r" per learner in ([\d.]+) s", said)
    return result(folder / "run"), begins + float(found[-1])


def table(counts: dict[str, Count]) -> str:
    """A row for each kind, and their sum."""
    head = "| kind of run | runs | SIGKILL | SIGTERM | SIGINT | late | slowest exit, s | differences |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    met = {kind: one for kind, one in counts.items() if one.runs}
    total = [sum(column) for column in zip(*met.values(), strict=True)]
    met["all"] = Count(*total)._replace(slowest=max(one.slowest for one in met.values()))
    for kind, one in met.items():
        cells = (*one[:5], f"{one.slowest:.1f}", one.differences)
        lines.append(f"| {kind} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="kinds whose names begin so")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kinds = {kind: arguments for kind, arguments in KINDS.items() if kind.startswith(options.only)}
    for counts in measured(kinds, options.minutes, options.seed):
        if options.out:
            options.out.write_text(f"{ABOUT}\n\n{table(counts)}")
        print(table(counts).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
