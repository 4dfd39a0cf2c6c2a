import numpy as np
import pytest

from jaxmarl_llm.training.statistics import bin_curve, bootstrap_interval, mean_without_nan


def test_mean_skips_missing_values():
    values = np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, np.nan], [np.inf, 5.0, 7.0]])
    np.testing.assert_array_equal(mean_without_nan(values, -1), [2.0, np.nan, 6.0])


def test_interval_covers_the_true_mean_about_95_times_in_100():
    samples = np.random.default_rng(1).normal(3.0, 1.0, (400, 30))
    low, high = bootstrap_interval(samples)
    coverage = np.mean((low <= 3.0) & (high >= 3.0))
    assert 0.90 < coverage < 0.98


def test_interval_of_one_sample_is_the_sample():
    low, high = bootstrap_interval(np.array([[2.0], [np.nan]]))
    np.testing.assert_array_equal(low, [2.0, np.nan])
    np.testing.assert_array_equal(high, [2.0, np.nan])


def test_interval_leaves_missing_samples_out():
    low, high = bootstrap_interval(np.array([[4.0, 4.0, np.nan]]))
    assert low[0] == high[0] == 4.0


@pytest.mark.parametrize("length", [1, 7, 200, 201, 1003])
def test_bins_keep_the_mean_and_the_last_point(length):
    x, values = np.arange(length, dtype=float), np.arange(2 * length, dtype=float).reshape(length, 2)
    short_x, short = bin_curve(x, values, 200)
    assert len(short_x) == len(short) == min(length, 200)
    assert short_x[-1] == x[-1]
    if length == 1003:
        widths = np.diff(np.linspace(0, length, 201).astype(int))
        np.testing.assert_allclose((short * widths[:, None]).sum(0), values.sum(0))
