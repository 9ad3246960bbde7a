"""Kills runs at random moments and resumes them: do they end as unbroken ones, bit for bit?

    python bench/kills.py [--minutes 20] [--seed 1] [--only NAMES] [--out bench/results/kills.md [--add]]

Each kind of run is trained once unbroken. Then the command trains it again, is killed up to `KILLS` times (by
SIGKILL in half of them, else SIGTERM or SIGINT), each time started again, and at last left to end. And a
process that trains `SEVERAL` such runs at once, each in its own folder, is killed `KILLS` times by SIGKILL
and started again. Metrics without times, lineage and the last checkpoint of every run are compared with those
of the unbroken run, and every start of the command has to go on from the newest checkpoint that was left. The
kinds come in turns until the time is over.

A quarter of the kills come at any moment of the start, the others while it trains. Moments are seconds of the
processors, so that what else a machine does moves none. Every report is saved that can be. The processes are
forked from one that has imported what they need, which halves the time a start takes; those that a run starts
by itself are new. With TMPDIR=/dev/shm nothing waits for a disk.
"""

import argparse
import contextlib
import csv
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from soak import descendants

from shoal.cli.main import main as shoal_command
from shoal.cli.parse import parse_train
from shoal.runs.checkpoint_files import resume_step

HERE = Path(__file__).parent
ABOUT = (
    "Runs killed at random moments and resumed, by `python bench/kills.py`, against unbroken ones. A "
    "difference is another number in metrics.csv (but times), lineage.csv or the last checkpoint, or a run "
    "that cannot be resumed. SIGKILL, SIGTERM, SIGINT: of the command, with one run; several: runs killed by "
    "SIGKILL of a process that trained 16 at once. Lost: a start that did not go on from the newest "
    "checkpoint. Late: the run had ended when the signal came. Slowest exit: after SIGTERM or SIGINT."
)
SMALL = "--no-preset --num-envs 2 --num-steps 64 --num-minibatches 2 --update-epochs 2 --hidden 16"
REPLAY = "--no-preset --num-envs 2 --num-steps 16 --batch-size 32 --hidden 16 --learning-starts 256"
CARTPOLE = f"CartPole-v1 {SMALL} --steps 12000 --reports 40"
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
KILLS = 5
"""Kills of one run, at most."""
SEVERAL = 16
"""Runs in a process that trains several."""
PART = 0.25
"""No start trains for more of an unbroken run's time than this before it is killed."""
PATIENCE = 300
"""Seconds in which a run ends after a signal, at the latest; machines may be busy."""
HASTE = "--xla_backend_optimization_level=0"
"""Most of the time of such short runs is compiling."""
SURROUNDINGS = {
    "PYTHONPATH": str(HERE.parent),
    "XLA_FLAGS": HASTE,
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.01",  # every program is compiled once
}
TIMES = ("seconds", "steps_per_second")
"""The beginnings of columns that no two runs share."""
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
TICKS = os.sysconf("SC_CLK_TCK")
FORK = multiprocessing.get_context("fork")


class Count(NamedTuple):
    """What happened to runs of one kind."""

    runs: int = 0
    kills: int = 0
    terms: int = 0
    interrupts: int = 0
    several: int = 0
    late: int = 0
    slowest: float = 0.0  # seconds from SIGTERM or SIGINT to the end
    lost: int = 0
    differences: int = 0


class Whole(NamedTuple):
    """An unbroken run: what it ends with, and the processors' seconds of its start and its training."""

    result: dict[str, str]
    starting: float
    training: float


