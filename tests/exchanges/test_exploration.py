"""Exploration: the right space, the bounds, the rates, and what is left alone."""

from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax import Array

from shoal.errors import ShoalError
from shoal.exchanges import exploration
from shoal.exchanges.exploration import PRIORS, Prior, draw, explore, perturb, read_prior
from shoal.learners.ppo_config import Hypers as PPOHypers
from shoal.learners.sac import Hypers as SACHypers
from shoal.learners.td3 import Hypers as TD3Hypers

TEXTS = ["uniform 0 1", "uniform -2 3", "uniform 0.1 0.5", "log 1e-5 1e-2", "one-minus-log 0.9 0.9999"]
KINDS = ("uniform -2 3", "log 1e-5 1e-2", "one-minus-log 0.9 0.9999", "choice 4 1 2 8")
"""A prior of each kind; the others differ in their numbers."""
ALL = {**PRIORS, **{text: read_prior(text) for text in [*TEXTS, "choice 0.1 0.2 0.3", "choice 4 1 2 8"]}}


class Hypers(NamedTuple):
    learning_rate: Array
    gamma: Array
    ent_coef: Array
    inner: Array


PPO_PRIORS = {name: prior for name, prior in PRIORS.items() if name in PPOHypers._fields}
SOME = {"learning_rate": PRIORS["learning_rate"], "gamma": PRIORS["gamma"]}


def cohort(num):
    every = np.arange(num, dtype=np.float32)
    ones = np.ones(num, np.float32)
    return Hypers(np.float32(1e-3) * ones, np.float32(0.99) * ones, 0.01 * every / num, every)


def explored(priors, seed, hypers, mutate=True, *settings):
    """What becomes of hyperparameters, on the host."""
    mutate = np.broadcast_to(mutate, hypers[0].shape)
    return jax.device_get(explore(priors, jax.random.key(seed), hypers, mutate, *settings))


def same_bits(a, b):
    np.testing.assert_array_equal(np.asarray(a).view(np.int32), np.asarray(b).view(np.int32))


# Reading


def test_priors_are_read():
    assert read_prior("log 1e-5 1e-2") == Prior("log", 1e-5, 1e-2)
    assert read_prior("uniform 0 1") == Prior("uniform", 0.0, 1.0)
    assert read_prior("  one-minus-log  0.9 0.9999 ") == Prior("one-minus-log", 0.9, 0.9999)
    assert read_prior("choice 0.3 0.1 0.2") == Prior("choice", 0.1, 0.3, (0.3, 0.1, 0.2))


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("", "begin with one of uniform, log, one-minus-log, choice"),
        ("normal 0 1", "begin with one of uniform, log, one-minus-log, choice"),
        ("0 1", "begin with one of uniform, log, one-minus-log, choice"),
        ("uniform 0 one", "after uniform come numbers only"),
        ("uniform", "needs two numbers, a lower and an upper bound, not 0"),
        ("log 1", "needs two numbers, a lower and an upper bound, not 1"),
        ("uniform 0 1 2", "needs two numbers, a lower and an upper bound, not 3"),
        ("uniform 1 0", "the lower bound comes first and must be below the upper one"),
        ("log 1e-2 1e-5", "the lower bound comes first and must be below the upper one"),
        ("uniform 1 1", "the lower bound comes first and must be below the upper one"),
        ("uniform 1 1.00000000001", "the lower bound comes first and must be below the upper one"),
        ("log 0 1", "bounds must be above 0"),
        ("log -1 1", "bounds must be above 0"),
        ("log 1e-50 1", "bounds must be above 0"),
        ("one-minus-log 0 0.9", "bounds must be above 0 and below 1"),
        ("one-minus-log 0.9 1", "bounds must be above 0 and below 1"),
        ("one-minus-log 0.9 0.999999999999", "bounds must be above 0 and below 1"),
        ("uniform 0 inf", "numbers must be finite"),
        ("uniform nan 1", "numbers must be finite"),
        ("log 1 1e50", "numbers must be finite"),
        ("choice 1 nan", "numbers must be finite"),
        ("choice", "needs at least two numbers"),
        ("choice 1", "needs at least two numbers"),
        ("choice 1 2 1", "choices must differ"),
    ],
)
def test_mistakes_are_named_in_one_line(text, mistake):
    with pytest.raises(ShoalError) as error:
        read_prior(text)
    assert str(error.value) == f"prior {text!r}: {mistake}"


