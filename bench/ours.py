"""Run Shoal on one workload and print one JSON line, as peers/run.py does for the others.

python bench/ours.py WORKLOAD [--seconds 8] [--to 475] [--seed 1]
"""

import argparse
import json
import time

from shoal import PPOConfig, TD3Config, TrainConfig
from shoal.settings import with_settings
from shoal.training.loop import Report, progress_reports
from shoal.training.program import make_trainer

CLEANRL = with_settings(PPOConfig(), clip_vloss=True)  # 4 x 128, 4 epochs of 4 minibatches, annealed
SB3 = PPOConfig(
    num_envs=1,
    num_steps=2048,
    num_minibatches=32,
    update_epochs=10,
    learning_rate=3e-4,
    anneal_lr=False,
    ent_coef=0.0,
)
TD3 = TD3Config(learning_starts=256)  # batch 256, 256-256
SMALL_TD3 = TD3Config(learning_starts=256, hidden=(64, 64))
WORKLOADS = {
    "cartpole": TrainConfig("jax:CartPole-v1", CLEANRL, steps=500_000),
    "cartpole-envpool": TrainConfig("envpool:CartPole-v1", CLEANRL, steps=500_000),
    "cartpole-gym": TrainConfig("gym:CartPole-v1", CLEANRL, steps=500_000),
    "halfcheetah": TrainConfig("envpool:HalfCheetah-v4", SB3, steps=1_000_000),
    "cohort": TrainConfig("jax:CartPole-v1", CLEANRL, steps=500_000, learners=64),
    "td3-halfcheetah": TrainConfig("envpool:HalfCheetah-v4", TD3, steps=1_000_000),
    "td3-pendulum": TrainConfig("jax:Pendulum-v1", SMALL_TD3, steps=1_000_000),
    "td3-cohort": TrainConfig("jax:Pendulum-v1", SMALL_TD3, steps=1_000_000, learners=8),
    "wide": TrainConfig(
        "jax:CartPole-v1", with_settings(PPOConfig(), num_envs=256, clip_vloss=True), steps=5_000_000
    ),
}


def speed(config: TrainConfig, seconds: float) -> dict:
    """Steady speed: over about `seconds`, after a second of warming up."""
    first = last = None
    for report in endless(config):
        last = report
        running = report.seconds - report.clock.compile_seconds
        first = report if first is None and running > 1 else first
        if first is not None and report.seconds - first.seconds > seconds:
            break
    assert first is not None
    assert last is not None
    steps = last.clock.valid_steps - first.clock.valid_steps
    return summary(last) | {"steps_per_second": steps / (last.seconds - first.seconds)}


def reach(config: TrainConfig, target: float) -> dict:
    """Seconds, compiling included, until the mean of the last 100 episodes reaches `target`."""
    began = time.perf_counter()
    trainer = make_trainer(config)
    report = None
    for report in progress_reports(trainer, trainer.init()):
        if report.metrics["return_mean"].mean() >= target and report.metrics["episodes"].min() >= 100:
            return summary(report) | {f"seconds_to_{target:g}": time.perf_counter() - began}
    assert report is not None
    return summary(report) | {f"seconds_to_{target:g}": None}


def endless(config: TrainConfig):
    """The workload without an end, its annealing stretched."""
    trainer = make_trainer(TrainConfig(**vars(config) | {"steps": 100_000_000}))
    return progress_reports(trainer, trainer.init())


def summary(report: Report) -> dict:
    return {
        "steps": report.clock.valid_steps,
        "seconds_total": report.seconds,
        "compile_seconds": report.clock.compile_seconds,
        "return_mean": float(report.metrics["return_mean"].mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--to", type=float)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    config = TrainConfig(**vars(WORKLOADS[options.workload]) | {"seed": options.seed})
    result = reach(config, options.to) if options.to else speed(config, options.seconds)
    print(json.dumps({"peer": "shoal", "workload": options.workload} | result))


if __name__ == "__main__":
    main()
