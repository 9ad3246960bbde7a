"""The orders in which samples are learned from."""

import jax
import numpy as np
import pytest

from shoal.learners.minibatches import MAX_COUNTED, random_permutations

order = jax.jit(random_permutations)


def bits(*shape):
    return np.random.default_rng(0).integers(0, 2**32, shape, np.uint32)


@pytest.mark.parametrize("size", [1, 2, 128, MAX_COUNTED, MAX_COUNTED + 1])
def test_an_order_has_everyone_once(size):
    orders = np.asarray(order(bits(3, 4, size)))
    assert (np.sort(orders, -1) == np.arange(size)).all()


def test_equals_have_places_of_their_own():
    orders = np.asarray(order(np.array([[7, 7, 7, 7], [5, 9, 5, 0]], np.uint32)))
    assert orders.tolist() == [[0, 1, 2, 3], [1, 3, 2, 0]]


def test_every_place_is_as_likely():
    """Chi-squared of 8 x 8 counts of 8,000 orders, 49 degrees of freedom: above 100 once in 20,000."""
    orders = np.asarray(order(bits(8_000, 8)))
    counts = np.stack([(orders == place).sum(0) for place in range(8)])
    assert ((counts - 1_000) ** 2 / 1_000).sum() < 100
