"""What islands cost, and what they survive.

python bench/islands.py cost [--engines local ray] [--repeats 30]
    seconds and bytes of a meeting by its parts, engine and size
python bench/islands.py carried [--engines local ray] [--repeats 100]
    milliseconds of a message to an island and back by engine and size
python bench/islands.py faults [--engine local] [--islands 50] [--drivers 5] [--nodes 0] [--gap 4]
    a run whose islands, driver and nodes are killed at random moments, and which then ends
python bench/islands.py learning [--seeds 5] [--minutes 1.0 | --meetings 2] [--islands 5]
    64 CartPole learners, averaged: one of the islands dies every so many minutes, against none;
    with --meetings every so many meetings, the islands in one process, so that other work changes nothing
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
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

import shoal
from shoal.islands.engine import Arrived, Lost, Order
from shoal.islands.island import Island
from shoal.islands.launch import train_islands
from shoal.islands.meeting import Meeting
from shoal.islands.messages import decode, encode
from shoal.islands.options import Islands
from shoal.islands.plan import divide, make_plan
from shoal.islands.worker import read_frame, write_frame
from shoal.runs.summary import read_summary

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
    "2 learners, 64-64": (2, (64, 64)),
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
    four = kinds.add_parser("carried")
    four.add_argument("--engines", nargs="+", default=["local", "ray"])
    four.add_argument("--repeats", type=int, default=100)
    two = kinds.add_parser("faults")
    two.add_argument("--engine", default="local")
    for name, count in {"islands": 50, "drivers": 5, "nodes": 0}.items():
        two.add_argument(f"--{name}", type=int, default=count)
    two.add_argument("--gap", type=float, default=4.0)
    three = kinds.add_parser("learning")
    three.add_argument("--seeds", type=int, default=5)
    three.add_argument("--minutes", type=float, default=1.0)
    three.add_argument("--meetings", type=int)
    three.add_argument("--islands", default="5")
    three.add_argument("--steps", type=int, default=40_000)
    given = parser.parse_args()
    if given.kind == "cost":
        cost(given.engines, given.repeats)
    elif given.kind == "carried":
        carried(given.engines, given.repeats)
    elif given.kind == "faults":
        faults(
            given.engine, {"island": given.islands, "driver": given.drivers, "node": given.nodes}, given.gap
        )
    else:
        learning(given.seeds, given.minutes, given.meetings, given.islands, given.steps)


# What a meeting costs.


def cost(engines: list[str], repeats: int) -> None:
    """Tables: what two islands and their meeting do, part by part; what a meeting takes, and of 16 updates.

    Work is told in milliseconds of a core, all threads together, which other programs on the machine change
    little; what is carried in milliseconds of the clock. Each is the least of its repeats.
    """
    loads, tables = [], []
    for size, (learners, hidden) in SIZES.items():
        loads.append(os.getloadavg()[0])
        tables.append((size, *parts_of_a_meeting(learners, hidden, repeats, engines)))
    names = [*tables[0][1]]
    print(f"load {min(loads):.0f} to {max(loads):.0f}, {os.cpu_count()} cores\n")
    print(f"| {' | '.join(['size', *(f'{name}, ms' for name in names)])} |")
    print("|---" * (len(names) + 1) + "|")
    for size, times, _, _ in tables:
        print(f"| {' | '.join([size, *(f'{1000 * times[name]:.2f}' for name in names)])} |")
    whole = ["bytes", "by the formula", "in one program, ms"]
    whole += [
        f"{what} {engine}, {unit}" for engine in engines for what, unit in (("by", "ms"), ("lost,", "%"))
    ]
    print(f"\n| {' | '.join(['size', *whole])} |")
    print("|---" * (len(whole) + 1) + "|")
    for size, times, counted, formula in tables:
        cells = [size, f"{counted:,}", f"{formula:,}", f"{1000 * times['exchange alone']:.2f}"]
        for engine in engines:
            meeting = 4 * (times["write a message"] + times["read it"]) + 2 * times["take an answer"]
            meeting += times["meet"] + 2 * times[f"carried by {engine}"]
            cells += [f"{1000 * meeting:.1f}", f"{100 * meeting / (meeting + times['16 updates']):.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def parts_of_a_meeting(
    learners: int, hidden: tuple[int, ...], repeats: int, engines: list[str]
) -> tuple[dict[str, float], int, int]:
    """Seconds by part; the bytes of all messages and answers, and as the formula in islands.md has them."""
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
        "meet": least(repeats, meet),
        "exchange alone": exchange_alone(meeting, repeats),
        "take an answer": least(repeats, lambda: crowd[0].take(held.answers[0])),
        "16 updates": 16 * sum(sorted(updates)[:2]),  # of both islands
    }
    for engine in engines:
        times[f"carried by {engine}"] = ECHOES[engine](data, repeats)
    one = sum(x[0].nbytes for name, x in sent[0].arrays.items() if name.startswith(("params", "statistics")))
    counted = sum(len(encode(message)) for message in (*sent, *held.answers))
    return times, counted, 2 * learners * one + 130 * learners + 8_300 * len(crowd)


def exchange_alone(meeting: Meeting, repeats: int) -> float:
    """Seconds of the exchange in one program, where learners are on the device."""
    state, scores = meeting.state, meeting.state.scores._replace(samples=jnp.ones(len(meeting.state.seen)))
    apply = jax.jit(meeting.plan.exchange.apply)
    given = jax.device_put((state.key, state.exchange, state.models, scores))
    jax.block_until_ready(apply(*given))
    return least(repeats, lambda: jax.block_until_ready(apply(*given)))


def carried(engines: list[str], repeats: int) -> None:
    """A table of milliseconds, the least of the repeats, for messages of a quarter of a meeting's bytes."""
    print(f"| bytes | {' | '.join(f'by {engine}, ms' for engine in engines)} | load |")
    print("|---" * (len(engines) + 2) + "|")
    for size in (40_000, 150_000, 1_180_000, 8_520_000):
        times = [1000 * ECHOES[engine](bytes(size), repeats) for engine in engines]
        print(
            f"| {size:,} | {' | '.join(f'{x:.2f}' for x in times)} | {os.getloadavg()[0]:.0f} |", flush=True
        )


