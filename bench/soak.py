"""Long runs: do memory, open files, threads and speed stay as they were?

    python bench/soak.py [--minutes 60] [--only population] [--out bench/results/soak.md]

Each run is `shoal train` in a process of its own, with its films and workers. A row is a moment of it:
memory, open files, threads and processes of all of them together, and since the row before, steps per second
and per second of the processors, which others on the machine do not change as much.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import shoal
from shoal.errors import ShoalError

HERE = Path(__file__).parent
RUNS = {
    "population": (
        "train CartPole-v1 --learners 8 --steps 4e8 --reports 4000 --exchange truncation --local-updates 10 "
        "--evolve learning_rate ent_coef --save-every 200000 --film-every 400000"
    ),
    "td3": "train Pendulum-v1 --algo td3 --steps 4e7 --reports 16000 --buffer-size 20000",
    "gymnasium": "train gym:CartPole-v1 --steps 4e7 --reports 4000 --num-envs 4 --env-options workers=2",
}
"""The commands; all end by SIGTERM."""
ROWS = 12
"""Rows of a table."""
TICKS = os.sysconf("SC_CLK_TCK")


class Use(NamedTuple):
    """What a run and its processes use."""

    megabytes: float  # resident, those that processes share counted in each
    files: int
    threads: int
    processes: int
    seconds: float  # of the processors, those of ended processes among them


def descendants(pid: int) -> list[int]:
    """A process and those it has started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [one for child in task.read_text().split() for one in descendants(int(child))]
        except OSError:
            continue
    return found


def use_of(pid: int) -> Use:
    """What a process and those it has started use now."""
    kilobytes, files, threads, alive, ticks = 0, 0, 0, 0, 0
    for one in descendants(pid):
        try:
            lines = Path(f"/proc/{one}/status").read_text().splitlines()
            status = dict(line.split(":", 1) for line in lines if ":" in line)
            kilobytes += int(status.get("VmRSS", "0 kB").split()[0])
            threads += int(status["Threads"])
            files += len(os.listdir(f"/proc/{one}/fd"))
            ticks += sum(map(int, Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()[11:15]))
            alive += 1
        except OSError:  # it has just ended
            continue
    return Use(kilobytes / 1024, files, threads, alive, ticks / TICKS)


def newest_step(folder: Path) -> int:
    """The step of the last report."""
    try:
        return int(shoal.load(folder).metrics["step"][-1])
    except ShoalError:
        return 0


def soak(name: str, minutes: float) -> list[str]:
    """The rows of one run."""
    lines = []
    with tempfile.TemporaryDirectory() as place:
        folder, said = Path(place) / "run", Path(place) / "said.txt"
        command = [sys.executable, "-m", "shoal.cli", *RUNS[name].split(), "--out", str(folder)]
        surroundings = os.environ | {"PYTHONPATH": str(HERE.parent)}
        with said.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=surroundings)
        while not newest_step(folder) and process.poll() is None:
            time.sleep(0.5)
        began = before = time.monotonic()
        step, seconds = newest_step(folder), use_of(process.pid).seconds
        for row in range(1, ROWS + 1):
            time.sleep(max(0.0, began + row * minutes * 60 / ROWS - time.monotonic()))
            if process.poll() is not None:
                lines.append(f"| {name} | ended with code {process.returncode} |")
                print(said.read_text(), file=sys.stderr)
                return lines
            use, now, reached = use_of(process.pid), time.monotonic(), newest_step(folder)
            speed, effort = (reached - step) / (now - before), (reached - step) / (use.seconds - seconds)
            step, before, seconds = reached, now, use.seconds
            lines.append(
                f"| {name} | {(now - began) / 60:.1f} | {step:,} | {speed:,.0f} | {effort:,.0f} | "
                f"{use.megabytes:,.0f} | {use.files} | {use.threads} | {use.processes} | "
                f"{os.getloadavg()[0]:.0f} |"
            )
            print(lines[-1], file=sys.stderr, flush=True)
        process.terminate()
        code = process.wait(60)
        assert code == 130, said.read_text()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=60.0, help="of each run")
    parser.add_argument("--only", choices=list(RUNS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = [
        f"`bench/soak.py --minutes {options.minutes:g}`: memory, open files, threads and processes of a",
        "run with all that it has started. Steps of each learner since the row before, per second and per",
        "second of the processors. Load is the machine's: how many processes want to run.",
        "",
        "| run | minutes | step | steps/s | steps/CPU s | memory, MB | files | threads | processes | load |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in [options.only] if options.only else RUNS:
        lines += soak(name, options.minutes)
        if options.out:
            options.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
