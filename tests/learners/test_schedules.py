"""Schedules: the numbers on the way, what a population does meanwhile, and what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.learners.hyper_schedules import Schedule, apply_schedules
from shoal.learners.ppo_config import Hypers, PPOConfig
from shoal.runs.config import from_settings, to_settings
from shoal.settings import with_settings

FREE = {"anneal_lr": False, "learning_rate": 4e-4, "ent_coef": 0.04, "reward_floor": -1.0}  # rollouts of 512


def value_of(name, config, updates, num_updates=100, **evolved):
    """A hyperparameter after so many updates, in a learner as configured but for what has evolved."""
    numbers = config.hypers | evolved
    hypers = Hypers(*(jnp.float32(x if isinstance(x, int | float) else jnp.inf) for x in numbers.values()))
    return float(getattr(apply_schedules(config.plan, hypers, jnp.int32(updates), num_updates), name))


@pytest.mark.parametrize(
    ("text", "expected"),  # after so many updates of 100
    [
        ("learning_rate=linear(1e-4, 20 iterations)", {0: 4e-4, 5: 3.25e-4, 10: 2.5e-4, 20: 1e-4, 99: 1e-4}),
        ("learning_rate=linear(0)", {0: 4e-4, 50: 2e-4, 75: 1e-4, 99: 4e-6, 100: 4e-6, 120: 4e-6}),
        ("learning_rate=linear(8e-4, 5120 steps)", {0: 4e-4, 5: 6e-4, 10: 8e-4, 11: 8e-4}),  # 10 updates
        ("ent_coef=log(0.01, 10 iterations)", {0: 0.04, 5: 0.02, 10: 0.01, 50: 0.01}),
        ("ent_coef = log( 4e-4 )", {0: 0.04, 50: 0.004, 99: 0.04 * 0.01**0.99, 120: 0.04 * 0.01**0.99}),
        ("learning_rate=step(1e-4, 40 iterations)", {0: 4e-4, 39: 4e-4, 40: 1e-4, 99: 1e-4}),
        ("reward_floor=step(-10, 1000 steps)", {0: -1.0, 1: -1.0, 2: -10.0}),  # 1.95 updates
    ],
)
def test_the_numbers_on_the_way(text, expected):
    config = with_settings(PPOConfig(), **FREE, schedules=(text,))
    name = text.partition("=")[0].strip()
    found = [value_of(name, config, updates) for updates in expected]
    np.testing.assert_allclose(found, list(expected.values()), rtol=2e-6, atol=1e-12)
    others = [getattr(config, other) for other in ("gamma", "clip_coef")]
    np.testing.assert_allclose([value_of(other, config, 7) for other in ("gamma", "clip_coef")], others)


def test_annealing_is_the_same_mechanism_to_the_bit():
    config = PPOConfig(anneal_clip=True, anneal_ent=True, ent_coef=0.0)
    assert [schedule.name for schedule in config.plan] == ["learning_rate", "clip_coef", "ent_coef"]
    for updates in range(12):
        remaining = 1.0 - jnp.int32(min(updates, 8)) / 9
        assert value_of("learning_rate", config, updates, 9) == float(jnp.float32(2.5e-4) * remaining)
    assert value_of("ent_coef", config, 3, 9) == 0
    np.testing.assert_allclose(value_of("ent_coef", config, 3, 9, ent_coef=0.3), 0.2, rtol=1e-6)


def test_a_schedule_applies_to_what_a_population_changed():
    config = with_settings(
        PPOConfig(), **FREE, gamma=0.9, schedules=("ent_coef=log(0.01)", "gamma=linear(0.99)")
    )
    np.testing.assert_allclose(value_of("ent_coef", config, 50, ent_coef=0.4), 0.2, rtol=1e-6)
    np.testing.assert_allclose(value_of("gamma", config, 50), 0.945, rtol=1e-6)
    assert value_of("gamma", config, 100, gamma=0.95) == 1.0  # not 1.045


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rate", "write NAME=SHAPE"),
        ("learning_rate=linear(1e-4, 200)", "write NAME=SHAPE"),
        ("learning_rate=linear(few)", "END and N must be numbers"),
        ("lr=linear(0)", "no hyperparameter is called lr; there are learning_rate, "),
        ("num_envs=linear(8)", "no hyperparameter is called num_envs"),
        ("learning_rate=cosine(0)", "one of linear, log, step, not cosine"),
        ("target_kl=linear(0.1)", "target_kl must be a number other than 0, not None"),
        ("prox_coef=linear(0.1)", "prox_coef must be a number other than 0"),
        (
            "bootstrap_clip=linear(1)",
            "bootstrap_clip must be a number other than 0, not dynamic",
        ),
        ("learning_rate=linear(-1e-4)", "0 or of the same sign"),
        ("learning_rate=linear(inf)", "END must be finite"),
        ("ent_coef=log(0)", "never reaches 0"),
        ("gamma=linear(1.1)", "gamma stays between 0 and 1"),
        ("learning_rate=step(1e-4)", "step needs a number of steps"),
        ("learning_rate=linear(1e-4, 0 steps)", "N must be above 0"),
    ],
)
def test_a_text_that_is_no_schedule_is_refused(text, message):
    with pytest.raises(ShoalError, match=message):
        with_settings(PPOConfig(), **FREE, bootstrap_clip="dynamic", schedules=(text,))


def test_two_schedules_of_one_hyperparameter():
    with pytest.raises(ShoalError, match="learning_rate has two schedules; --no-anneal-lr leaves one out"):
        PPOConfig(schedules=("learning_rate=linear(1e-4)",))
    with pytest.raises(ShoalError, match=r"^gamma has two schedules$"):
        PPOConfig(schedules=("gamma=linear(0.9)", "gamma=step(0.9, 5 steps)"))


@pytest.mark.parametrize("given", ["gamma=linear(0.9)", ["gamma=linear(0.9)"], ("gamma=linear(0.9)",)])
def test_schedules_in_a_file_are_a_text_or_a_list(given):
    config = from_settings({"env": "CartPole-v1", "schedules": given})
    assert config.algo.plan[1] == Schedule("gamma", "linear", 0.9 / 0.99)
    assert from_settings(to_settings(config)) == config


def test_schedules_that_are_something_else():
    with pytest.raises(ShoalError, match="schedules must be a list of at most 64 texts, not 3"):
        from_settings({"env": "CartPole-v1", "schedules": 3})
