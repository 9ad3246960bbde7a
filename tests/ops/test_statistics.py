"""Running statistics, against NumPy over all the data at once."""

import jax
import numpy as np
import pytest

from shoal.ops import statistics
from shoal.ops.statistics import Running, empty

DATA = np.random.default_rng(0).normal(loc=[5.0, -3.0, 0.0], scale=[1.0, 10.0, 0.1], size=(60, 3))
CUTS = [1, 4, 20, 21, 50]  # pieces of unequal size, one of a single sample


merge, pool, summarise, variance = map(
    jax.jit, (statistics.merge, statistics.pool, statistics.summarise, statistics.variance)
)
standardise, weighted_mean = map(jax.jit, (statistics.standardise, statistics.weighted_mean))


def of(x):
    """The moments of samples."""
    x = np.float32(x)
    return jax.device_get(summarise(x, np.ones(x.shape[:1], np.float32)))


def stack(parts):
    return jax.tree.map(lambda *x: np.stack(x), *jax.device_get(parts))


def pieces():
    return [of(piece) for piece in np.split(DATA, CUTS)]


def assert_same(found: Running, expected: Running, **tolerance):
    for name, a, b in zip(Running._fields, found, expected, strict=True):
        np.testing.assert_allclose(a, b, err_msg=name, **({"rtol": 1e-5, "atol": 1e-5} | tolerance))


def test_chunks_give_the_moments_of_the_whole():
    running = empty((3,))
    for piece in pieces():
        running = merge(running, piece)
    assert running.count == 60
    np.testing.assert_allclose(running.mean, DATA.mean(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(variance(running), DATA.var(0), rtol=1e-5)


def test_order_does_not_matter():
    forwards, backwards = empty((3,)), empty((3,))
    for piece in pieces():
        forwards, backwards = merge(forwards, piece), merge(piece, backwards)
    assert_same(forwards, backwards)


def test_merged_spread_includes_the_distance_between_means():
    """Two halves of variance 1 around 0 and 10: 1 + 5^2 = 26."""
    halves = [of(np.array([-1.0, 1.0, -1.0, 1.0]) + centre) for centre in (0.0, 10.0)]
    for both in (merge(*halves), pool(stack(halves))):
        assert both.mean == 5
        assert variance(both) == 26


def test_unequal_halves_count_by_their_samples():
    """Three samples at 0 and one at 8: mean 2, variance (3 * 4 + 36) / 4 = 12."""
    both = merge(of(np.zeros(3)), of(np.array([8.0])))
    assert (float(both.count), float(both.mean), float(variance(both))) == (4, 2, 12)


def test_merging_with_nothing_changes_nothing():
    full, nothing = of(DATA), empty((3,))
    for both in (merge(merge(full, nothing), nothing), merge(nothing, merge(nothing, full))):
        jax.tree.map(np.testing.assert_array_equal, both, full)
    jax.tree.map(np.testing.assert_array_equal, merge(nothing, nothing), nothing)
    jax.tree.map(np.testing.assert_array_equal, pool(stack([nothing, nothing])), nothing)


def test_pooling_is_merging_one_by_one():
    parts = [*pieces(), empty((3,))]
    one_by_one = empty((3,))
    for part in parts:
        one_by_one = merge(one_by_one, part)
    assert_same(pool(stack(parts)), one_by_one)
    assert_same(pool(stack(parts)), of(DATA))


def test_pooling_single_numbers():
    parts = [of(np.array([1.0, 3.0])), of(np.array([5.0]))]
    assert_same(pool(stack(parts)), of(np.array([1.0, 3.0, 5.0])))


def test_many_small_merges_keep_their_precision():
    """A million samples of mean 1000 and deviation 1, 256 at a time: the batch is never a count of one."""
    chunk = of(np.tile([999.0, 1001.0], 128))
    repeated = jax.jit(
        lambda start: jax.lax.scan(lambda s, _: (merge(s, chunk), None), start, length=4000)[0]
    )
    total = repeated(empty())
    assert total.count == 4000 * 256
    np.testing.assert_allclose([total.mean, variance(total)], [1000, 1], rtol=1e-5)


def test_what_has_no_weight_does_not_count():
    data = np.stack([DATA[:30], 1e6 * np.ones((30, 3))], 1)  # (30, 2, 3), the second column invalid
    weight = np.stack([np.ones(30, bool), np.zeros(30, bool)], 1)
    assert_same(summarise(np.float32(data), weight), of(DATA[:30]))
    nothing = summarise(np.float32(data), np.zeros_like(weight))
    assert nothing.count == 0
    jax.tree.map(np.testing.assert_array_equal, merge(of(DATA), nothing), of(DATA))


def test_bytes_are_summed_as_numbers():
    x = np.full((200, 2), 255, np.uint8)
    assert summarise(x, np.ones(200, np.float32)).mean.tolist() == [255, 255]


@pytest.mark.parametrize("samples", [[], [7.0]])
def test_before_the_second_sample_the_variance_is_one(samples):
    assert variance(of(np.array(samples))) == 1


def test_standardising_gives_mean_zero_and_deviation_one_and_is_clipped():
    moments = of(DATA)
    scaled = np.asarray(standardise(np.float32(DATA), moments, 10.0))
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(0), 1, atol=1e-5)
    far = np.float32([[1e6, -1e6, 1e6]])
    assert standardise(far, moments, 3.0).tolist() == [[3.0, -3.0, 3.0]]
    np.testing.assert_allclose(standardise(far / 1e6, empty((3,)), 10.0), far / 1e6, rtol=1e-6)


def test_a_constant_becomes_zero():
    assert standardise(np.full((4, 1), 7, np.float32), of(np.full((9, 1), 7.0)), 10.0).tolist() == [[0.0]] * 4


def test_the_weighted_mean():
    assert weighted_mean(np.float32([1.0, 2.0, 100.0]), np.float32([3.0, 1.0, 0.0])) == 1.25
    assert weighted_mean(np.ones(2, np.float32), np.zeros(2, np.float32)) == 0
    assert weighted_mean(np.float32([1.0, 3.0]), np.float32([0.25, 0.25])) == 2
