"""Channels: attackers, noise, compression, and the privacy that is spent."""

import math
import sys
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.exchanges import channels

KEY = jax.random.key(7)
DELTA = np.random.default_rng(0).normal(size=(5, 40)).astype(np.float32)
CHANNELS = {
    **{kind: channels.attack(kind, 2, 3.0) for kind in channels.ATTACKS},
    "privatise": channels.privatise(0.5, 1.5),
}


@cache
def jitted(function):
    return jax.jit(function)


def sent(alteration, delta, key=KEY):
    """What becomes of a message, compiled."""
    return np.asarray(jitted(alteration)(key, delta))


@cache
def compressor(name, keep):
    return channels.COMPRESSORS[name](keep)


def short(name, delta, keep=0.3):
    """What is left of a message, compiled."""
    return np.asarray(jitted(compressor(name, keep).apply)(delta))


@pytest.mark.parametrize("name", CHANNELS)
def test_compiled_is_the_same(name):
    send = CHANNELS[name]
    np.testing.assert_allclose(sent(send, DELTA), send(KEY, DELTA), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", channels.COMPRESSORS)
def test_compressors_compiled_are_the_same(name):
    np.testing.assert_allclose(short(name, DELTA), compressor(name, 0.3).apply(DELTA), rtol=1e-6)


@pytest.mark.parametrize("name", channels.COMPRESSORS)
@pytest.mark.parametrize("seed", range(3))
def test_compressors_treat_every_learner_alike(name, seed):
    order = np.random.default_rng(seed).permutation(5)
    np.testing.assert_array_equal(short(name, DELTA[order]), short(name, DELTA)[order])


# Attacks


@pytest.mark.parametrize(
    ("kind", "expected"), [("sign-flip", [-6.0, -9.0]), ("zero", [0.0, 0.0]), ("scale", [6.0, 9.0])]
)
def test_what_liars_send(kind, expected):
    found = sent(CHANNELS[kind], np.float32([[1], [2], [3]]))
    assert found[:, 0].tolist() == [1.0, *expected]


def test_the_noise_of_liars_has_their_strength():
    noise = sent(CHANNELS["noise"], np.full((3, 40_000), 5, np.float32)) - 5
    np.testing.assert_allclose(noise[1:].mean(1), 0, atol=0.06)  # four deviations of 3 / 200
    np.testing.assert_allclose(noise[1:].std(1), 3, rtol=0.02)
    assert abs(np.corrcoef(noise[1], noise[2])[0, 1]) < 0.02


@pytest.mark.parametrize("kind", channels.ATTACKS)
@pytest.mark.parametrize("bad", [0, 1, 3, 5, 9])
def test_the_honest_are_untouched_bit_for_bit(kind, bad):
    delta, honest = DELTA.copy(), max(5 - bad, 0)
    delta[0, :3] = -0.0, np.nan, np.inf
    found = np.asarray(channels.attack(kind, bad, 2.5)(KEY, delta))
    bits = lambda x: x[:honest].view(np.uint32)
    np.testing.assert_array_equal(bits(found), bits(delta))
    assert (found[honest:] != delta[honest:]).any(1).all()


# Privacy


def test_rows_are_scaled_to_the_clip_and_no_further():
    delta = np.float32([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [-3e4, 4e4]])
    found = sent(channels.privatise(2.0, 0.0), delta)
    np.testing.assert_allclose(found, [[1.2, 1.6], [0.3, 0.4], [0.0, 0.0], [-1.2, 1.6]], rtol=1e-6)
    np.testing.assert_array_equal(found[1:3], delta[1:3])


CLIPPED, NOISY = channels.privatise(1.0, 0.0), channels.privatise(1.0, 2.0)


@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf, 3e38])
def test_what_clipping_cannot_bound_is_not_sent(junk):
    delta = DELTA.copy()
    delta[1, 3] = junk
    assert np.abs(sent(CLIPPED, delta)[1]).max() == 0
    np.testing.assert_array_equal(sent(NOISY, delta)[1], sent(NOISY, 0 * DELTA)[1])


def test_the_noise_is_unbiased_and_scaled_by_the_clip():
    """Deviation noise_multiplier * clip = 1.5 * 0.2 = 0.3 around the clipped message."""
    delta = np.zeros((4, 40_000), np.float32)
    delta[:, 0] = 100
    noise = sent(channels.privatise(0.2, 1.5), delta) - 0.002 * delta
    np.testing.assert_allclose(noise.mean(1), 0, atol=4 * 0.3 / 200)
    np.testing.assert_allclose(noise.std(1), 0.3, rtol=0.02)
    assert np.abs(np.corrcoef(noise) - np.eye(4)).max() < 0.02


