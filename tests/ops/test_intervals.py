"""Trimmed means and their bootstrap intervals: numbers known beforehand, and no end beyond the data."""

import numpy as np
import pytest
from scipy.stats import trim_mean

from shoal.ops.intervals import TRIM, bootstrap_interval, middle, trimmed_mean

IQM = TRIM["iqm"]
NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("row", "mean", "iqm"),
    [
        ([7.0], 7, 7),
        ([1.0, 2.0, 9.0], 4, 4),  # floor(3 / 4) = 0 are left out
        ([100.0, 2.0, 3.0, -100.0], 1.25, 2.5),
        ([1.0, NAN, 5.0, 3.0, -INF, 7.0], 4, 4),
        ([NAN, INF], NAN, NAN),
    ],
)
def test_means_by_hand(row, mean, iqm):
    values = np.array([row])
    np.testing.assert_allclose(trimmed_mean(values), [mean])
    np.testing.assert_allclose(trimmed_mean(values, IQM), [iqm])


@pytest.mark.parametrize("number", [5, 8, 50])
def test_the_interquartile_mean_is_scipys_trimmed_mean(number):
    values = np.random.default_rng(number).normal(size=(6, number))
    np.testing.assert_allclose(trimmed_mean(values, IQM), trim_mean(values, 0.25, axis=1), rtol=1e-12)


def test_the_middle_of_each_row():
    low, high = middle(np.array([[0.0, 10, 20, 30, NAN], [NAN] * 5]), 0.5)
    np.testing.assert_array_equal(low, [7.5, NAN])
    np.testing.assert_array_equal(high, [22.5, NAN])


def test_two_learners_tell_no_more_than_both():
    """A resample is both alike in half of the cases, so the middle 95 % reach from one to the other."""
    low, high = bootstrap_interval(np.array([[10.0, 30.0]]))
    assert (low[0], high[0]) == (10, 30)


@pytest.mark.parametrize("trim", TRIM.values())
@pytest.mark.parametrize("number", [1, 3, 8, 40])
def test_an_interval_stays_within_the_data_and_around_the_mean(trim, number):
    random = np.random.default_rng(number)
    values = np.minimum(0.1 * random.standard_cauchy((30, number)) ** 2, 0.5)  # many at the very bound
    values[0] = 0.1  # rounding must not lead out of it
    low, high = bootstrap_interval(values, trim, resamples=300)
    mean = trimmed_mean(values, trim)
    assert (values.min(axis=1) <= low).all()
    assert (high <= values.max(axis=1)).all()
    assert ((low <= mean) & (mean <= high)).all()


def test_the_mean_of_the_world_is_inside_as_often_as_said():
    """30 samples of a normal distribution, 400 times: 95 % of the intervals hold its mean, about."""
    low, high = bootstrap_interval(np.random.default_rng(1).normal(size=(400, 30)))
    inside = np.mean((low < 0) & (high > 0))
    assert 0.90 < inside < 0.97
    np.testing.assert_allclose(np.mean(high - low), 2 * 1.96 / np.sqrt(30), rtol=0.06)


def test_columns_of_one_unit_are_one():
    """Each column twice says no more than each once, if it is known that they depend on each other."""
    values = np.random.default_rng(2).normal(size=(5, 6))
    once = bootstrap_interval(values)
    twice = bootstrap_interval(np.repeat(values, 2, axis=1), units=np.repeat(np.arange(6), 2))
    np.testing.assert_allclose(twice, once)
    unknown = bootstrap_interval(np.repeat(values, 2, axis=1))
    assert np.mean(unknown.high - unknown.low) < 0.8 * np.mean(once.high - once.low)


def test_what_is_unknown_is_left_out():
    values = np.array([[1.0, NAN, 3.0], [NAN, NAN, 5.0], [NAN] * 3])
    low, high = bootstrap_interval(values)
    np.testing.assert_array_equal(low, [1, 5, NAN])
    np.testing.assert_array_equal(high, [3, 5, NAN])