def least(
    repeats: int, function: Callable[[], object], clock: Callable[[], float] = time.process_time
) -> float:
    """The least seconds of some calls."""
    found = []
    for _ in range(repeats):
        began = clock()
        function()
        found.append(clock() - began)
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

    seconds = least(repeats, echo, time.perf_counter)
    process.kill()
    return seconds


def echo_of_ray(data: bytes, repeats: int) -> float:
    """Seconds of bytes to an actor and back."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    import ray

    if not ray.is_initialized():
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)

    @ray.remote
    class Echo:
        def back(self, data: bytes) -> bytes:
            return data

    actor = Echo.remote()
    seconds = least(repeats, lambda: ray.get(actor.back.remote(data)), time.perf_counter)
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
    """Kill at random moments, then let the run end; every meeting must be there once.

    After each kill the run goes on by a meeting at least, on however busy a machine.
    """
    random.seed(1)
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    random.shuffle(kinds)
    cluster = start_cluster() if engine == "ray" else None
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        began, driver = time.monotonic(), start(folder, engine, cluster, 10**9)
        wait_for(lambda: len(meetings(folder)) > 10)
        held, saved = [], 0  # the meetings, and the step of the last checkpoint, at the last kill
        loads, again = [], []  # the machine's load at each kill; meetings since the checkpoint at a driver's
        for number, kind in enumerate(kinds):
            time.sleep(random.expovariate(1 / gap))
            wait_for(partial(went_on, folder, held, saved, driver))
            if driver.poll() is not None:
                said = (folder.parent / "said.txt").read_text().splitlines()[-1]
                raise SystemExit(f"the run ended by itself after {number} kills: {said}")
            held = meetings(folder)
            driver = kill(kind, driver, cluster, lambda: start(folder, engine, cluster, 10**9))
            loads.append(os.getloadavg()[0])
            saved = saved_step(folder) if kind == "driver" else 0
            if kind == "driver":
                again.append(sum(int(row["step"]) > saved for row in held))
            seconds = time.monotonic() - began
            print(f"{seconds:5.0f} s, after {len(held)} meetings: {kind}", file=sys.stderr, flush=True)
        wait_for(lambda: meetings(folder) and not meetings(folder)[-1]["absent"])
        driver.send_signal(signal.SIGTERM)
        driver.wait()
        last = int(meetings(folder)[-1]["step"]) + 64 * 500
        code = start(folder, engine, cluster, last).wait()
        rows, summary = meetings(folder), read_summary(folder)
        print(f"kills: {counts}, engine {engine}, {time.monotonic() - began:.0f} s")
        print(f"load {min(loads):.0f} to {max(loads):.0f}")
        print(
            f"ended with {code}: {summary['steps']:,} of {last:,} steps, interrupted {summary['interrupted']}"
        )
        once = [int(row["round"]) for row in rows] == [*range(1, len(rows) + 1)]
        print(f"meetings {len(rows):,}, each once: {once}; held again after a driver's death: {again}")
        came = np.array([int(row["came"]) for row in rows])
        print(f"all came to {100 * np.mean(came == came.max()):.1f} % of them; {summary['islands']}")
        why = Counter(one.split()[1].strip(":") for row in rows for one in row["absent"].split("; ") if one)
        print(f"absent: {dict(why)}")
        print(f"returns {summary['return_mean']}")
    if cluster is not None:
        cluster.shutdown()


def went_on(folder: Path, held: list[dict], saved: int, driver: subprocess.Popen) -> bool:
    """Whether the driver ended or held a meeting after these; one begins with what its predecessor saved."""
    rows = meetings(folder)
    new = rows[-1:] != held[-1:] and bool(rows) and int(rows[-1]["step"]) > saved
    return new or driver.poll() is not None


def saved_step(folder: Path) -> int:
    """The step of the run's last checkpoint, 0 before the first."""
    saved = (folder / "checkpoints").glob("step_*.json")
    return max((int(path.stem.split("_")[1]) for path in saved), default=0)


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
        cluster.worker_nodes_of_islands.append(add_node(cluster))
        return driver
    name, root = ("islands.worker", driver.pid) if cluster is None else ("ray::RayIsland", os.getpid())
    if running := [pid for pid, text in below(root).items() if name in text]:
        os.kill(random.choice(running), signal.SIGKILL)
    return driver


