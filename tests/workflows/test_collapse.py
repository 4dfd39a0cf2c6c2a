import numpy as np
import pytest

from jaxmarl_llm.workflows.collapse import (
    Warnings,
    choose_level,
    early_warning,
    fall_index,
    find_cliffs,
    warning_quality,
)


def curves():
    """`[K, 3]`: a plateau, a collapse by 0.15 in the last third, and a rise to the end."""
    time = np.linspace(0, 1, 31)
    plateau = 0.3 + 0.3 * np.minimum(3 * time, 1)
    return np.stack([plateau, plateau - 0.15 * (time > 0.7), 0.3 + 0.3 * time], axis=1)


def test_cliffs_of_seeds():
    report = find_cliffs(curves(), window=3)
    assert report.cliff.tolist() == [False, True, False]
    assert report.drop == pytest.approx([0, 0.15, 0], abs=1e-6)
    assert fall_index(curves(), report).tolist() == [31, 22, 31]
    # Few points are averaged all together.
    assert find_cliffs(np.asarray([[0.5], [0.2]]), window=3).final == pytest.approx([0.35])


def test_noise_is_no_cliff():
    rng = np.random.default_rng(0)
    noisy = 0.6 + 0.03 * rng.normal(size=(41, 1000))
    assert find_cliffs(noisy, window=5).cliff.mean() <= 0.01


def test_early_warning():
    signal = np.ones((20, 5))
    signal[14:, 1] = 5.0  # the mean of three exceeds 3 when two of them are high
    signal[14, 2] = 5.0  # a lone point does not
    signal[4, 3] = 100.0  # nor what happens while the level is measured
    signal[12, 4] = np.nan
    warnings = early_warning(signal, reference=10, window=3, factor=3.0)
    assert warnings.alarm.tolist() == [False, True, False, False, True]
    assert warnings.iteration.tolist() == [21, 16, 21, 21, 13]
    assert not early_warning(signal[:7], reference=10).alarm.any()
    # A level that is known is watched from the first full window on.
    known = early_warning(signal, window=3, factor=1.0, level=2.0)
    assert known.alarm.tolist() == [False, True, True, True, True]
    assert known.iteration.tolist() == [21, 15, 15, 5, 13]


def test_a_level_from_other_runs():
    """Runs that fall make large updates from the start, which their own first updates do not tell."""
    rng = np.random.default_rng(0)
    cliff = np.arange(40) % 4 == 0
    signal = np.where(cliff, 3.0, 1.0) * np.exp(0.3 * rng.normal(size=(23, 40)))
    fall = np.where(cliff, 13, 24)
    level = choose_level(signal[:, :20], cliff[:20], fall[:20])
    quality = warning_quality(early_warning(signal[:, 20:], factor=1.0, level=level), cliff[20:], fall[20:])
    assert 1 < level < 3 and quality.recall == 1 and quality.precision > 0.8
    own = warning_quality(early_warning(signal[:, 20:], reference=5), cliff[20:], fall[20:])
    assert own.hits == 0


def test_quality_of_warnings():
    # In turn: in time, too late, never, false, and rightly silent.
    warnings = Warnings(np.asarray([True, True, False, True, False]), np.asarray([10, 30, 41, 5, 41]))
    quality = warning_quality(warnings, np.asarray([True, True, True, False, False]), np.asarray([16, 20, 20, 40, 40]))
    assert (quality.alarms, quality.cliffs, quality.hits) == (3, 3, 1)
    assert quality.precision == pytest.approx(1 / 3) and quality.recall == pytest.approx(1 / 3)
    assert quality.lead == 6
    silent = warning_quality(Warnings(np.zeros(2, bool), np.full(2, 9)), np.zeros(2, bool), np.full(2, 8))
    assert np.isnan([silent.precision, silent.recall, silent.lead]).all()
