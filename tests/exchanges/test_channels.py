"""Channels: attackers, noise, compression, and the privacy that is spent."""

import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.exchanges import channels

KEY = jax.random.key(7)
DELTA = jax.random.normal(jax.random.key(0), (5, 40))
CHANNELS = {
    **{kind: channels.attack(kind, 2, 3.0) for kind in channels.ATTACKS},
    "privatise": channels.privatise(0.5, 1.5),
}


@pytest.mark.parametrize("name", CHANNELS)
def test_compiled_is_the_same(name):
    send = CHANNELS[name]
    np.testing.assert_allclose(jax.jit(send)(KEY, DELTA), send(KEY, DELTA), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", channels.COMPRESSORS)
def test_compressors_compiled_are_the_same(name):
    apply = channels.COMPRESSORS[name](0.3).apply
    np.testing.assert_allclose(jax.jit(apply)(DELTA), apply(DELTA), rtol=1e-6)


@pytest.mark.parametrize("name", channels.COMPRESSORS)
@pytest.mark.parametrize("seed", range(3))
def test_compressors_treat_every_learner_alike(name, seed):
    order = np.random.default_rng(seed).permutation(5)
    apply = channels.COMPRESSORS[name](0.3).apply
    np.testing.assert_array_equal(apply(DELTA[order]), apply(DELTA)[order])


# Attacks


@pytest.mark.parametrize(
    ("kind", "expected"), [("sign-flip", [-6.0, -9.0]), ("zero", [0.0, 0.0]), ("scale", [6.0, 9.0])]
)
def test_what_attackers_send(kind, expected):
    found = channels.attack(kind, 2, 3.0)(KEY, jnp.array([[1.0], [2.0], [3.0]]))
    assert found[:, 0].tolist() == [1.0, *expected]


def test_the_noise_of_attackers_has_their_strength():
    delta = jnp.full((3, 40_000), 5.0)
    noise = np.asarray(channels.attack("noise", 2, 3.0)(KEY, delta) - delta)
    np.testing.assert_allclose(noise[1:].mean(1), 0, atol=0.06)  # four deviations of 3 / 200
    np.testing.assert_allclose(noise[1:].std(1), 3, rtol=0.02)
    assert abs(np.corrcoef(noise[1], noise[2])[0, 1]) < 0.02


@pytest.mark.parametrize("kind", channels.ATTACKS)
@pytest.mark.parametrize("bad", [0, 1, 3, 5, 9])
def test_the_honest_are_untouched_bit_for_bit(kind, bad):
    delta = DELTA.at[0, :3].set(jnp.array([-0.0, jnp.nan, jnp.inf]))
    found, honest = channels.attack(kind, bad, 2.5)(KEY, delta), max(5 - bad, 0)
    bits = lambda x: np.asarray(x)[:honest].view(np.uint32)
    np.testing.assert_array_equal(bits(found), bits(delta))
    assert (np.asarray(found)[honest:] != np.asarray(delta)[honest:]).any(1).all()


# Privacy


def test_rows_are_scaled_to_the_clip_and_no_further():
    delta = jnp.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [-3e4, 4e4]])
    found = channels.privatise(2.0, 0.0)(KEY, delta)
    np.testing.assert_allclose(found, [[1.2, 1.6], [0.3, 0.4], [0.0, 0.0], [-1.2, 1.6]], rtol=1e-6)
    np.testing.assert_array_equal(found[1:3], delta[1:3])


@pytest.mark.parametrize("junk", [jnp.nan, jnp.inf, -jnp.inf, 3e38])
def test_what_clipping_cannot_bound_is_not_sent(junk):
    delta = DELTA.at[1, 3].set(junk)
    assert np.abs(channels.privatise(1.0, 0.0)(KEY, delta)[1]).max() == 0
    noisy = channels.privatise(1.0, 2.0)
    np.testing.assert_array_equal(noisy(KEY, delta)[1], noisy(KEY, jnp.zeros_like(delta))[1])


def test_the_noise_is_unbiased_and_scaled_by_the_clip():
    """Deviation noise_multiplier * clip = 1.5 * 0.2 = 0.3 around the clipped message."""
    delta = jnp.zeros((4, 40_000)).at[:, 0].set(100.0)
    noise = np.asarray(channels.privatise(0.2, 1.5)(KEY, delta) - 0.002 * delta)
    np.testing.assert_allclose(noise.mean(1), 0, atol=4 * 0.3 / 200)
    np.testing.assert_allclose(noise.std(1), 0.3, rtol=0.02)
    assert np.abs(np.corrcoef(noise) - np.eye(4)).max() < 0.02


