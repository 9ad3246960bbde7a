"""What the addresses of the page answer, also for damaged, half-written and unsafe folders."""

import json
import re
import shlex

import numpy as np
import pytest

from shoal.cli.parse import parse_train
from shoal.islands.attendance import Attendance, begin_meetings, extend_meetings
from shoal.runs.config import from_settings, read_settings
from shoal.runs.metrics import MetricsWriter
from shoal.watch.answers import Answers
from shoal.watch.shelf import Shelf
from tests.watch.folders import add_report, write_population, write_run


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """`ask(address)`: status and data, of the runs below a folder."""
    monkeypatch.setattr("shoal.watch.shelf.LOOK_SECONDS", 0.0)
    answers = Answers(Shelf([tmp_path]))

    def asked(address):
        answer = answers.find(address)
        return answer.status, json.loads(answer.body)

    asked.answers = answers
    asked.id = lambda name: next(run["id"] for run in asked("/api/runs")[1]["runs"] if run["name"] == name)
    return asked


def test_the_list_of_runs(ask, tmp_path):
    write_run(tmp_path / "one")
    write_run(tmp_path / "three", learners=3, ended=False)
    status, found = ask("/api/runs")
    runs = {run["name"]: run for run in found["runs"]}
    assert status == 200
    assert (runs["one"]["state"], runs["one"]["step"], runs["one"]["steps"]) == ("done", 3072, 3072)
    assert runs["one"]["spark"] == [10, 20, 30]
    assert runs["one"]["speed"] == 1024
    assert (runs["three"]["state"], runs["three"]["bestLearner"]) == ("lost", 2)
    assert runs["three"]["speed"] == 3 * 1024


def test_the_list_follows_the_files(ask, tmp_path):
    folder = write_run(tmp_path / "one", ended=False)
    before = ask.answers.find("/api/runs")
    assert ask.answers.find("/api/runs") is before
    add_report(folder, 3)
    (run,) = ask("/api/runs")[1]["runs"]
    assert run["spark"] == [10, 20, 30, 40]
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert ask("/api/runs")[1]["runs"] == []


def test_lines_of_a_few_learners(ask, tmp_path):
    write_run(tmp_path / "run", learners=3)
    address = f"/api/runs/{ask.id('run')}/curves?metric=return_mean&metric=nothing&learner=1"
    (curve,) = ask(address)[1]
    assert curve["x"] == [1024, 2048, 3072]
    assert curve["lines"] == [[10, 20, 30], [11, 21, 31], [12, 22, 32]]
    assert curve["mean"] == curve["line"] == [11, 21, 31]


def test_bands_and_a_heatmap_of_many(ask, tmp_path):
    write_run(tmp_path / "run", learners=101)
    (curve,) = ask(f"/api/runs/{ask.id('run')}/curves?metric=return_mean&heat=1")[1]
    assert "lines" not in curve
    assert curve["half"] == [[35, 45, 55], [85, 95, 105]]
    assert curve["nine"] == [[15, 25, 35], [105, 115, 125]]
    assert curve["heat"]["order"][:2] == [100, 99]
    assert (curve["heat"]["rows"], curve["heat"]["columns"]) == (101, 3)
    assert (curve["heat"]["low"], curve["heat"]["high"]) == (10, 130)


def test_a_population(ask, tmp_path):
    write_population(tmp_path / "run")
    status, found = ask(f"/api/runs/{ask.id('run')}/lineage")
    assert status == 200
    assert found["replaced"] == [{"step": 1024, "learner": 0, "parent": 2}]
    assert (found["best"], found["line"]) == (3, [3, 3])
    assert found["hypers"]["learning rate"][1][0] == 0.012
    assert ask(f"/api/runs/{ask.id('run')}")[1]["lineage"] is True


def test_a_federation(ask, tmp_path):
    write_run(tmp_path / "run", learners=4, exchange="gossip", topology="ring", env_spread=0.5)
    run = ask.id("run")
    page = ask(f"/api/runs/{run}")[1]
    assert (page["graph"], page["worlds"]) == (True, True)
    assert ask("/api/runs")[1]["runs"][0]["differs"]["env_spread"] == "0.5"
    (graph,) = ask(f"/api/runs/{run}/graph")[1]["graphs"]
    assert sorted(link[:2] for link in graph["links"])[:2] == [[0, 1], [0, 3]]
    worlds = ask(f"/api/runs/{run}/worlds")[1]
    assert worlds["scores"] == [30, 31, 32, 33]
    assert len(worlds["worlds"]["length"]) == 4


