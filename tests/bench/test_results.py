"""The page of results: its tables are those of the rows, a row is done again, and old rows are found."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))  # as for the scripts there

import results  # noqa: E402
import stale  # noqa: E402
from rows import Row, read_rows, replace_row, tables, write_page, write_rows  # noqa: E402

CARTPOLE = Row(
    "CartPole-v1", "ppo", ("--seed", "2"), 2, 100, None, 3, "", 9.5, (9.0, 10.0), 0.5, None, "here"
)


def test_the_tables_of_the_page_are_those_of_the_rows():
    """But for the last column, which every commit may change."""
    page, rows = (ROOT / "docs/results/index.md").read_text(), read_rows()
    for name, table in tables(rows, lambda row: "").items():
        for line in table.splitlines():
            assert line.removesuffix("|").rstrip(" |") in page, f"{name}: python bench/stale.py --write"


def test_a_row_is_one_command():
    assert CARTPOLE.command == "python bench/results.py CartPole-v1 --learners 2 --seed 2"
    assert replace(CARTPOLE, algo="td3", learners=4, flags=()).command == (
        "python bench/results.py CartPole-v1 --algo td3"
    )


def test_a_row_takes_the_place_of_the_older_one(tmp_path):
    others = [replace(CARTPOLE, env="A"), CARTPOLE, replace(CARTPOLE, algo="dqn")]
    new = replace(CARTPOLE, mean=11.0)
    assert replace_row(others, new) == [others[0], new, others[2]]
    assert replace_row([], new) == [new]
    write_rows(others, tmp_path / "rows.json")
    assert read_rows(tmp_path / "rows.json") == others


def test_a_row_is_done_again_with_its_flags_and_written_into_the_page(tmp_path, monkeypatch, capsys):
    """Two learners with means of 10 and 20; training and evaluating are not what is tried here."""
    called = []

    def shoal(*words):
        called.append(words)
        (tmp_path / "runs/ppo/CartPole-v1").mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs/ppo/CartPole-v1/summary.json").write_text('{"steps": 2048, "seconds": 7.4}')
        return json.dumps(
            [{"return_mean": 10.0, "return_std": 1.0}, {"return_mean": 20.0, "return_std": 2.0}]
        )

    text = "above\n<!-- table: ppo -->\nold\n<!-- end of table -->\nbelow\n"
    others = "".join(
        f"<!-- table: {name} -->\n<!-- end of table -->\n" for name in ("others", "long", "made")
    )
    (tmp_path / "page.md").write_text(text + others)
    write_rows([CARTPOLE], tmp_path / "rows.json")
    monkeypatch.setattr(results, "shoal", shoal)
    monkeypatch.setattr(results, "commit", lambda: "abcdef0")
    monkeypatch.setattr(results, "read_rows", lambda: read_rows(tmp_path / "rows.json"))
    monkeypatch.setattr(results, "write_rows", lambda rows: write_rows(rows, tmp_path / "rows.json"))
    monkeypatch.setattr(
        results, "write_page", lambda rows, state: write_page(rows, state, tmp_path / "page.md")
    )
    monkeypatch.setattr(sys, "argv", ["results.py", "CartPole-v1", "--out", str(tmp_path / "runs")])
    results.main()
    assert called[0][:5] == ("train", "CartPole-v1", "--algo", "ppo", "--learners")
    assert called[0][5:] == ("2", "--out", str(tmp_path / "runs/ppo/CartPole-v1"), "--seed", "2")
    (row,) = read_rows(tmp_path / "rows.json")
    assert (row.mean, row.each, row.spread, row.steps, row.seconds) == (15.0, (10.0, 20.0), 1.5, 2048, 7)
    page = (tmp_path / "page.md").read_text()
    assert "| CartPole-v1 | `--seed 2` | 2 | 2,048 | 7 s | **15.0** (10.0, 20.0) | 1.5 | 200.0 |" in page
    assert "old" not in page
    assert page.startswith("above\n")
    assert f"| `{row.command}` | abcdef0 | {results.hardware()} | unknown |" in page


# Which rows are stale


@pytest.fixture
def repo(tmp_path):
    """A repository with an algorithm, an environment and a preset, and what it was at first."""
    git(tmp_path, "init", "-q")
    for name in ("shoal/learners/ppo.py", "shoal/learners/td3.py", "shoal/envs/classic/cartpole.py"):
        write(tmp_path, name, "1")
    write(tmp_path, stale.PRESETS, PRESET.format(seen="here", rate=0.001, other=1))
    return tmp_path


PRESET = """
ppo:
  CartPole-v[01]: {{source: {seen}, learning_rate: {rate}, clip_vloss: false}}
  Acrobot-v1: {{num_envs: {other}}}
"""


def git(repo, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", str(repo), *who, *words], check=True, capture_output=True, text=True
    ).stdout


def write(repo, name, text):
    """A commit that changes one file."""
    path = repo / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", name)


def state_of(repo, commit):
    return stale.state(replace(CARTPOLE, commit=commit), repo)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("README.md", "2", "current"),
        ("shoal/learners/td3.py", "2", "current"),
        ("shoal/learners/ppo.py", "2", "stale: algorithm"),
        ("shoal/learners/ppo_loss.py", "2", "stale: algorithm"),
        ("shoal/nets/layers.py", "2", "stale: algorithm"),
        ("shoal/envs/classic/cartpole.py", "2", "stale: environment"),
        ("shoal/envs/classic/pendulum.py", "2", "current"),
        (stale.PRESETS, PRESET.format(seen="there", rate=0.001, other=8), "current"),
        (stale.PRESETS, PRESET.format(seen="here", rate=0.002, other=1), "stale: preset"),
        (
            stale.PRESETS,
            PRESET.format(seen="here", rate=0.001, other=1).replace("clip_vloss", "value.clip"),
            "current",
        ),
    ],
)
def test_a_row_is_stale_where_what_decides_it_has_changed(repo, name, text, expected):
    commit = git(repo, "rev-parse", "--short=7", "HEAD").strip()
    assert state_of(repo, commit) == "current"
    write(repo, name, text)
    assert state_of(repo, commit) == expected
    assert state_of(repo, git(repo, "rev-parse", "HEAD").strip()) == "current"


def test_all_that_has_changed_is_named(repo):
    commit = git(repo, "rev-parse", "HEAD").strip()
    write(repo, "shoal/learners/epochs.py", "2")
    write(repo, "shoal/envs/adapters/jax_env.py", "2")
    write(repo, stale.PRESETS, "ppo: {}")
    assert state_of(repo, commit) == "stale: algorithm, environment, preset"


def test_of_an_unknown_commit_nothing_is_known(repo):
    assert state_of(repo, None) == "unknown"
    assert state_of(repo, "0123456") == "unknown"


def test_files_that_decide_a_row_exist():
    for algo in stale.PARTS:
        for path in stale.algorithm_files(algo):
            assert list(ROOT.glob(path)), path
    for env in ("CartPole-v1", "HalfCheetah-v4", "gym:CartPole-v1"):
        assert all(list(ROOT.glob(path)) for path in stale.environment_files(env))
