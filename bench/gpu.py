"""Cohorts on one accelerator, environments included: steps per second of all learners together.

python bench/gpu.py [--seconds 5] [--out bench/results/gpu.md]
"""

import argparse
import time
from pathlib import Path

import jax

from shoal import ExchangeConfig, PPOConfig, TrainConfig
from shoal.train import make_trainer, pulses

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


def measure(env: str, learners: int, num_envs: int, exchange: str, seconds: float) -> tuple[float, float]:
    """Steady steps per second, and seconds of compiling."""
    config = TrainConfig(
        env,
        PPOConfig(num_envs=num_envs),
        steps=10**9 * num_envs,
        learners=learners,
        exchanges=() if exchange == "none" else (ExchangeConfig(exchange, local_updates=16),),
    )
    trainer = make_trainer(config)
    first = report = None
    for report in pulses(trainer, trainer.begin()):
        running = report.seconds - report.clock.compile_seconds
        first = report if first is None and running > 1 else first
        if first is not None and report.seconds - first.seconds > seconds:
            break
    assert first is not None
    assert report is not None
    steps = report.clock.valid_steps - first.clock.valid_steps
    return steps / (report.seconds - first.seconds), report.clock.compile_seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = [
        f"PPO, 128 steps, 4 epochs of 4 minibatches, 64-64 networks, on one {jax.devices()[0].device_kind}; "
        f"jax {jax.__version__}, {time.strftime('%Y-%m-%d')}.",
        "",
        "| environment | learners | environments each | exchange every 16 updates | steps/s | compile s |",
        "|---|---|---|---|---|---|",
    ]
    for env, learners, num_envs, exchange in CASES:
        speed, compiling = measure(env, learners, num_envs, exchange, options.seconds)
        row = (env, f"{learners:,}", f"{num_envs:,}", exchange, f"{speed:,.0f}", f"{compiling:.1f}")
        lines.append(f"| {' | '.join(row)} |")
        print(lines[-1], flush=True)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
