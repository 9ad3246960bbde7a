"""A federation from the command line: who listens to whom, worlds that differ, and mistakes."""

import json
import shutil
import warnings
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shoal.cli.main import main
from shoal.cli.parse import parse_train
from shoal.envs.registry import make
from shoal.runs.config import from_settings, read_settings
from shoal.runs.metrics import read_metrics
from shoal.training.parts import worlds_of

CARTPOLE = "jax:CartPole-v1"
SIZES = ["--num-envs", "2", "--num-steps", "8", "--hidden", "4", "--reports", "4", "--learners", "4"]
TINY = ["--no-preset", "--learning-rate", "0.05", *SIZES]
MATRIX = {"comm_matrix": {"0": {"1": 100}, "1": {"0": 1, "2": 1}, "3": {"3": 1}}}
NEIGHBOURS = ["--exchange", "neighbours", "--comm-matrix", "m.json", "--local-updates", "2"]
TRAIN = ["train", CARTPOLE, *TINY, *NEIGHBOURS, "--env-spread", "0.3", "--steps"]
FIELDS = "learner episodes return_mean return_std return_min return_max length_mean world"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("warnings.showwarning", __import__("warnings").showwarning)
    Path("m.json").write_text(json.dumps(MATRIX))


def shoal(*arguments) -> int:
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as error:  # tyro's own errors
        return int(error.code or 0)


@pytest.fixture(scope="module")
def federation(tmp_path_factory) -> Path:
    """Four learners in four worlds; the file with the matrix is gone."""
    folder = tmp_path_factory.mktemp("federation")
    file = tmp_path_factory.mktemp("files") / "m.json"
    file.write_text(json.dumps(MATRIX))
    assert shoal(*(file if word == "m.json" else word for word in TRAIN), 64, "--out", folder) == 0
    file.unlink()
    return folder


@pytest.fixture
def copied(federation, tmp_path) -> Path:
    shutil.copytree(federation, tmp_path / "run")
    return tmp_path / "run"


def test_the_matrix_itself_is_kept_with_the_run(federation):
    config = from_settings(read_settings(federation / "config.yaml"))
    (exchange,) = config.exchanges
    assert (exchange.exchange, exchange.local_updates, exchange.comm_matrix) == ("neighbours", 2, MATRIX)


def test_what_the_learners_have_in_common_is_in_the_metrics(federation):
    table = read_metrics(federation)
    assert table["step"].tolist() == [step for step in (16, 32, 48, 64) for _ in range(4)]
    paid = table["loss/neighbours"].reshape(4, 4)  # by report and learner
    assert not paid[:2].any()  # they met first after the second update
    assert not paid[:, 2].any()  # learner 2 listens to nobody
    assert (paid[2:, [0, 1]] > 0).all()
    sent = table["exchange/bytes"].reshape(4, 4)
    policy = 4 * (4 * 4 + 4 + 4 * 2 + 2)  # the actor; no critic and no statistics of returns
    assert sent.tolist() == [[0] * 4, *[[policy, policy, policy, 0]] * 2, [2 * policy] * 3 + [0]]
    assert (table["disagreement/params"] > 0).all()
    assert np.isfinite(table["disagreement/policy"]).all()


def test_the_same_command_again_says_it_is_done(copied, capsys):
    assert shoal(*TRAIN, 64, "--out", copied) == 0
    assert "already trained to step 64" in capsys.readouterr().out


@pytest.mark.filterwarnings("default:learning_rate")
def test_a_larger_number_of_steps_goes_on(copied, capsys):
    assert shoal(*TRAIN, 96, "--out", copied) == 0
    told = capsys.readouterr().err
    assert "resuming from step 64, exactly where it stopped" in told
    assert "annealed to step 64 and then keep" in told
    assert read_metrics(copied)["step"][-1] == 96


def test_another_matrix_is_another_run(copied, capsys):
    Path("m.json").write_text(json.dumps({"comm_matrix": {"0": {"1": 99}}}))
    assert shoal(*TRAIN, 64, "--out", copied) == 2
    assert "holds a run with other settings (comm_matrix: " in capsys.readouterr().err


