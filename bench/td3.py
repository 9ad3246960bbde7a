"""TD3 beside its peers, interleaved, one process at a time; medians of a few repeats.

    python bench/td3.py [--repeats 3] [--seconds 8] [--out bench/results/td3.md]

Needs the peers' own environment: bench/peers/setup.sh makes .venv-peers.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PEERS = [str(ROOT / ".venv-peers" / "bin" / "python"), "bench/peers/td3.py"]
OURS = [sys.executable, "bench/ours.py"]
RUNS = {
    "shoal, HalfCheetah-v4": [*OURS, "td3-halfcheetah"],
    "sbx, HalfCheetah-v4": [*PEERS, "sbx", "halfcheetah"],
    "sb3, HalfCheetah-v4": [*PEERS, "sb3", "halfcheetah"],
    "shoal, 8 learners, Pendulum-v1": [*OURS, "td3-cohort"],
    "shoal, Pendulum-v1": [*OURS, "td3-pendulum"],
    "sbx, Pendulum-v1": [*PEERS, "sbx", "pendulum"],
    "sb3, Pendulum-v1": [*PEERS, "sb3", "pendulum"],
}
RATIOS = [
    ("HalfCheetah-v4 / SB3", "shoal, HalfCheetah-v4", "sb3, HalfCheetah-v4", 2.0),
    ("HalfCheetah-v4 / SBX", "shoal, HalfCheetah-v4", "sbx, HalfCheetah-v4", 1.3),
    (
        "8 learners at once / eight runs of SBX in turn",
        "shoal, 8 learners, Pendulum-v1",
        "sbx, Pendulum-v1",
        3.0,
    ),
]


def measure(command: list[str], seconds: float) -> float:
    """Steps per second of one run in a process of its own."""
    quiet = {"JAX_COMPILATION_CACHE_DIR": ""}
    command = [*command, "--seconds", str(seconds)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | quiet, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    rate = json.loads(done.stdout.strip().splitlines()[-1])["steps_per_second"]
    print(f"{' '.join(command[1:])}: {rate:.0f}", file=sys.stderr, flush=True)
    return rate


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rates = {name: [] for name in RUNS}
    for _ in range(options.repeats):
        for name, command in RUNS.items():
            rates[name].append(measure(command, options.seconds))
    lines = [
        f"TD3, one environment per learner, batch 256, one update per step; 256-256 networks on HalfCheetah, "
        f"64-64 on Pendulum. Medians of {options.repeats} interleaved repeats on {os.cpu_count()} shared "
        f"cores ({platform.machine()}, Python {platform.python_version()}).",
        "",
        "| library, workload | steps/s of all learners |",
        "|---|---|",
        *(f"| {name} | {statistics.median(found):,.0f} |" for name, found in rates.items()),
        "",
        "| ratio | median | each | bar |",
        "|---|---|---|---|",
    ]
    for title, ours, theirs, bar in RATIOS:
        each = [a / b for a, b in zip(rates[ours], rates[theirs], strict=True)]
        cells = ", ".join(f"{ratio:.2f}" for ratio in each)
        lines.append(f"| {title} | {statistics.median(each):.2f} | {cells} | {bar} |")
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
