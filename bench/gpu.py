"""Cohorts on one accelerator, environments included: steps per second of all learners together.

python bench/gpu.py [--algo ppo|td3|teams] [--seconds 5] [--out bench/results/gpu.md]
"""

import argparse
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import jax

from shoal import ExchangeConfig, PPOConfig, TD3Config, TrainConfig, preset
from shoal.training.loop import progress_reports
from shoal.training.program import make_trainer

CASES = [
    ("CartPole-v1", 1, 4, "none"),
    ("CartPole-v1", 1, 4096, "none"),
    ("CartPole-v1", 64, 4, "none"),
    ("CartPole-v1", 1024, 4, "none"),
    ("CartPole-v1", 1024, 4, "truncation"),
    ("CartPole-v1", 4096, 4, "none"),
    ("CartPole-v1", 4096, 4, "average"),
    ("CartPole-v1", 4096, 4, "gossip"),
    ("CartPole-v1", 4096, 4, "neighbours"),
    ("CartPole-v1", 4096, 4, "median"),
    ("CartPole-v1", 4096, 16, "none"),
    ("CartPole-v1", 4096, 16, "average"),
    ("Pendulum-v1", 1024, 4, "none"),
    ("Pendulum-v1", 4096, 4, "none"),
]
"""Environment, learners, environments each, exchange (every 16 updates; gossip and neighbours on a ring)."""


TD3_COHORTS = (1, 8, 80, 800)
"""Learners on Pendulum, one environment each, one update per step, in turns of 50."""
TD3_SIZES = ((64, 128), (64, 256), (256, 256))
"""Widths of their two hidden layers, and batches; the first is Pendulum's preset."""
TEAMS = ((1, 128), (16, 128), (1, 2048))
"""Teams in the warehouse, and the worlds of each."""


def ppo_config(env: str, learners: int, num_envs: int, exchange: str) -> TrainConfig:
    return TrainConfig(
        env,
        PPOConfig(num_envs=num_envs),
        steps=10**9 * num_envs,
        learners=learners,
        exchanges=() if exchange == "none" else (ExchangeConfig(exchange, local_updates=16),),
    )


def measure(config: TrainConfig, seconds: float) -> tuple[float, float]:
    """Steady steps per second, and seconds of compiling."""
    trainer = make_trainer(config)
    first = report = None
    for report in progress_reports(trainer, trainer.init()):
        running = report.seconds - report.clock.compile_seconds
        first = report if first is None and running > 1 else first
        if first is not None and report.seconds - first.seconds > seconds:
            break
    assert first is not None
    assert report is not None
    steps = report.clock.valid_steps - first.clock.valid_steps
    return steps / (report.seconds - first.seconds), report.clock.compile_seconds


def ppo_table(seconds: float) -> Iterator[str]:
    """Steps per second of cohorts."""
    yield (
        f"PPO, 128 steps, 4 epochs of 4 minibatches, 64-64 networks, on one {jax.devices()[0].device_kind}; "
        f"jax {jax.__version__}, {time.strftime('%Y-%m-%d')}."
    )
    yield ""
    yield "| environment | learners | environments each | exchange every 16 updates | steps/s | compile s |"
    yield "|---|---|---|---|---|---|"
    for env, learners, num_envs, exchange in CASES:
        speed, compiling = measure(ppo_config(env, learners, num_envs, exchange), seconds)
        row = (env, f"{learners:,}", f"{num_envs:,}", exchange, f"{speed:,.0f}", f"{compiling:.1f}")
        yield f"| {' | '.join(row)} |"


def td3_table(seconds: float) -> Iterator[str]:
    """Time per update of cohorts, environment step included."""
    yield (
        f"TD3 on Pendulum-v1, one environment step per update, on one "
        f"{jax.devices()[0].device_kind}; jax {jax.__version__}, {time.strftime('%Y-%m-%d')}."
    )
    yield ""
    yield "| networks | batch | learners | updates/s | ms per update | against one learner | compile s |"
    yield "|---|---|---|---|---|---|---|"
    alone = {}
    for (width, batch), learners in product(TD3_SIZES, TD3_COHORTS):
        algo = TD3Config(
            num_steps=50, learning_starts=500, buffer_size=100_000, hidden=(width, width), batch_size=batch
        )
        speed, compiling = measure(TrainConfig("Pendulum-v1", algo, steps=10**9, learners=learners), seconds)
        took = 1000 * learners / speed
        ratio = took / alone.setdefault((width, batch), took)
        cells = (
            f"{width}-{width}",
            str(batch),
            str(learners),
            f"{speed:,.0f}",
            f"{took:.3f}",
            f"{ratio:.2f}",
            f"{compiling:.1f}",
        )
        yield f"| {' | '.join(cells)} |"


def teams_table(seconds: float) -> Iterator[str]:
    """Steps of worlds per second, with the preset's learner."""
    yield (
        "MAPPO in the warehouse of two robots, the preset's 128 steps, 4 epochs of 4 minibatches and 128-128 "
        f"networks, on one {jax.devices()[0].device_kind}; jax {jax.__version__}, "
        f"{time.strftime('%Y-%m-%d')}."
    )
    yield ""
    yield "| world | teams | worlds each | steps/s | compile s |"
    yield "|---|---|---|---|---|"
    for teams, num_envs in TEAMS:
        config = preset("rware-tiny-2ag-v2", learners=teams, num_envs=num_envs, steps=10**9 * num_envs)
        speed, compiling = measure(config, seconds)
        yield f"| {config.env} | {teams} | {num_envs:,} | {speed:,.0f} | {compiling:.1f} |"


TABLES = {"ppo": ppo_table, "td3": td3_table, "teams": teams_table}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--algo", choices=list(TABLES), default="ppo")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = []
    for line in TABLES[options.algo](options.seconds):
        print(line, flush=True)
        lines.append(line)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