@pytest.mark.parametrize("name", ["noise", "privatise"])
def test_a_row_has_its_own_noise_however_many_there_are(name):
    """Keys differ, rows differ; the number of rows does not matter."""
    send = {"noise": channels.attack("noise", 9, 1.0), "privatise": channels.privatise(1.0, 1.0)}[name]
    zeros = jnp.zeros((6, 8))
    whole = np.asarray(send(KEY, zeros))
    for num in (1, 2, 5):
        np.testing.assert_array_equal(send(KEY, zeros[:num]), whole[:num])
    assert len(np.unique(whole)) == whole.size
    assert not np.isin(send(jax.random.key(8), zeros), whole).any()


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
    delta = jnp.array([[1.0, -3.0, 2.0, 0.5, 0.0], [0.1, 0.2, -0.3, 0.4, 0.5]])
    found = channels.top_k(0.4).apply(delta)
    np.testing.assert_array_equal(found, jnp.array([[0, -3, 2, 0, 0], [0, 0, 0, 0.4, 0.5]], jnp.float32))
    np.testing.assert_array_equal(channels.top_k(1.0).apply(DELTA), DELTA)


@pytest.mark.parametrize("seed", range(5))
def test_top_k_against_numpy(seed):
    rng = np.random.default_rng(seed)
    delta = rng.normal(size=(3, int(rng.integers(1, 30)))).astype(np.float32)
    keep = float(rng.uniform(0.01, 1))
    expected = np.zeros_like(delta)
    for row, out in zip(delta, expected, strict=True):
        for place in np.argsort(-np.abs(row))[: math.ceil(keep * len(row))]:
            out[place] = row[place]
    np.testing.assert_array_equal(channels.top_k(keep).apply(jnp.array(delta)), expected)


def test_top_k_of_equals_keeps_no_more_than_it_counts():
    assert channels.top_k(0.5).apply(jnp.ones((1, 4))).tolist() == [[1.0, 1.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("keep", "size", "kept"), [(0.5, 5, 3), (0.01, 5, 1), (0.07, 100, 7), (1e-05, 10, 1), (1, 9, 9)]
)
def test_how_many_are_kept(keep, size, kept):
    top = channels.top_k(keep)
    assert top.message_bytes(size) == 8 * kept
    assert np.count_nonzero(top.apply(jnp.ones((2, size)))) == 2 * kept


def test_int8_has_255_levels_and_errs_by_half_a_step_at_most():
    """The largest is sent exactly, and 127 steps of 0.5 below 63.5 are as they are."""
    delta = jnp.array([[63.5, -63.5, 0.5, -1.0, 0.2, 0.3, -0.3]])
    assert channels.int8().apply(delta).tolist() == [[63.5, -63.5, 0.5, -1.0, 0.0, 0.5, -0.5]]
    sent = np.asarray(channels.int8().apply(DELTA))
    step = np.abs(DELTA).max(1, keepdims=True) / 127
    assert (np.abs(sent - DELTA) <= 0.5001 * step).all()
    levels = sent / step
    np.testing.assert_allclose(levels, np.round(levels), atol=1e-4)
    assert np.abs(levels).max() <= 127.001


def test_int8_judges_each_row_by_its_own_largest():
    apply = channels.int8().apply
    sent = apply(DELTA)
    both = apply(jnp.concatenate([1e6 * DELTA, 1e-6 * DELTA]))
    np.testing.assert_allclose(both, jnp.concatenate([1e6 * sent, 1e-6 * sent]), rtol=1e-4)


@pytest.mark.parametrize("name", channels.COMPRESSORS)
def test_zeros_stay_zeros(name):
    delta = DELTA.at[2].set(0.0)
    sent = channels.COMPRESSORS[name](0.1).apply(delta)
    assert sent.shape == delta.shape
    assert sent.dtype == jnp.float32
    assert np.isfinite(sent).all()
    np.testing.assert_array_equal(sent[2], 0)


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
    wanted = jax.random.normal(jax.random.key(1), (300, 2, 20)) + jnp.linspace(0.05, 1, 20)[None, None, :]

    def send(residual, delta):
        sent = apply(residual + delta)
        return residual + delta - sent, sent

    residual, sent = jax.lax.scan(send, jnp.zeros((2, 20)), wanted)
    np.testing.assert_allclose(jnp.sum(sent, 0) + residual, jnp.sum(wanted, 0), atol=1e-3)
    assert np.abs(residual).max() < 30
    if name == "top-k":
        assert np.count_nonzero(sent[5]) == 2 * 2
        forgetful = jnp.sum(jax.vmap(apply)(wanted), 0)
        lost = lambda arrived: float(jnp.linalg.norm(arrived - jnp.sum(wanted, 0)))
        assert lost(jnp.sum(sent, 0)) < 0.2 * lost(forgetful)


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