@pytest.mark.parametrize("name", ["noise", "privatise"])
def test_a_row_has_its_own_noise_however_many_there_are(name):
    """Keys differ, rows differ; the number of rows does not matter."""
    send = {"noise": channels.attack("noise", 9, 1.0), "privatise": channels.privatise(1.0, 1.0)}[name]
    zeros = np.zeros((6, 8), np.float32)
    whole = sent(send, zeros)
    for num in (1, 2, 5):
        np.testing.assert_array_equal(sent(send, zeros[:num]), whole[:num])
    assert len(np.unique(whole)) == whole.size
    assert not np.isin(sent(send, zeros, jax.random.key(8)), whole).any()


def closed_form(sigma, rounds, delta):
    """The Renyi divergence of order a is rounds a / (2 sigma^2); the best order, on a fine grid."""
    a = np.concatenate([np.linspace(1.01, 64, 200_000), np.linspace(64, 2000, 20_000)])
    return np.min(rounds * a / (2 * sigma**2) + np.log1p(-1 / a) - np.log(delta * a) / (a - 1))


def delta_of(spent, sigma, rounds):
    """The exact delta of `rounds` Gaussian mechanisms at that epsilon (Balle and Wang 2018)."""
    mu = math.sqrt(rounds) / sigma
    phi = lambda x: 0.5 * math.erfc(-x / math.sqrt(2))
    return phi(mu / 2 - spent / mu) - math.exp(spent) * phi(-mu / 2 - spent / mu)


@pytest.mark.parametrize(("sigma", "rounds"), [(1.0, 10), (2.0, 1), (4.0, 100), (20.0, 30)])
def test_epsilon_against_the_closed_form(sigma, rounds):
    spent = channels.epsilon(sigma, rounds, 1e-5)
    assert isinstance(spent, float)
    np.testing.assert_allclose(spent, closed_form(sigma, rounds, 1e-5), rtol=2e-3)
    assert delta_of(spent, sigma, rounds) <= 1e-5 < delta_of(0.8 * spent, sigma, rounds)


def test_epsilon_of_one_case_by_hand():
    """sigma 1, 10 rounds, delta 1e-5; order 2.5 gives 12.5 - 0.5108 + 7.0643 = 19.0535, the least."""
    order_two_and_a_half = 12.5 + math.log(0.6) - math.log(2.5e-5) / 1.5
    assert channels.epsilon(1.0, 10, 1e-5) == pytest.approx(order_two_and_a_half, abs=1e-3)
    assert channels.epsilon(1.0, 10, 1e-5) == pytest.approx(19.0536, abs=1e-4)


def test_epsilon_at_the_ends_and_in_order():
    assert channels.epsilon(0.5, 0, 1e-5) == 0
    assert channels.epsilon(0.0, 0, 1e-5) == 0
    assert channels.epsilon(0.0, 3, 1e-5) == math.inf
    assert channels.epsilon(1.0, 1, 1e-5) < channels.epsilon(1.0, 2, 1e-5) < channels.epsilon(0.9, 2, 1e-5)
    assert channels.epsilon(1.0, 2, 1e-5) < channels.epsilon(1.0, 2, 1e-6)


def test_epsilon_is_counted_once():
    channels.epsilon(1.25, 7, 1e-5)
    before = channels.epsilon.cache_info().hits
    channels.epsilon(1.25, 7, 1e-5)
    assert channels.epsilon.cache_info().hits == before + 1


def test_without_the_accountant_one_is_told_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ShoalError, match=r'pip install "shoal\[privacy\]"'):
        channels.epsilon(1.0625, 3, 1e-5)


# Compression


def test_top_k_keeps_the_largest_as_they_are():
    delta = np.float32([[1.0, -3.0, 2.0, 0.5, 0.0], [0.1, 0.2, -0.3, 0.4, 0.5]])
    found = short("top-k", delta, 0.4)
    np.testing.assert_array_equal(found, np.float32([[0, -3, 2, 0, 0], [0, 0, 0, 0.4, 0.5]]))
    np.testing.assert_array_equal(short("top-k", DELTA, 1.0), DELTA)


@pytest.mark.parametrize("seed", range(5))
def test_top_k_against_numpy(seed):
    rng = np.random.default_rng(seed)
    delta = rng.normal(size=(3, int(rng.integers(1, 30)))).astype(np.float32)
    keep = float(rng.uniform(0.01, 1))
    expected = np.zeros_like(delta)
    for row, out in zip(delta, expected, strict=True):
        for place in np.argsort(-np.abs(row))[: math.ceil(keep * len(row))]:
            out[place] = row[place]
    np.testing.assert_array_equal(short("top-k", delta, keep), expected)


