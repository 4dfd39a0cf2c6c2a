import jax
import numpy as np
import pytest

from jaxmarl_llm.networks.initializers import orthogonal


@pytest.mark.parametrize("shape", [(520, 64), (64, 64), (64, 1), (2, 64), (3, 3, 26, 32)])
def test_rows_or_columns_are_orthogonal(shape, key):
    kernels = jax.jit(jax.vmap(lambda key: orthogonal(2.0)(key, shape)))(jax.random.split(key, 20))
    for kernel in np.asarray(kernels).reshape(20, -1, shape[-1]):
        gram = kernel.T @ kernel if kernel.shape[0] >= kernel.shape[1] else kernel @ kernel.T
        np.testing.assert_allclose(gram, 4 * np.eye(len(gram)), atol=1e-5)


def test_directions_are_uniform(key):
    """Entries of a random rotation of the plane have mean 0 and variance 1/2, whichever way it turns."""
    kernels = np.asarray(jax.vmap(lambda key: orthogonal(1.0)(key, (2, 2)))(jax.random.split(key, 4000)))
    np.testing.assert_allclose(kernels.mean(0), 0.0, atol=0.05)
    np.testing.assert_allclose(kernels.var(0), 0.5, atol=0.02)
    assert abs((np.linalg.det(kernels) > 0).mean() - 0.5) < 0.05