class Start:
    """A run that was begun or resumed, in a process of its own."""

    def __init__(self, arguments: str, folder: Path, several: bool = False):
        self.folder, self.said = folder, folder / "said.txt"
        self.before = records(folder)
        self.saved = resume_step(folder / "run" / "checkpoints")
        what = train_several if several else train_one
        self.process = FORK.Process(target=act, args=(what, arguments.split(), folder, self.said))
        self.process.start()

    def used(self) -> float:
        """The processors' seconds that it and what it started have used."""
        found = 0
        for pid in descendants(self.process.pid or 0):
            with contextlib.suppress(OSError):
                found += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
        return found / TICKS

    def wait_until(self, used: float) -> None:
        """Wait until it has used so many of the processors' seconds, or ended."""
        while self.process.is_alive() and (left := used - self.used()) > 0:
            self.process.join(min(max(left / 2, 0.005), 0.5))

    def wait_for_training(self) -> float:
        """Wait until it has saved a checkpoint, or ended; the processors' seconds that it has used."""
        used = 0.0
        while self.process.is_alive():
            used = self.used() or used
            if records(self.folder) - self.before:
                break
            self.process.join(0.01)
        return used

    def wait_for_a_moment(self, whole: Whole, chances: random.Random, runs: int = 1) -> None:
        """Wait until a random moment while it starts or trains."""
        if chances.random() < 0.25:
            self.wait_until(chances.uniform(0.0, whole.starting))
        else:
            used = self.wait_for_training()
            self.wait_until(used + chances.uniform(0.0, PART * whole.training * runs))

    def kill(self, number: int) -> None:
        """Send a signal, and wait until it and what it started have ended."""
        every = descendants(self.process.pid or 0)
        os.kill(self.process.pid or 0, number)
        self.process.join(PATIENCE)
        until = time.monotonic() + PATIENCE
        while any(map(is_alive, every)) and time.monotonic() < until:
            time.sleep(0.02)
        if any(map(is_alive, every)):
            raise SystemExit(f"{every} did not end within {PATIENCE} s: {self.folder}")

    def finish(self) -> int | None:
        """Leave it to end; its status."""
        self.process.join(2 * PATIENCE)
        return self.process.exitcode

    def loses(self) -> bool:
        """Whether it trained, and went on from another step than that which was saved."""
        said = self.said.read_text()
        if not re.search(r"^step [\d,]+ of", said, re.MULTILINE):
            return False
        resumed = re.search(r"^resuming from step ([\d,]+)", said, re.MULTILINE)
        return (int(resumed[1].replace(",", "")) if resumed else 0) < self.saved


def act(what: Callable[[list[str]], int], arguments: list[str], folder: Path, said: Path) -> None:
    """What the process does: train in a folder."""
    os.setsid()
    os.chdir(folder)
    output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
    from shoal.runs import cadence

    cadence.SAVE_SECONDS = 0.0
    status = what(arguments)
    if note := os.environ.get("SHOAL_KILLS_MODULES"):
        Path(note).write_text(json.dumps(sorted(sys.modules)))
    sys.exit(status)


def train_one(arguments: list[str]) -> int:
    """The command, as `python -m shoal.cli` does it."""
    sys.argv = ["shoal", "train", *arguments, "--out", "run"]
    return shoal_command()


def train_several(arguments: list[str]) -> int:
    """Train several runs in turns; they share a program."""
    from shoal.runs.session import Finished, finish_session, open_session, run_session

    config, (_, milestones) = parse_train(arguments)
    trainer, under_way, chances = None, {}, random.Random()
    for number in range(SEVERAL):
        opened = open_session(config, Path(f"run{number}"), milestones=milestones, trainer=trainer)
        if not isinstance(opened, Finished):
            trainer = opened.trainer
            under_way[run_session(opened)] = (opened, None)
    while under_way:
        reports = chances.choice(list(under_way))
        opened, last = under_way[reports]
        try:
            under_way[reports] = (opened, next(reports))
        except StopIteration:
            assert last is not None
            finish_session(opened, last)
            del under_way[reports]
    return 0


def records(folder: Path) -> set[Path]:
    """The records of the checkpoints in the folders of runs."""
    return set(folder.glob("run*/checkpoints/step_*.json"))


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


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


def broken(arguments: str, folder: Path, whole: Whole, chances: random.Random) -> Count:
    """A run that is killed a few times, and then left to end."""
    count = Count(runs=1)
    for _ in range(KILLS):
        one, number = Start(arguments, folder), chances.choice(SIGNALS)
        one.wait_for_a_moment(whole, chances)
        sent = time.monotonic()
        if not one.process.is_alive():
            count = count._replace(late=count.late + 1)
            break
        one.kill(number)
        count = count._replace(lost=count.lost + one.loses())
        if one.process.exitcode == 0:
            count = count._replace(late=count.late + 1)
            break
        match number:
            case signal.SIGKILL:
                count = count._replace(kills=count.kills + 1)
            case signal.SIGTERM:
                count = count._replace(terms=count.terms + 1)
            case _:
                count = count._replace(interrupts=count.interrupts + 1)
        if number != signal.SIGKILL:
            count = count._replace(slowest=max(count.slowest, time.monotonic() - sent))
    last = Start(arguments, folder)
    ended = last.finish()
    differs = ended != 0 or result(folder / "run") != whole.result
    return count._replace(differences=int(differs), lost=count.lost + last.loses())


def broken_together(arguments: str, folder: Path, whole: Whole, chances: random.Random) -> Count:
    """Several runs in a process that is killed a few times, and then left to end."""
    runs, count = [folder / f"run{number}" for number in range(SEVERAL)], Count(runs=SEVERAL)
    for _ in range(KILLS):
        one = Start(arguments, folder, several=True)
        one.wait_for_a_moment(whole, chances, SEVERAL)
        one.kill(signal.SIGKILL)
        ended = sum((run / "summary.json").exists() for run in runs)
        count = count._replace(several=count.several + SEVERAL - ended, late=count.late + ended)
    ended = Start(arguments, folder, several=True).finish()
    differ = [run for run in runs if ended != 0 or result(run) != whole.result]
    return count._replace(differences=len(differ))


