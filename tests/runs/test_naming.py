"""Folders are named after settings: others make another folder, the same ones find their run."""

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from shoal import ExchangeConfig, ShoalError, TrainConfig, preset
from shoal.learners.registry import ALGORITHMS
from shoal.runs.config import NOT_DECIDING, from_settings, to_settings, write_config
from shoal.runs.naming import LONGEST, find_folder, folder_name, from_preset
from shoal.settings import get, types, with_settings

ENVS = {"ppo": "CartPole-v1", "dqn": "CartPole-v1"}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, ""),
        ({"learning_rate": 0.001, "num_envs": 8, "steps": 7, "reports": 3}, ""),  # the preset's
        ({"learning_rate": 0.0005}, "__learning_rate-0.0005"),
        ({"learning_rate": 1e-05}, "__learning_rate-1e-05"),
        ({"num_envs": 16, "memory": "gru"}, "__num_envs-16__memory-gru"),
        ({"memory_size": 8, "curiosity": True}, "__memory.size-8__curiosity"),
        ({"hidden": (32, 16), "anneal_lr": False}, "__no-anneal_lr__hidden-32-16"),
        ({"learners": 8, "env_spread": 0.5, "first_member": 2}, "__L8__m2__spread0.5"),
        ({"seeds": 5}, "__L5"),
        ({"learners": 8, "exchange": "average", "gamma": 0.9}, "__L8__average__gamma-0.9"),
        (
            {"learners": 8, "exchange": "gossip", "topology": "star", "local_updates": 2, "compress": "int8"},
            "__L8__gossip-star-k2__compress-int8",
        ),
        (
            {"learners": 4, "evolve": ("gamma=log 0.9 1", "clip_coef")},
            "__L4__evolve-gamma-log-0.9-1-clip_coef",
        ),
        ({"env_options": {"render": "a b/c"}}, "__render-a-b-c"),
    ],
)
def test_a_name_says_what_differs_from_the_preset(settings, name):
    assert folder_name(preset("CartPole-v1", **settings)) == f"CartPole-v1__ppo__s1{name}"


def test_a_number_of_minibatches_that_nobody_gave_is_not_in_the_name():
    """The preset's 64 do not divide 16 environments, which a recurrent policy needs."""
    name = lambda **settings: folder_name(preset("Acrobot-v1", memory="gru", **settings))
    assert name() == "Acrobot-v1__ppo__s1__memory-gru"
    assert name(num_minibatches=4) == "Acrobot-v1__ppo__s1__num_minibatches-4__memory-gru"


def test_a_named_preset_is_named_and_so_are_the_defaults():
    name = lambda param_name, **settings: folder_name(preset("MountainCar-v0", param_name, **settings))
    assert name("curiosity") == "MountainCar-v0__ppo__s1__curiosity-preset"
    assert name("curiosity", gamma=0.9) == "MountainCar-v0__ppo__s1__curiosity-preset__gamma-0.9"
    assert name(None, curiosity=True) == "MountainCar-v0__ppo__s1__curiosity"
    assert (
        folder_name(preset("BigfishEasy-v0", "easy-200", seed=3))
        == "BigfishEasy-v0__ppo__s3__easy-200-preset"
    )
    assert folder_name(TrainConfig("jax:CartPole-v1")) == "jax-CartPole-v1__ppo__s1__no-preset"


def test_options_of_the_environment_are_named_one_by_one():
    options = {"num_levels": 3, "start_level": 0, "distribution_mode": 0}
    assert folder_name(preset("BigfishEasy-v0", env_options=options)).endswith("__s1__num_levels-3")
    _, differing = from_preset(preset("BigfishEasy-v0", env_options={"start_level": 0}))
    assert differing == {"env_options": {"num_levels": None, "distribution_mode": None}}


VALUES = (
    {"gamma": [0.5]},
    True,
    False,
    0,
    1,
    2,
    3,
    20,
    0.3,
    0.5,
    1.5,
    "shared",
    ("critic",),
    ("gamma",),
    ("gamma=linear(0.5)",),
    (3, 5),
)
"""Values of settings, beside the names that a setting chooses from; each setting takes some of them."""


def accepted(make, hint) -> list[TrainConfig]:
    """The configurations that `make` gives for these values of a setting."""
    found = []
    for value in (*VALUES, *re.findall(r"'([\w-]+)'", str(hint))):
        with suppress(ShoalError, TypeError):
            found.append(make(value))
    return found


def names_of(settings: dict, hints: dict, make) -> tuple[set[str], set[str]]:
    """The names of folders if each setting alone is changed; and the settings that take no value of these.

    `make(name, value)` is the configuration.
    """
    names, silent, number = set(), set(), 0
    for name in settings:
        known = accepted(lambda value, name=name: make(name, value), hints[name])
        changed = {
            repr(to_settings(one)[name]): one for one in known if to_settings(one)[name] != settings[name]
        }
        silent |= set() if changed else {name}
        number += len(changed)
        names |= {folder_name(one) for one in changed.values()}
    assert len(names) == number, "two settings have the same name"
    assert all(re.fullmatch(r"[\w.+-]+", name) for name in names)
    return names, silent


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_setting_makes_another_folder(algo):
    config = preset(ENVS.get(algo, "Pendulum-v1"), algo=algo)
    hints = types(TrainConfig) | types(type(config.algo))
    apart = {"env", "algo", "exchange", "env_options", "env_params", "hyper_plan", *NOT_DECIDING}
    settings = {name: value for name, value in to_settings(config).items() if name not in apart}
    names, silent = names_of(
        settings, hints, lambda name, value: from_settings(to_settings(config) | {name: value})
    )
    assert not silent
    assert len(names) > 80
    assert folder_name(config) not in names


