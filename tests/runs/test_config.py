"""Settings in groups: their names, old and new, their types, and the file that repeats a run."""

from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from shoal import PPOConfig, ShoalError, preset
from shoal.exchanges.config import ExchangeConfig
from shoal.learners.ppo_groups import MemoryConfig
from shoal.learners.registry import ALGORITHMS
from shoal.runs.config import from_settings, read_settings, to_settings, write_config
from shoal.setting_names import SHORT_NAMES
from shoal.settings import get, helps, types
from shoal.training.config import TrainConfig

DATA = Path(__file__).parents[1] / "data"
CONFIGS = [TrainConfig, ExchangeConfig, *(algorithm.config for algorithm in ALGORITHMS.values())]


def classes(cls: type) -> set[type]:
    """A class of settings and its groups."""
    inner = [value for field in fields(cls) if is_dataclass(value := getattr(cls(), field.name))]
    return {cls, *(type(value) for value in inner)}


@pytest.mark.parametrize("cls", [cls for cls in CONFIGS if cls is not TrainConfig])
def test_no_class_has_more_than_30_fields(cls):
    assert {one.__name__: len(fields(one)) for one in classes(cls) if len(fields(one)) > 30} == {}


@pytest.mark.parametrize("cls", CONFIGS)
def test_every_setting_has_a_help_text(cls):
    assert [name for name, text in helps(cls).items() if not text] == []


def test_every_short_name_stands_for_a_setting():
    known = {name for cls in CONFIGS for name in types(cls)}
    assert {name: long for name, long in SHORT_NAMES.items() if long not in known} == {}


def test_a_file_of_version_0_1_says_the_same():
    """Written by version 0.1: every setting flat, with one exchange."""
    config = from_settings(read_settings(DATA / "config_0_1.yaml"))
    algo, (exchange,) = config.algo, config.exchanges
    assert (algo.memory.kind, algo.memory.size) == ("gru", 32)
    assert (algo.curiosity.enabled, algo.curiosity.size, algo.curiosity.coef) == (True, 16, 0.5)
    assert (algo.value.clip, algo.value.norm, algo.value.bootstrap_clip) == (True, True, 3.0)
    assert (algo.inputs.clip_reward, algo.kl.limit, algo.peers.coef) == (5.0, 0.05, 0.3)
    assert (algo.network.images, algo.network.split_start) == ("mlp", 2)
    assert (algo.team.past_selves, algo.team.policies) == (2, "shared")
    assert (exchange.exchange, exchange.share_statistics) == ("average", False)
    found = {
        name: get(exchange, name) for name in ("server", "server_lr", "clip", "noise_multiplier", "keep")
    }
    assert list(found.values()) == ["adam", 0.02, 1.5, 0.1, 0.05]
    assert [get(exchange, name) for name in ("compress", "attack", "attackers")] == ["top-k", "sign-flip", 1]


def test_a_file_of_version_0_1_with_a_list_of_exchanges_and_a_plan():
    config = from_settings(read_settings(DATA / "config_0_1_td3.yaml"))
    algo, (selection, average) = config.algo, config.exchanges
    assert (algo.exploration.kind, algo.exploration.noise, algo.exploration.theta) == ("ou", 0.4, 0.3)
    assert (algo.target.noise, algo.target.clip, algo.peers.coef, algo.clip_obs) == (0.1, 0.2, 0.7, 5.0)
    assert (algo.network.images, algo.network.init) == ("mlp", "xavier")
    assert config.hyper_plan == [[0, {"learning_rate": 0.001}]]
    assert [get(selection, name) for name in ("fraction", "min_episodes", "warm_up")] == [0.5, 3, 2]
    assert get(average, "clip") == 2.0


@pytest.mark.parametrize("name", ["config_0_1.yaml", "config_0_1_td3.yaml"])
def test_an_old_file_written_anew_says_the_same(name, tmp_path):
    config = from_settings(read_settings(DATA / name))
    write_config(tmp_path / "config.yaml", config)
    assert from_settings(read_settings(tmp_path / "config.yaml")) == config
    assert from_settings(to_settings(config)) == config


def test_groups_are_mappings_in_the_file(tmp_path):
    write_config(tmp_path / "config.yaml", preset("CartPole-v1", memory_size=8))
    assert read_settings(tmp_path / "config.yaml")["memory"] == {"kind": "none", "size": 8}


@pytest.mark.parametrize(
    "settings",
    [
        {"memory": "gru", "memory_size": 8},
        {"memory": {"kind": "gru", "size": 8}},
        {"memory": MemoryConfig("gru", 8)},
        {"memory.kind": "gru", "memory.size": 8},
    ],
)
def test_a_group_is_said_in_several_ways(settings):
    """What is not said of a group stays as the preset has it."""
    algo = preset("CartPoleNoVel-v1", **settings).algo
    assert algo.memory == MemoryConfig("gru", 8)
    assert preset("CartPoleNoVel-v1", memory={"size": 8}).algo.memory == MemoryConfig("lstm", 8)


def test_numbers_as_yaml_and_people_write_them():
    config = preset("CartPole-v1", steps="1e6", learning_rate="1e-3", hidden=32, evolve="gamma")
    assert (config.steps, config.algo.learning_rate) == (1_000_000, 0.001)
    assert (config.algo.hidden, config.evolve) == ((32,), ("gamma",))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gama": 0.9}, "unknown setting gama; did you mean gamma?"),
        ({"memory": {"sise": 3}}, "unknown setting memory.sise; did you mean memory.size?"),
        ({"icm_sise": 3}, "unknown setting icm_sise; did you mean icm_size?"),
        ({"xyzzy": 3}, "unknown setting xyzzy; shoal train ENV --help all lists them"),
        ({"buffer_size": 3}, "buffer_size is a setting of td3, sac, dqn, not of ppo"),
        ({"gamma": "much"}, "gamma must be a number from 0 to 1, not 'much'"),
        ({"steps": 1.5}, "steps must be a whole number from 1 to 1,000,000,000,000, not 1.5"),
        ({"num_envs": True}, "num_envs must be a whole number from 1 to 1,048,576, not True"),
        ({"anneal_lr": 1}, "anneal_lr must be true or false, not 1"),
        ({"hidden": ["a"]}, "hidden must be a list of at most 64 whole numbers from 1 to 16,384, not ['a']"),
        ({"memory": "lsdm"}, "memory.kind must be one of none, lstm, gru, not 'lsdm'"),
        ({"memory": {"size": 0}}, "memory.size must be a whole number from 1 to 16,384, not 0"),
        ({"bootstrap_clip": "wild"}, "value.bootstrap_clip must be a number, dynamic or none, not 'wild'"),
        ({"exchange": "averag"}, "unknown exchange 'averag'; choose from none, "),
    ],
)
def test_mistakes_are_named_in_a_line(settings, message):
    with pytest.raises(ShoalError) as caught:
        preset("CartPole-v1", **settings)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_hyperparameters_are_settings_by_their_short_names():
    config = PPOConfig()
    assert config.hypers["comm_penalty_coeff"] == config.peers.coef
    assert config.hypers["extrinsic_coef"] == config.curiosity.extrinsic_coef
    assert config.hypers["target_kl"] is config.kl.limit is None
