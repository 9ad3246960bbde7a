"""The ranges of settings: every one has its own, whichever way it is given, and says so in one line."""

import math
from dataclasses import fields, is_dataclass
from typing import Annotated, get_args

import pytest
from annotated_types import MultipleOf

import shoal
from shoal import DQNConfig, ExchangeConfig, PPOConfig, SACConfig, ShoalError, TD3Config, TrainConfig
from shoal.learners.ppo_groups import KLConfig, MemoryConfig, NetworkConfig
from shoal.learners.registry import ALGORITHMS
from shoal.ranges import limits_of
from shoal.runs.config import load_config
from shoal.runs.milestones import Milestones, keep_milestones
from shoal.runs.sweep.plan import Plan
from shoal.schema import convert, fit
from shoal.settings import hints

CLASSES = [TrainConfig, ExchangeConfig, Milestones, Plan, *(one.config for one in ALGORITHMS.values())]
WITHOUT_BOUNDS = {"bootstrap_clip", "bootstrap_floor", "clip_reward", "reward_floor"}
WITHOUT_BOUNDS |= {"strength", "target_entropy", "stop_at"}
"""Numbers that may be any: of either sign, however large."""


def numbers(hint):
    """The numbers that a type has in it, each with its limits."""
    kind, limits = limits_of(hint)
    inner = [found for option in get_args(kind) for found in numbers(option)]
    return [(kind, limits), *inner] if kind in (int, float) else inner


@pytest.mark.parametrize("cls", CLASSES)
def test_every_number_has_a_range(cls):
    """Whole numbers have an upper bound, too: a huge one would hang or take all memory."""
    known = {name: numbers(hint) for name, hint in hints(cls).items() if name not in ("base", "axes")}
    open_ended = {
        name.rpartition(".")[2]
        for name, found in known.items()
        for kind, limits in found
        if (not limits.bounded if kind is float else None in (limits.ge, limits.le))
    }
    assert open_ended <= WITHOUT_BOUNDS | {"hyper_plan", "learner_hypers"}  # by the hyperparameter's range


@pytest.mark.parametrize("cls", CLASSES[:-5] + CLASSES[-4:])
def test_defaults_are_in_range(cls):
    made = cls("CartPole-v1") if cls is TrainConfig else cls()
    for name, hint in hints(cls).items():
        value = made
        for part in name.split("."):
            value = getattr(value, part)
        assert fit(value, hint)[0], name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PPOConfig(gamma=7), "gamma must be a number from 0 to 1, not 7"),
        (lambda: PPOConfig(learning_rate=math.nan), "learning_rate must be a number above 0, not nan"),
        (lambda: PPOConfig(learning_rate=math.inf), "learning_rate must be a number above 0, not inf"),
        (lambda: PPOConfig(learning_rate=True), "learning_rate must be a number above 0, not True"),
        (lambda: PPOConfig(vf_coef=-0.5), "vf_coef must be a number of at least 0, not -0.5"),
        (lambda: PPOConfig(max_grad_norm=10**400), "max_grad_norm must be a number above 0, not 1000"),
        (lambda: PPOConfig(memory="gru"), "memory must be "),
        (lambda: MemoryConfig(size=10**9), "memory.size must be a whole number from 1 to 16,384"),
        (lambda: NetworkConfig(split_hidden=()), "network.split_hidden must be a list of 1 to 64"),
        (lambda: TD3Config(policy_delay=0), "policy_delay must be a whole number from 1 to "),
        (lambda: SACConfig(initial_alpha=0), "initial_alpha must be a number above 0, not 0"),
        (lambda: DQNConfig(target_every=0), "target_every must be a whole number from 1 to "),
        (lambda: TrainConfig("CartPole-v1", seed=True), "seed must be a whole number from 0 to 4,294"),
        (lambda: TrainConfig("CartPole-v1", seed=2**32), "not 4294967296"),
        (lambda: TrainConfig("Cart\nPole"), r"env must be a text on one line, not 'Cart\nPole'"),
        (lambda: ExchangeConfig("average", participation=0), "must be a number above 0 and at most 1, not 0"),
        (lambda: Milestones(eval_every=-1), "eval_every must be a whole number from 0 to "),
        (lambda: shoal.preset("CartPole-v1", gamma="nan"), "gamma must be a number from 0 to 1, not 'nan'"),
        (lambda: shoal.preset("CartPole-v1", seeds=0), "seeds must be a whole number from 1 to 1,048,576"),
        (lambda: shoal.preset(3), "env must be a text on one line, not 3"),
        (lambda: shoal.preset("CartPole-v1", algo=["ppo"]), "unknown algorithm ['ppo']; choose from ppo, "),
    ],
)  # fmt: skip
def test_each_way_to_give_a_setting_leads_through_the_same_door(make, message):
    with pytest.raises(ShoalError) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_are_stored_in_their_type():
    config = PPOConfig(gamma=1, hidden=[64, 64], num_steps=128.0)
    assert [type(config.gamma), type(config.hidden), type(config.num_steps)] == [float, tuple, int]
    assert config == PPOConfig(gamma=1.0, hidden=(64, 64), num_steps=128)


