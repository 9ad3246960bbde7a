"""Federations measured: worlds that differ, learners that lie, linked pairs.

python bench/federation.py worlds [--env CartPole-v1] [--seeds 5]
python bench/federation.py liars [--seeds 3]
python bench/federation.py pairs [--seeds 3]

Each prints a table; --out FILE writes it too.
"""

import argparse
from dataclasses import replace
from itertools import product
from pathlib import Path

import jax
import numpy as np
from zoo import ZOO

from shoal import ExchangeConfig, PPOConfig, TrainConfig, preset
from shoal.envs.worlds import parameters
from shoal.ops import trees
from shoal.settings import with_settings
from shoal.training.evaluate import assign_worlds, distances, evaluate_worlds, play_episodes
from shoal.training.iteration import TrainState
from shoal.training.loop import progress_reports
from shoal.training.parts import worlds_of
from shoal.training.program import Trainer, make_trainer

EPISODES = 100
STEPS = {"CartPole-v1": 50_000, "Pendulum-v1": 200_000}
"""Per learner, in worlds that differ."""
RULES = ("average", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["worlds", "liars", "pairs"])
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    jax.config.update("jax_compilation_cache_dir", str(Path.home() / ".cache" / "shoal" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    seeds = range(1, options.seeds + 1)
    tables = {"worlds": different_worlds, "liars": liars, "pairs": pairs}
    lines = []
    for line in tables[options.what](options.env, seeds):
        print(line, flush=True)
        lines.append(line)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


def different_worlds(env: str, seeds: range):
    """8 learners, isolated and averaged every 4 updates, scored where they trained and where nobody did."""
    kinds = {"isolated": (), "averaged": (ExchangeConfig("average", local_updates=4),)}
    yield f"{env}, 8 learners, {STEPS[env]:,} steps each, {len(seeds)} seeds: mean return +- deviation."
    yield ""
    yield "| spread | learners | own world | all learners' worlds | unseen worlds | better unseen |"
    yield "|---|---|---|---|---|---|"
    for spread in (0.05, 1.0, 2.0):
        found = {kind: [] for kind in kinds}
        for (kind, exchanges), seed in product(kinds.items(), seeds):
            config = preset(env, steps=STEPS[env], learners=8, seed=seed, env_spread=spread, reports=1)
            found[kind].append(scores_in_worlds(replace(config, exchanges=exchanges)))
        better = sum(a[2] > b[2] for a, b in zip(found["averaged"], found["isolated"], strict=True))
        for kind, rows in found.items():
            cells = [f"{m:.1f} +- {s:.1f}" for m, s in zip(np.mean(rows, 0), np.std(rows, 0), strict=True)]
            of_seeds = f"{better} of {len(seeds)} seeds" if kind == "averaged" else ""
            yield f"| {spread:g} | {kind} | {' | '.join(cells)} | {of_seeds} |"


def scores_in_worlds(config: TrainConfig) -> list[float]:
    """Mean returns: learners in their own worlds, in each other's, in unseen ones."""
    trainer, state = finished(config)
    spec, names = trainer.parts.recipe.spec, list(range(config.learners))
    fresh = parameters.draw_unseen_worlds(spec, config.env_spread, EPISODES, config.seed)
    places = assign_worlds(names, worlds_of(config, spec), EPISODES, fresh)
    rows = evaluate_worlds(trainer.parts.recipe, trainer.parts.learner, state.cohort, names, places)
    of = lambda place: float(np.mean([row.return_mean for row in rows if row.world == place]))
    return [of("own"), of("seen"), of("unseen")]


def liars(env: str, seeds: range):
    """10 learners, 3 of whom lie: the honest ones' returns under each rule and attack."""
    attacks = {"none": 10.0, "sign-flip": 10.0, "noise": 1.0, "scale": 30.0, "zero": 10.0}
    yield f"{env}, 10 learners of whom the last 3 lie, an exchange every update, 100,000 steps each, "
    yield f"{len(seeds)} seeds: mean greedy return of the honest 7."
    yield ""
    yield f"| rule | {' | '.join('nobody lies' if a == 'none' else a for a in attacks)} |"
    yield f"|---{'|---' * len(attacks)}|"
    for rule in RULES:
        cells = []
        for attack, strength in attacks.items():
            lie = {} if attack == "none" else {"attackers": 3, "attack_strength": strength}
            bad = {} if rule == "average" else {"bad": 3}
            exchange = with_settings(ExchangeConfig(rule, local_updates=1), attack=attack, **lie, **bad)
            config = preset(env, learners=10, reports=1, **ZOO.get(env, {}))
            runs = [replace(config, seed=seed, exchanges=(exchange,)) for seed in seeds]
            cells.append(f"{np.mean([honest_return(run, 7) for run in runs]):.1f}")
        yield f"| {rule} | {' | '.join(cells)} |"


def honest_return(config: TrainConfig, honest: int) -> float:
    """The mean greedy return of the learners that tell the truth."""
    trainer, state = finished(config)
    returns, _ = play_episodes(trainer.parts.recipe, trainer.parts.learner, state.cohort, EPISODES)
    return float(returns[:honest].mean())


def pairs(env: str, seeds: range):
    """4 learners, 0-1 and 2-3 linked by a KL penalty: who ends near whom, and what a strong link costs."""
    matrix = {"comm_matrix": {"0": {"1": 1}, "1": {"0": 1}, "2": {"3": 1}, "3": {"2": 1}}}
    exchange = ExchangeConfig("neighbours", local_updates=1, comm_matrix=matrix, common_start=True)
    yield f"{env}, 4 learners from one start, 0-1 and 2-3 linked, 100,000 steps, {len(seeds)} seeds: means."
    yield ""
    header = ("penalty", "return half way", "return at the end", "KL in the pair", "KL across")
    yield f"| {' | '.join((*header, 'actor distance in the pair', 'actor distance across'))} |"
    yield "|---|---|---|---|---|---|---|"
    for coefficient in (0.0, 1.0, 10.0, 100.0):
        algo = with_settings(PPOConfig(), comm_penalty_coeff=coefficient)
        config = TrainConfig(env, algo, steps=100_000, learners=4, reports=2, exchanges=(exchange,))
        rows = [closeness(replace(config, seed=seed)) for seed in seeds]
        cells = [f"{x:.3g}" for x in np.mean(rows, 0)]
        yield f"| {coefficient:g} | {' | '.join(cells)} |"


def closeness(config: TrainConfig) -> list[float]:
    """Return half way and at the end; KL and distance of the actors within pairs and across them."""
    trainer = make_trainer(config)
    first, *_, last = (report for report in progress_reports(trainer, trainer.init()) if report.due)
    cohort, obs = jax.device_get((last.state.cohort, last.state.envs.step.obs))
    kl = distances(trainer.parts.learner, cohort, obs)
    actors, _ = trees.as_matrix(cohort.params.actor)
    apart = np.linalg.norm(actors[:, None] - actors[None], axis=-1)
    linked = np.kron(np.eye(2), 1 - np.eye(2)) > 0
    across = np.kron(1 - np.eye(2), np.ones((2, 2))) > 0
    returns = [float(report.metrics["return_mean"].mean()) for report in (first, last)]
    return [*returns, kl[linked].mean(), kl[across].mean(), apart[linked].mean(), apart[across].mean()]


def finished(config: TrainConfig) -> tuple[Trainer, TrainState]:
    """A run, trained to its end."""
    trainer = make_trainer(config)
    state = trainer.init()
    for report in progress_reports(trainer, state):
        state = report.state
    return trainer, state


if __name__ == "__main__":
    main()
