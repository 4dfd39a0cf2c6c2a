"""Offline functions against published values and what their definitions promise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm import algorithms as alg


def test_conservative_penalty():
    q_values = jnp.array([1.0, 2.0, 0.0])
    penalty = alg.conservative_penalty(jnp.tile(q_values, (2, 1)), jnp.arange(2))
    np.testing.assert_allclose(penalty, [1.407606, 0.407606], atol=1e-6)
    rng = np.random.default_rng(0)
    q_values, action = rng.normal(size=(5, 7, 11)).astype(np.float32), rng.integers(11, size=(5, 7))
    mask = rng.random((5, 7, 11)) < 0.5
    np.put_along_axis(mask, action[..., None], True, axis=-1)
    penalty = alg.conservative_penalty(np.where(mask, q_values, 1e9), action, action_mask=jnp.asarray(mask))
    for i in np.ndindex(action.shape):
        expected = np.log(np.sum(np.exp(q_values[i][mask[i]], dtype=np.float64))) - q_values[i][action[i]]
        assert float(penalty[i]) == pytest.approx(expected, abs=1e-5) and expected >= 0


@pytest.mark.parametrize(
    ("sample", "expectile", "expected"),
    [((0, 1), 0.5, 0.5), ((0, 1), 0.7, 0.7), ((0, 1), 0.9, 0.9), ((0, 1, 2, 3), 0.7, 1.9)],
)
def test_minimiser_of_the_expectile_loss(sample, expectile, expected):
    sample = jnp.asarray(sample, float)
    slope = jax.grad(lambda value: alg.expectile_loss(sample - value, expectile=expectile).sum())
    assert float(slope(jnp.float32(expected))) == pytest.approx(0.0, abs=1e-5)
    assert float(slope(jnp.float32(expected - 0.1))) < 0 < float(slope(jnp.float32(expected + 0.1)))


def test_bcq_action_mask():
    probs = jnp.array([0.5, 0.2, 0.14, 0.16])
    assert alg.bcq_action_mask(probs).tolist() == [True, True, False, True]
    probs = np.random.default_rng(0).dirichlet(np.full(7, 0.5), size=(3, 5))
    for threshold in (0.0, 0.3, 0.99):
        mask = alg.bcq_action_mask(jnp.asarray(probs), threshold=threshold)
        for i in np.ndindex(probs.shape):
            assert bool(mask[i]) == (np.float32(probs[i]) > np.float32(threshold) * np.float32(probs[i[:2]].max()))


def test_advantage_weights():
    advantage = jnp.array([-1e9, -1.0, 0.0, 0.5, 1.0, 1e9])
    weights = alg.advantage_weights(advantage, beta=2.0, clip=5.0)
    np.testing.assert_allclose(weights, [0, np.exp(-2), 1, np.exp(1), 5, 5], rtol=1e-5)
    assert float(alg.advantage_weights(jnp.float32(1e9), beta=0.0)) == 1.0