def test_the_config_file_repeats_the_run_without_the_matrix_file(federation):
    Path("m.json").unlink()
    assert shoal("train", "--config", federation / "config.yaml", "--out", "again") == 0
    theirs, ours = read_metrics(federation), read_metrics(Path("again"))
    for name in theirs.keys() - {"seconds", "steps_per_second", "steps_per_second_compiled"}:
        np.testing.assert_array_equal(theirs[name], ours[name], err_msg=name)


@pytest.mark.filterwarnings("default:learning_rate")
def test_the_config_file_resumes_the_run_without_the_matrix_file(copied, capsys):
    Path("m.json").unlink()
    assert shoal("train", "--config", copied / "config.yaml", "--out", copied, "--steps", "96") == 0
    assert "resuming from step 64" in capsys.readouterr().err


WORLDS = json.dumps({str(i): {"length": 0.5 + 0.1 * i} for i in range(4)})


def test_worlds_given_in_a_file_are_settings():
    Path("w.json").write_text(WORLDS)
    config, _ = parse_train([CARTPOLE, *TINY, "--env-params", "w.json"])
    assert config.env_params == json.loads(WORLDS)


@pytest.mark.slow
def test_worlds_given_in_a_file_are_kept_and_repeated(capsys):
    Path("w.json").write_text(WORLDS)
    assert shoal("train", CARTPOLE, *TINY, "--env-params", "w.json", "--out", "run", "--steps", "16") == 0
    config = from_settings(read_settings(Path("run/config.yaml")))
    assert config.env_params["3"] == {"length": 0.8}
    Path("w.json").unlink()
    assert shoal("train", "--config", "run/config.yaml", "--out", "run") == 0
    assert "already trained to step 16" in capsys.readouterr().out


def test_the_number_of_learners_may_come_after_the_file():
    Path("c.yaml").write_text("env: jax:CartPole-v1\nexchange: average\n")
    assert parse_train(["--config", "c.yaml", "--learners", "4"])[0].learners == 4


SEVERAL = """
env: jax:CartPole-v1
learners: 4
num_envs: 2
num_steps: 8
steps: 32
hidden: [4]
reports: 2
prox_coef: 0.5
exchange:
  - exchange: neighbours
    comm_matrix: m.json
    local_updates: 1
  - exchange: average
    local_updates: 2
    parts: [actor, critic]
"""


def test_a_file_may_list_several_exchanges():
    Path("c.yaml").write_text(SEVERAL)
    config, _ = parse_train(["--config", "c.yaml"])
    assert [one.exchange for one in config.exchanges] == ["neighbours", "average"]
    assert config.exchanges[0].comm_matrix == MATRIX
    assert [str(part) for part in config.exchanges[1].parts] == ["actor", "critic"]


@pytest.mark.slow
def test_several_exchanges_of_a_file_train_and_are_kept_with_the_run(capsys):
    Path("c.yaml").write_text(SEVERAL)
    assert shoal("train", "--config", "c.yaml") == 0
    (folder,) = Path("runs").glob("jax-CartPole-v1__ppo__s1__L4__neighbours-k1__comm_matrix-*__average-k2__*")
    table = read_metrics(folder)
    assert table["loss/neighbours"].any()
    assert {"loss/prox", "exchange/rounds"} <= table.keys()
    Path("m.json").unlink()
    assert shoal("train", "--config", folder / "config.yaml") == 0
    assert "already trained to step 32" in capsys.readouterr().out
    assert shoal("train", "--config", "c.yaml", "--local-updates", "7") == 2


def test_flags_that_a_list_of_exchanges_cannot_take(capsys):
    Path("c.yaml").write_text(SEVERAL)
    assert shoal("train", "--config", "c.yaml", "--local-updates", "7") == 2
    assert "c.yaml lists several exchanges; change them there" in capsys.readouterr().err


