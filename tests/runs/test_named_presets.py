"""Presets with a name: complete, as published, and only for the environments they are for."""

from pathlib import Path

import pytest
import yaml

import shoal.runs
from shoal import ShoalError, preset
from shoal.cli.parse import parse_train

FILE = yaml.safe_load((Path(shoal.runs.__path__[0]) / "presets.yaml").read_text(encoding="utf-8"))
ENVS = {
    "easy": "BigfishEasy-v0",
    "easy-200": "BigfishEasy-v0",
    "hard": "StarpilotHard-v0",
    "hard-500": "StarpilotHard-v0",
    "baseline": "BigfishEasy-v0",
    "baseline3": "BigfishEasy-v0",
}


def test_a_named_preset_says_all_that_others_say_and_what_it_is_for():
    others = FILE["ppo"]["*Easy-v0"].keys() | {"for", "algo", "network.grad_accumulation"}
    assert FILE["named"].keys() == ENVS.keys() | {"curiosity"}
    assert all(FILE["named"][name].keys() == others for name in ENVS)
    curious = {"curiosity.enabled", "curiosity.extrinsic_coef", "curiosity.size"}
    assert FILE["named"]["curiosity"].keys() == others - {"network.grad_accumulation"} | curious
    assert preset("MountainCar-v0", param_name="curiosity").algo.curiosity.enabled


@pytest.mark.parametrize(
    ("name", "num_envs", "num_levels", "mode", "steps"),
    [
        ("easy", 64, 0, 0, 25_000_000),
        ("easy-200", 128, 200, 0, 25_000_000),
        ("hard", 256, 0, 1, 200_000_000),
        ("hard-500", 512, 500, 1, 200_000_000),
    ],
)
def test_the_published_numbers(name, num_envs, num_levels, mode, steps):
    config = preset(ENVS[name], param_name=name)
    algo = config.algo
    options = {"num_levels": num_levels, "start_level": 0, "distribution_mode": mode}
    assert (config.steps, config.env_options) == (steps, options)
    assert (algo.num_envs, algo.num_steps, algo.update_epochs, algo.num_minibatches) == (num_envs, 256, 3, 8)
    assert (algo.gamma, algo.gae_lambda, algo.learning_rate, algo.anneal_lr) == (0.999, 0.95, 5e-4, True)
    assert (algo.clip_coef, algo.vf_coef, algo.ent_coef, algo.max_grad_norm) == (0.2, 0.5, 0.01, 0.5)
    assert (algo.norm_adv, algo.value.clip, algo.norm_reward, algo.norm_obs) == ("batch", True, True, False)
    assert (algo.network.images, algo.network.init, algo.hidden, algo.activation) == (
        "impala",
        "xavier",
        (256,),
        "relu",
    )
    assert num_envs * 256 / algo.num_minibatches / algo.network.grad_accumulation == 2048


def test_baseline_is_what_easy_games_have_anyway():
    assert preset("BigfishEasy-v0", param_name="baseline") == preset("BigfishEasy-v0")


def test_baseline3_has_the_defaults_of_stable_baselines3():
    """PPO(\"CnnPolicy\"): n_steps 2048, batch_size 64, n_epochs 10, learning_rate 3e-4 and constant."""
    config = preset("BigfishEasy-v0", param_name="baseline3")
    algo = config.algo
    assert (algo.num_steps, algo.minibatch_size, algo.update_epochs) == (2048, 64, 10)
    assert (algo.learning_rate, algo.anneal_lr, algo.gamma, algo.gae_lambda) == (3e-4, False, 0.99, 0.95)
    assert (algo.clip_coef, algo.ent_coef, algo.vf_coef, algo.max_grad_norm) == (0.2, 0.0, 0.5, 0.5)
    assert (algo.network.images, algo.hidden, algo.activation) == ("nature", (512,), "relu")
    assert (algo.norm_adv, algo.norm_obs, algo.norm_reward) == ("minibatch", False, False)
    assert (config.steps, config.env_options) == (25_000_000, preset("BigfishEasy-v0").env_options)


EASY = {"num_levels": 200, "start_level": 0, "distribution_mode": 0}


