"""One run over devices and processes: speed, where the time goes, what a message costs, and a model of more.

    python bench/scaling.py speed       # one core, two devices, two processes, interleaved
    python bench/scaling.py parts       # shoal train --profile: serial, data-parallel, cohort
    python bench/scaling.py messages    # what a sum over two processes costs, by its size
    python bench/scaling.py model       # time per iteration on 8, 64 and 1,024 devices, from stated costs
    python bench/scaling.py curves      # what 16 seeds have learned after 50,000 steps, on one device and two
    python bench/scaling.py kills       # 20 times a rank is killed at a random moment, and the run goes on

The tables are those of docs/results/scaling.md.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from zoo import zoo_flags

SHOAL = [sys.executable, "-m", "shoal.cli", "train"]
WORKLOADS = {
    "BipedalWalker-v3, 32 environments": (
        *("BipedalWalker-v3", "--num-envs", "32", "--num-steps", "2048", "--hidden", "64", "64"),
        *("--activation", "tanh", "--num-minibatches", "8", "--update-epochs", "4", "--steps", "120000"),
    ),
    "CartPole-v1, 64 learners x 4": (
        *("CartPole-v1", "--no-preset", "--learners", "64", "--steps", "30000"),
        *("--exchange", "gossip", "--local-updates", "8", "--reports", "5"),
    ),
    "CartPole-v1, 1 learner x 256": ("CartPole-v1", "--no-preset", "--num-envs", "256", "--steps", "1000000"),
    "CartPole-v1, 1 learner x 8": ("CartPole-v1", "--steps", "40000", *zoo_flags("CartPole-v1")),
}
WAYS = {
    "1 process on 1 core": (["taskset", "-c", "0"], []),
    "1 process": ([], []),
    "1 process, 2 devices": ([], ["--mesh", "{mesh}"]),
    "2 processes": ([], ["--processes", "2"]),
}


def run(workload: str, way: str, *flags: str) -> dict:
    """One run in a folder of its own; its summary."""
    before, after = WAYS[way]
    mesh = "2x1" if "learners" in workload else "1x2"
    with tempfile.TemporaryDirectory() as folder:
        command = [*before, *SHOAL, *WORKLOADS[workload], *(flag.format(mesh=mesh) for flag in after), *flags]
        done = subprocess.run([*command, "--out", folder], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        return json.loads((Path(folder) / "summary.json").read_text())


def speed(repeats: int) -> None:
    """Steps per second, and how many times those of one core."""
    print("| workload | " + " | ".join(WAYS) + " |\n|---|" + "---|" * len(WAYS))
    for workload in WORKLOADS:
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(repeats):
            for way in WAYS:
                found[way].append(run(workload, way)["steps_per_second_compiled"])
        cells = []
        for speeds in found.values():
            ratios = (a / b for a, b in zip(speeds, found["1 process on 1 core"], strict=True))
            cells.append(f"{statistics.median(speeds):,.0f} ({statistics.median(ratios):.2f}x)")
        print(f"| {workload} | " + " | ".join(cells) + " |", flush=True)


def parts(repeats: int) -> None:
    """Seconds per iteration, by part."""
    print("| workload | | rollout | optimisation | exchange | logging |\n|---|---|---|---|---|---|")
    for workload in WORKLOADS:
        for way in ("1 process", "1 process, 2 devices", "2 processes"):
            runs = [run(workload, way, "--profile")["seconds_per_iteration"] for _ in range(repeats)]
            cells = (f"{1e3 * statistics.median(r[part] for r in runs):.2f} ms" for part in runs[0])
            print(f"| {workload} | {way} | " + " | ".join(cells) + " |", flush=True)


def curves() -> None:
    """Mean returns of the last 100 episodes after about 50,000 steps: one device for a learner, and two."""
    print("| | one device a learner | two devices a learner |\n|---|---|---|")
    for env in ("CartPole-v1", "Acrobot-v1"):
        cells = []
        for mesh in ("1x1", "1x2"):
            with tempfile.TemporaryDirectory() as folder:
                command = [
                    *(*SHOAL, env, *zoo_flags(env), "--learners", "16", "--steps", "50000"),
                    *("--mesh", mesh, "--out", folder),
                ]
                subprocess.run(command, check=True, capture_output=True)
                returns = json.loads((Path(folder) / "summary.json").read_text())["return_mean"]
            spread = statistics.stdev(returns) / len(returns) ** 0.5
            cells.append(f"{statistics.mean(returns):.1f} +- {spread:.1f}")
        print(f"| {env} | " + " | ".join(cells) + " |", flush=True)


def messages(repeats: int) -> None:
    """Microseconds per message between two processes, both ways of adding up."""
    from shoal.distributed.launch import launch

    command = [sys.executable, __file__, "rank", "--repeats", str(repeats)]
    sys.exit(launch(command, 2))


def one_rank(rank: int, coordinator: str, repeats: int) -> None:
    """A process of `messages`."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from shoal.distributed.launch import end_with_launcher
    from shoal.distributed.processes import ProcessInfo, join

    end_with_launcher()
    join(ProcessInfo(rank, 2, coordinator))
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows = PartitionSpec("data")
    ways = {
        "a sum that travels around": lambda x: jax.lax.psum(x, "data"),
        "all to all, then added": lambda x: jnp.sum(jax.lax.all_gather(x, "data"), 0),
    }
    times = 200
    if rank == 0:
        print("| numbers | " + " | ".join(ways) + " |\n|---|---|---|", flush=True)
    for size in (10, 1_000, 10_000, 100_000, 1_000_000):
        whole = np.ones(2 * size, np.float32)
        sharding = NamedSharding(mesh, rows)
        x = jax.make_array_from_callback(whole.shape, sharding, lambda index, whole=whole: whole[index])
        cells = []
        for add in ways.values():
            body = lambda x, add=add: jax.lax.fori_loop(0, times, lambda _, x: 0.5 * add(x), x)
            program = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False))
            jax.block_until_ready(program(x))
            seconds = []
            for _ in range(repeats):
                before = time.perf_counter()
                jax.block_until_ready(program(x))
                seconds.append((time.perf_counter() - before) / times)
            cells.append(f"{1e6 * statistics.median(seconds):,.0f} us")
        if rank == 0:
            print(f"| {size:,} | " + " | ".join(cells) + " |", flush=True)


