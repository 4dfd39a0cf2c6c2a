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


def grouped_attention(query: jax.Array, *blocks: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
    """Scaled dot-product attention in which each head of keys and values serves several query heads.

    Axes: B sequences, L queries, S slots, H query heads, K heads of keys and values, D width of a head.

    Args:
      query: `[B, L, H, D]` float.
      *blocks: `(keys, values, mask)` each, slots that one softmax goes over. Keys and values are `[B / G, K, S, D]`
        float, where G sequences next to each other share them; the mask `[B / G, L or 1, S]` bool says which slots a
        query attends to; finite where it is none. With the heads before the slots the products for one query are two to
        ten times as fast on a CPU as with other orders.

    Returns:
      `[B, L, H D]`, same dtype.
    """
    batch, length, num_heads, width = query.shape
    num_kv_heads = blocks[0][0].shape[1]

    def scores_of(keys, mask):
        shared = keys.shape[0]
        heads = num_kv_heads, num_heads // num_kv_heads
        grouped = query.reshape(shared, batch // shared, length, *heads, width).transpose(0, 3, 1, 4, 2, 5)
        scores = jnp.einsum("bkghld,bksd->bkghls", grouped, keys).astype(jnp.float32) * width**-0.5
        return jnp.where(mask[:, None, None, None], scores, jnp.finfo(jnp.float32).min)

    def mix(weights, values):
        out = jnp.einsum("bkghls,bksd->bkghld", weights.astype(values.dtype), values)
        return out.transpose(0, 2, 4, 1, 3, 5).reshape(batch, length, num_heads * width)

    scores = [scores_of(keys, mask) for keys, _, mask in blocks]
    if len(blocks) == 1:
        return mix(jax.nn.softmax(scores[0], axis=-1), blocks[0][1])
    # In rows of their own, since blocks may be shared by different numbers of sequences.
    rows = [one.swapaxes(1, 2).reshape(batch, num_kv_heads, -1, length, one.shape[-1]) for one in scores]
    weights = jax.nn.softmax(jnp.concatenate(rows, axis=-1), axis=-1)
    out, start = jnp.zeros((), query.dtype), 0
    for one, (_, values, _) in zip(scores, blocks, strict=True):
        shared, _, group, *rest = one.shape
        part = weights[..., start : start + rest[-1]].reshape(shared, group, num_kv_heads, *rest).swapaxes(1, 2)
        out, start = out + mix(part, values), start + rest[-1]
    return out