def write(name, text):
    Path(name).write_text(text)
    return name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--learners 1 --exchange average", "an exchange needs at least 2 learners, not 1; use --learners N"),
        ("--local-updates 3", "local_updates without an exchange: choose one"),
        ("--comm-matrix m.json", "comm_matrix without an exchange"),
        (
            "--prox-coef 0.1",
            "prox_coef needs an exchange of parameters; add --exchange average",
        ),
        ("--prox-coef 0.1 --exchange neighbours", "prox_coef needs an exchange of parameters"),
        ("--exchange average --noise-multiplier 1", "privacy.noise_multiplier needs privacy.clip"),
        (
            "--exchange average --noise-multiplier 1 --clip 0",
            "clip must be a number above 0 or none",
        ),
        (
            "--exchange average --local-updates 0",
            "local_updates must be a whole number from 1 to ",
        ),
        ("--exchange average --participation 0", "participation must be a number above 0 and at most 1"),
        ("--exchange average --attack zero", "attack zero needs attack.count"),
        ("--exchange gossip --server adam", "exchange gossip does not use server"),
        (
            "--exchange average --server adam --server-lr 0",
            "server.lr must be a number above 0 or",
        ),
        (
            "--exchange gossip --topology star --comm-matrix one.json",
            "star or comm_matrix, not both",
        ),
        ("--exchange average --parts brain", "no parameters are called brain"),
        ("--exchange neighbours --comm-matrix nowhere.json", "nowhere.json: there is no such file"),
        ("--exchange neighbours --comm-matrix broken.json", "broken.json: not JSON"),
        ("--exchange neighbours --comm-matrix one.json", "counted from 1: subtract 1 from every number"),
        ("--exchange neighbours --comm-matrix less.json", "must be a number of at least 0, not -1"),
        ("--exchange neighbours --comm-matrix twice.json", "is named twice"),
        ("--exchange neighbours --comm-matrix zero.json", "zero everywhere"),
        ("--exchange neighbours --comm-matrix rows.json", "4 learners need 4 rows"),
        ("--exchange neighbours --comm-matrix other.json", 'no key "comm_matrix"'),
        ("--exchange gossip --topology random-regular --degree 9", "does not exist"),
        ("--exchange krum --learners 2", "krum"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, message, capsys):
    write("broken.json", "{")
    write("one.json", '{"comm_matrix": {"1": {"4": 1}}}')
    write("less.json", '{"comm_matrix": {"1": {"2": -1}}}')
    write("twice.json", '{"comm_matrix": {"1": {"2": 1, "2": 3}}}')
    write("zero.json", '{"comm_matrix": {"1": {"2": 0}}}')
    write("rows.json", "[[1, 2], [3, 4]]")
    write("other.json", '{"matrix": 1}')
    assert shoal("train", CARTPOLE, *TINY, *arguments.split(), "--out", "run", "--steps", "32") == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("shoal: ")
    assert message in line
    assert not list(Path().glob("run/checkpoints/*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("average --server-lr 0.1", "server.lr has no effect without server momentum or adam"),
        ("gossip --degree 3", "degree has no effect without topology random-regular"),
        ("gossip --symmetrise", "symmetrise has no effect without comm_matrix"),
        ("average --keep 0.1 --compress int8", "compress.keep has no effect without compress top-k"),
        ("average --attackers 1", "attack.count has no effect without attack"),
        ("average --privacy-delta 1e-6", "privacy.delta has no effect without privacy.noise_multiplier"),
        ("truncation --migrate-every 2", "population.migrate_every has no effect without population.groups"),
        ("average --server adam --server-lr 0.1", None),
        ("gossip --topology random-regular --degree 3", None),
        ("gossip --symmetrise --comm-matrix pair.json", None),
        ("average --keep 0.1 --compress top-k", None),
        ("average --attackers 1 --attack noise --attack-strength 2", None),
    ],
)
def test_settings_that_do_nothing_are_told(arguments, message):
    write("pair.json", '{"comm_matrix": {"0": {"1": 1}}}')
    config, _ = parse_train([CARTPOLE, *TINY, "--exchange", *arguments.split(), "--out", "run"])
    (exchange,) = config.exchanges
    assert exchange.without_effect() == ([message] if message else [])


