"""Populations measured: against random search and the preset at equal budget, and what selection costs.

python bench/population.py search [--env CartPole-v1 ...] [--seeds 5]
python bench/population.py cost [--learners 64] [--every 10] [--rounds 7]

Each prints a table; --out FILE writes it too.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from zoo import ZOO

from shoal import ExchangeConfig, PPOConfig, TrainConfig, preset
from shoal.runs.session import open_session, run_session
from shoal.training.evaluate import play_episodes
from shoal.training.loop import Report, progress_reports
from shoal.training.program import make_trainer

MEMBERS = 16
EPISODES = 100
STEPS = {
    "CartPole-v1": 50_000,
    "Acrobot-v1": 200_000,
    "Pendulum-v1": 100_000,
    "LunarLander-v3": 300_000,
}
"""Per member."""
SELECTIONS = 12
"""About how many a population has in its run."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["search", "cost"])
    parser.add_argument("--env", nargs="+", default=list(STEPS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--learners", type=int, default=64)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.what == "search":
        found = search(options.env, range(1, options.seeds + 1))
    else:
        found = cost(options.learners, options.every, options.rounds)
    lines = []
    for line in found:
        print(line, flush=True)
        lines.append(line)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


def search(envs: list[str], seeds: range) -> Iterator[str]:
    """A population, random search and the preset, 16 learners each: the best at the end and on the way."""
    yield f"{MEMBERS} members, {len(seeds)} seeds: mean +- deviation over seeds."
    yield ""
    yield "| environment | steps each | learners | final best | area under the best's curve |"
    yield "|---|---|---|---|---|"
    for env in envs:
        runs = {name: [[], []] for name in ("population", "random search", "preset, best of 16", "preset")}
        for seed in seeds:
            base = {"steps": STEPS[env], "learners": MEMBERS, "seed": seed, "reports": 40} | ZOO.get(env, {})
            evolve = {"evolve": ("learning_rate", "clip_coef", "ent_coef")}
            updates = preset(env, **base).num_iterations
            rule = {"exchange": "truncation", "local_updates": max(1, updates // SELECTIONS)}
            add(runs["population"], *best(*outcome(preset(env, **base, **evolve, **rule))))
            add(runs["random search"], *best(*outcome(preset(env, **base, **evolve))))
            default = outcome(preset(env, **base))
            add(runs["preset, best of 16"], *best(*default))
            add(runs["preset"], default[0].mean(), default[1].mean())
        for name, (finals, areas) in runs.items():
            cells = [f"{np.mean(x):.1f} +- {np.std(x):.1f}" for x in (finals, areas)]
            yield f"| {env} | {STEPS[env]:,} | {name} | {' | '.join(cells)} |"


def add(columns: list[list[float]], final: float, area: float) -> None:
    """One run's two numbers."""
    columns[0].append(final)
    columns[1].append(area)


def outcome(config: TrainConfig) -> tuple[np.ndarray, np.ndarray]:
    """Greedy returns at the end, (L,), and training returns along the way, (reports, L)."""
    trainer = make_trainer(config)
    reports = [report for report in progress_reports(trainer, trainer.init()) if report.due]
    curve = np.stack([report.metrics["return_mean"] for report in reports])
    curve = curve[~np.all(np.isnan(curve), 1)]  # before the first episode has ended there is no score
    parts = trainer.parts
    returns, _ = play_episodes(parts.recipe, parts.learner, reports[-1].state.cohort, EPISODES)
    return returns.mean(1), np.where(np.isnan(curve), np.nanmin(curve), curve)


def best(final: np.ndarray, curve: np.ndarray) -> tuple[float, float]:
    """The greedy return of who trained best at the end, and the mean over time of whoever was best then."""
    return float(final[np.argmax(curve[-1])]), float(curve.max(1).mean())


def cost(learners: int, every: int, rounds: int) -> Iterator[str]:
    """Seconds of a run with selection, over those of the same learners alone, interleaved."""
    rules = {"none": (), "truncation": (ExchangeConfig("truncation", every),)}
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: run_of(learners, rule, Path(folder) / name) for name, rule in rules.items()}
        seconds = {name: [] for name in rules}
        for _ in range(rounds):
            for name, reports in runs.items():
                seconds[name].append(seconds_of(reports, 5 * every))
    yield f"{learners} CartPole learners x 4 environments x 128 steps, selection every {every} updates; "
    yield f"median of {rounds} interleaved rounds of {5 * every} updates, files written."
    yield ""
    yield "| exchange | seconds | steps/s | time against none |"
    yield "|---|---|---|---|"
    for name, times in seconds.items():
        ratio = statistics.median(t / n for t, n in zip(times, seconds["none"], strict=True))
        speed = learners * 512 * 5 * every / statistics.median(times)
        yield f"| {name} | {statistics.median(times):.2f} | {speed:,.0f} | {100 * (ratio - 1):+.1f} % |"


def run_of(learners: int, rule: tuple[ExchangeConfig, ...], folder: Path) -> Iterator[Report]:
    """A run in a folder, past its compilation and its first pulses."""
    config = TrainConfig("jax:CartPole-v1", PPOConfig(), steps=10**8, learners=learners, exchanges=rule)
    session = open_session(config, folder)
    assert not isinstance(session, int)
    reports = run_session(session)
    seconds_of(reports, 40)
    return reports


def seconds_of(reports: Iterator[Report], updates: int) -> float:
    """How long so many updates take."""
    first = last = next(reports).iteration
    began = time.perf_counter()
    while last < first + updates:
        last = next(reports).iteration
    return (time.perf_counter() - began) * updates / (last - first)


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", str(Path.home() / ".cache" / "shoal" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    main()
