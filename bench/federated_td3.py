"""Federated TD3 on Pendulum: which networks to exchange, and worlds that differ.

python bench/federated_td3.py parts [--seeds 5]
python bench/federated_td3.py worlds [--seeds 5] [--spreads 0.05 1 2] [--prox 0.1 1]
    [--form outputs] [--as-published]

Each prints a table; --out FILE writes it too.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from shoal import ExchangeConfig, TD3Config, TrainConfig
from shoal.envs.worlds import parameters
from shoal.exchanges.mixing import mean_learner
from shoal.ops import trees
from shoal.training.evaluate import assign_worlds, evaluate_worlds, play_episodes
from shoal.training.iteration import TrainState
from shoal.training.loop import progress_reports
from shoal.training.parts import worlds_of
from shoal.training.program import Trainer, make_trainer

CLIENTS = 5
EPISODES = 100
PARTS = {  # with what was published: florl's report, best reward of 10 seeds, +- its deviation
    "all": ((), "-136.5 +- 2.0"),
    "actor": (("actor",), "-136.0 +- 0.9"),
    "all but targets": (("actor", "critic"), "-137.3 +- 3.4"),
    "targets": (("target_actor", "target_critic"), "-238 +- 261"),
    "critics": (("critic",), "-652 +- 531"),
    "critics and their targets": (("critic", "target_critic"), "-946 +- 281"),
}
SPREADS = {  # with what was published: Mai et al. 2024, drafts of their table
    0.05: {"FedAvg": "-148.5", "FedProx": "-146.7"},
    1.0: {"FedAvg": "-364.3", "FedProx": "-301.7"},
    2.0: {"FedAvg": "-537.1", "FedProx": "-518.6"},
}
AVERAGE = ExchangeConfig("average", parts=("critic:2", "target_critic:2", "actor:4", "target_actor:4"))
GRADIENTS = ExchangeConfig("gradients")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["parts", "worlds"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--spreads", type=float, nargs="+", default=list(SPREADS))
    parser.add_argument("--prox", type=float, nargs="+", default=[0.1, 1.0])
    parser.add_argument("--form", choices=["parameters", "outputs"], default="parameters", help="kept near")
    parser.add_argument("--as-published", action="store_true", help="256-256 networks, learning rate 0.002")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    jax.config.update("jax_compilation_cache_dir", str(Path.home() / ".cache" / "shoal" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    seeds = range(1, options.seeds + 1)
    table = parts(seeds) if options.what == "parts" else different_worlds(seeds, options)
    lines = []
    for line in table:
        print(line, flush=True)
        lines.append(line)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


def parts(seeds: range) -> Iterator[str]:
    """150 rounds of 50 steps, 64-unit networks: what happens by which networks are averaged."""
    algo = TD3Config(
        num_steps=50,
        batch_size=64,
        gamma=0.98,
        tau=0.02,
        hidden=(64, 64),
        learning_starts=500,
        buffer_size=7_500,
    )
    yield f"Pendulum-v1, {CLIENTS} clients, 150 rounds of 50 steps and 50 updates, {len(seeds)} seeds: "
    yield "greedy returns at the end, +- deviation over seeds, of the clients, of the mean of all their "
    yield "networks, and of the server, which has the mean of those sent to it, the rest untrained."
    yield ""
    yield "| averaged | clients | mean of all | server | published best |"
    yield "|---|---|---|---|---|"
    for name, (chosen, published) in PARTS.items():
        rule = (ExchangeConfig("average", local_updates=1, parts=chosen),)
        base = TrainConfig("Pendulum-v1", algo, steps=7_500, learners=CLIENTS, reports=1, exchanges=rule)
        found = [returns(TrainConfig(**vars(base) | {"seed": seed}), chosen) for seed in seeds]
        yield f"| {name} | {_cells(np.array(found))} | {published} |"


def returns(config: TrainConfig, sent: tuple[str, ...]) -> list[float]:
    """Greedy returns at the end: the mean of the clients', that of the mean of all networks, the server's."""
    trainer = make_trainer(config)
    began = trainer.init()
    untrained = trees.take(began.cohort.params, jnp.array([0]))
    cohort = final(trainer, began).cohort
    mean = mean_learner(cohort)
    known = mean._replace(params=untrained._replace(**{name: getattr(mean.params, name) for name in sent}))
    parts = trainer.parts
    play = lambda who: float(play_episodes(parts.recipe, parts.learner, who, EPISODES)[0].mean())
    return [play(cohort), play(mean), play(known if sent else mean)]


def final(trainer: Trainer, state: TrainState) -> TrainState:
    """Where a run ends."""
    for report in progress_reports(trainer, state):
        state = report.state
    return state


def different_worlds(seeds: range, options: argparse.Namespace) -> Iterator[str]:
    """The study's clocks: critics meet every 100 steps, actors every 200; 20,000 steps per client."""
    yield f"Pendulum-v1, {CLIENTS} clients, 20,000 steps each, critics averaged every 100 steps, actors "
    yield f"every 200, {len(seeds)} seeds: greedy return of the mean model, +- deviation over seeds; and "
    yield "how much more than FedAvg's on the same seeds, +- standard error."
    yield ""
    yield "| spread | method | clients' worlds | unseen worlds | more than FedAvg | published, clients' |"
    yield "|---|---|---|---|---|---|"
    plain = study(options.as_published)
    near = lambda coef: replace(plain, prox_coef=coef, prox_form=options.form)
    methods = [("FedAvg", plain, AVERAGE)]
    methods += [(f"FedProx {coef:g}", near(coef), AVERAGE) for coef in options.prox]
    methods += [("every gradient", plain, GRADIENTS)]
    for spread in options.spreads:
        average = None
        for name, algo, rule in methods:
            found = np.array([mean_model(algo, rule, spread, seed) for seed in seeds])
            more = "" if average is None else _more(found - average)
            average = found if average is None else average
            theirs = SPREADS.get(spread, {}).get(name.split()[0], "")
            yield f"| {spread:g} | {name} | {_cells(found)} | {more} | {theirs} |"