def test_teams(ask, tmp_path):
    folder = write_run(tmp_path / "run", learners=2)
    names = ("return_team", "win_rate_team")
    won = {f"{name}{team}": np.full(2, team) for name in names for team in range(2)}
    with MetricsWriter(folder, None) as writer:
        writer.write(1024, 1.0, {"return_mean": np.zeros(2), "return_agent0": np.zeros(2), **won})
    shown = ask(f"/api/runs/{ask.id('run')}")[1]["metrics"]["Teams and agents"]
    assert {one["label"] for one in shown} == {
        "episode return of agent 0",
        *(f"{what} of team {team}" for what in ("episode return", "share of wins") for team in range(2)),
    }


def test_who_is_absent_from_the_meetings_of_islands(ask, tmp_path):
    folder = write_run(tmp_path / "run", learners=4, exchange="average")
    page = lambda: ask(f"/api/runs/{ask.id('run')}")[1]
    assert page()["meeting"] is None
    begin_meetings(folder, None)
    extend_meetings(folder, 7, 1024, 2.5, 4, Attendance({}, 0.1, 0.1, {}, {}))
    assert page()["notes"] == []
    lost = {1: "lost: its process ended (SIGKILL)", 3: "late"}
    extend_meetings(folder, 1008, 2048, 2.5, 2, Attendance(lost, 0.1, 0.1, {}, {}))
    absent = "1 lost: its process ended (SIGKILL); 3 late"
    assert page()["meeting"] == {"round": 1008, "came": 2, "absent": absent}
    assert page()["notes"] == [f"absent from meeting 1,008: island {absent}"]


def test_long_settings_are_short_in_the_list(ask, tmp_path):
    worlds = {str(learner): {"length": 0.5 + learner} for learner in range(2)}
    write_run(tmp_path / "run", learners=2, env_params=worlds)
    assert ask("/api/runs")[1]["runs"][0]["differs"] == {"learners": "2", "env_params": "given"}
    assert ask(f"/api/runs/{ask.id('run')}")[1]["command"].startswith("shoal train --config ")


def test_a_sweep(ask, tmp_path):
    folder = tmp_path / "sweep"
    write_run(folder / "programs" / "000", learners=2)
    (folder / "sweep.yaml").write_text(
        "method: random\ntrials: 8\nseeds: 1\nsettings: {algo: ppo}\n"
        "axes:\n  gamma: [0.9, 0.99]\n  learning_rate: log 0.0001 0.01\n"
    )
    header = "trial,gamma,learning_rate,seeds,state,steps,mean,iqm,low,high,scores,programs\n"
    trials = [f"{i},{0.9 if i % 2 else 0.99},{0.001 * i},1,done,9,0,,,,{i % 2}{i},000:0\n" for i in range(8)]
    (folder / "trials.csv").write_text(header + "".join(trials))
    listed = ask("/api/runs")[1]
    (sweep,) = listed["sweeps"]
    assert (sweep["programs"], sweep["state"], sweep["mean"], sweep["best"]) == (1, "stopped", 0, 0)
    assert listed["runs"] == []
    (folder / "best.yaml").touch()
    assert ask("/api/runs")[1]["sweeps"][0]["state"] == "done"
    found = ask(f"/api/sweeps/{sweep['id']}")[1]
    assert found["axes"] == ["gamma", "learning_rate"]
    assert found["trials"][3] == {
        "number": 3, "values": ["0.9", "0.003"], "state": "done", "steps": 9, "mean": 13, "scores": [13],
    }  # fmt: skip
    assert (found["order"][:2], found["drawn"]) == ([7, 5], ["learning_rate"])
    assert found["importance"]["gamma"] > found["importance"]["learning_rate"]
    assert [run["name"] for run in found["programs"]] == ["sweep/programs/000"]


