"""The command as a person uses it: train, stop, resume, evaluate, play, plot, and mistakes."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from PIL import Image

from shoal import cli
from shoal.cli.arguments import choose_run
from shoal.cli.main import main
from shoal.cli.parse import parse_train
from shoal.cli.show import stdout_to_stderr
from shoal.runs.metrics import read_metrics
from shoal.runs.naming import find_folder, folder_name

PACKAGE = str(Path(cli.__file__).parents[1])
SMALL = [
    "--num-envs",
    "2",
    "--num-steps",
    "16",
    "--num-minibatches",
    "1",
    "--update-epochs",
    "1",
    "--hidden",
    "8",
]


class Faulty(gymnasium.Env):
    """Raises, or gives a reward or an observation that is no number, in its 40th step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def __init__(self, fault="raise", render_mode=None):
        self.fault, self.render_mode = fault, render_mode

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps >= 40 and self.fault == "raise":
            raise RuntimeError("the motor is on fire")
        wrong = {self.fault: np.nan} if self.steps >= 40 else {}
        obs = np.full(3, wrong.get("nan-obs", 0.0), np.float32)
        return obs, wrong.get("nan", 1.0), self.steps % 10 == 0, False, {}


gymnasium.register("tests/Faulty-v0", entry_point=Faulty)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("warnings.showwarning", __import__("warnings").showwarning)


