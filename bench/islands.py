"""What islands cost, and what they survive.

python bench/islands.py cost [--engines local ray] [--repeats 30]
    seconds and bytes of a meeting by its parts, engine and size
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
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import shoal
from shoal.islands.island import Island
from shoal.islands.meeting import Meeting
from shoal.islands.messages import decode, encode
from shoal.islands.plan import divide, make_plan
from shoal.islands.worker import read_frame, write_frame
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
    one.add_argument("--repeats", type=int, default=30)
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
        cost(given.engines, given.repeats)
    elif given.kind == "faults":
        faults(
            given.engine, {"island": given.islands, "driver": given.drivers, "node": given.nodes}, given.gap
        )
    else:
        learning(given.seeds, given.minutes, given.islands, given.steps)


# What a meeting costs.


def cost(engines: list[str], repeats: int) -> None:
    """A line for each size: what two islands and their meeting do one after the other, and 16 updates beside.

    Each time is the least of its repeats, which other work on the machine changes least.
    """
    carried = [f"carried by {engine}" for engine in engines]
    names = ["write a message", "read it", "meet (two islands)", "take an answer", *carried, "16 updates"]
    print(f"| {' | '.join(['size', *(f'{name}, ms' for name in names), 'bytes, both ways'])} |")
    print("|---" * (len(names) + 2) + "|")
    for size, (learners, hidden) in SIZES.items():
        times, num_bytes = parts_of_a_meeting(learners, hidden, repeats, engines)
        cells = [size, *(f"{1000 * times[name]:.2f}" for name in names), f"{num_bytes:,}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def parts_of_a_meeting(
    learners: int, hidden: tuple[int, ...], repeats: int, engines: list[str]
) -> tuple[dict[str, float], int]:
    """Seconds by part, and the bytes of all messages and answers."""
    config = shoal.preset(
        "CartPole-v1",
        learners=learners,
        hidden=hidden,
        num_envs=4,
        num_steps=128,
        exchange="average",
        local_updates=1,
        steps=512 * 10**6,
    )
    meeting = Meeting(make_plan(config), "bench")
    crowd = [Island(config, i, own, mesh="1x1") for i, own in enumerate(divide(learners, 2))]
    for island in crowd:
        island.take(meeting.answer(island.number, island.members))
    updates, sent = [], []
    for island in crowd:
        for _ in range(4):
            updates.append(least(1, island.train))
            island.round = 0
            island.state = island.state._replace(iteration=island.state.iteration * 0)
        sent.append(island.train())
    held = meeting.meet(sent, round=1)
    before = meeting.state

    def meet() -> None:
        meeting.state = before._replace(iteration=0)
        meeting.meet(sent, round=1)

    data = encode(sent[0])
    times = {
        "write a message": least(repeats, lambda: encode(sent[0])),
        "read it": least(repeats, lambda: decode(data)),
        "meet (two islands)": least(repeats, meet),
        "take an answer": least(repeats, lambda: crowd[0].take(held.answers[0])),
        "16 updates": 16 * sum(sorted(updates)[:2]),  # both islands' on the same cores
    }
    for engine in engines:
        times[f"carried by {engine}"] = ECHOES[engine](data, repeats)
    return times, sum(len(encode(message)) for message in (*sent, *held.answers))


def least(repeats: int, function: Callable[[], object]) -> float:
    """The least seconds of some calls."""
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        found.append(time.perf_counter() - began)
    return min(found)


def echo_of_process(data: bytes, repeats: int) -> float:
    """Seconds of bytes to a process and back."""
    code = "import sys; from shoal.islands.worker import read_frame, write_frame\n"
    code += "while frame := read_frame(sys.stdin.buffer): write_frame(sys.stdout.buffer, *frame)"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    to, back = process.stdin, process.stdout

    def echo() -> None:
        thread = threading.Thread(target=write_frame, args=(to, 0, data))
        thread.start()
        read_frame(back)
        thread.join()

    seconds = least(repeats, echo)
    process.kill()
    return seconds


def echo_of_ray(data: bytes, repeats: int) -> float:
    """Seconds of bytes to an actor and back."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0"}
    import ray

    if not ray.is_initialized():
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)

    @ray.remote
    class Echo:
        def back(self, data: bytes) -> bytes:
            return data

    actor = Echo.remote()
    seconds = least(repeats, lambda: ray.get(actor.back.remote(data)))
    ray.kill(actor)
    return seconds


ECHOES = {"local": echo_of_process, "ray": echo_of_ray}


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