def test_bounds_that_may_be_off_may_be_infinite():
    assert (PPOConfig(max_grad_norm=math.inf).max_grad_norm, KLConfig(limit=math.inf).limit) == (
        math.inf,
    ) * 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"evolve": ["gamma=uniform 0.5 2"]}, "gamma in evolve must be a number from 0 to 1, not 2.0"),
        ({"hyper_plan": [[0, {"gamma": 2}]]}, "gamma in hyper_plan must be a number from 0 to 1, not 2.0"),
        ({"learner_hypers": {"gamma": [0.9, -1]}}, "gamma in learner_hypers must be a number from 0 to 1"),
        ({"learners": 2**20, "num_envs": 2**20}, "learners x num_envs must be at most 16,777,216, not "),
        ({"steps": 1e12, "num_envs": 1, "num_steps": 1}, "steps / (num_envs x num_steps) must be at most"),
    ],
)
def test_hyperparameters_that_change_and_products_of_settings_have_ranges(settings, message):
    with pytest.raises(ShoalError) as caught:
        shoal.preset("CartPole-v1", **{"learners": 2} | settings).check()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"env: CartPole-v1\ngamma: 7\n", "gamma must be a number from 0 to 1, not 7"),
        (b"env: CartPole-v1\n1: 2\n", "unknown setting 1; "),
        (b"env: CartPole-v1\nseed: 2001-99-99\n", " is not yaml: month must be in 1..12"),
        (b"env: \xff\xfe\n", " is not yaml: "),
        (b"env: CartPole-v1\nenv_options: &a {b: *a}\n", "too large, too deep, contains itself"),
        (b"env: CartPole-v1\nx: " + b"[" * 5000 + b"\n", " is not yaml: "),
        (b"env: CartPole-v1\nexchange: [{exchange: average, degree: 0}]\n", "exchange 1 of the list: "),
    ],
)  # fmt: skip
def test_mistakes_in_a_file_begin_with_its_name(content, message, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ShoalError) as caught:
        load_config(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ['{"eval_every": -1}', '{"often": 1}', "[]", '{"eval_every": NaN}'])
def test_milestones_that_are_none(content, tmp_path):
    (tmp_path / "milestones.json").write_text(content)
    with pytest.raises(ShoalError, match=r"milestones\.json: "):
        keep_milestones(tmp_path, Milestones())


def test_a_constraint_that_nobody_reads_is_an_error():
    with pytest.raises(TypeError, match="MultipleOf"):
        convert("num_envs", 4, Annotated[int, MultipleOf(2)])


def test_every_group_checks_itself():
    """A group made alone is refused as one in a file is."""
    groups = {kind for cls in CLASSES for field in fields(cls) if is_dataclass(kind := field.default_factory)}
    for kind in groups:
        for field in fields(kind):
            with pytest.raises(ShoalError, match=rf"\b{field.name} must be "):
                kind(**{field.name: b"bytes"})
    assert {MemoryConfig, KLConfig, NetworkConfig} < groups
