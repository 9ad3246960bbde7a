"""A federation of five organisations by Flower beside the same one in one program: results/flower.md.

    python bench/flower.py [--steps 163840] [--seeds 5] [--scratch FOLDER]

SuperLink and SuperNodes are processes of their own on loopback, with TLS and keys. In one of the runs an
organisation is killed with all its programs while it trains, and started again. Needs "shoal[flower]".
"""

import argparse
import csv
import importlib.util
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import flwr
import numpy as np

import shoal
from shoal.ops.trees import size
from shoal.runs.cache import cache_compilations
from shoal.runs.learners import choose_learners, load_learners
from shoal.runs.loaded import Run
from shoal.training.evaluate import play_episodes

ROOT = Path(__file__).parent.parent
WORLDS = {
    "north": {"gravity": 8.0, "length": 0.8},
    "south": {"gravity": 9.0, "length": 1.0},
    "east": {"gravity": 10.0, "length": 1.0},
    "west": {"gravity": 11.0, "length": 1.1},
    "coast": {"gravity": 12.0, "length": 0.9},
}
KILLED = "east"
LOCAL_UPDATES = 5
EPISODES = 500
"""An episode in which the pendulum never gets up counts ten times as much as another."""


def one_program(steps: int, seed: int, folder: Path) -> Path:
    """The same federation as rows of one program."""
    worlds = list(WORLDS.values())
    settings = {"exchange": "average", "local_updates": LOCAL_UPDATES, "env_params": worlds}
    shoal.run("Pendulum-v1", steps=steps, seed=seed, learners=len(worlds), folder=folder, **settings)
    return folder


def by_flower(steps: int, folder: Path, kill: bool, more: str = "") -> tuple[Path, str]:
    """The federation in processes; the server's run, and what was done to it."""
    if (folder / "done.txt").is_file():
        return folder / "server", (folder / "done.txt").read_text()
    local = load_local()
    files: dict[str, Path | None] = {}
    folder.mkdir(parents=True)
    for name, world in WORLDS.items():
        files[name] = folder / f"{name}.json"
        files[name].write_text(json.dumps(world))
    done: list[str] = []
    with local.Deployment(folder / "deployment", files) as deployment:
        settings = (
            f"shoal.steps={steps} shoal.local_updates={LOCAL_UPDATES} wait=200.0 settings='seed=1 {more}'"
        )
        run, server = deployment.run(settings), deployment.folder / "server"
        if kill:
            meetings = lambda: max(0, len((server / "islands.csv").read_text().splitlines()) - 1)
            local.wait_for_file(server / "islands.csv", 300)
            while meetings() < 2 or not local.children_of(deployment.processes[KILLED].pid)[1:]:
                time.sleep(0.5)
            done.append(f"{KILLED} killed after meeting {meetings()}")
            deployment.kill(KILLED)
            while meetings() < 4:
                time.sleep(0.5)
            deployment.restart_node(KILLED)
            done.append(f"started again after meeting {meetings()}")
        local.wait_for_file(server / "evaluation.json", 3000)
        shutil.copytree(server, folder / "server")
        (folder / "log.txt").write_text(deployment.log(run))
    (folder / "done.txt").write_text("; ".join(done))
    return folder / "server", "; ".join(done)


def load_local():
    """The example's module that starts a federation on one machine."""
    spec = importlib.util.spec_from_file_location("local", ROOT / "examples" / "flower" / "local.py")
    assert spec, "the example is there"
    assert spec.loader, "and is a file"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scores(folder: Path) -> np.ndarray:
    """Greedy returns of the mean of all parameters in each organisation's world, from the same starts."""
    run = Run(folder)
    _, cohort = choose_learners(load_learners(folder, "latest", run.parts), "mean")
    spec, found = run.parts.recipe.spec, []
    for world in WORLDS.values():
        params = type(spec.params)(**spec.params._asdict() | world)
        params = type(params)(*(np.full((1, EPISODES), x, np.float32) for x in params))
        returns, _ = play_episodes(run.parts.recipe, run.parts.learner, cohort, EPISODES, params=params)
        found.append(returns.mean())
    return np.array(found)