def test_every_setting_of_exchanges_makes_another_folder():
    config, seen, every = preset("CartPole-v1", learners=4), set(), set()
    hints = {
        name: hint for name, hint in types(ExchangeConfig).items() if name not in ("exchange", "comm_matrix")
    }
    for kind in ("average", "gossip", "krum", "truncation", "tournament"):
        exchange = ExchangeConfig(kind)
        make = lambda name, value, exchange=exchange: replace(
            config, exchanges=(with_settings(exchange, **{name: value}),)
        )
        names, silent = names_of({name: get(exchange, name) for name in hints}, hints, make)
        assert every.isdisjoint(names)
        every |= names
        seen |= hints.keys() - silent
    assert hints.keys() - seen == {"attack.kind", "privacy.noise_multiplier", "average_weights"}, (
        "need others"
    )


def test_matrices_worlds_and_plans_are_told_apart_by_a_hash():
    base = preset("CartPole-v1", learners=2)
    matrices = [{"comm_matrix": {"0": {"1": weight}}} for weight in (1, 2)]
    found = [replace(base, exchanges=(ExchangeConfig("gossip", comm_matrix=one),)) for one in matrices]
    found += [replace(base, env_params={"0": {"length": x}, "1": {}}) for x in (0.5, 0.6)]
    found += [replace(base, hyper_plan=[[0, {"gamma": x}]]) for x in (0.9, 0.8)]
    names = [folder_name(one) for one in found]
    assert len(set(names)) == 6
    assert all(re.search(r"__(gossip__comm_matrix|env_params|follow)-[0-9a-f]{8}$", name) for name in names)


def test_a_long_name_ends_in_a_hash_of_the_whole():
    many = {"gamma": 0.9, "gae_lambda": 0.9, "clip_coef": 0.3, "hidden": (256, 256, 256), "update_epochs": 3}
    names = [folder_name(preset("CartPole-v1", **many, vf_coef=coef)) for coef in (0.1, 0.2)]
    assert names[0] != names[1]
    assert all(len(name) <= LONGEST and re.search(r"__[0-9a-f]{8}$", name) for name in names)
    assert names[0].startswith("CartPole-v1__ppo__s1__update_epochs-3__gamma-0.9__")
    module = (
        "a_package_of_ours.with_a_long_name.and_another_module.with_worlds:TheEnvironmentThatWeAllLike-v0"
    )
    assert len(folder_name(TrainConfig(module))) == LONGEST


def saved(folder: str, config: TrainConfig) -> Path:
    write_config(Path(folder) / "config.yaml", config)
    return Path(folder)


def test_the_same_settings_find_their_run():
    config = preset("CartPole-v1", gamma=0.9)
    first = find_folder(config)
    assert first == Path("runs/CartPole-v1__ppo__s1__gamma-0.9")
    saved(first, config)
    assert find_folder(replace(config, steps=10**6, reports=7)) == first
    assert find_folder(preset("CartPole-v1")) == Path("runs/CartPole-v1__ppo__s1")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("CartPole-v1__ppo__s1", {"gamma": 0.9}),
        ("CartPole-v1__ppo__s1__follow", {"hyper_plan": [[0, {"gamma": 0.9}]]}),
        (
            "CartPole-v1__ppo__s1__L4__spread0.5__evolve",
            {"learners": 4, "env_spread": 0.5, "evolve": "gamma"},
        ),
        (
            "jax-CartPole-v1__ppo__s1__L4__gossip-star-k2",
            {
                "learners": 4,
                "exchange": "gossip",
                "topology": "star",
                "local_updates": 2,
                "share_moments": True,
            },
        ),
    ],
)
def test_a_run_under_the_name_of_version_0_1_is_found(name, settings):
    config = preset("jax:CartPole-v1" if name.startswith("jax") else "CartPole-v1", **settings)
    assert folder_name(config) != name
    old = saved(f"runs/{name}", config)
    assert find_folder(config) == old
    other = replace(config, algo=with_settings(config.algo, vf_coef=0.1))
    assert find_folder(other) == Path("runs") / folder_name(other)


def test_a_run_with_other_settings_under_the_name_is_left_alone():
    """As after a change of the preset: its run keeps the name, and the new one has a hash."""
    config = preset("CartPole-v1")
    named = saved("runs/CartPole-v1__ppo__s1", preset("CartPole-v1", gamma=0.5))
    other = find_folder(config)
    assert re.fullmatch(r"CartPole-v1__ppo__s1__[0-9a-f]{8}", other.name)
    saved(other, config)
    assert find_folder(config) == other
    assert find_folder(preset("CartPole-v1", gamma=0.5)) == named


def test_a_damaged_run_keeps_its_name():
    """So that training there says what is wrong instead of beginning elsewhere."""
    named = saved("runs/CartPole-v1__ppo__s1", preset("CartPole-v1"))
    (named / "config.yaml").write_text("{")
    assert find_folder(preset("CartPole-v1")) == named


@pytest.mark.parametrize(
    "others",
    [
        {"learners": 3},
        {"exchange": "average"},
        {"evolve": "gamma"},
        {"env_spread": 1},
        {"env_params": {"0": {}}},
    ],
)
def test_seeds_are_learners_that_differ_in_nothing_else(others):
    assert preset("CartPole-v1", seeds=5) == preset("CartPole-v1", learners=5)
    assert from_settings({"env": "CartPole-v1", "seeds": 5}).learners == 5
    with pytest.raises(ShoalError, match=f"seeds 5 means .* alone; leave out {next(iter(others))}, or use"):
        preset("CartPole-v1", seeds=5, **others)
