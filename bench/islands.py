"""What islands cost, and what they survive.

python bench/islands.py cost [--engines local ray] [--rounds 100] [--out bench/results/islands_cost.md]
    seconds and bytes of a meeting by engine and size, beside the exchange inside one program
python bench/islands.py faults [--engine local] [--islands 50] [--drivers 5] [--nodes 0] [--gap 4]
    a run whose islands, driver and nodes are killed at random moments, and which then ends
python bench/islands.py learning [--seeds 5] [--minutes 1.0] [--islands 5]
    64 CartPole learners, averaged: one of the islands dies every so many minutes, against none
"""

import argparse
import csv
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

import shoal
from shoal.islands.launch import train_islands
from shoal.islands.options import Islands
from shoal.runs.metrics import read_summary

TRAIN = [sys.executable, "-m", "shoal.cli", "train", "CartPole-v1"]
SMALL = [
    "--num-envs",
    "2",
    "--num-steps",
    "8",
    "--num-minibatches",
    "2",
    "--update-epochs",
    "2",
    "--hidden",
    "8",
]
SIZES = {
    "8 learners, 64-64": (8, (64, 64)),
    "64 learners, 64-64": (64, (64, 64)),
    "8 learners, 512-512": (8, (512, 512)),
}


def main() -> None:
    """Run the benchmark that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    one = kinds.add_parser("cost")
    one.add_argument("--engines", nargs="+", default=["local", "ray"])
    one.add_argument("--rounds", type=int, default=100)
    one.add_argument("--islands", nargs="+", default=["2"])
    two = kinds.add_parser("faults")
    two.add_argument("--engine", default="local")
    for name, count in {"islands": 50, "drivers": 5, "nodes": 0}.items():
        two.add_argument(f"--{name}", type=int, default=count)
    two.add_argument("--gap", type=float, default=4.0)
    three = kinds.add_parser("learning")
    three.add_argument("--seeds", type=int, default=5)
    three.add_argument("--minutes", type=float, default=1.0)
    three.add_argument("--islands", default="5")
    three.add_argument("--steps", type=int, default=200_000)
    given = parser.parse_args()
    if given.kind == "cost":
        cost(given.engines, given.islands, given.rounds)
    elif given.kind == "faults":
        faults(
            given.engine, {"island": given.islands, "driver": given.drivers, "node": given.nodes}, given.gap
        )
    else:
        learning(given.seeds, given.minutes, given.islands, given.steps)


# What a meeting costs.


def cost(engines: list[str], crowds: list[str], rounds: int) -> None:
    """A line for each engine, size and number of islands; the first meetings, which compile, do not count."""
    print(
        "| size | engine | islands | exchange, ms | everything but training, ms | bytes | share at K = 16 |"
    )
    print("|---|---|---|---|---|---|---|")
    for size, (learners, hidden) in SIZES.items():
        inside, updates = in_program(learners, hidden, rounds)
        total = 1000 * (inside + updates)
        own, share = f"{1000 * inside:.2f}", 100_000 * inside / total
        print(f"| {size} | one program | | {own} | {own} | 0 | {share:.1f} % |", flush=True)
        for engine in engines:
            for islands in crowds:
                rows = held(learners, hidden, rounds, engine, islands)
                exchange = statistics.median(float(row["exchange"]) for row in rows)
                between = statistics.median(b - a for a, b in pairwise(seconds_of(rows)))
                size_of = int(statistics.median(int(row["received"]) + int(row["sent"]) for row in rows))
                lost = max(between - updates, 0.0)
                line = [size, engine, islands, f"{1000 * exchange:.1f}", f"{1000 * lost:.1f}", f"{size_of:,}"]
                print(f"| {' | '.join(line)} | {100 * lost / between:.1f} % |", flush=True)


def seconds_of(rows: list[dict]) -> list[float]:
    """When each meeting was held."""
    return [float(row["seconds"]) for row in rows]


def config_of(learners: int, hidden: tuple[int, ...], rounds: int, exchange: str = "average"):
    """64 learners or so, averaged every 16 updates."""
    together = {"exchange": exchange, "local_updates": 16} if exchange != "none" else {}
    config = shoal.preset(
        "CartPole-v1", learners=learners, hidden=hidden, num_envs=4, num_steps=128, **together
    )
    return shoal.preset(
        "CartPole-v1",
        learners=learners,
        hidden=hidden,
        num_envs=4,
        num_steps=128,
        steps=config.algo.rollout_size * 16 * rounds,
        reports=rounds,
        **together,
    )


def in_program(learners: int, hidden: tuple[int, ...], rounds: int) -> tuple[float, float]:
    """Seconds of an exchange inside one program, and of 16 updates without it: medians over reports."""
    spent = {}
    for exchange in ("none", "average"):
        rounds = min(rounds, 20)
        reports = shoal.train(config_of(learners, hidden, rounds, exchange))
        at = [report.seconds for report in reports]
        spent[exchange] = statistics.median(b - a for a, b in pairwise(at[1:]))
    return max(spent["average"] - spent["none"], 0.0), spent["none"]


def held(learners: int, hidden: tuple[int, ...], rounds: int, engine: str, islands: str) -> list[dict]:
    """The meetings of a run on islands, without the first three."""
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(learners, hidden, rounds)
        options = Islands(islands, engine=engine, wait=60.0)
        train_islands(config, options, Path(folder) / "run")
        return meetings(Path(folder) / "run")[3:-1]


def meetings(folder: Path) -> list[dict]:
    """The rows of islands.csv."""
    path = folder / "islands.csv"
    if not path.exists():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


# What is survived.


def faults(engine: str, counts: dict[str, int], gap: float) -> None:
    """Kill at random moments, then let the run end; every meeting must be there once."""
    random.seed(1)
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    random.shuffle(kinds)
    cluster = start_cluster() if engine == "ray" else None
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        began, driver = time.monotonic(), start(folder, engine, cluster, 10**9)
        wait_for(lambda: len(meetings(folder)) > 10)
        for number, kind in enumerate(kinds):
            time.sleep(random.expovariate(1 / gap))
            if driver.poll() is not None:
                said = (folder.parent / "said.txt").read_text().splitlines()[-1]
                raise SystemExit(f"the run ended by itself after {number} kills: {said}")
            driver = kill(kind, driver, cluster, lambda: start(folder, engine, cluster, 10**9))
        wait_for(lambda: meetings(folder) and not meetings(folder)[-1]["absent"])
        driver.send_signal(signal.SIGTERM)
        driver.wait()
        last = int(meetings(folder)[-1]["step"]) + 64 * 500
        code = start(folder, engine, cluster, last).wait()
        rows, summary = meetings(folder), read_summary(folder)
        print(f"kills: {counts}, engine {engine}, {time.monotonic() - began:.0f} s")
        print(
            f"ended with {code}: {summary['steps']:,} of {last:,} steps, interrupted {summary['interrupted']}"
        )
        once = [int(row["round"]) for row in rows] == [*range(1, len(rows) + 1)]
        print(f"meetings {len(rows):,}, each once: {once}")
        came = np.array([int(row["came"]) for row in rows])
        print(f"all came to {100 * np.mean(came == came.max()):.1f} % of them; {summary['islands']}")
        print(f"returns {summary['return_mean']}")
    if cluster is not None:
        cluster.shutdown()


def start(folder: Path, engine: str, cluster, steps: int) -> subprocess.Popen:
    """The driver of a small run on four islands."""
    how = [
        "--learners",
        "8",
        "--islands",
        "4",
        "--exchange",
        "average",
        "--steps",
        str(steps),
        "--reports",
        "1000",
    ]
    how += ["--out", str(folder), "--wait", "5", "--anneal-to", str(10**6), *SMALL, "--engine", engine]
    how += ["--ray-address", cluster.address, "--island-cpus", "1"] if cluster else []
    said = (folder.parent / "said.txt").open("a")
    return subprocess.Popen([*TRAIN, *how], stdout=said, stderr=said)


def kill(
    kind: str, driver: subprocess.Popen, cluster, again: Callable[[], subprocess.Popen]
) -> subprocess.Popen:
    """One fault; the driver that goes on."""
    if kind == "driver":
        driver.kill()
        driver.wait()
        return again()
    if kind == "node":
        node = random.choice(cluster.worker_nodes_of_islands)
        cluster.worker_nodes_of_islands.remove(node)
        cluster.remove_node(node, allow_graceful=False)
        cluster.worker_nodes_of_islands.append(cluster.add_node(num_cpus=2))
        return driver
    name, root = ("islands.worker", driver.pid) if cluster is None else ("ray::RayIsland", os.getpid())
    if running := [pid for pid, text in below(root).items() if name in text]:
        os.kill(random.choice(running), signal.SIGKILL)
    return driver


def start_cluster():
    """A Ray cluster on this machine: a head without room, and three nodes with room for two islands each."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0"}
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    cluster.worker_nodes_of_islands = [cluster.add_node(num_cpus=2) for _ in range(3)]
    return cluster