def test_the_default_priors_are_ones_that_could_be_read_and_belong_to_a_learner():
    for prior in PRIORS.values():
        assert read_prior(f"{prior.kind} {prior.low} {prior.high}") == prior
    bounds = {"clip_reward", "reward_floor", "bootstrap_clip", "bootstrap_floor"}
    assert set(PPO_PRIORS) == set(PPOHypers._fields) - {"target_kl", "kl_goal"} - bounds
    off_policy = {*TD3Hypers._fields, *SACHypers._fields} - {"target_noise_clip", "target_entropy"}
    assert set(PRIORS) - set(PPO_PRIORS) == off_policy - set(PPO_PRIORS)


# Drawing


@pytest.mark.parametrize("name", ALL)
def test_draws_stay_within_the_bounds_and_fill_them(name):
    prior = ALL[name]
    x = np.asarray(draw(prior, jax.random.key(1), (4000,)))
    assert x.dtype == np.float32
    assert x.min() >= np.float32(prior.low)
    assert x.max() <= np.float32(prior.high)
    space = {
        "log": np.log,
        "one-minus-log": lambda x: np.log(1 - x),
    }.get(prior.kind, lambda x: x)
    ends = sorted(map(float, (space(np.float64(prior.low)), space(np.float64(prior.high)))))
    if prior.kind == "choice":
        values, counts = np.unique(x, return_counts=True)
        np.testing.assert_array_equal(values, np.float32(sorted(prior.choices)))
        assert np.abs(counts / 4000 - 1 / len(values)).max() < 0.04
    else:  # the quarters of a uniform number between the ends
        where = (space(x.astype(np.float64)) - ends[0]) / (ends[1] - ends[0])
        np.testing.assert_allclose(np.quantile(where, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.04)


def test_draws_have_the_shape_asked_for():
    for prior in ALL.values():
        assert jax.eval_shape(lambda prior=prior: draw(prior, jax.random.key(0))).shape == ()
        assert jax.eval_shape(lambda prior=prior: draw(prior, jax.random.key(0), (2, 3))).shape == (2, 3)


# Perturbing


@pytest.mark.parametrize(
    ("text", "value", "factor", "expected"),
    [
        ("one-minus-log 0.9 0.9999", 0.99, 1.2, 0.988),
        ("one-minus-log 0.9 0.9999", 0.99, 0.8, 0.992),
        ("one-minus-log 0.9 0.9999", 0.91, 1.2, 0.9),
        ("one-minus-log 0.9 0.9999", 1.0, 1.2, 0.9999),
        ("log 1e-5 1e-2", 1e-3, 1.2, 1.2e-3),
        ("log 1e-5 1e-2", 1e-3, 0.8, 8e-4),
        ("log 1e-5 1e-2", 9e-3, 1.2, 1e-2),
        ("log 1e-5 1e-2", 0.0, 1.2, 1e-5),
        ("log 1e-5 1e-2", np.inf, 0.8, 1e-2),
        ("uniform 0.1 0.5", 0.2, 1.2, 0.24),
        ("uniform 0.1 0.5", 0.2, 0.8, 0.16),
        ("uniform 0.1 0.5", 0.11, 0.8, 0.1),
        ("uniform 0 1", 0.0, 1.2, 0.2),
        ("uniform 0 1", 0.1, 0.8, 0.0),
        ("uniform -2 3", -1.0, 1.2, 0.0),
        ("uniform -2 3", -1.5, 0.8, -2.0),
        ("uniform -2 3", 0.0, 0.8, -1.0),
    ],
)
def test_the_factor_acts_in_the_right_space(text, value, factor, expected):
    found = perturb(read_prior(text), jax.random.key(0), np.full(4000, value, np.float32), (factor,))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=3e-7)