def test_top_k_of_equals_keeps_no_more_than_it_counts():
    assert short("top-k", np.ones((1, 4), np.float32), 0.5).tolist() == [[1.0, 1.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("keep", "size", "kept"), [(0.5, 5, 3), (0.01, 5, 1), (0.07, 100, 7), (1e-05, 10, 1), (1, 9, 9)]
)
def test_how_many_are_kept(keep, size, kept):
    assert compressor("top-k", keep).message_bytes(size) == 8 * kept
    assert np.count_nonzero(short("top-k", np.ones((2, size), np.float32), keep)) == 2 * kept


def test_int8_has_255_levels_and_errs_by_half_a_step_at_most():
    """The largest is sent exactly, and 127 steps of 0.5 below 63.5 are as they are."""
    delta = np.float32([[63.5, -63.5, 0.5, -1.0, 0.2, 0.3, -0.3]])
    assert short("int8", delta).tolist() == [[63.5, -63.5, 0.5, -1.0, 0.0, 0.5, -0.5]]
    found = short("int8", DELTA)
    step = np.abs(DELTA).max(1, keepdims=True) / 127
    assert (np.abs(found - DELTA) <= 0.5001 * step).all()
    levels = found / step
    np.testing.assert_allclose(levels, np.round(levels), atol=1e-4)
    assert np.abs(levels).max() <= 127.001


def test_int8_judges_each_row_by_its_own_largest():
    found = short("int8", DELTA)
    both = short("int8", np.concatenate([1e6 * DELTA, 1e-6 * DELTA]))
    np.testing.assert_allclose(both, np.concatenate([1e6 * found, 1e-6 * found]), rtol=1e-4)


@pytest.mark.parametrize("name", channels.COMPRESSORS)
def test_zeros_stay_zeros(name):
    delta = DELTA.copy()
    delta[2] = 0
    found = short(name, delta)
    assert found.shape == delta.shape
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found[2], 0)


def test_bytes():
    assert [channels.COMPRESSORS[name](0.25).message_bytes(1000) for name in ("none", "top-k", "int8")] == [
        4000,
        2000,
        1004,
    ]
    np.testing.assert_array_equal(channels.none().apply(DELTA), DELTA)


@pytest.mark.parametrize("name", channels.COMPRESSORS)
def test_with_error_feedback_everything_arrives(name):
    """sum of sent = sum of wanted - the last residual, which stays as small as a few rounds' worth."""
    apply = channels.COMPRESSORS[name](0.1).apply
    wanted = np.random.default_rng(1).normal(size=(300, 2, 20)) + np.linspace(0.05, 1, 20)

    @jax.jit
    def run(wanted):
        def send(residual, delta):
            sent = apply(residual + delta)
            return residual + delta - sent, sent

        return *jax.lax.scan(send, jnp.zeros((2, 20)), wanted), jax.vmap(apply)(wanted)

    residual, arrived, forgetful = jax.device_get(run(np.float32(wanted)))
    np.testing.assert_allclose(arrived.sum(0) + residual, wanted.sum(0), atol=1e-3)
    assert np.abs(residual).max() < 30
    if name == "top-k":
        assert np.count_nonzero(arrived[5]) == 2 * 2
        lost = lambda found: np.linalg.norm(found.sum(0) - wanted.sum(0))
        assert lost(arrived) < 0.2 * lost(forgetful)


# Messages to the user


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: channels.attack("sulk", 1, 1.0),
            "unknown attack 'sulk'; choose from sign-flip, noise, zero, scale",
        ),
        (lambda: channels.attack("zero", -1, 1.0), "bad must be at least 0, not -1"),
        (lambda: channels.attack("scale", 1, math.inf), "finite number, not inf"),
        (lambda: channels.attack("scale", 1, math.nan), "finite number, not nan"),
        (lambda: channels.privatise(0.0, 1.0), "clip must be a positive number, not 0.0"),
        (lambda: channels.privatise(-1.0, 1.0), "clip must be a positive number, not -1.0"),
        (lambda: channels.privatise(math.nan, 1.0), "clip must be a positive number, not nan"),
        (lambda: channels.privatise(math.inf, 1.0), "clip must be a positive number, not inf"),
        (lambda: channels.privatise(1.0, -0.5), "noise multiplier must be at least 0 and finite, not -0.5"),
        (lambda: channels.epsilon(-0.5, 1, 1e-5), "noise multiplier must be at least 0 and finite, not -0.5"),
        (lambda: channels.epsilon(1.0, -1, 1e-5), "rounds must be at least 0, not -1"),
        (lambda: channels.epsilon(1.0, 1, 0.0), "delta must lie between 0 and 1, not 0.0"),
        (lambda: channels.epsilon(1.0, 1, 1.0), "delta must lie between 0 and 1, not 1.0"),
        (lambda: channels.top_k(0.0), "keep must be a fraction above 0 and at most 1, not 0.0"),
        (lambda: channels.top_k(1.5), "keep must be a fraction above 0 and at most 1, not 1.5"),
        (lambda: channels.top_k(math.nan), "keep must be a fraction above 0 and at most 1, not nan"),
    ],
)
def test_errors_say_what_is_wrong(make, message):
    with pytest.raises(ShoalError, match=message):
        make()
