"""Changing the statistics of a critic's target leaves its values alone when the last layer follows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm import algorithms as alg


@pytest.mark.parametrize("shape", [(), (3,)])
def test_outputs_are_preserved(shape):
    x, kernel = jax.random.normal(jax.random.key(0), (7, 5)), jax.random.normal(jax.random.key(1), (5, 3))
    bias = jnp.array([0.5, -1.0, 2.0])

    def values(statistics, kernel, bias):
        out = x @ kernel + bias[None]
        return alg.denormalize_value(jax.tree.map(lambda s: jnp.broadcast_to(s, (7, 3)), statistics), out)

    old = alg.init_value_statistics(shape)
    for mean, square in ((3.0, 25.0), (-100.0, 2e4)):
        new = alg.update_value_statistics(old, jnp.full(shape, mean), jnp.full(shape, square), 11, decay=0.9)
        changed = alg.preserve_outputs(old, new, kernel, bias)
        np.testing.assert_allclose(values(new, *changed), values(old, kernel, bias), rtol=1e-4, atol=1e-4)
        assert not np.allclose(values(new, kernel, bias), values(old, kernel, bias), atol=0.1)
        old, (kernel, bias) = new, changed
