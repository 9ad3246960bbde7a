"""Sweeps measured: halving against the whole grid, and a lander's search against Optuna with SB3.

python bench/sweep.py halving [--env CartPole-v1 Pendulum-v1 Acrobot-v1 MountainCarContinuous-v0] [--seeds 3]
python bench/sweep.py lander [--minutes 10] [--repeats 3] [--peers .venv-peers/bin/python]

Each prints a table; --out FILE writes it too. `lander` needs the peers' environment with Optuna and Box2D.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

import shoal
from shoal.runs.sweep.sweep import Sweep

STEPS = {
    "CartPole-v1": 50_000,
    "Pendulum-v1": 100_000,
    "Acrobot-v1": 100_000,
    "MountainCarContinuous-v0": 150_000,  # a ninth of them are 16 episodes of 1,000 steps
}
GRID = {"learning_rate": [1e-4, 1e-3, 1e-2], "ent_coef": [0.0001, 0.003, 0.03], "clip_coef": [0.1, 0.2, 0.4]}
LANDER = {"trials": 64, "seeds": 4, "steps": 300_000}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["halving", "lander"])
    parser.add_argument("--env", nargs="+", default=list(STEPS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="per learner, instead of those listed")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", default=".venv-peers/bin/python")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.what == "halving":
        found = halving(options.env, options.seeds, options.steps)
    else:
        found = lander(options.minutes, options.repeats, options.peers, options.steps or LANDER["steps"])
    lines = []
    for line in found:
        print(line, flush=True)
        lines.append(line)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


def halving(envs: list[str], seeds: int, steps: int | None) -> Iterator[str]:
    """What halving picks of 27 settings, by its score in the whole grid, and what it costs."""
    yield f"PPO, 27 settings ({', '.join(GRID)}), {seeds} seeds. Score: mean return of the last 100 episodes."
    yield ""
    heads = (
        "environment",
        "steps each",
        "best of the grid",
        "halving's choice, in the grid",
        "below the best",
    )
    yield f"| {' | '.join(heads)} | steps | time |"
    yield "|---|---|---|---|---|---|---|"
    for env in envs:
        with tempfile.TemporaryDirectory() as folder:
            how = {"seeds": seeds, "steps": steps or STEPS[env]}
            whole, seconds = timed(env, Path(folder) / "whole", **how)
            halved, seconds_halved = timed(env, Path(folder) / "halved", halving=True, **how)
            share = trained_steps(halved) / trained_steps(whole)
        best, chosen = whole.best.mean, whole.trials[halved.best.number].mean
        cells = [
            f"{how['steps']:,}",
            f"{best:.1f}",
            f"{chosen:.1f}",
            f"{100 * (best - chosen) / abs(best):.1f} %",
        ]
        cost = f"{100 * share:.0f} % | {seconds_halved:.0f} of {seconds:.0f} s"
        yield f"| {env} | {' | '.join(cells)} | {cost} |"


def timed(env: str, folder: Path, **how) -> tuple[Sweep, float]:
    """A sweep and its seconds, compiling included."""
    began = time.perf_counter()
    return shoal.sweep(env, GRID, folder=folder, **how), time.perf_counter() - began


def trained_steps(sweep: Sweep) -> int:
    """The steps of all its programs' learners, those that fill a program included."""
    last = {}
    for row in sweep.trials:
        for place in row.places:
            run = shoal.load(place.folder)
            table = run.metrics
            size = run.config.algo.rollout_size * run.config.report_every
            last[place.folder] = (table["step"].max() - table["step"].min() + size) * run.learners
    return sum(last.values())


def lander(minutes: float, repeats: int, peers: str, steps: int) -> Iterator[str]:
    """The best LunarLander found in so many minutes: greedy return over 100 episodes of the best policy."""
    yield f"LunarLander-v3, PPO, {minutes:g} minutes each on the same cores, {repeats} repeats."
    yield f"Shoal: {LANDER['trials']} settings x {LANDER['seeds']} seeds, halving, {steps:,} steps."
    yield "Optuna: TPE and median pruning around Stable-Baselines3, one seed a trial, as many trials as fit."
    yield ""
    yield "| repeat | Shoal | learners begun | Optuna and SB3 | trials begun |"
    yield "|---|---|---|---|---|"
    for seed in range(1, repeats + 1):
        ours, learners = search_with_shoal(minutes, seed, steps)
        theirs = search_with_optuna(minutes, seed, peers, steps)
        yield f"| {seed} | {ours:.1f} | {learners} | {theirs['return']:.1f} | {theirs['trials']} |"


def search_with_shoal(minutes: float, seed: int, steps: int) -> tuple[float, int]:
    """The greedy return of the best learner when the time is over, and how many learners had begun."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "shoal.cli", "sweep", "LunarLander-v3", "--out", folder, "--halving"]
        command += [
            "--random",
            LANDER["trials"],
            "--seeds",
            LANDER["seeds"],
            "--steps",
            steps,
            "--seed",
            seed,
        ]
        process = subprocess.Popen(
            list(map(str, command)), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        try:
            process.wait(60 * minutes)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.wait()
        return best_policy(Path(folder))


def best_policy(folder: Path) -> tuple[float, int]:
    """The greedy return of the learner with the highest score in all programs, and how many have begun."""
    runs = [shoal.load(run) for run in sorted((folder / "programs").iterdir())]
    runs = [run for run in runs if run.checkpoints]
    first = lambda run: run.config.steps_after(run.config.report_every)
    begun = sum(run.learners for run in runs if run.metrics["step"].min() == first(run))
    score = lambda run: np.nanmax(run.metrics["return_mean"][-run.learners :])
    best = max(runs, key=score)
    return best.evaluate(100, learner="best")[0].return_mean, begun


def search_with_optuna(minutes: float, seed: int, peers: str, steps: int) -> dict:
    """What Optuna finds with Stable-Baselines3 in the same time."""
    script = Path(__file__).parent / "peers" / "sweep.py"
    command = [peers, script, "--minutes", minutes, "--seed", seed, "--steps", steps]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", str(Path.home() / ".cache" / "shoal" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    main()
