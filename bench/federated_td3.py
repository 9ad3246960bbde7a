"""Federated TD3 on Pendulum: which networks to exchange, and worlds that differ.

python bench/federated_td3.py parts [--seeds 5]
python bench/federated_td3.py worlds [--seeds 5]

Each prints a table; --out FILE writes it too.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from shoal import ExchangeConfig, TD3Config, TrainConfig, trees
from shoal.envs import worlds
from shoal.evaluate import evaluate, evaluate_worlds, visits
from shoal.exchange.mixing import merged
from shoal.program import make_trainer, worlds_of
from shoal.train import pulses

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
SPREADS = {0.05: ("-148.5", "-146.7"), 1.0: ("-364.3", "-301.7"), 2.0: ("-537.1", "-518.6")}
"""With what was published for FedAvg and FedProx (Mai et al. 2024, drafts of their table)."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["parts", "worlds"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    jax.config.update("jax_compilation_cache_dir", str(Path.home() / ".cache" / "shoal" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    tables = {"parts": parts, "worlds": different_worlds}
    lines = []
    for line in tables[options.what](range(1, options.seeds + 1)):
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
        cells = [f"{m:.1f} +- {s:.1f}" for m, s in zip(np.mean(found, 0), np.std(found, 0), strict=True)]
        yield f"| {name} | {' | '.join(cells)} | {published} |"


def returns(config: TrainConfig, sent: tuple[str, ...]) -> list[float]:
    """Greedy returns at the end: the mean of the clients', that of the mean of all networks, the server's."""
    trainer = make_trainer(config)
    began = trainer.begin()
    untrained = trees.take(began.cohort, jnp.array([0])).params
    *_, last = pulses(trainer, began)
    cohort = last.state.cohort
    mean = merged(cohort)
    known = mean._replace(params=untrained._replace(**{name: getattr(mean.params, name) for name in sent}))
    play = lambda who: float(evaluate(trainer.recipe, trainer.learner, who, EPISODES)[0].mean())
    return [play(cohort), play(mean), play(known if sent else mean)]


def different_worlds(seeds: range) -> Iterator[str]:
    """The study's clocks: critics meet every 100 steps, actors every 200; 20,000 steps per client."""
    yield f"Pendulum-v1, {CLIENTS} clients, 20,000 steps each, critics averaged every 100 steps, actors "
    yield f"every 200, {len(seeds)} seeds: greedy return of the mean model, +- deviation over seeds."
    yield ""
    yield "| spread | method | clients' worlds | unseen worlds | published, clients' worlds |"
    yield "|---|---|---|---|---|"
    for spread, published in SPREADS.items():
        methods = {"FedAvg": (0.0, published[0]), "FedProx": (1.0, published[1])}
        for name, (prox, theirs) in methods.items():
            rows = [mean_model(spread, prox, seed) for seed in seeds]
            cells = [f"{m:.1f} +- {s:.1f}" for m, s in zip(np.mean(rows, 0), np.std(rows, 0), strict=True)]
            yield f"| {spread:g} | {name} | {' | '.join(cells)} | {theirs} |"


def mean_model(spread: float, prox: float, seed: int) -> list[float]:
    """Returns of the averaged model in all clients' worlds and in unseen ones."""
    algo = TD3Config(
        num_steps=50,
        batch_size=128,
        hidden=(64, 64),
        learning_rate=0.001,
        gamma=0.98,
        tau=0.01,
        learning_starts=500,
        buffer_size=10_000,
        prox_coef=prox,
    )
    clocks = ("critic:2", "target_critic:2", "actor:4", "target_actor:4")
    config = TrainConfig(
        "Pendulum-v1",
        algo,
        steps=20_000,
        learners=CLIENTS,
        seed=seed,
        reports=1,
        env_spread=spread,
        exchanges=(ExchangeConfig("average", parts=clocks),),
    )
    trainer = make_trainer(config)
    *_, last = pulses(trainer, trainer.begin())
    spec = trainer.recipe.spec
    fresh = worlds.unseen(spec, spread, EPISODES, seed)
    places = visits(["mean"], worlds_of(config, spec), EPISODES, fresh)
    rows = evaluate_worlds(trainer.recipe, trainer.learner, merged(last.state.cohort), ["mean"], places)
    return [float(np.mean([row.return_mean for row in rows if row.world == w])) for w in ("seen", "unseen")]


if __name__ == "__main__":
    main()
