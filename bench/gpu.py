"""Cohorts on one accelerator, environments included: steps per second of all learners together.

python bench/gpu.py [--algo ppo|td3|teams] [--seconds 5] [--out bench/results/gpu.md]
python bench/gpu.py --check     four cases in under two minutes beside the committed table; fails when one is
                                15 % slower, compiles more than twice as long, or for more than 45 seconds
"""

import argparse
import sys
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


CHECKED = (CASES[0], CASES[1], CASES[2], CASES[5])
"""What `--check` runs: one small learner, one wide one, a small cohort, a large one."""
SLOWER, LONGER, LONGEST = 0.85, 2.0, 45.0
"""The least part of the committed speed, the largest multiple of its compile time, and the most seconds."""
COMMITTED = Path(__file__).parent / "results" / "gpu.md"

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
    """Steady steps per second, and seconds until the first iteration is done, most of them compiling."""
    began = time.perf_counter()
    trainer = make_trainer(config)
    state = jax.block_until_ready(trainer.init())
    reports = progress_reports(trainer, state)
    first = report = next(reports)
    compiling = time.perf_counter() - began
    warm = report.seconds + 1
    for report in reports:
        first = report if report.seconds < warm else first
        if report.seconds - first.seconds > seconds:
            break
    steps = report.clock.valid_steps - first.clock.valid_steps
    return steps / (report.seconds - first.seconds), compiling


def committed() -> dict[tuple[str, int, int, str], tuple[float, float]]:
    """Steps per second and compile seconds of the committed table, by case."""
    number = lambda text: float(text.replace(",", ""))
    rows = [line.strip("| \n").split(" | ") for line in COMMITTED.read_text().splitlines() if "-v1 |" in line]
    return {
        (env, int(number(learners)), int(number(envs)), exchange): (number(speed), number(compiling))
        for env, learners, envs, exchange, speed, compiling in rows
    }


def check(seconds: float) -> bool:
    """Whether the four cases are about as quick, and as quickly compiled, as the committed table says."""
    known, good = committed(), True
    print("| case | steps/s | committed | ratio | compile s | committed | |\n|---|---|---|---|---|---|---|")
    for case in CHECKED:
        _, learners, num_envs, _ = case
        speed, compiling = measure(ppo_config(*case), seconds)
        before, compiled = known[case]
        slow, long = speed < SLOWER * before, compiling > min(LONGER * compiled, LONGEST)
        verdict = " and ".join(["slower"] * slow + ["compiles longer"] * long) or "ok"
        good &= verdict == "ok"
        cells = (f"{learners:,} x {num_envs:,}", f"{speed:,.0f}", f"{before:,.0f}", f"{speed / before:.2f}")
        print(f"| {' | '.join((*cells, f'{compiling:.1f}', f'{compiled:.1f}', verdict))} |", flush=True)
    return good


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
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check:
        sys.exit(0 if check(min(options.seconds, 4.0)) else 1)
    lines = []
    for line in TABLES[options.algo](options.seconds):
        print(line, flush=True)
        lines.append(line)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