def start_cluster():
    """A Ray cluster on this machine: a head without room, and three nodes with room for two islands each."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0"}
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False}
    cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
    cluster.worker_nodes_of_islands = [add_node(cluster) for _ in range(3)]
    return cluster


def add_node(cluster):
    """A node with room for two islands."""
    return patiently(lambda: cluster.add_node(num_cpus=2))


def patiently(begin: Callable[[], Any], tries: int = 10):
    """What begins, tried again: Ray gives up on a node after 30 s, which a busy machine may need."""
    for _ in range(tries - 1):
        try:
            return begin()
        except Exception as error:
            print(f"a node did not start: {error}", file=sys.stderr, flush=True)
    return begin()


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


def wait_for(there: Callable[[], bool], seconds: float = 1200) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not there():
        if time.monotonic() > deadline:
            raise SystemExit("it took too long")
        time.sleep(0.2)


# What is learned meanwhile.


def learning(seeds: int, minutes: float, every: int | None, islands: str, steps: int) -> None:
    """Returns of runs in which one island after another dies, against runs without, on the same seeds."""
    names = ["return on the way", "return at the end", "greedy return of the mean"]
    print(f"| seed | islands killed | absences | meetings | seconds | load | {' | '.join(names)} |")
    print("|---" * (6 + len(names)) + "|")
    found: dict[bool, list[list[float]]] = {False: [], True: []}
    for seed in range(1, seeds + 1):
        for dying in (False, True):
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place) / "run"
                if every is not None:
                    killed = train_in_process(folder, seed, every if dying else 10**9, islands, steps)
                else:
                    killed = train_dying(folder, seed, 60 * minutes if dying else np.inf, islands, steps)
                summary, table = read_summary(folder), shoal.load(folder).metrics
                score = shoal.load(folder).evaluate(episodes=100, learner="mean")[0].return_mean
            scores = [float(np.nanmean(table["return_mean"])), float(np.mean(summary["return_mean"])), score]
            found[dying].append(scores)
            met = summary["islands"]
            line = [seed, killed, met["absences"], met["meetings"], f"{summary['seconds']:.0f}"]
            line += [f"{os.getloadavg()[2]:.0f}", *(f"{x:.1f}" for x in scores)]
            print(f"| {' | '.join(map(str, line))} |", flush=True)
        more = np.array(found[True]) - np.array(found[False])
        if seed > 1:
            half = scipy.stats.t.ppf(0.975, seed - 1) * more.std(0, ddof=1) / np.sqrt(seed)
            pairs = zip(names, more.mean(0), half, strict=True)
            said = "; ".join(f"{name} {x:+.1f} +- {y:.1f}" for name, x, y in pairs)
            print(f"with deaths, {seed} seeds, 95 %: {said}", file=sys.stderr, flush=True)


def train_dying(folder: Path, seed: int, seconds: float, islands: str, steps: int) -> int:
    """Train 64 learners; how many islands were killed, one every so many seconds."""
    how = f"--learners 64 --islands {islands} --exchange average --local-updates 2 --reports 20".split()
    how += f"--seed {seed} --steps {steps} --wait 5 --out {folder}".split()
    driver = subprocess.Popen([*TRAIN, *how], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    killed, ended = [0], threading.Event()
    thread = threading.Thread(target=reap, args=(driver, seconds, killed, ended, folder))
    if np.isfinite(seconds):
        thread.start()
    driver.wait()
    ended.set()
    return killed[0]


def train_in_process(folder: Path, seed: int, every: int, islands: str, steps: int) -> int:
    """The same without processes; how many islands died, one at every so many meetings."""
    config = shoal.preset(
        "CartPole-v1", learners=64, exchange="average", local_updates=2, reports=20, seed=seed, steps=steps
    )
    engines = []

    def make_engine(settings: str, place: Path, most: int) -> "OneProcess":
        engines.append(OneProcess(config, place, most, every))
        return engines[0]

    train_islands(config, Islands(islands, wait=1e6), folder, make_engine=make_engine)
    return len(engines[0].died)


class OneProcess:
    """An engine whose islands take turns; at every so many meetings one of them loses all but its files."""

    trainers: ClassVar[dict[int, Any]] = {}  # by the number of learners, so that each is compiled once

    def __init__(self, config: shoal.TrainConfig, folder: Path, most: int, every: int):
        self.config, self.folder, self.most, self.every = config, folder, most, every
        self.died: set[int] = set()  # the meetings at which one has
        self.islands: dict[int, Island] = {}
        self.orders: deque[tuple[int, Order]] = deque()

    def start(self, island: int, members: tuple[int, ...]) -> None:
        """An island as it begins."""
        self.stop(island)
        self.islands[island] = made = Island(self.config, island, members, self.folder, "1x1")
        made.trainer = self.trainers.setdefault(len(members), made.trainer)

    def send(self, island: int, order: Order) -> None:
        """It waits for its turn."""
        self.orders.append((island, order))

    def events(self, seconds: float) -> list[Arrived | Lost]:
        """The next one's turn."""
        number, order = self.orders.popleft()
        worker = self.islands[number]
        worker.take(decode(order.answer))
        if order.save:
            worker.save()
        if not order.train:
            return [Arrived(number, b"")]
        round = worker.round + 1
        victim = random.Random(f"{self.config.seed} {round}").randrange(self.most)
        if round % self.every == 0 and round not in self.died and number == victim:
            self.died.add(round)
            return [Lost(number, "it died")]
        return [Arrived(number, encode(worker.train()))]

    def room(self) -> int:
        """As many as are asked for."""
        return self.most

    def stop(self, island: int) -> None:
        """End an island."""
        self.islands.pop(island, None)
        self.orders = deque(one for one in self.orders if one[0] != island)

    def close(self) -> None:
        """End all of them."""
        self.islands = {}


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
