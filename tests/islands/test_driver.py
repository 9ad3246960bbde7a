"""The driver of islands: who is waited for, who is absent, what the run's folder says of it."""

import csv
import os
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from crowds import config_with

import shoal
from shoal.errors import ShoalError
from shoal.islands.driver import Crowd
from shoal.islands.engine import Arrived, Lost
from shoal.islands.island import Island
from shoal.islands.launch import train_islands
from shoal.islands.messages import decode, encode
from shoal.islands.options import Islands
from shoal.islands.ray import RayEngine
from shoal.runs.config import from_settings, parse_yaml
from shoal.runs.learners import load_learners

CONFIG = config_with(exchange="average", steps=16 * 24, reports=3)
KEPT = {}


class Scripted:
    """An engine in this process. `faults` say what becomes of an island's message to a meeting.

    lost: it never arrives and the island is gone; garbage: other bytes; late: it comes with the next ones.
    """

    def __init__(self, settings, folder, faults, rooms=()):
        self.config, self.folder, self.faults = from_settings(parse_yaml(settings)), folder, dict(faults)
        self.islands, self.orders, self.late, self.rooms = {}, deque(), [], list(rooms)

    def start(self, island, members):
        key = (repr(self.config), members)  # compiled once for all tests
        KEPT[key] = made = KEPT.get(key) or Island(self.config, island, members, None, "1x1")
        made.number, made.folder, made.begun, made.state = island, self.folder, False, made.trainer.init()
        self.islands[island] = made

    def send(self, island, order):
        self.orders.append((island, order))

    def events(self, seconds):
        if not self.orders:
            return []
        late, self.late = self.late, []
        number, order = self.orders.popleft()
        island = self.islands[number]
        island.take(decode(order.answer))
        if order.save:
            island.save()
        if not order.train:
            return [Arrived(number, b"")]
        data = encode(island.train())
        match self.faults.pop((number, island.round), None):
            case "lost":
                return [Lost(number, "a test took it")]
            case "failed":
                return [Lost(number, "no such world", True)]
            case "garbage":
                return [Arrived(number, data[:-7])]
            case "late":
                self.late.append(Arrived(number, data))
                return late
        return [*late, Arrived(number, data)]

    def room(self):
        return self.rooms.pop(0) if len(self.rooms) > 1 else self.rooms[0] if self.rooms else 9

    def stop(self, island):
        self.islands.pop(island, None)
        self.orders = deque(order for order in self.orders if order[0] != island)

    def close(self):
        self.islands = {}


def train(folder, islands="2", faults=(), rooms=(), config=CONFIG, wait=60.0, clobber=False):
    make = lambda settings, place, most: Scripted(settings, place, faults, rooms)
    return train_islands(config, Islands(islands, wait=wait), folder, clobber, make_engine=make)[1]


