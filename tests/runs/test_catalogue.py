"""The list of runs: how each stands, what it reached, what is special; the newest; damaged ones; names."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from shoal import ShoalError, preset
from shoal.cli.main import main
from shoal.runs.catalogue import describe, find_run, list_runs, newest_run, write_note
from shoal.runs.config import write_config
from shoal.runs.files import FolderLock, fcntl
from shoal.runs.metrics import MetricsWriter, read_last_report
from shoal.runs.naming import folder_name
from shoal.runs.summary import write_summary
from shoal.runs.sweep.catalogue import fold_sweeps


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make_run(
    folder: str = "", age: float = 0, steps: int = 2048, ended: dict | None = None, **settings
) -> Path:
    """The files of a run with two reports, at steps 1,024 and 2,048, that changed so many seconds ago."""
    config = preset("CartPole-v1", steps=steps, **settings)
    path = Path("runs") / (folder or folder_name(config))
    write_config(path / "config.yaml", config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shoal.runs.metrics.open_events", lambda *_: None)
        with MetricsWriter(path, None) as writer:
            for step in (1024, 2048):
                returns = (
                    np.full(config.learners, np.nan) if step == 1024 else np.arange(config.learners) + 0.5
                )
                writer.write(step, 1.0, {"return_mean": returns, "zeal": 1.0})
    if ended is not None:
        scores = {"return_mean": np.arange(config.learners) + 0.5}
        write_summary(path, {"steps": 2048, "interrupted": False} | scores | ended)
    for file in path.iterdir():
        os.utime(file, (1.7e9 - age, 1.7e9 - age))
    return path


def test_what_is_said_of_a_run():
    make_run(learners=3, exchange="average", gamma=0.9, ended={})
    (row,) = list_runs([Path("runs")])
    assert row.folder == Path("runs/CartPole-v1__ppo__s1__L3__average__gamma-0.9")
    assert (row.state, row.env, row.algo, row.step, row.steps) == ("done", "CartPole-v1", "ppo", 2048, 2048)
    assert (row.return_mean, row.best_return, row.changed) == (1.5, 2.5, 1.7e9)
    assert row.settings == {"learners": 3, "exchange": "average", "gamma": 0.9}


@pytest.mark.parametrize(
    ("ended", "steps", "state", "step"),
    [
        ({}, 2048, "done", 2048),
        ({"interrupted": True}, 10_000, "stopped", 2048),
        ({"interrupted": True, "steps": 3072}, 10_000, "stopped", 3072),  # between two reports
        (None, 10_000, "lost", 2048),  # killed in its first session
        ({"steps": 1024}, 10_000, "lost", 2048),  # killed after it was extended
    ],
)
def test_how_a_run_ended(ended, steps, state, step):
    row = describe(make_run(ended=ended, steps=steps))
    assert (row.state, row.step, row.steps) == (state, step, -(-steps // 1024) * 1024)


@pytest.mark.skipif(fcntl is None, reason="no locks")
def test_a_run_whose_folder_is_locked_is_running():
    folder, lock = make_run(ended={"interrupted": True}), FolderLock()
    lock.take(folder)
    assert describe(folder).state == "running"
    lock.release()
    assert describe(folder).state == "stopped"
    lock.take(folder)
    lock.release()


def test_a_run_that_stopped_between_two_reports_has_its_score_in_the_summary():
    """And one that went on is where its newest checkpoint is."""
    folder = make_run(ended={"interrupted": True, "steps": 3072, "return_mean": [7.0]})
    row = describe(folder)
    assert (row.state, row.step, row.return_mean) == ("stopped", 3072, 7.0)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "step_000004096.json").touch()
    row = describe(folder)
    assert (row.state, row.step, row.return_mean) == ("lost", 4096, 0.5)


def test_a_run_without_a_report_has_no_score():
    folder = make_run()
    (folder / "metrics.csv").unlink()
    row = describe(folder)
    assert (row.state, row.step, row.return_mean, row.best_return) == ("stopped", 0, None, None)


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("config.yaml", None, "config.yaml is not there"),
        ("config.yaml", "{", "is not yaml"),
        ("config.yaml", "", "holds no settings"),
        ("config.yaml", "env: CartPole-v1\nlearners: [a]\n", "learners must be a whole number"),
        ("config.yaml", "env: [1]\nmemory: 3\nexchange: {}\n", ""),
        ("metrics.csv", "a,b\n1,2\n", "is not a metrics file"),
        ("metrics.csv", "step,learner,seconds,return_mean\n1,0,x\n", ""),
        ("metrics.csv", "\0\n\0", "is not a metrics file"),
        ("summary.json", "{", "not JSON"),
        ("summary.json", "[]", ""),
        ("summary.json", '{"steps": "many"}', ""),
    ],
)
def test_a_damaged_run_is_a_row(file, text, why, capsys):
    make_run("whole", age=10, ended={})
    (folder,) = [make_run("damaged", ended={})]
    (folder / file).unlink() if text is None else (folder / file).write_text(text)
    assert [(row.folder.name, row.state) for row in list_runs([Path("runs")])] == [
        ("damaged", "damaged"),
        ("whole", "done"),
    ]
    assert main(["runs"]) == 0
    _, line, _ = capsys.readouterr().out.splitlines()
    assert line.startswith("damaged")
    assert why in line


def test_the_newest_is_first_and_runs_are_found_below_folders():
    runs = [make_run(name, age) for name, age in (("b", 5), ("a", 9), ("sweep/c", 1), ("sweep/deep/d", 7))]
    shutil.copytree(runs[0], "runs/a/checkpoints/copy")  # inside a run nothing is looked for
    order = [runs[i] for i in (2, 0, 3, 1)]
    assert [row.folder for row in list_runs([Path("runs")])] == order
    assert [row.folder for row in list_runs([Path("runs/sweep"), Path("runs/a")])] == [
        order[i] for i in (0, 2, 3)
    ]
    assert newest_run() == runs[2]


def test_a_run_is_found_by_its_path_or_its_name():
    make_run("sweep/one"), make_run("CartPole-v1__ppo__s1")
    Path("sweep/one").mkdir(parents=True)  # of another purpose
    assert find_run("sweep/one") == find_run(Path("runs/sweep/one")) == Path("runs/sweep/one")
    assert find_run(Path("runs/sweep/one").resolve()) == Path("runs/sweep/one").resolve()
    for wrong, near in (
        ("CartPole-v1__ppo__s2", "CartPole-v1__ppo__s1"),
        ("cartpole", "CartPole-v1__ppo__s1"),
        ("runs/sweep/on", "runs/sweep/one"),
    ):
        with pytest.raises(ShoalError, match=f"^there is no run '{wrong}'; did you mean {near}\\?$"):
            find_run(wrong)
    with pytest.raises(ShoalError, match="there is no run 'xyzzy'; shoal runs lists those there are"):
        find_run("xyzzy")


def test_without_runs_a_line_says_how_to_begin(capsys):
    assert main(["runs"]) == 0
    assert capsys.readouterr().out == "no runs below runs; begin with shoal train CartPole-v1\n"
    assert main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    with pytest.raises(ShoalError, match="there is no run below runs; begin with shoal train CartPole-v1"):
        newest_run()


def test_the_table_and_the_list_for_programs(capsys):
    make_run("demo", 1, seed=3, learners=2, memory="gru", ended={})
    make_run(age=2, gamma=0.9, hidden=(32, 32), anneal_lr=False, ended={"interrupted": True}, steps=10**6)
    assert main(["runs", "runs"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["state", "steps", "mean", "best", "learner", "changed", "run", "(settings)"]
    ago = lines[1][6:9]
    assert lines[1] == [*["done", "2.05k", "of", "2.05k", "1.00", "1.50"], *ago, "demo", *DEMO.split()]
    assert lines[2][:6] == ["stopped", "2.05k", "of", "1M", "0.50", "0.50"]
    assert lines[2][9:] == ["CartPole-v1__ppo__s1__no-anneal_lr__gamma-0.9__hidden-32-32"]
    assert main(["runs", "--json"]) == 0
    demo, other = json.loads(capsys.readouterr().out)
    assert (demo["folder"], demo["settings"]) == (
        "runs/demo",
        {"learners": 2, "seed": 3, "memory.kind": "gru"},
    )
    assert (other["state"], other["settings"]["hidden"], other["return_mean"]) == ("stopped", [32, 32], 0.5)


def test_the_table_has_evaluations_where_a_run_has_one(capsys):
    make_run("seen", 1, ended={"best_evaluation": {"step": 1024, "best_return": 77.0}})
    make_run("unseen", 2, ended={})
    assert main(["runs"]) == 0
    heads, *lines = (line.split() for line in capsys.readouterr().out.splitlines())
    assert heads[2:8] == ["mean", "best", "learner", "best", "evaluated", "changed"]
    assert [line[4:7] for line in lines] == [["0.50", "0.50", "77.0"], ["0.50", "0.50", "-"]]


def test_a_note_is_shown_until_another_command_gives_others(capsys):
    folder = make_run("demo", learners=2, ended={})
    write_note(folder, "does gae\nmatter?")
    assert list_runs([Path("runs")])[0].note == "does gae matter?"
    assert main(["runs"]) == 0
    assert capsys.readouterr().out.endswith("demo (CartPole-v1, ppo, learners 2): does gae matter?\n")
    write_note(folder, "")
    assert main(["runs"]) == 0
    assert capsys.readouterr().out.endswith("demo (CartPole-v1, ppo, learners 2)\n")


DEMO = "(CartPole-v1, ppo, learners 2, seed 3, memory gru)"


@pytest.mark.parametrize("learners", [1, 3])
def test_the_last_report_is_read_from_the_end_of_the_file(learners):
    folder = make_run(learners=learners)
    step, returns = read_last_report(folder, learners)
    assert (step, returns.tolist()) == (2048, [0.5, 1.5, 2.5][:learners])
    with open(folder / "metrics.csv", "a") as file:
        file.write("3072,0,1.0,7")  # a line that a crash left unfinished
    assert read_last_report(folder, learners)[0] == 2048
    header = (folder / "metrics.csv").read_text().splitlines()[0]
    for text, found in (("", 0), (f"{header}\n", 0), (f"{header}\n512,0,1.0,4,1\n", 512)):
        (folder / "metrics.csv").write_text(text)
        assert read_last_report(folder, learners)[0] == found


def test_a_sweep_is_one_line(capsys):
    """Its programs are listed where they are asked for."""
    make_run(age=10, ended={})
    for number in range(2):
        make_run(f"swept/programs/{number:03d}", ended={}, learners=4)
    swept = Path("runs/swept")
    plan = {"method": "grid", "trials": 3, "seeds": 2, "axes": {"gamma": [0.9, 0.99, 1.0]}}
    (swept / "sweep.yaml").write_text(json.dumps(plan))
    (swept / "trials.csv").write_text("trial,mean\n0,1.5\n1,2.5\n2,\n")
    sweep, alone = fold_sweeps(list_runs([Path("runs")]), [Path("runs")])
    assert (sweep.folder, sweep.state, sweep.programs, alone.programs) == (swept, "stopped", 2, 0)
    assert (sweep.env, sweep.step, sweep.return_mean, sweep.best_return) == ("CartPole-v1", 2048, 2.0, 2.5)
    (swept / "best.yaml").touch()
    assert main(["runs"]) == 0
    first, *_ = lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == 2
    assert first.endswith("swept (CartPole-v1, ppo, grid 3 settings x 2 seeds, varied gamma)")
    assert first.startswith("done")
    for arguments in (["--programs"], ["runs/swept", "runs/CartPole-v1__ppo__s1"]):
        assert main(["runs", *arguments]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 1 + 3
    (swept / "programs/001/config.yaml").unlink()
    assert main(["runs", "--json"]) == 0
    (row,) = (row for row in json.loads(capsys.readouterr().out) if row["programs"])
    assert (row["state"], row["error"][:4]) == ("damaged", "001:")