def measured(kinds: dict[str, str], minutes: float, seed: int) -> Iterator[dict[str, Count]]:
    """What happened so far, after each run."""
    chances, deadline = random.Random(seed), time.monotonic() + 60 * minutes
    counts, whole = dict.fromkeys(kinds, Count()), {}
    with tempfile.TemporaryDirectory() as name:
        os.environ.update(SURROUNDINGS, XDG_CACHE_HOME=str(Path(tempfile.gettempdir()) / "kills-cache"))
        while time.monotonic() < deadline:
            for kind, arguments in kinds.items():
                parts = "--processes" in arguments or "--islands" in arguments
                for several in (False,) if parts else (False, True):
                    if time.monotonic() > deadline:
                        return
                    if kind not in whole:
                        whole[kind] = unbroken(arguments, Path(name) / digest(kind.encode()))
                    folder = Path(tempfile.mkdtemp(dir=name))
                    breaks = broken_together if several else broken
                    one = breaks(arguments, folder, whole[kind], chances)
                    if one.differences or one.lost:
                        keep = folder.rename(Path(tempfile.gettempdir()) / f"kept-{folder.name}")
                        print(
                            f"{kind}: {one}, see {keep}\n{(keep / 'said.txt').read_text()[-2000:]}",
                            flush=True,
                        )
                    else:
                        shutil.rmtree(folder)
                    counts[kind] = added(counts[kind], one)
                    yield counts


def added(one: Count, other: Count) -> Count:
    """Both together."""
    together = Count(*(a + b for a, b in zip(one, other, strict=True)))  # pyright: ignore[reportArgumentType]
    return together._replace(slowest=max(one.slowest, other.slowest))


def unbroken(arguments: str, folder: Path) -> Whole:
    """What an unbroken run ends with, and what it uses once its programs are compiled."""
    results, note, starting, used = [], folder / "modules.json", 0.0, 0.0
    for number in range(2):
        place = folder / str(number)
        place.mkdir(parents=True)
        os.environ["SHOAL_KILLS_MODULES"] = str(note)
        one = Start(arguments, place)
        used = starting = one.wait_for_training()
        while one.process.is_alive():
            used = one.used() or used
            one.process.join(0.01)
        del os.environ["SHOAL_KILLS_MODULES"]
        if one.finish():
            raise SystemExit(one.said.read_text())
        results.append(result(place / "run"))
        import_early(note)
    if results[0] != results[1]:
        raise SystemExit(f"two unbroken runs differ: {arguments}: {results}")
    return Whole(results[0], starting, used - starting)


def import_early(note: Path) -> None:
    """Import what a run has imported, so that those after it need not."""
    for name in json.loads(note.read_text()) if note.is_file() else ():
        with contextlib.suppress(Exception):
            importlib.import_module(name)


COLUMNS = (
    "kind of run",
    "runs",
    "SIGKILL",
    "SIGTERM",
    "SIGINT",
    "late",
    "slowest exit, s",
    "lost",
    "differences",
)


def table(counts: dict[str, Count]) -> str:
    """A row for each kind, and their sum."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    met, total = {kind: one for kind, one in counts.items() if one.runs}, Count()
    for one in met.values():
        total = added(total, one)
    for kind, one in (met | {"all": total}).items():
        cells = one._replace(slowest=round(one.slowest, 1))
        lines.append(f"| {kind} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def read_table(path: Path) -> dict[str, Count]:
    """The counts of a table."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in path.read_text().splitlines()]
    counts = {row[0]: row[1:] for row in rows if row and row[0] in KINDS}
    kinds = [float if name == "slowest" else int for name in Count._fields]
    return {
        kind: Count(*(read(cell) for read, cell in zip(kinds, cells, strict=True)))
        for kind, cells in counts.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="kinds whose names begin so, with commas")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--add", action="store_true", help="to the counts of the table that is there")
    options = parser.parse_args()
    wanted = tuple(options.only.split(","))
    kinds = {kind: arguments for kind, arguments in KINDS.items() if kind.startswith(wanted)}
    before = read_table(options.out) if options.add and options.out.is_file() else {}
    for counts in measured(kinds, options.minutes, options.seed):
        both = {kind: added(before.get(kind, Count()), counts.get(kind, Count())) for kind in KINDS}
        if options.out:
            options.out.write_text(f"{ABOUT}\n\n{table(both)}")
        print(table(both).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
