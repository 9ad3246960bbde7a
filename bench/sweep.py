"""Sweeps measured: halving, one program beside runs in turn, and a lander's search beside Optuna with SB3.

python bench/sweep.py halving [--env CartPole-v1 Pendulum-v1 Acrobot-v1 MountainCarContinuous-v0] [--seeds 3]
python bench/sweep.py gpu [--quick]               1,024 settings in one program, and 103 runs of rejax in turn
python bench/sweep.py lander [--minutes 10] [--repeats 3] [--cores 0,1]

Each prints a table, line by line as it is measured; --out FILE writes it, too. `gpu` and `lander` call the
peers by --peers PYTHON: for `gpu` one with rejax, for `lander` one with Stable-Baselines3, Optuna and Box2D.
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
from shoal.runs.sweep.plan import together
from shoal.runs.sweep.sweep import Sweep, make_plan
from shoal.training.loop import progress_reports
from shoal.training.program import make_trainer

PEERS = Path(__file__).parent / "peers"
STEPS = {
    "CartPole-v1": 50_000,
    "Pendulum-v1": 100_000,
    "Acrobot-v1": 100_000,
    "MountainCarContinuous-v0": 150_000,  # a ninth of them are 16 episodes of 1,000 steps
}
GRID = {"learning_rate": [1e-4, 1e-3, 1e-2], "ent_coef": [0.0001, 0.003, 0.03], "clip_coef": [0.1, 0.2, 0.4]}
LANDER, QUICK_LANDER = (64, 4, 300_000), (6, 2, 30_000)
"""Settings, seeds and steps of the lander's sweep."""
SETTINGS, IN_TURN, GPU_STEPS = 1024, 103, 100_000
QUICK_SETTINGS, QUICK_IN_TURN, QUICK_STEPS = 64, 7, 20_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["halving", "gpu", "lander"])
    parser.add_argument("--env", nargs="+", default=list(STEPS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="per learner, instead of those listed")
    parser.add_argument("--quick", action="store_true", help="gpu, lander: few settings and steps")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--cores", default="0,1", help="lander: the cores of both searches, as taskset has them"
    )
    parser.add_argument("--peers", help="the peers' Python; .venv-peers, of gpu this one where it has rejax")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.what == "halving":
        found = halving(options.env, options.seeds, options.steps)
    elif options.what == "gpu":
        jax.config.update("jax_enable_compilation_cache", False)  # compiling is a column
        found = one_program(options.quick, options.steps, options.peers or python_with("rejax"))
    else:
        trials, seeds, steps = QUICK_LANDER if options.quick else LANDER
        plan = {"random": trials, "seeds": seeds, "steps": options.steps or steps}
        peers = options.peers or python_with("stable_baselines3")
        found = lander(options.minutes, options.repeats, options.cores, peers, plan)
    if options.out:
        options.out.write_text("")
    for line in found:
        print(line, flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(f"{line}\n")


def python_with(module: str) -> str:
    """This Python where it has the module, else that of the peers' environment."""
    from importlib.util import find_spec

    return sys.executable if find_spec(module) else ".venv-peers/bin/python"


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


def one_program(quick: bool, steps: int | None, peers: str) -> Iterator[str]:
    """Many settings as rows of one program, beside a tenth of as many runs of rejax, one after the other."""
    settings, in_turn = (QUICK_SETTINGS, QUICK_IN_TURN) if quick else (SETTINGS, IN_TURN)
    steps = steps or (QUICK_STEPS if quick else GPU_STEPS)
    command = [peers, PEERS / "rejax_sweep.py", in_turn, "--steps", steps]
    rejax = json.loads(subprocess.check_output(list(map(str, command)), text=True).splitlines()[-1])
    device = jax.devices()[0].device_kind
    yield f"CartPole-v1, PPO, 4 environments x 128 steps, {steps:,} steps each, on {device}; once."
    yield f"rejax ran {in_turn} settings; {settings:,} would take {settings / in_turn:.1f} times as long."
    yield ""
    yield "| | settings | compile | train | train 1 setting | all settings |"
    yield "|---|---|---|---|---|---|"
    base = shoal.TrainConfig(
        "CartPole-v1", shoal.PPOConfig(num_envs=4, anneal_lr=False), steps=steps, reports=10
    )
    plan = make_plan(base, {}, settings, None, ("learning_rate", "ent_coef", "clip_coef"), seeds=1)
    (group,) = plan.groups
    began = time.perf_counter()
    trainer = make_trainer(together(group, list(group.trials), 1))
    reports = progress_reports(trainer, trainer.init())
    report = next(reports)
    first, began = time.perf_counter() - began, time.perf_counter()
    one = report.step
    *_, report = reports
    jax.block_until_ready(report.state)
    took = time.perf_counter() - began
    train = took * report.step / (report.step - one)
    compiling = first - (train - took)
    cells = [f"{settings:,}", f"{compiling:.1f} s", f"{train:.1f} s", f"{1000 * train / settings:.1f} ms"]
    yield f"| Shoal, one program | {' | '.join(cells)} | {first + took:.1f} s |"
    each = rejax["seconds"] / in_turn
    cells = [str(in_turn), f"{rejax['compile_seconds']:.1f} s", f"{rejax['seconds']:.1f} s"]
    whole = rejax["compile_seconds"] + settings * each
    yield f"| rejax, in turn | {' | '.join(cells)} | {1000 * each:.1f} ms | {whole:.1f} s (extrapolated) |"
    returns = report.metrics["return_mean"]
    best = np.nanargmax(returns)
    values = ", ".join(f"{name} {value:.3g}" for name, value in plan.trials[best].values.items())
    yield ""
    yield f"Best: {values}; mean return of its last 100 episodes {returns[best]:.1f}."


def lander(minutes: float, repeats: int, cores: str, peers: str, plan: dict[str, int]) -> Iterator[str]:
    """The best LunarLander found in so many minutes: greedy return over 100 episodes of the best policy."""
    yield f"LunarLander-v3, PPO, {minutes:g} minutes each on the same {len(cores.split(','))} cores, in turn."
    yield f"Shoal: {plan['random']} settings x {plan['seeds']} seeds, halving, {plan['steps']:,} steps."
    yield "Optuna: TPE and median pruning around Stable-Baselines3, one seed a trial, as many trials as fit."
    yield ""
    yield "| repeat | Shoal | learners begun | Optuna and SB3 | trials begun |"
    yield "|---|---|---|---|---|"
    for seed in range(1, repeats + 1):
        ours, learners = search_with_shoal(minutes, seed, cores, plan)
        theirs = search_with_optuna(minutes, seed, cores, peers, plan["steps"])
        yield f"| {seed} | {ours:.1f} | {learners} | {theirs['return']:.1f} | {theirs['trials']} |"


def search_with_shoal(minutes: float, seed: int, cores: str, plan: dict[str, int]) -> tuple[float, int]:
    """The greedy return of the best learner when the time is over, and how many learners had begun."""
    with tempfile.TemporaryDirectory() as folder:
        search = [word for name, value in plan.items() for word in (f"--{name}", value)]
        command = ["taskset", "-c", cores, sys.executable, "-m", "shoal.cli", "sweep", "LunarLander-v3"]
        command += ["--out", folder, "--halving", "--seed", seed, *search]
        quiet = {"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        process = subprocess.Popen(list(map(str, command)), **quiet)
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
    if not runs:  # the time was over before the first rollout
        return np.nan, 0
    first = lambda run: run.config.steps_after(run.config.report_every)
    begun = sum(run.learners for run in runs if run.metrics["step"].min() == first(run))
    score = lambda run: np.nanmax(run.metrics["return_mean"][-run.learners :])
    best = max(runs, key=score)
    return best.evaluate(100, learner="best")[0].return_mean, begun


def search_with_optuna(minutes: float, seed: int, cores: str, peers: str, steps: int) -> dict:
    """What Optuna finds with Stable-Baselines3 in the same time."""
    command = ["taskset", "-c", cores, peers, PEERS / "sweep.py"]
    command += ["--minutes", minutes, "--seed", seed, "--steps", steps, "--processes", len(cores.split(","))]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
