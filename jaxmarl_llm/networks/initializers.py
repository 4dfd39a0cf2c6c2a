"""Initialisers that flax does not have."""

import jax
import jax.numpy as jnp
from flax import linen as nn


def blockwise_orthogonal(features: tuple[int, ...], scale: float):
    """Orthogonal initialisation of each block of output columns by itself.

    Args:
      features: widths of the blocks; they sum to the number of columns.
      scale: gain.

    Returns:
      An initialiser for a kernel `[inputs, sum(features)]`.
    """
    orthogonal = nn.initializers.orthogonal(scale)

    def initialize(key, shape, dtype=jnp.float32):
        keys = jax.random.split(key, len(features))
        blocks = [orthogonal(k, (*shape[:-1], width), dtype) for k, width in zip(keys, features, strict=True)]
        return jnp.concatenate(blocks, axis=-1)

    return initialize
