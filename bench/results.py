"""Does rows of docs/results/index.md: trains a cohort with its preset, plays 100 greedy episodes per learner.

    python bench/results.py CartPole-v1 Acrobot-v1 ... [--algo td3] [--learners 4] [--out runs/results]
    make results ENV=CartPole-v1

A row that the page has already is done again with its own learners and flags, unless other ones are given;
other flags go to `shoal train`. The row goes into bench/results/rows.json and into the page, with the commit
and the hardware. A run that is already there is resumed, or only evaluated.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from rows import LEARNERS, ROOT, Row, find_row, read_rows, replace_row, write_page, write_rows
from stale import state


def shoal(*arguments: str) -> str:
    command = [sys.executable, "-m", "shoal.cli", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def do_row(env: str, algo: str, learners: int, flags: tuple[str, ...], out: Path) -> Row:
    """Trains, evaluates, and keeps what came of it as evaluation.json (bench/gallery.py reads it)."""
    folder = out / algo / env.replace("/", "-")
    shoal("train", env, "--algo", algo, "--learners", str(learners), "--out", str(folder), *flags)
    evaluation = shoal("eval", str(folder), "--episodes", "100", "--json")
    (folder / "evaluation.json").write_text(evaluation, encoding="utf-8")
    rows = json.loads(evaluation)
    summary = json.loads((folder / "summary.json").read_text())
    means = [row["return_mean"] for row in rows]
    return Row(
        env=env,
        algo=algo,
        flags=flags,
        learners=learners,
        steps=summary["steps"],
        of=None,
        seconds=round(summary["seconds"]),
        training="",
        mean=round(sum(means) / len(means), 1),
        each=tuple(round(mean, 1) for mean in means),
        spread=round(sum(row["return_std"] for row in rows) / len(rows), 1),
        commit=commit(),
        hardware=hardware(),
    )


def commit() -> str | None:
    """The commit that is checked out; None where the package has changes that are not committed."""
    git = lambda *words: subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    if git("status", "--porcelain", "--", "shoal"):
        print("shoal/ has changes that are not committed: the row's commit is unknown", file=sys.stderr)
        return None
    return git("rev-parse", "--short=7", "HEAD") or None


def hardware() -> str:
    """The accelerator where there is one, and the cores."""
    import jax

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    device = jax.devices()[0]
    first = f"{device.device_kind}, " if device.platform != "cpu" else ""
    return f"{first}{cores} cores of {processor()}"


def processor() -> str:
    """The processor's name."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.is_file() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("envs", nargs="+")
    parser.add_argument("--algo", default="ppo")
    parser.add_argument("--learners", type=int)
    parser.add_argument("--out", type=Path, default=Path("runs/results"))
    options, flags = parser.parse_known_args()
    for env in options.envs:
        before = find_row(read_rows(), env, options.algo)
        learners = options.learners or (before.learners if before else LEARNERS)
        row = do_row(
            env, options.algo, learners, tuple(flags or (before.flags if before else ())), options.out
        )
        rows = replace_row(read_rows(), row)
        write_rows(rows)
        write_page(rows, state)
        print(f"{env}: {row.scores}", flush=True)


if __name__ == "__main__":
    main()