def test_runs_compared(ask, tmp_path):
    for seed in (1, 2):
        write_run(tmp_path / f"a{seed}", seed=seed)
    write_run(tmp_path / "b", learners=5, learning_rate=0.5)
    chosen = "&".join(f"run={ask.id(name)}" for name in ("a1", "a2", "b"))
    found = ask(f"/api/compare?{chosen}&metric=return_mean")[1]
    pooled, alone = found["curves"]
    assert (pooled["runs"], pooled["learners"], pooled["last"]) == (2, 2, 30)
    assert (alone["runs"], alone["learners"], alone["last"]) == (1, 5, 32)
    low, high = alone["band"]
    assert low[0] < 12 < high[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"learners": 8, "learning_rate": 0.002, "memory": "gru"},
        {"learners": 4, "exchange": "gossip", "topology": "star", "local_updates": 2},
        {"anneal_lr": False, "hidden": (32, 16), "env_spread": 0.5},
        {"algo": "dqn", "seed": 7},
    ],
)
def test_the_command_trains_the_same_run(ask, tmp_path, settings):
    folder = write_run(tmp_path / "run", **settings)
    command = shlex.split(ask(f"/api/runs/{ask.id('run')}")[1]["command"])
    assert command[:2] == ["shoal", "train"]
    again, _ = parse_train(command[2:])
    assert again == from_settings(read_settings(folder / "config.yaml"))


def test_damaged_files_are_shown_as_such(ask, tmp_path):
    write_run(tmp_path / "config")
    (tmp_path / "config" / "config.yaml").write_text("env: [unclosed")
    write_run(tmp_path / "metrics", ended=False)
    lines = (tmp_path / "metrics" / "metrics.csv").read_text().splitlines()
    (tmp_path / "metrics" / "metrics.csv").write_text("\n".join([*lines[:2], "broken", *lines[2:], ""]))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "metrics.csv").touch()
    states = {run["name"]: run["state"] for run in ask("/api/runs")[1]["runs"]}
    assert states == dict.fromkeys(("config", "metrics", "empty"), "damaged")
    page = ask(f"/api/runs/{ask.id('config')}")[1]
    assert page["metrics"]
    assert "not yaml" in page["notes"][0]
    status, found = ask(f"/api/runs/{ask.id('metrics')}/curves?metric=return_mean")
    assert status == 422
    assert "damaged in line 3" in found["error"]
    assert ask(f"/api/runs/{ask.id('metrics')}/lineage")[0] == 422


def test_a_half_written_lineage(ask, tmp_path):
    folder = write_population(tmp_path / "run")
    with (folder / "lineage.csv").open("a") as file:
        file.write("2048,0,1,3.0,0.1\n2048,1")
    assert ask(f"/api/runs/{ask.id('run')}/lineage")[1]["steps"] == [0, 1024]


def test_films_and_nothing_else_are_sent(ask, tmp_path):
    folder = write_run(tmp_path / "run")
    videos = folder / "videos"
    videos.mkdir()
    (videos / "learner_0.gif").write_bytes(b"GIF89a")
    (videos / "notes.txt").write_text("no")
    (tmp_path / "secret.gif").write_bytes(b"secret")
    (videos / "link.gif").symlink_to(tmp_path / "secret.gif")
    run = ask.id("run")
    assert ask(f"/api/runs/{run}")[1]["films"] == ["learner_0.gif"]
    assert ask.answers.find(f"/films/{run}/learner_0.gif").body == b"GIF89a"
    for name in ("link.gif", "notes.txt", "..%2F..%2Fsecret.gif", "../../secret.gif", "%2Fetc%2Fpasswd", ""):
        assert ask.answers.find(f"/films/{run}/{name}").status == 404


@pytest.mark.parametrize(
    "address", ["/static/../guard.py", "/static/%2e%2e/guard.py", "/api", "/nothing", "//", "/" + "a" * 3000]
)
def test_no_other_files(ask, address):
    assert ask.answers.find(address).status == 404


def test_looking_at_a_run_runs_nothing(ask, tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("open('ran', 'w')\ndef exchange(config, context): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    folder = write_run(tmp_path / "run", learners=2)
    text = (folder / "config.yaml").read_text()
    text, found = re.subn(r"(?m)^exchange: none$", "exchange: evil:exchange", text)
    assert found == 1
    (folder / "config.yaml").write_text(text)
    assert ask("/api/runs")[1]["runs"][0]["state"] == "done"
    ask(f"/api/runs/{ask.id('run')}")
    assert not (tmp_path / "ran").exists()


def test_json_has_no_nan(ask, tmp_path):
    folder = write_run(tmp_path / "run", learners=2, ended=False)
    with (folder / "metrics.csv").open("a") as file:
        file.write("4096,0,4.0,nan,nan\n4096,1,4.0,inf,7\n")
    (curve,) = ask(f"/api/runs/{ask.id('run')}/curves?metric=return_mean")[1]
    assert curve["lines"] == [[10, 20, 30, None], [11, 21, 31, 7]]
    assert np.isclose(curve["mean"][-1], 7)
