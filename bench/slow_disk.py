"""What a slow disk costs training: the same run while every flush takes longer.

    python bench/slow_disk.py [--out bench/results/slow_disk.md]

A flush (`os.fsync`) sleeps before it returns, and a rename a tenth of that: so a slow disk looks to a run.
The run is 8 learners on the built-in CartPole with 100 reports and a checkpoint to keep after each tenth of
its steps.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ABOUT = "Training while every flush of a file takes so long, by `python bench/slow_disk.py` (medians of {})."
SECONDS = (0.0, 0.05, 0.2, 1.0)
STEPS = 51_200


def train(seconds: float, folder: Path) -> dict[str, float]:
    """One run; the seconds of its loop without compiling, and those until the folder was complete."""
    import time

    import shoal
    from shoal.runs.milestones import Milestones
    from shoal.runs.session import open_session, train_session

    fsync, replace = os.fsync, os.replace

    def slow_fsync(descriptor: int) -> None:
        time.sleep(seconds)
        fsync(descriptor)

    def slow_replace(*paths: Path) -> None:
        time.sleep(seconds / 10)
        replace(*paths)

    config = shoal.preset("CartPole-v1", steps=STEPS, learners=8, reports=100)
    opened = open_session(config, folder, milestones=Milestones(save_every=STEPS // 10))
    times = []
    os.fsync, os.replace = slow_fsync, slow_replace
    train_session(opened, lambda report: times.append(time.monotonic()))
    loop, whole = times[-1] - times[0], time.monotonic() - times[0]
    return {"loop": loop, "whole": whole}


def measure(repeats: int) -> str:
    """The table."""
    lines = ["| a flush takes, s | training, s | until all is saved, s |", "|---|---|---|"]
    for seconds in SECONDS:
        found = []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, __file__, "--one", str(seconds), folder]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                found.append(json.loads(done.stdout.splitlines()[-1]))
        loop, whole = (median(one[name] for one in found) for name in ("loop", "whole"))
        lines.append(f"| {seconds:g} | {loop:.1f} | {whole:.1f} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs=2, metavar=("SECONDS", "FOLDER"), help="one run, in this process")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(train(float(options.one[0]), Path(options.one[1]))))
        return
    text = f"{ABOUT.format(options.repeats)}\n\n{measure(options.repeats)}"
    if options.out:
        options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