@pytest.mark.slow
def test_a_setting_that_does_nothing_is_a_warning(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert shoal("train", CARTPOLE, *TINY, "--exchange", "gossip", "--degree", "3", "--steps", "32") == 0
    told = "shoal: warning: degree has no effect without topology random-regular"
    assert capsys.readouterr().err.splitlines().count(told) == 1


def test_a_matrix_without_its_file(capsys):
    assert shoal("train", CARTPOLE, "--exchange", "neighbours", "--comm-matrix") == 2
    assert "shoal: --comm-matrix needs a value: A graph of your own" in capsys.readouterr().err


@pytest.mark.filterwarnings("default:learning_rate")
def test_the_last_of_two_numbers_of_steps_counts(copied):
    assert shoal(*TRAIN, 64, "--out", copied, "--steps", "96") == 0
    assert read_metrics(copied)["step"][-1] == 96


def test_an_exchange_that_is_not_there(capsys):
    assert shoal("train", CARTPOLE, *TINY, "--exchange", "telepathy") == 2
    assert "telepathy" in capsys.readouterr().err
    Path("c.yaml").write_text("env: jax:CartPole-v1\nexchange: telepathy\n")
    assert shoal("train", "--config", "c.yaml") == 2
    assert "unknown exchange 'telepathy'; choose from none, gradients, average" in capsys.readouterr().err


def test_evaluation_where_worlds_differ(federation, capsys):
    """Every learner in its own, in all that were seen and in unseen ones; their mean has none of its own."""
    assert shoal("eval", federation, "--episodes", "4", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [list(row) for row in rows] == [FIELDS.split()] * 14
    visited = [(row["learner"], row["world"]) for row in rows]
    expected = [(k, world) for k in range(4) for world in ("own", "seen", "unseen")]
    assert visited == [*expected, ("mean", "seen"), ("mean", "unseen")]
    assert all(
        row["episodes"] == 4 and row["return_min"] <= row["return_mean"] <= row["return_max"] for row in rows
    )


def test_evaluation_in_each_world(federation, capsys):
    assert shoal("eval", federation, "--episodes", "4", "--each-world", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 14 + 5 * 4
    score = {(row["learner"], row["world"]): row["return_mean"] for row in rows}
    for k in range(4):
        assert score[k, "own"] == score[k, f"world {k}"]
    assert len({score[0, f"world {k}"] for k in range(4)} | {score[0, "unseen"]}) > 1


def test_the_table_names_the_worlds(federation, capsys):
    assert shoal("eval", federation, "--episodes", "2", "--learner", "1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["learner", "episodes", "return", "std", "min", "max", "length", "world"]
    assert [(line.split()[0], line.split()[-1]) for line in lines[1:4]] == [
        ("1", w) for w in ("own", "seen", "unseen")
    ]
    assert lines[4].startswith("own: its own world; seen: all learners' worlds; unseen:")


@pytest.mark.parametrize("which", ["2", "mean"])
def test_a_video_shows_the_learners_own_world(federation, which, monkeypatch, capsys):
    films = import_module("shoal.runs.films")
    seen, play = [], films.episode

    def spy(recipe, learner, cohort, seed, steps, world, **how):
        seen.append(world)
        return play(recipe, learner, cohort, seed, steps, world, **how)

    monkeypatch.setattr(films, "episode", spy)
    assert shoal("play", federation, "--learner", which, "--gif", "out.gif", "--steps", "3") == 0
    assert f"learner {which}: return" in capsys.readouterr().out
    with Image.open("out.gif") as gif:
        assert gif.n_frames > 1
    config = from_settings(read_settings(federation / "config.yaml"))
    own = worlds_of(config, make(config.env).spec)
    if which == "mean":
        assert seen == [None]
    else:
        assert float(seen[0].length) == own.length[2] != 0.5


def test_a_video_of_all_is_refused(federation, capsys):
    assert shoal("play", federation, "--learner", "all") == 2
    assert "one learner can play at a time" in capsys.readouterr().err


@pytest.mark.slow
def test_plots_of_a_federation(federation, capsys):
    assert shoal("plot", federation, "--out", "plots") == 0
    assert all(Path(line).exists() for line in capsys.readouterr().out.splitlines())
