"""Orthogonal initialisers that run everywhere, under `vmap` too."""

import math

import jax
import jax.numpy as jnp

# Each step multiplies a small singular value by 1.5: 60 bring one of 1e-8 up to 1.
_POLAR_STEPS = 60


def orthogonal(scale: float):
    """Uniformly random orthogonal rows or columns (Saxe et al. 2014): the polar factor of a Gaussian matrix.

    The factor is found by Newton-Schulz iteration (Higham 2008, eq. 8.20), that is by products of matrices alone.
    The usual QR decomposition goes through LAPACK on CPUs, where several batched decompositions in one program (one of
    a vmapped start over seeds) wait for each other's threads for ever, seen with JAX 0.10.2.

    Args:
      scale: gain.

    Returns:
      An initialiser for a kernel `[..., outputs]`; all leading axes count as inputs.
    """

    def initialize(key, shape, dtype=jnp.float32):
        rows, columns = math.prod(shape[:-1]), shape[-1]
        matrix = jax.random.normal(key, (max(rows, columns), min(rows, columns)))
        matrix /= jnp.linalg.norm(matrix)

        def step(_, matrix):
            gram = jnp.matmul(matrix.T, matrix, precision="highest")
            return 1.5 * matrix - 0.5 * jnp.matmul(matrix, gram, precision="highest")

        matrix = jax.lax.fori_loop(0, _POLAR_STEPS, step, matrix)
        matrix = matrix if rows >= columns else matrix.T
        return (scale * matrix.reshape(shape)).astype(dtype)

    return initialize


def blockwise_orthogonal(features: tuple[int, ...], scale: float):
    """Orthogonal initialisation of each block of output columns by itself.

    Args:
      features: widths of the blocks; they sum to the number of columns.
      scale: gain.

    Returns:
      An initialiser for a kernel `[inputs, sum(features)]`.
    """
    block = orthogonal(scale)

    def initialize(key, shape, dtype=jnp.float32):
        keys = jax.random.split(key, len(features))
        blocks = [block(k, (*shape[:-1], width), dtype) for k, width in zip(keys, features, strict=True)]
        return jnp.concatenate(blocks, axis=-1)

    return initialize
