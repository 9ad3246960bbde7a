"""Federations and populations of which a third is bad: what the others reach under each exchange.

    python bench/bad_learners.py [--steps 30000] [--seeds 3] [--only NAMES] [--out FILE]

Nine learners of CartPole, the last three bad. Lost: their learning rate is 1e30, so their numbers are NaN
after the first update. Lying: where parameters are sent, they send the tenfold opposite of their change; in a
population they learn nothing and report a return of 500.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from shoal.exchanges.config import ExchangeConfig
from shoal.exchanges.registry import mixes, selects
from shoal.runs.cache import cache_compilations
from shoal.runs.presets import preset
from shoal.settings import with_settings
from shoal.training.config import TrainConfig
from shoal.training.evaluate import play_episodes
from shoal.training.loop import progress_reports
from shoal.training.program import for_learners, make_trainer
from shoal.types import Exchange

LEARNERS, BAD, EPISODES = 9, 3, 20
HONEST = LEARNERS - BAD
GOOD_RATE, NO_RATE, LOST_RATE = 1e-3, 1e-12, 1e30
ROBUST = ("median", "trimmed-mean", "krum", "multi-krum", "geometric-median")
KINDS: dict[str, dict] = {
    "none": {},
    "average": {"local_updates": 2},
    **{rule: {"local_updates": 2, "bad": BAD} for rule in ROBUST},
    "gossip": {"local_updates": 2, "topology": "ring"},
    "neighbours": {"local_updates": 1, "topology": "ring"},
    "gradients": {},
    "truncation": {"local_updates": 10},
    "tournament": {"local_updates": 10},
    "winner": {"local_updates": 10},
}
ABOUT = (
    f"{LEARNERS} learners of CartPole-v1, the last {BAD} bad, by `python bench/bad_learners.py`: the mean "
    f"greedy return of the {HONEST} others ({EPISODES} episodes each), in brackets its deviation over seeds. "
    "A dash: nothing to lie in. Worse, better: by more than two standard errors of the difference."
)


def settings_of(kind: str, steps: int, badness: str) -> TrainConfig:
    """The run of one cell of the table."""
    rates = [GOOD_RATE] * HONEST + [{"lost": LOST_RATE, "lying": NO_RATE}.get(badness, GOOD_RATE)] * BAD
    lie = badness == "lying" and mixes(ExchangeConfig(kind))
    attack = {"attack.kind": "sign-flip", "attack.count": BAD, "attack.strength": 10.0} if lie else {}
    exchanges = () if kind == "none" else (with_settings(ExchangeConfig(kind), **KINDS[kind], **attack),)
    evolve = ("ent_coef",) if exchanges and selects(exchanges[0]) else ()
    hypers = {"learning_rate": [GOOD_RATE] * LEARNERS if lie else rates}
    config = preset("CartPole-v1", learners=LEARNERS, steps=steps, reports=1)
    return replace(config, exchanges=exchanges, evolve=evolve, learner_hypers=hypers)


def boasting(exchange: Exchange) -> Exchange:
    """The exchange, to which the bad ones report the largest return there is."""

    def apply(key, state, cohort, scores):
        liars = jnp.arange(LEARNERS) >= HONEST
        return exchange.apply(
            key, state, cohort, scores._replace(returns=jnp.where(liars, 500.0, scores.returns))
        )

    return exchange._replace(apply=apply)


def honest_returns(configs: list[TrainConfig], boasts: bool) -> list[float]:
    """The mean greedy return of the learners that are not bad, at the end of each of these runs.

    They differ in seeds and learning rates alone, so they are one program.
    """
    exchange = None
    if boasts:
        exchange = boasting(make_trainer(configs[0]).parts.exchange)
    trainer, found = make_trainer(configs[0], exchange=exchange), []
    for one in (for_learners(trainer, config) for config in configs):
        *_, last = progress_reports(one, one.init())
        returns, _ = play_episodes(one.parts.recipe, one.parts.learner, last.state.cohort, EPISODES)
        found.append(float(returns[:HONEST].mean()))
    return found


def cells(kind: str, steps: int, seeds: range) -> tuple[list[float], list[float], list[float]]:
    """What the honest ones reach, for each seed: with none bad, with a third lost, with a third lying."""
    runs = {
        badness: [replace(settings_of(kind, steps, badness), seed=seed) for seed in seeds]
        for badness in ("none", "lost", "lying")
    }
    returns = honest_returns(runs["none"] + runs["lost"], boasts=False)
    exchanges = runs["lying"][0].exchanges
    population, lies = any(map(selects, exchanges)), any(map(mixes, exchanges))
    lying = honest_returns(runs["lying"], boasts=population) if population or lies else []
    return returns[: len(seeds)], returns[len(seeds) :], lying


def verdict(honest: list[float], others: list[float]) -> str:
    """Whether returns are those without bad learners, give or take two standard errors of the difference."""
    if not others:
        return "-"
    error = np.hypot(np.std(honest, ddof=1), np.std(others, ddof=1)) / np.sqrt(len(honest))
    lower = np.mean(honest) - np.mean(others)
    return "within noise" if abs(lower) <= 2 * error else "worse" if lower > 0 else "better"


def rows(kinds: list[str], steps: int, seeds: range) -> Iterator[str]:
    """The table, a line at a time."""
    yield "| exchange | none bad | a third lost | | a third lying | |"
    yield "|---|---|---|---|---|---|"
    show = lambda found: f"{np.mean(found):.0f} ({np.std(found, ddof=1):.0f})" if found else "-"
    for kind in kinds:
        whole, lost, lying = cells(kind, steps, seeds)
        row = (show(whole), show(lost), verdict(whole, lost), show(lying), verdict(whole, lying))
        yield f"| {kind} | {' | '.join(row)} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="exchanges, with commas")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cache_compilations()
    kinds = [kind for kind in KINDS if not options.only or kind in options.only.split(",")]
    lines = [ABOUT, f"{options.steps:,} steps, {options.seeds} seeds.", ""]
    for line in rows(kinds, options.steps, range(1, options.seeds + 1)):
        lines.append(line)
        print(line, flush=True)
        if options.out:
            options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