def test_a_choice_moves_to_a_listed_neighbour():
    prior = read_prior("choice 4 1 2 8")
    to = lambda value: set(perturb(prior, jax.random.key(0), np.full(4000, value, np.float32)).tolist())
    assert to(1.0) == {4.0, 2.0}
    assert to(2.0) == {1.0, 8.0}
    assert to(4.0) == {4.0, 1.0}
    assert to(8.0) == {2.0, 8.0}
    assert to(1.2) == {4.0, 2.0}  # from the nearest, if it is none of them


def test_every_factor_is_drawn_equally_often():
    found = perturb(PRIORS["learning_rate"], jax.random.key(0), np.full(4000, 1e-3, np.float32))
    values, counts = np.unique(np.asarray(found), return_counts=True)
    np.testing.assert_allclose(values, [8e-4, 1.2e-3], rtol=1e-5)
    assert abs(counts[0] - 2000) < 200
    moved = perturb(read_prior("choice 1 2 3"), jax.random.key(0), np.full(4000, 2, np.float32))
    assert abs(np.mean(moved) - 2) < 0.05


@pytest.mark.parametrize(
    "name", [name if name in KINDS else pytest.param(name, marks=pytest.mark.slow) for name in ALL]
)
def test_bounds_hold_over_ten_thousand_perturbations(name):
    """A hundred walkers from everywhere, each changed a hundred times, by ordinary and by wild factors."""
    prior = ALL[name]

    def step(x, key):
        x = perturb(prior, key, x, (0.5, 0.8, 1.2, 3.0))
        return x, x

    walk = jax.jit(lambda key, keys: jax.lax.scan(step, draw(prior, key, (100,)), keys)[1])
    x = np.asarray(walk(jax.random.key(2), jax.random.split(jax.random.key(3), 100)))
    assert np.isfinite(x).all()
    assert x.min() >= np.float32(prior.low)
    assert x.max() <= np.float32(prior.high)
    assert len(np.unique(x)) > 2
    if prior.kind == "choice":
        assert np.isin(x, np.float32(prior.choices)).all()


# Exploring


def test_those_not_to_mutate_and_those_not_named_keep_every_bit():
    gamma = np.full(4000, np.nan, np.float32)
    gamma[0] = -0.0
    hypers = cohort(4000)._replace(gamma=gamma)
    mutate = np.arange(4000) % 3 == 1
    found = explored(SOME, 0, hypers, mutate)
    assert isinstance(found, Hypers)
    for name in SOME:
        before, after = getattr(hypers, name), getattr(found, name)
        same_bits(before[~mutate], after[~mutate])
    assert (found.learning_rate != hypers.learning_rate)[mutate].all()
    same_bits(found.ent_coef, hypers.ent_coef)
    same_bits(found.inner, hypers.inner)
    for before, after in zip(hypers, explored(SOME, 0, hypers, False), strict=True):
        same_bits(before, after)
        assert after.dtype == np.float32


@pytest.mark.parametrize("resample", [0, 0.25, 0.7, 1])
def test_the_rate_of_resampling(resample):
    found = explored(SOME, 5, cohort(4000), True, resample)
    perturbed = {"learning_rate": [8e-4, 1.2e-3], "gamma": [0.988, 0.992]}
    redrawn = []
    for name, values in perturbed.items():
        x = getattr(found, name)
        redrawn.append(~np.isclose(x[:, None], values, rtol=1e-6).any(1))
        assert abs(redrawn[-1].mean() - resample) < (0.03 if 0 < resample < 1 else 1e-3)
    # Each name by itself: both redrawn as often as chance would have it.
    assert abs((redrawn[0] & redrawn[1]).mean() - resample**2) < 0.03


def test_what_is_redrawn_is_drawn_from_the_prior():
    found = explored(SOME, 5, cohort(4000), True, 1.0)
    np.testing.assert_allclose(np.median(np.log10(found.learning_rate)), -3.5, atol=0.1)
    np.testing.assert_allclose(np.median(np.log10(1 - found.gamma)), -2.5, atol=0.1)
    assert len(np.unique(found.learning_rate)) > 3900


