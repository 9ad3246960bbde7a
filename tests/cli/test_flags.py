"""The flags of `shoal train`: anywhere, old and new, and help that fits a screen."""

import contextlib
import re

import pytest

from shoal.cli.flags import all_flags
from shoal.cli.main import main
from shoal.cli.parse import parse_train
from shoal.errors import ShoalError
from shoal.learners.registry import ALGORITHMS

ENVS = {"ppo": "CartPole-v1", "dqn": "CartPole-v1"}


def shown(capsys, *arguments: str) -> str:
    assert main(["train", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        "CartPole-v1 --steps 1e6 --anneal-lr --gamma 0.5",
        "--steps 1e6 CartPole-v1 --anneal-lr --gamma 0.5",
        "--steps 1_000_000 --anneal-lr CartPole-v1 --gamma 0.5",
        "--steps=1000000 --gamma 0.5 --anneal-lr CartPole-v1",
        "--hidden 64 64 --steps 1000000 CartPole-v1 --gamma=0.5",
    ],
)
def test_the_environment_stands_anywhere_and_counts_are_written_as_people_do(arguments):
    config, _ = parse_train(arguments.split())
    assert (config.env, config.steps, config.algo.anneal_lr, config.algo.gamma) == (
        "CartPole-v1",
        1_000_000,
        True,
        0.5,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        "--memory gru --curiosity --no-clip-vloss --comm-penalty-coeff 0.5 --memory-size 8",
        "--memory.kind gru --curiosity.enabled --value.no-clip --peers.coef 0.5 --memory.size 8",
    ],
)
def test_flags_by_their_groups_and_by_their_old_names(arguments):
    algo = parse_train(["CartPole-v1", *arguments.split()])[0].algo
    assert (algo.memory.kind, algo.memory.size, algo.curiosity.enabled) == ("gru", 8, True)
    assert (algo.value.clip, algo.peers.coef) == (False, 0.5)


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        ("--track", "Also record the run with a tracker: wandb, mlflow or trackio"),
        ("--learning-rate --steps 100", "Adam's step size"),
        ("--algo td3 --learning-rate --steps 100", "The critics' step size"),
        ("--algo --steps 100", "The algorithm"),
    ],
)
def test_a_flag_without_its_value_says_what_it_is_about(arguments, about):
    flag = re.search(r"(--\S+)(?= --|$)", arguments)[1]
    with pytest.raises(ShoalError, match=f"^{flag} needs a value: {about}"):
        parse_train(["Pendulum-v1", *arguments.split()])


def test_a_flag_beats_the_file_and_the_file_the_preset(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("env: CartPole-v1\nmemory: {kind: lstm, size: 8}\ngamma: 0.9\n")
    config, _ = parse_train(["--config", str(file), "--gamma", "0.8", "--steps", "100"])
    assert (config.steps, config.algo.gamma, config.algo.memory.size) == (100, 0.8, 8)
    assert config.algo.num_envs == 4  # PPO's default: the preset has 8


@pytest.mark.parametrize(
    ("arguments", "minibatches"),
    [
        ("Acrobot-v1", 64),
        ("Acrobot-v1 --memory gru", 16),  # the preset's 64 do not divide 16 environments
        ("Acrobot-v1 --memory gru --num-envs 6", 6),
        ("CartPole-v1 --num-envs 3 --num-steps 5", 3),  # the preset has 4
        ("CartPole-v1 --no-preset --memory lstm --num-envs 7", 1),  # the default is 4
        ("CartPole-v1 --network.grad-accumulation 2 --num-envs 2 --num-steps 3", 3),
        ("Acrobot-v1 --memory gru --num-minibatches 8", 8),
    ],
)
def test_minibatches_that_nobody_asked_for_divide_what_there_is(arguments, minibatches):
    assert parse_train(arguments.split())[0].algo.num_minibatches == minibatches


def test_minibatches_that_were_asked_for_are_refused_where_they_do_not_divide(tmp_path):
    asked = "Acrobot-v1 --memory gru --num-minibatches 64"  # what the preset says, too
    with pytest.raises(ShoalError, match="64 does not divide the 16 environments; leave num_minibatches"):
        parse_train(asked.split())
    file = tmp_path / "settings.yaml"
    file.write_text("env: CartPole-v1\nnum_envs: 8\nnum_minibatches: 8\n")
    with pytest.raises(ShoalError, match="8 does not divide the 4 environments"):
        parse_train(["--config", str(file), "--num-envs", "4", "--memory", "gru"])
    file.write_text("env: CartPole-v1\nnum_envs: 8\n")
    assert (
        parse_train(["--config", str(file), "--num-envs", "3", "--memory", "gru"])[0].algo.num_minibatches
        == 3
    )


def test_options_of_the_environment_are_added_to_the_presets():
    config, _ = parse_train(["BigfishEasy-v0", "--env-options", "num_levels=3", "name=a b"])
    assert config.env_options == {
        "num_levels": 3,
        "start_level": 0,
        "distribution_mode": 0,
        "name": "a b",
    }


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_first_page_of_help_fits_a_screen_and_names_every_group(algo, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    page = shown(capsys, ENVS.get(algo, "Pendulum-v1"), "--algo", algo, "--help")
    lines = page.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 100
    assert 20 <= len(re.findall(r"^  --", page, re.M)) <= 26
    groups = {name.partition(".")[0] for name in all_flags(algo) if "." in name} | {algo, "run", "exchange"}
    assert {name for name in groups if not re.search(rf"^  {name} ", page, re.M)} == set()
    steps = parse_train([ENVS.get(algo, "Pendulum-v1"), "--algo", algo])[0].steps
    assert re.search(rf"--steps +{steps} ", page)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_all_the_help_has_every_flag(algo, capsys):
    page = shown(capsys, "Pendulum-v1", "--algo", algo, "--help", "all").replace("[no-]", "")
    typed = set(re.findall(r"^  --([\w.-]+)", page, re.M))
    flags = {name.replace("_", "-") for name in all_flags(algo)}
    assert {name for name in flags if name not in typed and name.partition(".")[0] not in typed} == set()


def test_the_page_of_a_group_shows_its_settings_and_no_other(capsys):
    page = shown(capsys, "CartPoleNoVel-v1", "--help", "memory")
    assert re.findall(r"^  (--\S+ \S+)", page, re.M) == ["--memory lstm", "--memory.size 64"]
    assert "Choices: none, lstm, gru" in " ".join(page.split())
    assert shown(capsys, "--help", "memory", "CartPoleNoVel-v1") == page


def test_help_for_a_group_that_is_not_there(capsys):
    assert main(["train", "CartPole-v1", "--help", "memry"]) == 2
    assert "no group of settings is called 'memry'; did you mean memory?" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["eval", "play", "plot", "runs", "envs"])
def test_every_command_shows_a_traceback_with_debug(command):
    with pytest.raises(Exception, match="nowhere"):
        main([command, "nowhere", "--debug"])


@pytest.mark.parametrize("command", ["", "eval", "play", "plot", "runs", "envs"])
def test_the_help_of_other_commands_is_short(command, capsys):
    with contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    assert 3 < len(capsys.readouterr().out.splitlines()) <= 45