LINKS = {
    "Gloo, one machine (measured here)": (300e-6, 1.2e9),
    "25 Gb/s Ethernet (assumed)": (50e-6, 3e9),
    "NVLink and InfiniBand (assumed)": (15e-6, 40e9),
}
"""Seconds per message, bytes per second."""
MODELS = {"64-64 MLP": 10_000, "256-256 MLP": 150_000, "Nature CNN": 1_700_000, "IMPALA": 650_000}
"""Numbers in actor and critic, about."""


WORK = 0.050
"""Seconds of rollout and optimisation per iteration on each device, however many there are."""
STEPS, LOCAL = 16, 8
"""Optimiser steps in an iteration; iterations between exchanges."""


def model() -> None:
    """How much of an iteration is communication, by the formulas of docs/results/scaling.md."""
    devices = (8, 64, 1024)
    print("| link | network | regime | " + " | ".join(f"{d} devices" for d in devices) + " |")
    print("|---|---|---|" + "---|" * len(devices))
    for link, (latency, bandwidth) in LINKS.items():
        for name, numbers in MODELS.items():
            found = [costs(d, 4 * numbers, latency, bandwidth) for d in devices]
            for regime in found[0]:
                cells = (
                    f"{1e3 * c[regime]:.2f} ms ({100 * c[regime] / (WORK + c[regime]):.0f} %)" for c in found
                )
                print(f"| {link} | {name} | {regime} | " + " | ".join(cells) + " |")


def costs(devices: int, size: int, latency: float, bandwidth: float) -> dict[str, float]:
    """Seconds of communication per iteration; `size` are a learner's bytes, one learner on each device."""
    rounds = devices.bit_length() - 1
    total = 2 * rounds * latency + 2 * size * (devices - 1) / devices / bandwidth
    return {
        "data-parallel": STEPS * total,
        "average": total / LOCAL,
        "gossip on a ring": 2 * (latency + size / bandwidth) / LOCAL,
        "gossip, gathering everything": (rounds * latency + size * (devices - 1) / bandwidth) / LOCAL,
    }


def kills(times: int) -> None:
    """Kill a rank at a random moment, again and again; every time the run must go on from what was saved."""
    drawn = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        steps, slowest = [], 0.0
        command = [*SHOAL, "CartPole-v1", "--learners", "2", "--exchange", "average", "--steps", "100000000"]
        command += ["--reports", "400000", "--processes", "2", "--out", folder]
        for kill in range(times):
            before = saved(folder)
            process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
            deadline = time.monotonic() + 120
            while saved(folder) == before and time.monotonic() < deadline:
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.05)
            time.sleep(drawn.uniform(0, 6))  # a checkpoint is written about every 5 seconds at first
            rank = drawn.randrange(2)
            os.kill(pid_of(process.pid, rank), signal.SIGKILL)
            began = time.monotonic()
            said = process.communicate(timeout=60)[1]
            slowest = max(slowest, time.monotonic() - began)
            assert process.returncode == 1, said
            assert f"rank {rank} was ended by SIGKILL" in said, said
            assert "damaged" not in said, said
            assert "incomplete" not in said, said
            steps.append(saved(folder))
            print(f"kill {kill + 1}: rank {rank}, saved up to step {steps[-1]:,}", flush=True)
        assert steps == sorted(steps)
        evaluated = [sys.executable, "-m", "shoal.cli", "eval", folder, "--episodes", "2"]
        subprocess.run(evaluated, check=True, capture_output=True)
        print(f"{times} kills, each followed by a run that went on; the others ended within {slowest:.1f} s")


def saved(folder: str) -> int:
    """The step of the newest checkpoint."""
    names = (Path(folder) / "checkpoints").glob("step_*.json")
    return max((int(path.stem.removeprefix("step_")) for path in names), default=-1)


def pid_of(parent: int, rank: int) -> int:
    """The process that runs a rank."""
    listed = subprocess.run(
        ["ps", "-ww", "--ppid", str(parent), "-o", "pid=,args="], capture_output=True, text=True
    )
    return next(int(line.split()[0]) for line in listed.stdout.splitlines() if f"--rank {rank} " in line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["speed", "parts", "curves", "messages", "model", "kills", "rank"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--coordinator")
    options = parser.parse_args()
    match options.what:
        case "speed":
            speed(options.repeats)
        case "parts":
            parts(options.repeats)
        case "curves":
            curves()
        case "messages":
            messages(options.repeats)
        case "model":
            model()
        case "kills":
            kills(20)
        case "rank":
            one_rank(options.rank, options.coordinator, options.repeats)


if __name__ == "__main__":
    main()