def num_params(folder: Path) -> int:
    """How many parameters a learner of a run has."""
    run = Run(folder)
    _, cohort = choose_learners(load_learners(folder, "latest", run.parts), 0)
    return size(cohort.params)


def meetings_of(folder: Path) -> list[dict[str, str]]:
    """The rows of a run's islands.csv."""
    with (folder / "islands.csv").open() as file:
        return list(csv.DictReader(file))


def row(name: str, found: np.ndarray, note: str) -> str:
    """A line of the table."""
    return f"| {name} | {found.mean():.0f} | {', '.join(f'{x:.0f}' for x in found)} | {note} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=163_840)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--scratch", type=Path, help="where runs are kept; those that are there are not made anew"
    )
    given = parser.parse_args()
    cache_compilations()
    scratch = given.scratch or Path(tempfile.mkdtemp(prefix="shoal-flower-"))
    print(scratch, flush=True)
    inside = {s: one_program(given.steps, s, scratch / f"one-{s}") for s in range(1, given.seeds + 1)}
    found = {seed: scores(folder) for seed, folder in inside.items()}
    means = [x.mean() for x in found.values()]
    counted = float(shoal.load(inside[1]).metrics["exchange/bytes"][-1])
    rows = [row(f"one program, seed {seed}", x, "") for seed, x in found.items()]
    print("\n".join(rows), flush=True)
    sizes = []
    for name, kill, more in (
        ("Flower, seed 1", False, ""),
        (f"Flower, seed 1, {KILLED} killed and back", True, ""),
        ("Flower, seed 1, compress int8", False, "compress=int8"),
    ):
        server, done = by_flower(given.steps, scratch / name.replace(" ", "-"), kill, more)
        meetings = meetings_of(server)
        absent = sum(bool(one["absent"]) or int(one["came"]) < len(WORLDS) for one in meetings)
        seconds = float(meetings[-1]["seconds"]) / len(meetings)
        note = f"{seconds:.0f} s a meeting; {absent} of {len(meetings)} without somebody"
        rows.append(row(name, scores(server), "; ".join(filter(None, [note, done]))))
        print(rows[-1], flush=True)
        full = [one for one in meetings if int(one["came"]) == len(WORLDS)]
        received = np.median([int(one["received"]) for one in full[1:]]) / len(WORLDS)
        sizes.append(f"| {name} | {received:,.0f} |")
    rounds = len(meetings_of(server))
    numbers, each = num_params(inside[1]), counted / rounds
    squeezed = numbers + 4 + each - 4 * numbers
    text = f"""# A federation by Flower

Pendulum-v1, PPO's preset, {given.steps:,} steps for each of five organisations in five worlds (gravity 8
to 12, length 0.8 to 1.1), averaged after every {LOCAL_UPDATES} updates: {rounds} meetings. SuperLink, five
SuperNodes and their ClientApps are processes of their own on loopback with TLS and authenticated nodes, all
on {os.cpu_count()} shared cores; flwr {flwr.__version__}.
`python bench/flower.py --steps {given.steps} --seeds {given.seeds}`.

Greedy return of the mean of all parameters, {EPISODES} episodes in each organisation's world:

| | mean | north, south, east, west, coast | |
|---|---|---|---|
{chr(10).join(rows)}

One program's seeds lie between {min(means):.0f} and {max(means):.0f}.

Bytes of a message to the server, the median of the meetings. One program counts {each:,.0f} for each, the
parameters and the statistics, and {squeezed:,.0f} with int8; the rest is names and shapes, scores and
metrics:

| | bytes |
|---|---|
{chr(10).join(sizes)}
"""
    (ROOT / "bench" / "results" / "flower.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
