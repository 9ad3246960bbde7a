"""Losses, number by number."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops import losses

explained_variance, approximate_kl = jax.jit(losses.explained_variance), jax.jit(losses.approximate_kl)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "slope"),
    [  # clip 0.2; the slope is that of the loss in the ratio
        (1.0, 3.0, -3.0, -3.0),
        (1.1, 2.0, -2.2, -2.0),  # inside
        (1.5, 2.0, -2.4, 0.0),  # good and already more likely: held
        (0.5, 2.0, -1.0, -2.0),  # good but less likely: pulled back
        (0.5, -2.0, 1.6, 0.0),  # bad and already less likely: held
        (1.5, -2.0, 3.0, 2.0),  # bad but more likely: pulled back
    ],
)
def test_the_clipped_surrogate_and_its_slope(ratio, advantage, expected, slope):
    value, gradient = jax.jit(jax.value_and_grad(losses.clipped_surrogate))(ratio, advantage, 0.2)
    np.testing.assert_allclose([value, gradient], [expected, slope], rtol=1e-6)


def test_the_plain_surrogate_is_never_clipped():
    value, slope = jax.value_and_grad(losses.surrogate)(9.0, 2.0)
    assert (float(value), float(slope)) == (-18.0, -2.0)


@pytest.mark.parametrize(
    ("value", "old_value", "target", "expected", "slope"),
    [  # clip 0.5; half the larger squared error
        (1.25, 1.0, 4.0, 0.5 * 2.75**2, -2.75),  # within the clip: the plain error
        (3.0, 1.0, 4.0, 0.5 * 2.5**2, 0.0),  # moved too far towards the target: held at 1.5
        (0.0, 1.0, 4.0, 0.5 * 4.0**2, -4.0),  # moved away from it: the plain error is the larger
        (9.0, 1.0, 4.0, 0.5 * 5.0**2, 5.0),  # overshot: the plain error again
        (-3.0, -1.0, -4.0, 0.5 * 2.5**2, 0.0),  # and downwards: held at -1.5
    ],
)
def test_the_value_clip_on_both_sides(value, old_value, target, expected, slope):
    error = partial(losses.clipped_error, losses.squared_error)
    found = jax.jit(jax.value_and_grad(error))(value, old_value, target, 0.5)
    np.testing.assert_allclose(found, [expected, slope], rtol=1e-6)


@pytest.mark.parametrize(
    ("value", "expected", "slope"),  # delta 2, target 1
    [(2.5, 0.5 * 1.5**2, 1.5), (-1.0, 0.5 * 2**2, -2.0), (7.0, 2 * (6 - 1), 2.0), (-9.0, 2 * (10 - 1), -2.0)],
)
def test_the_huber_error_grows_no_faster_than_the_error_times_delta(value, expected, slope):
    found = jax.jit(jax.value_and_grad(losses.huber_error))(value, 1.0, 2.0)
    np.testing.assert_allclose(found, [expected, slope], rtol=1e-6)


@pytest.mark.parametrize(
    ("value", "expected", "slope"),  # clip 0.5, the old value 1, the target 4, delta 2
    [(1.25, 2 * (2.75 - 1), -2.0), (3.0, 2 * (2.5 - 1), 0.0), (9.0, 2 * (5 - 1), 2.0)],
)
def test_the_value_clip_with_the_huber_error(value, expected, slope):
    error = partial(losses.clipped_error, partial(losses.huber_error, delta=2.0))
    found = jax.jit(jax.value_and_grad(error))(value, 1.0, 4.0, 0.5)
    np.testing.assert_allclose(found, [expected, slope], rtol=1e-6)


def test_the_value_error_is_half_a_square():
    assert losses.squared_error(jnp.array([3.0, -1.0]), jnp.array([1.0, -1.0])).tolist() == [2.0, 0.0]


def test_approximate_kl_is_zero_at_one_and_never_negative():
    log_ratio = np.float32([0.0, *np.linspace(-8, 8, 101), 1e-4, -1e-4])
    estimate = np.asarray(approximate_kl(log_ratio))
    assert estimate[0] == 0
    assert (estimate >= 0).all()
    np.testing.assert_allclose(approximate_kl(np.float32(0.5)), np.exp(0.5) - 1 - 0.5, rtol=1e-6)


def test_approximate_kl_has_the_right_mean():
    """Two coins: the estimate averaged over the old one is KL(old || new) in closed form."""
    old, new = np.array([0.7, 0.3]), np.array([0.5, 0.5])
    mean = float(np.dot(np.float32(old), approximate_kl(np.float32(np.log(new / old)))))
    np.testing.assert_allclose(mean, np.sum(old * np.log(old / new)), rtol=1e-6)


def test_explained_variance_by_hand():
    """Targets 0, 2, 4, 6 with variance 5; errors 1, -1, 1, -1 with variance 1: 1 - 1/5."""
    target, one = np.float32([0.0, 2.0, 4.0, 6.0]), np.ones(4, np.float32)
    value = target - np.float32([1.0, -1.0, 1.0, -1.0])
    np.testing.assert_allclose(explained_variance(value, target, one), 0.8, rtol=1e-6)
    assert explained_variance(target, target, one) == 1
    assert explained_variance(target + 9, target, one) == 1  # a constant error is no variance
    assert explained_variance(0 * target, target, one) == 0
    garbage = [np.append(x, np.float32(g)) for x, g in ((value, 1e6), (target, -1e6), (one, 0.0))]
    np.testing.assert_allclose(explained_variance(*garbage), 0.8, rtol=1e-6)


@pytest.mark.parametrize("value", [[1.0, 1.0], [0.0, 1.0]])
def test_explained_variance_of_a_constant_is_not_a_number(value):
    assert np.isnan(explained_variance(np.float32(value), np.ones(2, np.float32), np.ones(2, np.float32)))
