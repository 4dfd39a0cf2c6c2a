"""Parts of a decoder's layer: norm, rotary positions, attention with a cache."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxmarl_llm.llm.config import RopeScaling


class RMSNorm(nn.Module):
    """Division by the root mean square of the last axis, then a learned scale (Zhang and Sennrich 2019, eq. 4).

    Attributes:
      epsilon: added to the mean square.
      dtype, param_dtype: of the result and of the scale; the norm itself is taken in float32.
    """

    epsilon: float
    dtype: str = "float32"
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """`[..., E]`, same shape."""
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), self.param_dtype)
        x = x.astype(jnp.float32)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.epsilon)
        return x.astype(self.dtype) * scale.astype(self.dtype).reshape((1,) * (x.ndim - 1) + (-1,))


def rotary_angles(
    position: jax.Array, head_dim: int, base: float, scaling: RopeScaling | None = None
) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of a position's angles (Su et al. 2021, eq. 15).

    Args:
      position: `[B, L]` int32.
      head_dim: D.
      base: the slowest angle turns about `base` times slower than the fastest.
      scaling: of the angles.

    Returns:
      Two arrays `[B, L, 1, D / 2]` float32.
    """
    frequency = base ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    if scaling is not None:
        turns = scaling.original_max_length * frequency / (2 * np.pi)
        span = scaling.high_frequency_factor - scaling.low_frequency_factor
        kept = (turns - scaling.low_frequency_factor) / span if span else turns >= scaling.low_frequency_factor
        kept = jnp.clip(kept, 0.0, 1.0)
        frequency = (1.0 - kept) * frequency / scaling.factor + kept * frequency
    angle = position[..., None, None].astype(jnp.float32) * frequency[None, None, None]
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: jax.Array, angles: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Turns the pairs (i, i + D / 2) of each head by the angles of its position.

    Args:
      x: `[B, L, H, D]` float.
      angles: of `rotary_angles`.

    Returns:
      `[B, L, H, D]`, same dtype.
    """
    cosine, sine = angles
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def grouped_attention(query: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array) -> jax.Array:
    """Scaled dot-product attention in which each head of keys and values serves several query heads.

    Axes: B sequences, L queries, S slots, H query heads, K heads of keys and values, D width of a head.

    Args:
      query: `[B, L, H, D]` float.
      keys, values: `[B, K, S, D]` float. With the heads before the slots the products for one query are two to ten
        times as fast on a CPU as with other orders.
      mask: `[B, L, S]` bool, which slots a query attends to; finite where it is none.

    Returns:
      `[B, L, H D]`, same dtype.
    """
    batch, length, num_heads, width = query.shape
    num_kv_heads = keys.shape[1]
    grouped = query.reshape(batch, length, num_kv_heads, num_heads // num_kv_heads, width).transpose(0, 2, 3, 1, 4)
    scores = jnp.einsum("bkgld,bksd->bkgls", grouped, keys).astype(jnp.float32) * width**-0.5
    scores = jnp.where(mask[:, None, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    out = jnp.einsum("bkgls,bksd->bkgld", weights, values)
    return out.transpose(0, 3, 1, 2, 4).reshape(batch, length, num_heads * width)
