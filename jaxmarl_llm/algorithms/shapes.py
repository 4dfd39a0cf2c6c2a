"""Shapes that must agree: silent broadcasting is how axes get mixed up."""

import jax
import jax.numpy as jnp


def of_one_shape(**arrays) -> list[jax.Array]:
    """Arrays `[T, ...]` of one shape, in the order given.

    Args:
      **arrays: array-likes, by the names to call them in an error.

    Raises:
      ValueError: shapes that differ, or no time axis, or no step; names the first two that disagree.
    """
    found = {name: jnp.asarray(array) for name, array in arrays.items()}
    (first, example), *others = found.items()
    for name, array in others:
        if array.shape != example.shape:
            raise ValueError(
                f"{first} has shape {list(example.shape)} and {name} {list(array.shape)}: {', '.join(found)} must have "
                "one shape [T, ...]"
            )
    if example.ndim == 0 or example.shape[0] == 0:
        raise ValueError(f"{first} needs a time axis of at least one step, got shape {list(example.shape)}")
    return list(found.values())
