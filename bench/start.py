"""From Enter to the first sign of life on a terminal, and to CartPole's first row of metrics, warm and cold.

    python bench/start.py [--repeats 7] [--other FOLDER] [--out FILE]

Warm: the programs were compiled by an earlier run. Cold: the cache of programs is empty. FOLDER is another
checkout to compare with. All of them take turns.
"""

import argparse
import os
import pty
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent.parent
COMMAND = [sys.executable, "-m", "shoal.cli", "train", "CartPole-v1", "--seed", "1", "--out", "run"]
LIMIT = 120.0
"""Seconds after which a start has failed."""


def start(checkout: Path, cache: Path) -> tuple[float, float]:
    """Seconds to the first byte that the command prints, and to the first row of metrics.csv."""
    with tempfile.TemporaryDirectory() as name:
        metrics = Path(name) / "run" / "metrics.csv"
        ours, theirs = pty.openpty()
        own = {"PYTHONPATH": str(checkout), "XDG_CACHE_HOME": str(cache), "TERM": "xterm"}
        began, said, row, printed = time.monotonic(), 0.0, 0.0, b""
        process = subprocess.Popen(
            COMMAND, cwd=name, env=os.environ | own, stdin=theirs, stdout=theirs, stderr=theirs
        )
        while not row and process.poll() is None and time.monotonic() - began < LIMIT:
            if select.select([ours], [], [], 0.005)[0]:
                printed += os.read(ours, 4096)
                said = said or time.monotonic() - began
            if metrics.exists() and metrics.read_bytes().count(b"\n") > 1:
                row = time.monotonic() - began
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)
        assert row, printed.decode(errors="replace")
        return said, row


def measure(checkouts: list[Path], repeats: int) -> str:
    """The table; after one start of each that fills the warm cache and counts for nothing."""
    found: dict[tuple[Path, str], list[tuple[float, float]]] = {
        (checkout, state): [] for checkout in checkouts for state in ("warm", "cold")
    }
    with tempfile.TemporaryDirectory() as name:
        warm = {checkout: Path(name) / str(number) for number, checkout in enumerate(checkouts)}
        for checkout in checkouts:
            start(checkout, warm[checkout])
        for _ in range(repeats):
            for (checkout, state), times in found.items():
                with tempfile.TemporaryDirectory() as empty:
                    times.append(start(checkout, warm[checkout] if state == "warm" else Path(empty)))
    columns = ["checkout", "cache", "first sign of life, s", "first row, s", "slowest row, s"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for (checkout, state), times in found.items():
        said, rows = zip(*times, strict=True)
        which = "this" if checkout == HERE else checkout.name
        lines.append(f"| {which} | {state} | {median(said):.2f} | {median(rows):.2f} | {max(rows):.2f} |")
    load = f"Medians of {repeats}, taking turns; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    return "\n".join([*lines, "", load, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--other", type=Path, help="another checkout to compare with")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    checkouts = [HERE, *([options.other.resolve()] if options.other else [])]
    text = measure(checkouts, options.repeats)
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
