"""What learning together costs.

python bench/exchange.py [--learners 64] [--rounds 7] [--out bench/results/exchange.md]
    the time of a run with an exchange, over the same run without, interleaved
python bench/exchange.py transport [--devices 8] [--rounds 20] [--out bench/results/transport.md]
    the bytes that an exchange moves between devices, and its time, both ways
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from traffic import traffic

from shoal import ExchangeConfig, PPOConfig, TrainConfig
from shoal.distributed.mesh import BY_LEARNER, REPLICATED
from shoal.envs.registry import make
from shoal.exchanges import routing, selection
from shoal.exchanges.config import ExchangeContext
from shoal.exchanges.registry import make_exchange
from shoal.learners.context import LearnerContext
from shoal.learners.ppo import ppo
from shoal.settings import with_settings
from shoal.training.program import make_trainer
from shoal.types import ExchangeState, Scores, Tree

LOCAL_UPDATES = 16
CASES = {
    "none": None,
    "average": ExchangeConfig("average", LOCAL_UPDATES),
    "average, top-k 1 %": with_settings(ExchangeConfig("average", LOCAL_UPDATES), compress="top-k"),
    "average, clip and noise": with_settings(
        ExchangeConfig("average", LOCAL_UPDATES), clip=1.0, noise_multiplier=1.0
    ),
    "gossip, ring": ExchangeConfig("gossip", LOCAL_UPDATES),
    "gossip, complete": ExchangeConfig("gossip", LOCAL_UPDATES, topology="complete"),
    "median": ExchangeConfig("median", LOCAL_UPDATES),
    "multi-krum": ExchangeConfig("multi-krum", LOCAL_UPDATES),
    "geometric-median": ExchangeConfig("geometric-median", LOCAL_UPDATES),
    "neighbours, ring": ExchangeConfig("neighbours", LOCAL_UPDATES),
    "truncation": ExchangeConfig("truncation", LOCAL_UPDATES),
    "neighbours, star": ExchangeConfig("neighbours", LOCAL_UPDATES, topology="star"),
}

MOVING = {
    "gossip, ring": ExchangeConfig("gossip", 1),
    "gossip, torus": ExchangeConfig("gossip", 1, topology="torus"),
    "neighbours, ring": ExchangeConfig("neighbours", 1),
    "truncation": with_settings(ExchangeConfig("truncation", 1), min_episodes=1),
}
"""Exchanges whose rows travel, each at every update."""
GATHER = (routing.Hop((), np.zeros((0, 0), np.int32)),)
"""In place of hops: all rows are gathered."""


def transport(mesh: Mesh, rounds: int) -> Iterator[str]:
    """A table: what each exchange moves between the devices of `mesh` and how long it takes, both ways."""
    num_devices = mesh.shape["learners"]
    on = f"{num_devices} {mesh.devices.flat[0].platform} devices, jax {jax.__version__}"
    when = f"{time.strftime('%Y-%m-%d')}. Median of {rounds} exchanges."
    yield f"PPO learners with 64-64 networks on {on}, {when}"
    yield ""
    yield "| exchange | learners | way | MB between devices | by kind | ms |"
    yield "|---|---|---|---|---|---|"
    for num_learners in (8, 64):
        for name, config in MOVING.items():
            for way, patched in (("point-to-point", nullcontext), ("collective", gathering)):
                with patched():
                    moved, seconds = travel(mesh, num_learners, config, rounds)
                kinds = ", ".join(f"{kind} {size / 1e6:.3f}" for kind, size in sorted(moved.items()))
                total = sum(moved.values()) / 1e6
                yield f"| {name} | {num_learners} | {way} | {total:.3f} | {kinds} | {1000 * seconds:.2f} |"


@contextmanager
def gathering() -> Iterator[None]:
    """Exchanges that are compiled in this block gather all rows on every device, and take what is needed."""
    plan, build_table = routing.plan, routing.build_table

    def plan_nothing(sources: np.ndarray, num_rows: int, transport: routing.Transport) -> routing.Plan:
        several = transport.num_devices > 1
        return routing.Plan(sources, GATHER) if several else plan(sources, num_rows, transport)

    def gather(route: routing.Plan, rows: Tree) -> Tree:
        return routing.gather(rows) if route.hops is GATHER else build_table(route, rows)

    def take(rows: Tree, parent: Array, most: int, transport: routing.Transport) -> Tree:
        return routing.take_dynamic(rows, parent, len(parent), transport)

    with (
        patch.object(routing, "plan", plan_nothing),
        patch.object(routing, "build_table", gather),
        patch.object(selection, "take_dynamic", take),
    ):
        yield


def travel(
    mesh: Mesh, num_learners: int, config: ExchangeConfig, rounds: int
) -> tuple[dict[str, int], float]:
    """Bytes that one exchange moves, by kind, and the median of its seconds."""
    spec = make("jax:CartPole-v1").spec
    learner = ppo(PPOConfig(), spec, LearnerContext(10))
    exchange = make_exchange((config,), ExchangeContext(num_learners, learner, spec, mesh=mesh))
    divided, whole = NamedSharding(mesh, BY_LEARNER), NamedSharding(mesh, REPLICATED)
    exchange_sharding = ExchangeState(divided, whole)

    def begin():
        cohort = jax.lax.map(learner.init, jax.random.split(jax.random.key(0), num_learners))
        everyone = jnp.arange(num_learners)
        present = jnp.ones(num_learners, bool)
        now = Scores(jnp.ones(num_learners), everyone.astype(jnp.float32), everyone + 1, present)
        return *exchange.init(cohort._replace(private=())), now

    state = jax.jit(begin, out_shardings=(exchange_sharding, divided, divided))()
    key = jax.device_put(jax.random.key(1), whole)
    apply = (
        jax.jit(exchange.apply, out_shardings=(exchange_sharding, divided, divided))
        .lower(key, *state)
        .compile()
    )
    seconds = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        jax.block_until_ready(apply(key, *state))
        seconds.append(time.perf_counter() - began)
    return traffic(apply.as_text(), mesh.devices.size), statistics.median(seconds[1:])


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
    state, _ = trainer.advance(trainer.init(), jnp.int32(LOCAL_UPDATES))
    return trainer.advance, jax.block_until_ready(state)


def training(learners: int, rounds: int) -> list[str]:
    """A table: what each exchange adds to a run."""
    programs = {name: prepare(learners, case) for name, case in CASES.items()}
    seconds = {name: [] for name in CASES}
    for _ in range(rounds):
        for name, (advance, state) in programs.items():
            began = time.perf_counter()
            state, _ = jax.block_until_ready(advance(state, jnp.int32(LOCAL_UPDATES)))
            seconds[name].append(time.perf_counter() - began)
            programs[name] = advance, state
    lines = [
        f"{learners} CartPole learners x 4 environments x 128 steps, an exchange every "
        f"{LOCAL_UPDATES} updates; {len(jax.devices())} {jax.devices()[0].platform} devices, "
        f"jax {jax.__version__}, {time.strftime('%Y-%m-%d')}. Median of {rounds} interleaved rounds.",
        "",
        "| exchange | ms per 16 updates | more than none |",
        "|---|---|---|",
    ]
    for name, times in seconds.items():
        ratio = statistics.median(t / n for t, n in zip(times, seconds["none"], strict=True))
        lines.append(f"| {name} | {1000 * statistics.median(times):.0f} | {100 * (ratio - 1):+.1f} % |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", choices=["training", "transport"], default="training")
    parser.add_argument("--learners", type=int, default=64)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.what == "transport":
        jax.config.update("jax_num_cpu_devices", options.devices)
        devices = np.array(jax.devices()[: options.devices]).reshape(-1, 1)
        lines = transport(Mesh(devices, ("learners", "data")), options.rounds or 20)
    else:
        lines = training(options.learners, options.rounds or 7)
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