def study(as_published: bool) -> TD3Config:
    """The study's settings, with its own networks or with faster ones."""
    return TD3Config(
        num_steps=50,
        batch_size=128,
        hidden=(256, 256) if as_published else (64, 64),
        learning_rate=0.002 if as_published else 0.001,
        gamma=0.98,
        tau=0.01,
        learning_starts=500,
        buffer_size=10_000,
    )


def _cells(found: np.ndarray) -> str:
    return " | ".join(f"{mean:.1f} +- {deviation:.1f}" for mean, deviation in _moments(found))


def _more(differences: np.ndarray) -> str:
    errors = len(differences) ** 0.5
    return ", ".join(f"{m:+.1f} +- {s / errors:.1f}" for m, s in _moments(differences, ddof=1))


def _moments(found: np.ndarray, ddof: int = 0) -> Iterator[tuple[float, float]]:
    """Mean and deviation over the rows, of each column."""
    return zip(found.mean(0), found.std(0, ddof=ddof), strict=True)


def mean_model(algo: TD3Config, rule: ExchangeConfig, spread: float, seed: int) -> list[float]:
    """Returns of the averaged model in all clients' worlds and in unseen ones."""
    config = TrainConfig(
        "Pendulum-v1",
        algo,
        steps=20_000,
        learners=CLIENTS,
        seed=seed,
        reports=1,
        env_spread=spread,
        exchanges=(rule,),
    )
    trainer = make_trainer(config)
    cohort, spec = final(trainer, trainer.init()).cohort, trainer.parts.recipe.spec
    fresh = parameters.draw_unseen_worlds(spec, spread, EPISODES, seed)
    places = assign_worlds(["mean"], worlds_of(config, spec), EPISODES, fresh)
    rows = evaluate_worlds(
        trainer.parts.recipe, trainer.parts.learner, mean_learner(cohort), ["mean"], places
    )
    return [float(np.mean([row.return_mean for row in rows if row.world == w])) for w in ("seen", "unseen")]


if __name__ == "__main__":
    main()
