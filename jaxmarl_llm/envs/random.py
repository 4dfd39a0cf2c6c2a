"""Random draws that are cheap inside a step."""

import jax
import jax.numpy as jnp


def random_index(key: jax.Array, size: int | jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
    """Uniform integers in `0 .. size - 1` from one draw of 32 bits each (`jax.random.randint` draws 64 and splits).

    Args:
      key: consumed.
      size: number of values, at most 2**16; the bias is below `size / 2**32`.
      shape: shape of the result.

    Returns:
      int32 of `shape`.
    """
    return index_from_bits(jax.random.bits(key, shape, jnp.uint32), size)


def index_from_bits(bits: jax.Array, size: int | jax.Array) -> jax.Array:
    """Scales random bits to `0 .. size - 1`, for several draws from one key whose sizes depend on one another.

    Args:
      bits: uint32, any shape, from `jax.random.bits`.
      size: number of values, at most 2**16; a scalar or of the shape of `bits`.

    Returns:
      int32 of the shape of `bits`.
    """
    high, low = bits >> 16, bits & 0xFFFF
    size = jnp.asarray(size, jnp.uint32)
    # (bits * size) >> 32 without 64-bit integers.
    return ((high * size + ((low * size) >> 16)) >> 16).astype(jnp.int32)
