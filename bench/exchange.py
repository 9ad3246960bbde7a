"""What learning together costs: the time of a run with an exchange, over the same run without, interleaved.

python bench/exchange.py [--learners 64] [--rounds 7] [--out bench/results/exchange.md]
"""

import argparse
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from shoal import ExchangeConfig, PPOConfig, TrainConfig
from shoal.program import make_trainer

LOCAL_UPDATES = 16
CASES = {
    "none": None,
    "average": ExchangeConfig("average", LOCAL_UPDATES),
    "average, top-k 1 %": ExchangeConfig("average", LOCAL_UPDATES, compress="top-k"),
    "average, clip and noise": ExchangeConfig("average", LOCAL_UPDATES, clip=1.0, noise_multiplier=1.0),
    "gossip, ring": ExchangeConfig("gossip", LOCAL_UPDATES),
    "gossip, complete": ExchangeConfig("gossip", LOCAL_UPDATES, topology="complete"),
    "median": ExchangeConfig("median", LOCAL_UPDATES),
    "multi-krum": ExchangeConfig("multi-krum", LOCAL_UPDATES),
    "geometric-median": ExchangeConfig("geometric-median", LOCAL_UPDATES),
    "neighbours, ring": ExchangeConfig("neighbours", LOCAL_UPDATES),
    "truncation": ExchangeConfig("truncation", LOCAL_UPDATES),
    "neighbours, star": ExchangeConfig("neighbours", LOCAL_UPDATES, topology="star"),
}


def prepare(learners: int, exchange: ExchangeConfig | None):
    """A program and a state that has been through one exchange."""
    config = TrainConfig(
        "jax:CartPole-v1",
        PPOConfig(),
        steps=10**8,
        learners=learners,
        exchanges=(exchange,) if exchange else (),
    )
    trainer = make_trainer(config)
    state, _ = trainer.advance(trainer.begin(), jnp.int32(LOCAL_UPDATES))
    return trainer.advance, jax.block_until_ready(state)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--learners", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    programs = {name: prepare(options.learners, case) for name, case in CASES.items()}
    seconds = {name: [] for name in CASES}
    for _ in range(options.rounds):
        for name, (advance, state) in programs.items():
            began = time.perf_counter()
            state, _ = jax.block_until_ready(advance(state, jnp.int32(LOCAL_UPDATES)))
            seconds[name].append(time.perf_counter() - began)
            programs[name] = advance, state
    lines = [
        f"{options.learners} CartPole learners x 4 environments x 128 steps, an exchange every "
        f"{LOCAL_UPDATES} updates; {len(jax.devices())} {jax.devices()[0].platform} devices, "
        f"jax {jax.__version__}, {time.strftime('%Y-%m-%d')}. Median of {options.rounds} interleaved rounds.",
        "",
        "| exchange | ms per 16 updates | more than none |",
        "|---|---|---|",
    ]
    for name, times in seconds.items():
        ratio = statistics.median(t / n for t, n in zip(times, seconds["none"], strict=True))
        lines.append(f"| {name} | {1000 * statistics.median(times):.0f} | {100 * (ratio - 1):+.1f} % |")
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