def shoal(*arguments: str) -> int:
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as error:  # tyro's own errors
        return int(error.code or 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A small trained run of two learners."""
    folder = tmp_path_factory.mktemp("run")
    arguments = [
        "train",
        "CartPole-v1",
        "--steps",
        "640",
        "--learners",
        "2",
        "--reports",
        "4",
        "--out",
        folder,
    ]
    assert shoal(*arguments, *SMALL) == 0
    return folder


def test_a_run_leaves_its_files(run):
    left = {path.name.split(".tfevents")[0] for path in run.iterdir()}
    files = {"config.yaml", "metrics.csv", "events.out", "summary.json", "policy_graph.json"}
    assert left == files | {"checkpoints"}
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == 640
    assert summary["learners"] == 2
    assert len(summary["return_mean"]) == 2
    assert summary["best_return"] == max(summary["return_mean"])
    assert summary["steps_per_second_compiled"] > summary["steps_per_second"] > 0
    table = read_metrics(run)
    assert table["step"].tolist() == [160, 160, 320, 320, 480, 480, 640, 640]
    assert table["learner"].tolist() == [0, 1] * 4
    shares = [table[f"loss_share/{name}"] for name in ("policy", "value", "entropy")]
    np.testing.assert_allclose(np.sum(shares, 0), 1, rtol=1e-5)
    assert not {"loss/neighbours", "exchange/bytes"} & table.keys()
    assert {"disagreement/params", "disagreement/policy"} <= table.keys()


def test_the_same_command_again_says_it_is_done(run, capsys):
    before = (run / "metrics.csv").read_text()
    arguments = ["train", "CartPole-v1", "--steps", "640", "--learners", "2", "--reports", "4", "--out", run]
    assert shoal(*arguments, *SMALL) == 0
    assert "already trained to step 640" in capsys.readouterr().out
    assert (run / "metrics.csv").read_text() == before


def test_the_config_file_repeats_the_run(run, capsys):
    assert shoal("train", "--config", run / "config.yaml", "--out", "again") == 0
    theirs, ours = read_metrics(run), read_metrics(Path("again"))
    for name in theirs.keys() - {"seconds", "steps_per_second", "steps_per_second_compiled"}:
        np.testing.assert_array_equal(theirs[name], ours[name], err_msg=name)


def test_other_settings_in_the_same_folder_are_refused(run, capsys):
    assert (
        shoal("train", "CartPole-v1", "--steps", "640", "--learners", "2", "--out", run, "--gamma", "0.5")
        == 2
    )
    message = capsys.readouterr().err
    assert "gamma: 0.98 -> 0.5" in message
    assert "--clobber" in message


def test_the_same_command_finds_its_run_and_other_settings_are_another(run, capsys):
    train = ["train", "CartPole-v1", "--steps", "640", "--learners", "2", *SMALL]
    config = parse_train(train[1:])[0]
    shutil.copytree(run, find_folder(config))
    shutil.copytree(run, "runs/mine")
    assert shoal(*train) == 0
    assert f"runs/{folder_name(config)} is already trained to step 640" in capsys.readouterr().out
    assert shoal(*train, "--name", "mine") == 0
    assert "runs/mine is already trained to step 640" in capsys.readouterr().out
    assert find_folder(parse_train([*train[1:], "--learning-rate", "0.1"])[0]) != find_folder(config)


def test_without_a_run_the_newest_is_taken_and_a_name_is_enough(run, capsys):
    for name in ("older", "newer"):
        shutil.copytree(run, f"runs/{name}", copy_function=shutil.copy)
    for path in Path("runs/older").iterdir():
        os.utime(path, (1, 1))
    assert shoal("eval", "--episodes", "3", "--json") == 0
    said = capsys.readouterr()
    assert [row["learner"] for row in json.loads(said.out)] == [0, 1]
    assert said.err.splitlines()[0] == "newest run: runs/newer"
    assert choose_run(None) == Path("runs/newer")
    assert capsys.readouterr().out == "newest run: runs/newer\n"
    assert choose_run(Path("older")) == Path("runs/older")
    assert capsys.readouterr().out == ""
    for command in ("eval", "play", "plot"):
        assert shoal(command, "oldr") == 2
        assert capsys.readouterr().err == "shoal: there is no run 'oldr'; did you mean older?\n"


def test_evaluation_as_json_and_as_a_table(run, capsys):
    assert shoal("eval", run, "--episodes", "3", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    names = "learner episodes return_mean return_std return_min return_max length_mean world"
    assert [list(row) for row in rows] == [names.split()] * 2
    assert [(row["learner"], row["world"]) for row in rows] == [(0, "default"), (1, "default")]
    assert all(row["return_min"] <= row["return_mean"] <= row["return_max"] for row in rows)
    assert shoal("eval", run, "--episodes", "2", "--learner", "mean") == 0
    assert "mean" in capsys.readouterr().out


def test_a_gif_of_the_environment_in_colour(run, capsys):
    assert shoal("play", run, "--gif", "out.gif", "--steps", "5") == 0
    with Image.open("out.gif") as gif:
        picture = np.asarray(gif.convert("RGB"))
    assert picture.shape == (400, 600, 3)
    assert (picture[..., 0] != picture[..., 2]).any()


@pytest.mark.parametrize("driver", ["offscreen", "dummy"])
def test_a_window_without_a_display_is_refused(driver, run, capsys, monkeypatch):
    """As on a server: pygame then draws where nobody sees it, without a word."""
    pygame = pytest.importorskip("pygame")
    pygame.display.quit()
    monkeypatch.setenv("SDL_VIDEODRIVER", driver)
    assert shoal("play", run, "--human", "--gif", "out.gif", "--steps", "5") == 2
    pygame.display.quit()
    complaint = "shoal: cannot open a window: there is no display here; use --gif or --mp4"
    assert capsys.readouterr().err.splitlines()[-1] == complaint
    assert not Path("out.gif").exists()


def test_plots(run, capsys):
    assert shoal("plot", run, "--out", "plots") == 0
    assert all(Path(line).exists() for line in capsys.readouterr().out.splitlines())
    assert shoal("plot", run, "--metric", "loss/value", "--x", "seconds", "--out", "value.pdf") == 0
    assert capsys.readouterr().out == "value.pdf\n"
    assert shoal("plot", run, "--metric", "value") == 2
    assert "no column value; did you mean loss/value" in capsys.readouterr().err


def test_environments_are_listed_with_their_backend_and_a_mark_for_presets(capsys):
    assert shoal("envs", "cartpole*") == 0
    lines = [line.replace(",", "").split() for line in capsys.readouterr().out.splitlines()]
    usual = next(line for line in lines if line[0] == "CartPole-v1")
    assert [*usual[:4], usual[-1]] == ["CartPole-v1", "jax", "envpool", "gym", "preset"]
    assert ["CartpoleSwingup-v1", "envpool"] in lines


def test_a_few_environments_are_described(capsys):
    assert shoal("envs", "mountaincar-v0") == 0
    name, *told = capsys.readouterr().out.splitlines()
    assert name.replace(",", "").split()[:4] == ["MountainCar-v0", "jax", "envpool", "gym"]
    told = dict(line.split(maxsplit=1) for line in told)
    assert told["observations"] == "float32 2"
    assert told["presets"] == "ppo, dqn, --param-name curiosity"
    assert told["train"] == "shoal train MountainCar-v0"
    assert shoal("envs", "gym:MountainCar-v0") == 0
    assert "worlds" not in (printed := capsys.readouterr().out)
    assert "shoal train gym:MountainCar-v0" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bogus"], "unknown command 'bogus'"),
        (["train"], "no environment is given"),
        (["train", "CartPol-v1"], "unknown environment 'CartPol-v1'; did you mean CartPole-v1?"),
        (
            ["train", "CartPole-v1", "--steps", "-1"],
            "steps must be a whole number from 1 to ",
        ),
        (
            ["train", "CartPole-v1", "--learners", "0"],
            "from 1 to 1,048,576, not 0",
        ),
        (["train", "CartPole-v1", "--algo", "sarsa"], "unknown algorithm 'sarsa'"),
        (["train", "CartPole-v1", "--num-minibatches", "7"], "does not divide"),
        (["train", "CartPole-v1", "--config", "nowhere.yaml"], "nowhere.yaml is not there"),
        (["train", "CartPole-v1", "--env-options", "oops"], "takes pairs such as num_levels=200, not oops"),
        (["train", "CartPole-v1", "--out", "file"], "cannot make the folder file"),
        (["eval", "nowhere"], "there is no run 'nowhere'; shoal runs lists those there are"),
        (["plot", "nowhere"], "there is no run 'nowhere'"),
        (["plot"], "there is no run below runs; begin with shoal train CartPole-v1"),
        (["runs", "nowhere"], "nowhere is no folder"),
        (["train", "CartPole-v1", "--name", "a", "--out", "b"], "--name a and --out b are two folders"),
        (["train", "CartPole-v1", "--name", "a/b"], "--name is a folder's name in runs/, not 'a/b'"),
        (["envs", "xyzzy"], "no environment matches 'xyzzy'"),
        (
            ["train", "tests/Faulty-v0", *SMALL, "--steps", "640", "--env-options", "fault=nan"],
            "tests/Faulty-v0 gave a reward that is not finite; try shoal check tests/Faulty-v0",
        ),
        (
            ["train", "tests/Faulty-v0", *SMALL, "--steps", "640", "--env-options", "fault=nan-obs"],
            "tests/Faulty-v0 gave an observation that is not finite",
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, message, capsys):
    Path("file").touch()
    assert shoal(*arguments) == 2
    *before, last = capsys.readouterr().err.strip().splitlines()
    assert last.startswith("shoal: ")
    assert message in last
    assert not any(PACKAGE in line for line in before), "only the environment's own traceback"


DQN = ["--algo", "dqn", "--num-steps", "8", "--buffer-size", "64", "--hidden", "8"]


@pytest.mark.parametrize("algo", [SMALL, pytest.param(DQN, marks=pytest.mark.slow)])
def test_a_crash_keeps_what_was_reached_and_shows_the_environments_traceback(algo, capsys):
    assert shoal("train", "tests/Faulty-v0", *algo, "--steps", "640", "--out", "run") == 2
    *before, last = capsys.readouterr().err.strip().splitlines()
    assert last.startswith("shoal: ")
    assert "raised RuntimeError: the motor is on fire" in last
    assert any("test_cli.py" in line for line in before)
    assert not any(PACKAGE in line for line in before), "only the environment's own traceback"
    assert list(Path("run/checkpoints").glob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.filterwarnings("default:learning_rate")
def test_a_run_whose_critic_has_layers_of_its_own_goes_on(capsys):
    arguments = ["train", "CartPole-v1", *SMALL, "--critic-hidden", "4", "5", "--out", "run"]
    assert shoal(*arguments, "--steps", "64") == 0
    assert shoal(*arguments, "--steps", "128") == 0
    printed = capsys.readouterr()
    assert "done after 128 steps" in printed.out
    assert "shoal: warning: learning_rate and clip_coef are annealed to step 64 and then keep" in printed.err


def test_a_learner_that_is_not_there(run, capsys):
    assert shoal("eval", run, "--learner", "5") == 2
    assert "choose best, mean, all or 0 to 1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_signal_saves_and_the_same_command_goes_on(tmp_path):
    """SIGTERM; tests/distributed/test_processes.py sends SIGINT."""
    arguments = ["train", "CartPole-v1", "--steps", "1e8", "--out", "run", *SMALL]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir)}
    process = subprocess.Popen([sys.executable, "-m", "shoal.cli", *arguments], env=environment)
    deadline, saved = time.monotonic() + 60, tmp_path / "run" / "checkpoints"
    while time.monotonic() < deadline and not saved.exists():  # saved after 5 to 30 s of training
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 130
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["interrupted"] is True
    saved = sorted((tmp_path / "run" / "checkpoints").glob("*.json"))
    assert json.loads(saved[-1].read_text())["step"] == summary["steps"]


def test_what_environments_print_is_kept_out_of_the_answer(capfd):
    with stdout_to_stderr():
        print("from Python")
        os.write(1, b"from the system\n")
        ctypes.CDLL(None).printf(b"from C\n")
    print("the answer")
    said = capfd.readouterr()
    assert said.out == "the answer\n"
    assert sorted(said.err.splitlines()) == ["from C", "from Python", "from the system"]
