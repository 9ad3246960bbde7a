"""A population from the command line: what evolves, random search, replay, and mistakes."""

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

from shoal.cli.main import main
from shoal.cli.parse import parse_train
from shoal.runs.config import from_settings, read_settings, to_settings
from shoal.runs.learners import load_learners
from shoal.runs.lineage import hyper_plan, read_lineage
from shoal.runs.metrics import read_metrics
from shoal.runs.naming import folder_name
from shoal.runs.run import follow_best
from shoal.runs.session import open_session, run_session

CARTPOLE = "jax:CartPole-v1"
SIZES = ["--num-envs", "4", "--num-steps", "16", "--num-minibatches", "1", "--update-epochs", "1"]
TINY = [
    "--no-preset",
    "--learning-rate",
    "0.05",
    *SIZES,
    "--hidden",
    "4",
    "--reports",
    "4",
    "--learners",
    "4",
]
SELECT = ["--exchange", "truncation", "--local-updates", "2", "--min-episodes", "1", "--fraction", "0.5"]
TRAIN = ["train", CARTPOLE, *TINY, *SELECT, "--steps", "512"]
CLOCKS = {"seconds", "steps_per_second", "steps_per_second_compiled"}
LAST = "checkpoints/step_000000512.safetensors"


def shoal(*arguments) -> int:
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as error:  # tyro's own errors
        return int(error.code or 0)


def undisturbed(patch):
    patch.setattr("warnings.showwarning", warnings.showwarning)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    undisturbed(monkeypatch)


@pytest.fixture(scope="module")
def population(tmp_path_factory) -> Path:
    """Four learners, a selection after every second of eight updates."""
    folder = tmp_path_factory.mktemp("population")
    with pytest.MonkeyPatch.context() as patch:
        undisturbed(patch)
        assert shoal(*TRAIN, "--out", folder) == 0
    return folder


HAND = """\
step,learner,parent,score,learning_rate
0,0,0,,0.001
0,1,1,,0.003
0,2,2,,0.004
0,3,3,,0.005
128,0,0,9,0.001
128,1,0,8,0.001
128,2,2,,0.004
128,3,3,7,0.005
256,0,1,5,0.002
256,1,1,9,0.002
256,2,1,5,0.002
256,3,1,5,0.002
"""


@pytest.fixture(scope="module")
def replay(population, tmp_path_factory) -> Path:
    """One learner along the line above, of which all four are the end; the population's folder is gone."""
    folder = tmp_path_factory.mktemp("replay")
    shutil.copytree(population, folder / "source")
    (folder / "source" / "lineage.csv").write_text(HAND)
    with pytest.MonkeyPatch.context() as patch:
        undisturbed(patch)
        assert shoal("train", "--follow", folder / "source", "--out", folder / "run") == 0
    shutil.rmtree(folder / "source")
    return folder / "run"


def test_a_population_leaves_its_lineage_and_its_hyperparameters(population):
    lineage, table = read_lineage(population), read_metrics(population)
    assert lineage.steps.tolist() == [0, 128, 256, 384, 512]
    assert list(lineage.hypers) == ["learning_rate", "clip_coef", "ent_coef"]
    assert {name for name in table if name.startswith("hypers/")} == {f"hypers/{x}" for x in lineage.hypers}
    assert (lineage.parent != np.arange(4)[None]).any()


def test_the_same_command_again_says_it_is_done(population, capsys):
    assert shoal(*TRAIN, "--out", population) == 0
    assert "already trained to step 512" in capsys.readouterr().out


@pytest.mark.slow
def test_what_evolves_may_be_named_with_priors_of_its_own():
    evolve = ["--evolve", "gamma", "learning_rate=uniform 0.01 0.02"]
    assert shoal(*TRAIN[:-1], "128", *evolve, "--out", "run") == 0
    config = from_settings(read_settings(Path("run/config.yaml")))
    assert config.evolve == ("gamma", "learning_rate=uniform 0.01 0.02")
    lineage = read_lineage(Path("run"))
    assert list(lineage.hypers) == ["gamma", "learning_rate"]
    for name, low, high in (("gamma", 0.9, 0.9999), ("learning_rate", 0.01, 0.02)):
        values = np.float32(lineage.hypers[name])
        assert ((values >= np.float32(low)) & (values <= np.float32(high))).all()
        assert len(np.unique(values[0])) == 4


@pytest.mark.slow
def test_random_search_draws_and_keeps(population):
    """Without an exchange each learner trains to the end with what it drew.

    A population of the same seed and names begins with the same draws: the comparison is of selection alone.
    """
    names = ["learning_rate", "clip_coef", "ent_coef"]
    assert shoal("train", CARTPOLE, *TINY, "--evolve", *names, "--steps", "256") == 0
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("jax-CartPole-v1__ppo__s1__L4__")
    table, lineage = read_metrics(folder), read_lineage(population)
    for name in names:
        values = table[f"hypers/{name}"].reshape(4, 4)  # by report and learner
        assert len(np.unique(values[0])) == 4
        assert (values == values[:1]).all()
        np.testing.assert_allclose(values[0], lineage.hypers[name][0], rtol=1e-6)
    assert not (folder / "lineage.csv").exists()


