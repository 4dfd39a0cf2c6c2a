"""Means and bootstrap intervals that skip missing values. Axes: K points of a curve, S samples (seeds or episodes)."""

import itertools

import numpy as np


def mean_without_nan(values: np.ndarray, axis: int) -> np.ndarray:
    """Mean over an axis of the values that are finite; nan where there are none.

    Args:
      values: float array.
      axis: the axis to average.
    """
    finite = np.isfinite(values)
    count = finite.sum(axis)
    total = np.where(finite, values, 0.0).sum(axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def bootstrap_interval(
    values: np.ndarray, *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap interval of the mean over the last axis (Efron 1979).

    Args:
      values: `[K, S]` float; values that are not finite are left out of each mean.
      level: coverage, between 0 and 1.
      resamples: how many bootstrap means are drawn.
      seed: seed of the resampling; one draw of samples serves all K points.

    Returns:
      `(low, high)`, each `[K]`. With one sample both are that sample; nan where no value is finite.
    """
    num_samples = values.shape[-1]
    picks = np.random.default_rng(seed).integers(num_samples, size=(resamples, num_samples))
    counts = np.zeros((resamples, num_samples))
    np.add.at(counts, (np.arange(resamples)[:, None], picks), 1.0)
    finite = np.isfinite(values)
    weight = counts @ finite.T.astype(float)  # [resamples, K]
    total = counts @ np.where(finite, values, 0.0).T
    means = np.where(weight > 0, total / np.maximum(weight, 1.0), np.nan)
    # A resample may miss every finite value of a point; it then stands at the point's own mean.
    means = np.where(np.isfinite(means), means, mean_without_nan(values, -1))
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def bin_curve(x: np.ndarray, values: np.ndarray, max_points: int) -> tuple[np.ndarray, np.ndarray]:
    """Averages neighbouring points of a long curve, so that at most `max_points` are left.

    Args:
      x: `[K]` float.
      values: `[K, ...]` float; values that are not finite are skipped in each mean.
      max_points: the bound.

    Returns:
      `(x, values)` with a shorter leading axis; each x is the last one of its bin, where the mean is known.
    """
    if len(x) <= max_points:
        return x, values
    edges = np.linspace(0, len(x), max_points + 1).astype(int)
    means = [mean_without_nan(values[start:end], 0) for start, end in itertools.pairwise(edges)]
    return x[edges[1:] - 1], np.stack(means)
