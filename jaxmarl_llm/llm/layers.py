"""Parts of a decoder's layer: norm, rotary positions, attention with a cache."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from jaxmarl_llm.llm.config import RopeScaling

# The name of what a backward pass over stacked layers keeps of each; the rest is computed again.
KEPT = "kept"


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
      Two arrays `[B, L, 1, D]` float32: the cosine of each pair twice, and the sine, negative the first time.
    """
    frequency = rotary_frequencies(head_dim, base, scaling)
    angle = position[..., None, None].astype(jnp.float32) * frequency[None, None, None]
    # Side by side, since XLA's CPU compiler would else compute them again for each head of each layer.
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([cosine, cosine], axis=-1), jnp.concatenate([-sine, sine], axis=-1)


def rotary_frequencies(head_dim: int, base: float, scaling: RopeScaling | None = None) -> jax.Array:
    """Radians that each pair of a head turns a position, `[D / 2]` float32; arguments of `rotary_angles`."""
    frequency = base ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    if scaling is None:
        return frequency
    turns = scaling.original_max_length * frequency / (2 * np.pi)
    span = scaling.high_frequency_factor - scaling.low_frequency_factor
    kept = jnp.clip((turns - scaling.low_frequency_factor) / span, 0.0, 1.0)
    return (1.0 - kept) * frequency / scaling.factor + kept * frequency


def rotate(x: jax.Array, angles: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Turns the pairs (i, i + D / 2) of each head by the angles of its position.

    Args:
      x: `[B, L, H, D]` float.
      angles: of `rotary_angles`.

    Returns:
      `[B, L, H, D]`, same dtype.
    """
    cosine, sine = angles
    exact = x.astype(jnp.float32)
    swapped = exact.reshape(*x.shape[:-1], 2, -1)[..., ::-1, :].reshape(x.shape)
    return (exact * cosine + swapped * sine).astype(x.dtype)


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
    batch, length = query.shape[:2]
    num_kv_heads = blocks[0][0].shape[1]
    if len(blocks) == 1:
        return _attend(query, *blocks[0])
    scores = [_scores(query, keys, mask) for keys, _, mask in blocks]
    # In rows of their own, since blocks may be shared by different numbers of sequences.
    rows = [one.swapaxes(1, 2).reshape(batch, num_kv_heads, -1, length, one.shape[-1]) for one in scores]
    weights = jax.nn.softmax(jnp.concatenate(rows, axis=-1), axis=-1)
    out, start = jnp.zeros((), query.dtype), 0
    for one, (_, values, _) in zip(scores, blocks, strict=True):
        shared, _, group, *rest = one.shape
        part = weights[..., start : start + rest[-1]].reshape(shared, group, num_kv_heads, *rest).swapaxes(1, 2)
        out, start = out + _merged(_mixed(part, values), batch), start + rest[-1]
    return out


def _grouped(query, shared, num_kv_heads):
    """`[B, L, H, D]` as `[B / G, K, G, H / K, L, D]`."""
    batch, length, num_heads, width = query.shape
    heads = num_kv_heads, num_heads // num_kv_heads
    return query.reshape(shared, batch // shared, length, *heads, width).transpose(0, 3, 1, 4, 2, 5)


def _merged(out, batch):
    """`[B / G, K, G, H / K, L, D]` as `[B, L, H D]`."""
    return out.transpose(0, 2, 4, 1, 3, 5).reshape(batch, out.shape[4], -1)


def _scores(query, keys, mask):
    grouped = _grouped(query, *keys.shape[:2])
    scores = jnp.einsum("bkghld,bksd->bkghls", grouped, keys).astype(jnp.float32) * query.shape[-1] ** -0.5
    return jnp.where(mask[:, None, None, None], scores, jnp.finfo(jnp.float32).min)


def _mixed(weights, values):
    return jnp.einsum("bkghls,bksd->bkghld", weights.astype(values.dtype), values)


@jax.custom_vjp
def _attend(query, keys, values, mask):
    return _attend_forward(query, keys, values, mask)[0]


def _attend_forward(query, keys, values, mask):
    query, keys, values = (checkpoint_name(x, KEPT) for x in (query, keys, values))
    weights = jax.nn.softmax(_scores(query, keys, mask), axis=-1)
    out = checkpoint_name(_merged(_mixed(weights, values), query.shape[0]), KEPT)
    return out, (query, keys, values, mask, weights, out)


def _attend_backward(kept, change):
    # The derivative of a softmax takes a sum over the slots, which is the same as one over the width of the results:
    # XLA's CPU compiler would merge the former with a product and make both slow.
    query, keys, values, mask, weights, out = kept
    shape, shared = query.shape, keys.shape[:2]
    along = jnp.sum((change * out).astype(jnp.float32).reshape(shape), axis=-1, keepdims=True)
    along, change = _grouped(along, *shared), _grouped(change.reshape(shape), *shared)
    of_weights = jnp.einsum("bkghld,bksd->bkghls", change, values).astype(jnp.float32)
    of_scores = jnp.where(mask[:, None, None, None], weights * (of_weights - along), 0.0) * shape[-1] ** -0.5
    of_scores = of_scores.astype(query.dtype)
    of_query = _merged(_mixed(of_scores, keys), shape[0]).reshape(shape)
    of_keys = jnp.einsum("bkghls,bkghld->bksd", of_scores, _grouped(query, *shared))
    of_values = jnp.einsum("bkghls,bkghld->bksd", weights.astype(values.dtype), change)
    return of_query, of_keys, of_values, None


_attend.defvjp(_attend_forward, _attend_backward)