def test_a_replay_follows_the_line_of_the_best(population):
    opened, config = load_learners(population), follow_best(population)
    assert opened.best == np.argmax(read_metrics(population)["return_mean"][-4:])
    expected = hyper_plan(read_lineage(population), opened.best)
    assert [(step, values) for step, values in config.hyper_plan] == expected
    for name, value in expected[-1][1].items():
        assert np.float32(value) == getattr(opened.cohort.hypers, name)[opened.best]


def test_a_replay_is_one_learner_and_keeps_the_schedule_in_its_file(replay):
    """At 128 the line moves from learner 0 to 1 and nothing changes."""
    config = from_settings(read_settings(replay / "config.yaml"))
    assert (config.learners, config.exchanges, config.evolve) == (1, (), ())
    assert config.hyper_plan == [[0, {"learning_rate": 0.001}], [256, {"learning_rate": 0.002}]]
    assert load_learners(replay).cohort.hypers.learning_rate.tolist() == [np.float32(0.002)]
    assert not (replay / "lineage.csv").exists()
    assert read_metrics(replay)["step"].tolist() == [128, 256, 384, 512]


def test_a_replay_is_repeated_from_its_file_without_the_population(replay):
    assert shoal("train", "--config", replay / "config.yaml", "--out", "again") == 0
    assert (Path("again") / LAST).read_bytes() == (replay / LAST).read_bytes()
    theirs, ours = read_metrics(replay), read_metrics(Path("again"))
    for name in theirs.keys() - CLOCKS:
        np.testing.assert_array_equal(theirs[name], ours[name], err_msg=name)


def test_a_replay_resumes_from_its_file_without_the_population(replay, capsys):
    reports = run_session(open_session(from_settings(read_settings(replay / "config.yaml")), Path("half")))
    for report in reports:
        if report.step >= 256:
            break
    reports.close()
    assert shoal("train", "--config", "half/config.yaml", "--out", "half") == 0
    assert f"resuming from step {report.step}" in capsys.readouterr().err
    assert (Path("half") / LAST).read_bytes() == (replay / LAST).read_bytes()


def test_a_replay_has_a_folder_of_its_own_and_takes_flags(population):
    config, _ = parse_train(["--follow", str(population), "--seed", "7"])
    assert folder_name(config).startswith("jax-CartPole-v1__ppo__s7__follow-")
    theirs, ours = to_settings(from_settings(read_settings(population / "config.yaml"))), to_settings(config)
    changed = {name for name in theirs if name in ours and theirs[name] != ours[name]}
    assert changed == {"learners", "seed", "hyper_plan", "exchange"}


def only_line(capsys) -> str:
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("shoal: ")
    return line


def test_a_run_without_a_lineage_cannot_be_replayed(replay, capsys):
    assert shoal("train", "--follow", replay, "--out", "run") == 2
    assert only_line(capsys).endswith("has no lineage.csv; give the folder of a population's run")
    assert shoal("train", "--follow", "nowhere", "--out", "run") == 2
    assert "nowhere" in only_line(capsys)
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--evolve", "luck"], "luck cannot change while training; these can: learning_rate"),
        (
            ["--evolve", "update_epochs"],
            "update_epochs cannot change while training; these can: learning",
        ),
        (["--evolve", "kl_goal=log 0 1", "--objective", "kl"], "prior 'log 0 1': bounds must be above 0"),
        (["--evolve", "kl_goal", "--objective", "kl"], "no default prior: give one, e.g. kl_goal=log 1e-5"),
        (["--evolve", "gamma=log 1"], "prior 'log 1': needs two numbers"),
        (["--evolve", "gamma=log 0 1"], "prior 'log 0 1': bounds must be above 0"),
        (["--evolve", "gamma=normal 0 1"], "begin with one of uniform, log, one-minus-log, choice"),
        (["--evolve", "gamma=log a b"], "after log come numbers only"),
        (["--learners", "1"], "an exchange needs at least 2 learners"),
        (["--fraction", "0"], "population.fraction must be a number above 0 and at most 1, not 0.0"),
        (["--rivals", "3"], "exchange truncation does not use population.rivals (used by tournament)"),
        (["--topology", "star"], "exchange truncation does not use topology"),
        (["--local-updates", "0"], "local_updates must be a whole number from 1 to "),
        (["--resample", "2"], "population.resample must be a number from 0 to 1, not 2.0"),
        (["--groups", "5"], "population.groups must be a whole number from 1 to 4, not 5"),
        (["--groups", "3"], "3 groups do not divide 4 learners"),
        (
            ["--exchange", "tournament"],
            "exchange tournament does not use population.fraction (used by truncation)",
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, message, capsys):
    assert shoal(*TRAIN, *arguments, "--out", "run") == 2
    assert message in only_line(capsys)
    assert not list(Path().glob("run/checkpoints/*"))


def test_settings_of_a_population_without_one(capsys):
    assert shoal("train", CARTPOLE, *TINY, "--fraction", "0.5", "--out", "run") == 2
    assert "population.fraction without an exchange: choose one" in only_line(capsys)
