"""Every preset is complete, of the right types, and divides its batch evenly."""

from pathlib import Path

import pytest
import yaml

import shoal.runs
from shoal.runs.presets import find, preset

PRESETS = yaml.safe_load((Path(shoal.runs.__path__[0]) / "presets.yaml").read_text(encoding="utf-8"))["ppo"]

POSITIVE_INTEGERS = {
    "steps",
    "num_envs",
    "num_steps",
    "num_minibatches",
    "update_epochs",
    "memory.size",
    "frame_stack",
}
FRACTIONS = {"gamma", "gae_lambda"}
NOT_NEGATIVE = {"learning_rate", "clip_coef", "ent_coef", "vf_coef", "max_grad_norm", "inputs.clip_obs"}
SWITCHES = {"anneal_lr", "anneal_clip", "anneal_ent", "value.clip", "norm_obs", "norm_reward"}
OPTIONAL_NUMBERS = {"kl.limit", "inputs.clip_reward"}
CHOICES = {
    "activation": {"tanh", "relu", "leaky_relu", "elu", "silu"},
    "norm_adv": {"minibatch", "batch", "none"},
    "network.images": {"mlp", "nature", "impala"},
    "network.init": {"orthogonal", "xavier"},
    "objective": {"clip", "kl", "none"},
    "memory.kind": {"none", "lstm", "gru"},
}
OTHERS = {"hidden", "network.init_log_std", "env_options", "source"}
SPECIAL = {"team.policies", "team.critic_view", "inputs.reward_scale", "network.critic_hidden"}
"""What only teams and some robots need."""
KNOWN = POSITIVE_INTEGERS | FRACTIONS | NOT_NEGATIVE | SWITCHES | OPTIONAL_NUMBERS | CHOICES.keys() | OTHERS

every_preset = pytest.mark.parametrize(
    "preset", [pytest.param(value, id=key) for key, value in PRESETS.items()]
)


@every_preset
def test_every_setting_is_there_and_no_other(preset):
    assert preset.keys() - SPECIAL == KNOWN


@every_preset
def test_types_and_ranges(preset):
    for name in POSITIVE_INTEGERS:
        assert type(preset[name]) is int, name
        assert preset[name] > 0, name
    for name in NOT_NEGATIVE | FRACTIONS | {"network.init_log_std"}:
        assert type(preset[name]) is float, name  # YAML reads 1e-3, without a dot, as text
    assert all(0 < preset[name] <= 1 for name in FRACTIONS)
    assert all(preset[name] >= 0 for name in NOT_NEGATIVE)
    assert all(type(preset[name]) is bool for name in SWITCHES)
    assert all(preset[name] is None or type(preset[name]) is float for name in OPTIONAL_NUMBERS)
    assert all(preset[name] in choices for name, choices in CHOICES.items())
    assert all(type(width) is int for width in preset["hidden"])
    assert isinstance(preset["env_options"], dict)


@every_preset
def test_the_batch_divides_into_minibatches(preset):
    pieces = preset["num_steps"] if preset["memory.kind"] == "none" else 1
    assert preset["num_envs"] * pieces % preset["num_minibatches"] == 0


@every_preset
def test_the_source_is_named(preset):
    assert isinstance(preset["source"], str)
    assert preset["source"]


@pytest.mark.parametrize(
    ("environment", "batch"),
    [
        ("Acrobot-v1", 64),
        ("Reacher-v4", 32),
        ("Swimmer-v4", 256),
        ("Breakout-v5", 256),
    ],
)
def test_minibatches_have_the_size_they_have_in_the_zoo(environment, batch):
    preset = PRESETS[find(environment, PRESETS)]
    assert preset["source"] == "rl-baselines3-zoo"
    assert preset["num_envs"] * preset["num_steps"] // preset["num_minibatches"] == batch


@pytest.mark.parametrize(
    ("environment", "entry"),
    [
        ("Ant-v5", "Ant-v[2-5]"),
        ("Pusher-v5", "Pusher-v[2-5]"),
        ("Humanoid-v5", "Humanoid-v[2-5]"),
        ("HumanoidStandup-v5", "HumanoidStandup-v[2-5]"),
        ("Pong-v5", "envpool:*-v5"),
        ("envpool:Pong-v5", "envpool:*-v5"),
        ("gym:Pong-v5", None),
        ("Mine-v5", None),
        ("ALE/Pong-v5", "ALE/*-v5"),
        ("ALE/Pong-ram-v5", "ALE/*-ram-v5"),
        ("brax:ant", "brax:ant"),
        ("gymnax:Breakout-MinAtar", "gymnax:*-MinAtar"),
        ("playground:HopperHop", "playground:*"),
        ("pgx:go_9x9", "pgx:[a-ln-z]*"),
        ("jumanji:Snake-v1", None),
        ("BigfishEasy-v0", "*Easy-v0"),
        ("StarpilotHard-v0", "*Hard-v0"),
        ("ReacherEasy-v1", None),
        ("PendulumSwingup-v1", None),
        ("FrozenLake-v1", None),
    ],
)
def test_which_preset_an_environment_gets(environment, entry):
    assert find(environment, PRESETS) == entry


@pytest.mark.parametrize(
    "environment",
    [
        "CartPole-v1",
        "Pendulum-v1",
        "Acrobot-v1",
        "MountainCar-v0",
        "MountainCarContinuous-v0",
        "LunarLander-v3",
        "LunarLanderContinuous-v3",
        "BipedalWalker-v3",
        "BipedalWalkerHardcore-v3",
        "InvertedPendulum-v4",
        "InvertedDoublePendulum-v4",
        "Ant-v4",
        "Walker2d-v4",
        "Hopper-v4",
        "Swimmer-v4",
        "HalfCheetah-v4",
        "Humanoid-v4",
        "HumanoidStandup-v4",
        "Breakout-v5",
    ],
)
def test_every_environment_of_the_goals_has_a_preset(environment):
    assert find(environment, PRESETS) is not None


def test_every_atari_game_of_envpool_has_the_same_preset_and_nothing_else_has_it():
    envpool = pytest.importorskip("envpool")
    specs = envpool.registration.registry.specs
    games = {name for name in envpool.list_all_envs() if specs[name][0] == "envpool.atari"}
    assert len(games) > 100
    assert {name for name in envpool.list_all_envs() if find(name, PRESETS) == "envpool:*-v5"} == games


@pytest.mark.parametrize("environment", ["Ant-v5", "Humanoid-v5", "Walker2d-v5", "Reacher-v5", "Mine-v5"])
def test_other_environments_of_version_5_do_not_get_ataris(environment):
    config = preset(environment)
    assert (config.env_options, config.algo.inputs.clip_reward != 1.0) == ({}, True)


def test_the_options_for_atari_are_ones_envpool_knows():
    envpool = pytest.importorskip("envpool")
    assert PRESETS["envpool:*-v5"]["env_options"].keys() <= set(envpool.make_spec("Pong-v5").config._fields)
