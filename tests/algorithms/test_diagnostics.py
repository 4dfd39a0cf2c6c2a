"""Gradient statistics of roles and the detector of collapsing learning curves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm import algorithms as alg


def test_coherence_scale():
    strength, cosine = jnp.array([0.3, 0.3, 1.0, 1.0]), jnp.array([1.0, -0.5, 1.0, 0.25])
    np.testing.assert_allclose(alg.coherence_scale(cosine, strength=strength), [0.7, 1, 0, 0.75], atol=1e-6)
    np.testing.assert_allclose(alg.coherence_scale(cosine, strength=1.0, floor=0.1), [0.1, 1, 0.1, 0.75], atol=1e-6)


def test_full_strength_freezes_and_a_floor_does_not():
    def train(floor):
        def step(carry, _):
            params, average = carry
            gradient = jnp.array([1.0, -2.0])
            cosine = gradient @ average / (jnp.linalg.norm(gradient) * jnp.linalg.norm(average))
            gradient = alg.coherence_scale(cosine, strength=1.0, floor=floor) * gradient
            return (params - 0.1 * gradient, 0.97 * average + 0.03 * gradient), None

        return jax.lax.scan(step, (jnp.zeros(2), jnp.array([1.0, -2.0])), length=50)[0][0]

    np.testing.assert_allclose(train(0.0), 0.0, atol=1e-5)
    assert float(jnp.abs(train(0.1)).max()) > 0.5


def test_role_gradient_report_equals_a_loop():
    rng = np.random.default_rng(0)
    gradients = {"a": rng.normal(size=(5, 3, 7)).astype(np.float32), "b": rng.normal(size=(5, 11)).astype(np.float32)}
    report = jax.jit(alg.role_gradient_report)(gradients)
    flat = [np.concatenate([gradients["a"][r].ravel(), gradients["b"][r]]).astype(np.float64) for r in range(5)]
    norms = [np.sqrt(sum(x * x for x in row)) for row in flat]
    np.testing.assert_allclose(report.norm, norms, rtol=1e-5)
    np.testing.assert_allclose(report.mass_share, norms / np.sum(norms), rtol=1e-5)
    for i in range(5):
        for j in range(5):
            assert float(report.cosine[i, j]) == pytest.approx(flat[i] @ flat[j] / norms[i] / norms[j], abs=1e-5)


@pytest.mark.parametrize("size", [0.0, 1e-30, 1.0, 1e30])
def test_role_gradient_report_is_finite_for_any_size_of_gradient(size):
    report = alg.role_gradient_report([jnp.array([[size, 0.0], [size, size], [0.0, 0.0]])])
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(report))
    assert not np.any(report.cosine[2]) and float(report.mass_share[2]) == 0
    assert float(report.cosine[0, 1]) == pytest.approx(0.5**0.5 if size else 0.0, abs=1e-6)
    assert float(report.mass_share.sum()) == pytest.approx(1.0 if size else 0.0, abs=1e-6)


def test_role_gradient_report_rejects_leaves_of_different_roles():
    for gradients in ({}, {"a": jnp.zeros((3, 2)), "b": jnp.zeros((5, 2))}, {"a": jnp.zeros(())}):
        with pytest.raises(ValueError, match="one leading axis R"):
            alg.role_gradient_report(gradients)


def curves(num, collapse, noise, length=60, seed=0):
    """`[length, num]`: a rise to 0.6, then a plateau that collapses over three points, twelve before the end."""
    t = np.arange(length)[:, None]
    curve = 0.6 * (1 - np.exp(-t / 8)) - collapse * np.clip((t - (length - 12)) / 3, 0, 1)
    return (curve + noise * np.random.default_rng(seed).normal(size=(length, num))).astype(np.float32)


@pytest.mark.parametrize("window", [3, 5])
def test_cliff_false_alarms_are_rare(window):
    # Lengths that divide differently into thirds; half of the curves are a plateau throughout, half rise to one.
    for length in (8, 11, 14, 20, 60):
        draws = np.random.default_rng(length).normal(size=(length, 10_000))
        rise = 0.6 * (1 - np.exp(-np.arange(length) / 3))[:, None] * (np.arange(10_000) % 2)
        for noise, most in ((0.03, 0.01), (0.3, 0.02)):
            report = alg.detect_cliff(jnp.asarray(rise + noise * draws, jnp.float32), window=window)
            assert float(report.cliff.mean()) <= most, (length, noise)


@pytest.mark.parametrize("length", [10, 13, 16])
def test_cliff_of_a_short_curve(length):
    # A steep rise and a steep fall are most of a short curve, and no noise.
    time = np.arange(length)
    plateau = np.minimum(0.3 + 0.15 * time, 0.75)
    fall = 0.2 * np.clip(time - (length - 5), 0, 2)
    noise = 0.01 * np.random.default_rng(3).normal(size=(length, 1000))
    flat = alg.detect_cliff(jnp.asarray(plateau[:, None] + noise, jnp.float32), window=3)
    fallen = alg.detect_cliff(jnp.asarray((plateau - fall)[:, None] + noise, jnp.float32), window=3)
    assert not flat.cliff.any() and float(fallen.cliff.mean()) > 0.99
    by_15_points = (plateau - 0.375 * fall)[:, None] + noise
    assert float(alg.detect_cliff(jnp.asarray(by_15_points, jnp.float32), window=3).cliff.mean()) > 0.9


def test_cliff_is_found_soon_after_a_collapse():
    collapsed = jnp.asarray(curves(1000, 0.15, 0.03))
    assert float(alg.detect_cliff(collapsed, window=5).cliff.mean()) > 0.99
    # The collapse is over three points after it began; the alarm comes within a window of its end.
    assert float(alg.detect_cliff(collapsed[: 48 + 3 + 5], window=5).cliff.mean()) > 0.95
    assert not bool(alg.detect_cliff(jnp.asarray(curves(1, 0.0, 0.0))[:, 0], window=5).cliff)


def test_cliff_report_equals_a_loop():
    curve = np.random.default_rng(1).normal(size=(17, 3)).astype(np.float32).cumsum(0)
    report = alg.detect_cliff(jnp.asarray(curve), window=5)
    for c in range(3):
        smooth = [curve[t - 4 : t + 1, c].mean() for t in range(4, 17)]
        best = int(np.argmax(smooth))
        assert float(report.peak[c]) == pytest.approx(smooth[best], abs=1e-5)
        assert int(report.peak_step[c]) == best + 4
        assert float(report.final[c]) == pytest.approx(smooth[-1], abs=1e-5)
        assert float(report.drop[c]) == pytest.approx(smooth[best] - smooth[-1], abs=1e-5)
        rate = (smooth[best] - smooth[-1]) / max(12 - best, 1)
        assert float(report.drop_rate[c]) == pytest.approx(rate, abs=1e-5)


def test_cliff_window_must_fit():
    for window in (0, 18):
        with pytest.raises(ValueError, match="window must be 1 to"):
            alg.detect_cliff(jnp.zeros(17), window=window)
    assert not bool(alg.detect_cliff(jnp.zeros(1), window=1).cliff)
