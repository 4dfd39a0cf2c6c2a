"""Averages over the elements that count."""

import jax.numpy as jnp


def masked_mean(value, mask, *, axis=None):
    """Mean over the elements where `mask` holds; 0 where none does.

    Args:
      value: `[...]` float.
      mask: bool or non-negative weights, of the shape of `value` or broadcast to it.
      axis: axes to average over; all of them by default.

    Returns:
      The mean, with `axis` removed.
    """
    mask = jnp.broadcast_to(mask, value.shape).astype(value.dtype)
    total = jnp.sum(jnp.where(mask > 0, value, 0.0) * mask, axis=axis)
    return total / jnp.maximum(jnp.sum(mask, axis=axis), jnp.finfo(value.dtype).tiny)


def masked_standardize(value, mask, *, axis=None, epsilon=1e-8):
    """Shifts and scales to mean 0 and population standard deviation 1 over the elements where `mask` holds.

    Args:
      value: `[...]` float.
      mask: bool or weights, of the same shape or broadcast to it.
      axis: axes over which the statistics are taken; all by default.
      epsilon: added to the standard deviation.

    Returns:
      `[...]`, same shape; elements outside the mask are transformed alike and carry no weight.
    """
    keep = tuple(range(value.ndim)) if axis is None else axis
    mean = jnp.expand_dims(masked_mean(value, mask, axis=keep), keep)
    variance = jnp.expand_dims(masked_mean(jnp.square(value - mean), mask, axis=keep), keep)
    return (value - mean) / (jnp.sqrt(variance) + epsilon)