@pytest.mark.parametrize(
    ("arguments", "env", "options"),
    [
        ("bigfish", "BigfishHard-v0", {"num_levels": 500, "distribution_mode": 1}),
        ("bigfish --distribution-mode easy", "BigfishEasy-v0", {}),
        ("--distribution_mode=easy bigfish", "BigfishEasy-v0", {}),
        ("bigfish --env-options distribution_mode=easy", "BigfishEasy-v0", {}),
        ("procgen:procgen-bigfish-v0 --distribution-mode easy", "BigfishEasy-v0", {}),
        (
            "envpool:bigfish --distribution-mode easy --num-levels 9 --start-level 3",
            "envpool:BigfishEasy-v0",
            {"num_levels": 9, "start_level": 3},
        ),
        (
            "bigfish --env-options use_backgrounds=false distribution_mode=easy --num-levels 9",
            "BigfishEasy-v0",
            {"num_levels": 9, "use_backgrounds": False},
        ),
        ("BigfishEasy-v0 --distribution-mode hard", "BigfishEasy-v0", {"distribution_mode": 1}),
        (
            "BigfishEasy-v0 --num-levels 9 --env-options start_level=3",
            "BigfishEasy-v0",
            {"num_levels": 9, "start_level": 3},
        ),
        ("maze --distribution-mode memory --no-preset", "MazeMemory-v0", None),
    ],
)
def test_games_and_modes_by_name(arguments, env, options):
    config, _ = parse_train(arguments.split())
    assert config.env == env
    assert config.env_options == ({} if options is None else EASY | options)


def test_a_game_by_name_in_python_and_in_a_file(tmp_path, monkeypatch):
    easy = preset("BigfishEasy-v0", steps=1000)
    assert preset("bigfish", steps=1000, env_options={"distribution_mode": "easy"}).env == easy.env
    monkeypatch.chdir(tmp_path)
    Path("game.yaml").write_text("env: bigfish\nenv_options: {distribution_mode: easy, num_levels: 3}\n")
    config, _ = parse_train(["--config", "game.yaml"])
    assert (config.env, config.env_options["num_levels"]) == ("BigfishEasy-v0", 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("bigfish --distribution-mode middling", "distribution_mode must be one of easy .0., hard .1., "),
        ("CartPole-v1 --distribution-mode easy", "--distribution-mode is no setting: a Procgen game's mode"),
        ("CartPole-v1 --num-levels 3", "unknown setting --num-levels"),
        ("CartPole-v1 --env-options distribution_mode=easy --stepz 3", "unknown setting --stepz"),
        ("bigfish --param-name baseline", r"preset baseline is for \*Easy-v0, not for BigfishHard-v0; for "),
    ],
)
def test_modes_that_there_are_not_and_games_that_are_none(arguments, message):
    with pytest.raises(ShoalError, match=f"^{message}"):
        parse_train(arguments.split())


def test_what_is_given_beats_the_named_preset():
    config = preset("envpool:BigfishEasy-v0", param_name="easy-200", steps=1000, gamma=0.9)
    assert (config.steps, config.algo.gamma, config.algo.num_envs) == (1000, 0.9, 128)


def test_the_command_takes_the_name_and_the_flags_of_the_levels():
    flags = ["--param-name", "easy-200", "--env-options", "start_level=7", "num_levels=3", "--num-envs", "32"]
    config, _ = parse_train(["BigfishEasy-v0", *flags])
    assert config.env_options == {"num_levels": 3, "start_level": 7, "distribution_mode": 0}
    assert (config.algo.num_envs, config.algo.norm_adv) == (32, "batch")


def test_without_a_name_the_same_flags_are_there():
    config, _ = parse_train(["BigfishEasy-v0", "--env-options", "start_level=7", "distribution_mode=1"])
    assert config.env_options == {"num_levels": 200, "start_level": 7, "distribution_mode": 1}
    assert (config.algo.num_envs, config.algo.norm_adv) == (64, "minibatch")


@pytest.mark.parametrize(
    ("env", "name", "message"),
    [
        ("BigfishEasy-v0", "middling", "no preset is named 'middling'; choose from easy, easy-200, hard, "),
        ("CartPole-v1", "easy", r"preset easy is for \*Easy-v0, not for CartPole-v1$"),
        ("BigfishEasy-v0", "hard", r"preset hard is for \*Hard-v0, .*; for BigfishEasy-v0 there is easy and"),
    ],
)
def test_other_names_and_other_environments_are_refused(env, name, message):
    with pytest.raises(ShoalError, match=f"^{message}"):
        preset(env, param_name=name)


def test_other_algorithms_are_refused():
    with pytest.raises(ShoalError, match=r"^preset easy is for ppo, not for dqn$"):
        parse_train(["BigfishEasy-v0", "--param-name", "easy", "--algo", "dqn"])


@pytest.mark.parametrize("other", ["--no-preset", "--config=settings.yaml"])
def test_one_beginning_at_a_time(other, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("settings.yaml").write_text("env: BigfishEasy-v0\n")
    with pytest.raises(ShoalError, match=r"^--param-name starts from a preset"):
        parse_train(["BigfishEasy-v0", "--param-name", "easy", other])