def meetings(folder):
    with (folder / "islands.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.filterwarnings("ignore:island 1 is left out")
def test_whoever_is_lost_late_or_lies_is_absent_named_and_comes_back(tmp_path):
    train(tmp_path / "first")  # compiles, which takes longer than the others wait
    faults = {(0, 2): "lost", (1, 3): "garbage", (1, 5): "late"}
    summary = train(tmp_path, faults=faults, wait=0.5)
    held = meetings(tmp_path)
    absent = [row["absent"] for row in held]
    assert absent[0] == absent[3] == absent[5] == ""
    assert absent[1] == "0 lost: a test took it"
    assert absent[2].startswith("1 left out: it has ")
    assert absent[4] == "1 late"
    assert [int(row["came"]) for row in held] == [8, 4, 4, 8, 4, 8]
    assert all(int(row["received"]) and int(row["sent"]) for row in held)
    met = summary["islands"]
    assert (met["meetings"], met["absences"], met["restarts"], met["left_out"]) == (6, 3, 1, 1)
    assert not summary["interrupted"]


def test_the_folder_is_that_of_any_run(tmp_path):
    train(tmp_path, faults={(0, 3): "lost"})
    run = shoal.load(tmp_path)
    assert (run.learners, run.step) == (8, 16 * 24)
    table = run.metrics
    assert sorted(set(table["step"].tolist())) == [128, 256, 384]
    at = lambda step: table["step"] == step
    assert np.isfinite(table["loss/total"][at(128)]).all()
    assert table["islands/present"][at(256)].tolist() == [0.5] * 4 + [1.0] * 4
    assert len(run.evaluate(episodes=1, learner="best")) == 1
    assert run.policy()(np.zeros(4)) in (0, 1)
    with pytest.raises(ShoalError, match="holds a run on islands; add --islands"):
        shoal.run(CONFIG, folder=tmp_path)


def test_what_an_absent_island_would_have_said_is_not_a_number(tmp_path):
    train(tmp_path, faults={(0, 6): "lost"})
    table = shoal.load(tmp_path).metrics
    last = table["step"] == 384
    assert np.isnan(table["loss/total"][last]).tolist() == [True] * 4 + [False] * 4


@pytest.mark.slow
def test_more_steps_go_on_annealed_as_begun_and_a_complete_run_is_left_alone(tmp_path):
    short = replace(CONFIG, steps=16 * 8)
    train(tmp_path, config=short)
    assert train(tmp_path, config=short) == {}
    with pytest.warns(RuntimeWarning, match="is annealed to step 128"):
        train(tmp_path)
    once = tmp_path / "once"
    train(once, config=replace(CONFIG, anneal_to=16 * 8))
    params = [jax.tree.leaves(load_learners(folder).cohort.params) for folder in (tmp_path, once)]
    for found, expected in zip(*params, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert [int(row["round"]) for row in meetings(tmp_path)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_a_run_has_as_many_islands_as_there_is_room_for(tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.islands.driver.REGROUP_SECONDS", 0.0)
    summary = train(tmp_path, "2..4", rooms=[2, 2, 4, 4, 4, 1])
    assert summary["islands"]["meetings"] == 6
    assert [int(row["came"]) for row in meetings(tmp_path)] == [8] * 6
    kept = sorted(path.name for path in (tmp_path / "islands").iterdir())
    assert kept == ["000-001", "000-003", "002-003", "004-005", "004-007", "006-007"]


def test_when_nobody_comes_the_run_ends_and_says_why(tmp_path):
    liars = {(island, round): "garbage" for island in (0, 1) for round in range(1, 9)}
    with (
        pytest.warns(RuntimeWarning, match="is left out of meeting"),
        pytest.raises(ShoalError, match="nobody came to the last 3 meetings; island 0: left out"),
    ):
        train(tmp_path, faults=liars)


def test_a_killed_island_starts_again_also_before_any_came_and_one_with_an_error_ends_the_run(tmp_path):
    assert train(tmp_path, faults={(0, 1): "lost"})["islands"]["restarts"] == 1
    with pytest.raises(ShoalError, match="island 0 cannot train: no such world"):
        train(tmp_path / "wrong", faults={(0, 1): "failed"})


@pytest.mark.parametrize("text", ["0", "4..2", "two", "1..", "-1"])
def test_numbers_of_islands_that_make_no_sense(text):
    with pytest.raises(ShoalError, match="islands must be a number such as 8"):
        Crowd.read(text)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learners": 1}, "islands share out a run's learners"),
        ({"exchange": "gradients"}, "exchange gradients needs all learners in one program"),
        ({"on_nan": "stop"}, "on_nan stop needs all learners in one program"),
        ({}, "9 islands need a learner each, and the run has 8"),
    ],
)
def test_runs_that_cannot_be_divided(tmp_path, settings, message):
    with pytest.raises(ShoalError, match=message):
        train(tmp_path, "9", config=config_with(**settings))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (None, "Ray does not start on this machine: The current node timed out"),
        ("auto", "cannot join a Ray cluster at auto: The current node timed out"),
        ("127.0.0.1:1", "cannot join a Ray cluster at 127.0.0.1:1: .*refused"),
    ],
)
def test_ray_that_does_not_start(tmp_path, monkeypatch, address, message):
    def init(**how):
        raise Exception("The current node timed out\nduring startup")

    fake = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr("shoal.islands.ray.import_module", lambda name: fake)
    with pytest.raises(ShoalError, match=message):
        RayEngine("", tmp_path, 2, Islands("2", engine="ray", ray_address=address))


@pytest.mark.slow
def test_processes_that_are_killed_and_a_driver_that_is_killed(tmp_path):
    command = [sys.executable, "-m", "shoal.cli", "train", "CartPole-v1", "--learners", "4", "--islands", "2"]
    command += ["--exchange", "average", "--num-envs", "2", "--num-steps", "8", "--num-minibatches", "2"]
    command += ["--hidden", "8", "--steps", "40_000", "--out", str(tmp_path), "--wait", "5"]
    started = lambda: subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    driver = started()
    wait_for(lambda: rows(tmp_path) > 20)
    os.kill(children(driver.pid)[0], signal.SIGKILL)
    wait_for(lambda: "lost" in (tmp_path / "islands.csv").read_text())
    driver.send_signal(signal.SIGTERM)
    driver.communicate(timeout=60)
    assert driver.returncode == 130
    assert shoal.load(tmp_path).step > 0
    before = rows(tmp_path)
    driver = started()
    wait_for(lambda: rows(tmp_path) > before + 5)
    driver.kill()
    driver.communicate()
    wait_for(lambda: not children(driver.pid))
    out, err = started().communicate(timeout=300)
    assert "done after 40,000 steps per learner" in out, err
    assert [int(row["round"]) for row in meetings(tmp_path)] == [*range(1, 626)]


def rows(folder):
    path = folder / "islands.csv"
    return path.read_text().count("\n") if path.exists() else 0


def children(pid):
    found = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True).stdout.splitlines()
    split = [line.split(None, 2) for line in found]
    return [int(own) for own, parent, args in split[1:] if parent == str(pid) and "islands.worker" in args]


def wait_for(there, seconds=180):
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.2)
