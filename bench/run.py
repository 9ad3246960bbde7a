"""One table: Shoal and its peers side by side, interleaved, medians of a few repeats.

    python bench/run.py [--repeats 3] [--seconds 8] [--out bench/results/cpu.md]

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
PEERS = ROOT / ".venv-peers" / "bin" / "python"
WHO = {
    "shoal": [sys.executable, "bench/ours.py"],
    "rejax": [PEERS, "bench/peers/run.py", "rejax"],
    "sbx": [PEERS, "bench/peers/run.py", "sbx"],
    "sb3": [PEERS, "bench/peers/run.py", "sb3"],
}
SPEED = [
    ("shoal", "cartpole"),
    ("rejax", "cartpole"),
    ("sbx", "cartpole"),
    ("sb3", "cartpole"),
    ("shoal", "cartpole-envpool"),
    ("shoal", "cartpole-gym"),
    ("shoal", "halfcheetah"),
    ("sbx", "halfcheetah"),
    ("sb3", "halfcheetah"),
    ("shoal", "cohort"),
    ("shoal", "wide"),
]
REACH = [("shoal", "cartpole"), ("rejax", "cartpole"), ("sbx", "cartpole"), ("sb3", "cartpole")]
RATIOS = [
    ("built-in CartPole / rejax", ("shoal", "cartpole"), ("rejax", "cartpole"), 1.2),
    ("built-in CartPole / SB3", ("shoal", "cartpole"), ("sb3", "cartpole"), 20),
    ("EnvPool CartPole / SB3", ("shoal", "cartpole-envpool"), ("sb3", "cartpole"), 8),
    ("HalfCheetah-v4 / SB3", ("shoal", "halfcheetah"), ("sb3", "halfcheetah"), 5),
    ("64 learners x 4 / 1 learner x 256", ("shoal", "cohort"), ("shoal", "wide"), 1.5),
]


def measure(who: str, workload: str, *flags: str) -> dict:
    """One run in a process of its own; its JSON line."""
    command = [str(part) for part in WHO[who]] + [workload, *flags]
    quiet = {"JAX_COMPILATION_CACHE_DIR": ""}  # so that everybody compiles
    done = subprocess.run(command, cwd=ROOT, env=os.environ | quiet, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    result = json.loads(done.stdout.strip().splitlines()[-1])
    print(f"{who} {workload} {' '.join(flags)}: {result}", file=sys.stderr, flush=True)
    return result


def median(results: list[dict], name: str) -> float | None:
    values = [result[name] for result in results if result.get(name) is not None]
    return statistics.median(values) if values else None


def cell(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def table(speeds: dict, reached: dict, repeats: int, seeds: int) -> str:
    """The measurements as Markdown."""
    lines = [
        f"Medians of {repeats} interleaved repeats on {os.cpu_count()} shared cores "
        f"({platform.machine()}, Python {platform.python_version()}); seconds to 475 of {seeds} seeds.",
        "",
        "| library | workload | steps/s | compile s | seconds to 475 |",
        "|---|---|---|---|---|",
    ]
    for who, workload in SPEED:
        runs = speeds[who, workload]
        seconds = cell(median(reached.get((who, workload), []), "seconds_to_475"))
        rate, compiling = cell(median(runs, "steps_per_second"), 0), cell(median(runs, "compile_seconds"))
        lines.append(f"| {who} | {workload} | {rate} | {compiling} | {seconds} |")
    lines += ["", "| ratio | median | each repeat | bar |", "|---|---|---|---|"]
    for name, ours, theirs, bar in RATIOS:
        pairs = zip(speeds[ours], speeds[theirs], strict=True)
        ratios = [a["steps_per_second"] / b["steps_per_second"] for a, b in pairs]
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        lines.append(f"| {name} | {statistics.median(ratios):.2f} | {each} | {bar} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3, help="runs to a return of 475")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "cpu.md")
    options = parser.parse_args()
    if not PEERS.exists():
        sys.exit("the peers are not installed: run bench/peers/setup.sh first")
    speeds: dict = {key: [] for key in SPEED}
    reached: dict = {key: [] for key in REACH}
    for _ in range(options.repeats):
        for who, workload in SPEED:
            speeds[who, workload].append(measure(who, workload, "--seconds", str(options.seconds)))
    for seed in range(1, options.seeds + 1):
        for who, workload in REACH:
            reached[who, workload].append(measure(who, workload, "--to", "475", "--seed", str(seed)))
    text = table(speeds, reached, options.repeats, options.seeds)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