def test_whether_says_nothing_of_what():
    """A quarter is redrawn: from all of the prior; the others go up as often as down."""
    x = explored(SOME, 6, cohort(4000)).learning_rate
    lower, upper = np.isclose(x, 8e-4), np.isclose(x, 1.2e-3)
    np.testing.assert_allclose(np.median(np.log10(x[~lower & ~upper])), -3.5, atol=0.2)
    assert abs(lower.sum() / (lower | upper).sum() - 0.5) < 0.04


def test_factors_are_those_given():
    found = explored(SOME, 0, cohort(4000), True, 0.0, (0.5, 2.0))
    assert {round(float(x), 6) for x in found.learning_rate} == {0.0005, 0.002}
    assert {round(float(x), 6) for x in found.gamma} == {0.98, 0.995}


def test_learners_and_names_differ_in_their_draws():
    priors = {"learning_rate": Prior("uniform", 0.0, 1.0), "ent_coef": Prior("uniform", 0.0, 1.0)}
    found = explored(priors, 0, cohort(4000), True, 1.0)
    x = np.stack([found.learning_rate, found.ent_coef])
    assert len(np.unique(x)) > 7900
    assert abs(np.corrcoef(x)[0, 1]) < 0.1


def test_a_draw_depends_on_key_index_and_name_alone():
    run = lambda priors, seed=4, mutate=True: explored(priors, seed, cohort(4000), mutate, 0.5)
    found = run(SOME)
    more = {"ent_coef": PRIORS["ent_coef"], "gamma": SOME["gamma"], "learning_rate": SOME["learning_rate"]}
    same_bits(found.gamma, run(more).gamma)
    same_bits(found.learning_rate, run(more).learning_rate)
    few = jax.jit(
        lambda hypers: explore({"gamma": SOME["gamma"]}, jax.random.key(4), hypers, hypers[0] > 0, 0.5)
    )
    same_bits(found.gamma[:3], few(cohort(3)).gamma)
    same_bits(found.gamma[5], run(SOME, mutate=np.arange(4000) == 5).gamma[5])
    assert (found.gamma != run(SOME, seed=5).gamma).any()


def test_compiled_is_the_same():
    """Up to the last bit of a logarithm near -10, which is 1e-6, and so as much of its exponential."""
    mutate = np.arange(4000) % 2 == 0
    every = {
        name: ALL[text] for name, text in zip(Hypers._fields, [*TEXTS[3:], *list(ALL)[-2:]], strict=True)
    }
    run = lambda key, hypers, mutate: explore(every, key, hypers, mutate)
    for a, b in zip(
        jax.jit(run)(jax.random.key(0), cohort(4000), mutate),
        run(jax.random.key(0), cohort(4000), mutate),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=3e-6)


def test_ppo_with_its_default_priors_stays_within_them():
    hypers = PPOHypers(*(np.full(4000, np.inf, np.float32) for _ in PPOHypers._fields))
    found = explored(PPO_PRIORS, 0, hypers)
    for name, prior in PPO_PRIORS.items():
        x = getattr(found, name)
        assert (x >= np.float32(prior.low)).all()
        assert (x <= np.float32(prior.high)).all()
    assert np.isinf(found.target_kl).all()


def test_errors_say_what_is_wrong():
    run = lambda priors=SOME, **settings: explore(
        priors, jax.random.key(0), cohort(2), np.ones(2, bool), **settings
    )
    known = "these can: learning_rate, gamma, ent_coef, inner"
    with pytest.raises(ShoalError, match=f"^beta, tau cannot change while training; {known}$"):
        run({"beta": PRIORS["gamma"], **SOME, "tau": PRIORS["gamma"]})
    for rate in (-0.1, 1.1, float("nan")):
        with pytest.raises(ShoalError, match=f"^resample must be between 0 and 1, not {rate}$"):
            run(resample=rate)
    for factors in ((), (0.0, 1.2), (-1.0,), (float("nan"),), (float("inf"),)):
        with pytest.raises(ShoalError, match=r"^factors must be positive numbers, not \("):
            run(factors=factors)


def test_factors_by_default_are_those_of_the_paper():
    assert exploration.FACTORS == (0.8, 1.2)