def below(root: int) -> dict[int, str]:
    """The processes below one, with their commands."""
    lines = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True).stdout.splitlines()
    split = [line.split(None, 2) for line in lines[1:]]
    parents = {int(pid): int(parent) for pid, parent, _ in split}
    texts = {int(pid): text for pid, _, text in split}

    def is_below(pid: int) -> bool:
        while pid in parents:
            if (pid := parents[pid]) == root:
                return True
        return False

    return {pid: text for pid, text in texts.items() if is_below(pid)}


def wait_for(there: Callable[[], bool], seconds: float = 300) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not there():
        if time.monotonic() > deadline:
            raise SystemExit("it took too long")
        time.sleep(0.2)


# What is learned meanwhile.


def learning(seeds: int, minutes: float, islands: str, steps: int) -> None:
    """Returns of runs in which one island after another dies, against runs without."""
    print("| seed | islands killed | absences | seconds | return | greedy return of the mean |")
    print("|---|---|---|---|---|---|")
    for seed in range(1, seeds + 1):
        for dying in (False, True):
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place) / "run"
                how = f"--learners 64 --islands {islands} --exchange average --local-updates 16".split()
                how += f"--seed {seed} --steps {steps} --wait 5 --out {folder}".split()
                driver = subprocess.Popen(
                    [*TRAIN, *how], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
                killed, ended = [0], threading.Event()
                thread = threading.Thread(target=reap, args=(driver, 60 * minutes, killed, ended, folder))
                thread.start() if dying else None
                driver.wait()
                ended.set()
                summary = read_summary(folder)
                score = shoal.load(folder).evaluate(episodes=100, learner="mean")[0].return_mean
                line = [seed, killed[0], summary["islands"]["absences"], f"{summary['seconds']:.0f}"]
                line += [f"{np.mean(summary['return_mean']):.1f}", f"{score:.1f}"]
                print(f"| {' | '.join(map(str, line))} |", flush=True)


def reap(
    driver: subprocess.Popen, seconds: float, killed: list[int], ended: threading.Event, folder: Path
) -> None:
    """Kill an island every so many seconds of training."""
    wait_for(lambda: bool(meetings(folder)) or ended.is_set())
    while not ended.wait(seconds):
        running = [pid for pid, text in below(driver.pid).items() if "islands.worker" in text]
        if running:
            os.kill(random.choice(running), signal.SIGKILL)
            killed[0] += 1


if __name__ == "__main__":
    main()
