"""Spaces: what one agent may see or do. Frozen and hashable; they hold no arrays."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Discrete:
    """Integers `0 .. n - 1`.

    Attributes:
      n: how many values there are.
    """

    n: int
    dtype: str = "int32"

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    def sample(self, key: jax.Array, batch_shape: tuple[int, ...] = ()) -> jax.Array:
        """Uniform samples of shape `batch_shape`."""
        return jax.random.randint(key, batch_shape, 0, self.n, dtype=jnp.dtype(self.dtype))

    def contains(self, value) -> bool:
        """Whether every entry is an integer in range; any leading batch axes are allowed."""
        value = np.asarray(value)
        return bool(np.issubdtype(value.dtype, np.integer) and (value >= 0).all() and (value < self.n).all())


@dataclasses.dataclass(frozen=True)
class MultiDiscrete:
    """Vectors of F integers, entry f in `0 .. sizes[f] - 1`: a factored observation.

    Attributes:
      sizes: `F` sizes.
    """

    sizes: tuple[int, ...]
    dtype: str = "int32"

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.sizes),)

    def sample(self, key: jax.Array, batch_shape: tuple[int, ...] = ()) -> jax.Array:
        """Uniform samples of shape `batch_shape + (F,)`."""
        shape = (*batch_shape, len(self.sizes))
        sizes = jnp.broadcast_to(jnp.asarray(self.sizes, jnp.dtype(self.dtype)), shape)
        return jax.random.randint(key, shape, 0, sizes, dtype=jnp.dtype(self.dtype))

    def contains(self, value) -> bool:
        """Whether every entry is an integer in range; any leading batch axes are allowed."""
        value = np.asarray(value)
        return bool(
            np.issubdtype(value.dtype, np.integer)
            and value.shape[-1:] == self.shape
            and (value >= 0).all()
            and (value < np.asarray(self.sizes)).all()
        )


@dataclasses.dataclass(frozen=True)
class Box:
    """Arrays of a fixed shape with every entry in `[low, high]`.

    Attributes:
      low, high: bounds, the same for all entries.
      shape: shape of one agent's value, without batch and agent axes.
    """

    low: float
    high: float
    shape: tuple[int, ...]
    dtype: str = "float32"

    def sample(self, key: jax.Array, batch_shape: tuple[int, ...] = ()) -> jax.Array:
        """Uniform samples of shape `batch_shape + shape`; both bounds must be finite."""
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise ValueError(f"cannot sample uniformly from the unbounded {self}")
        shape, dtype = (*batch_shape, *self.shape), jnp.dtype(self.dtype)
        if jnp.issubdtype(dtype, jnp.integer):
            return jax.random.randint(key, shape, int(self.low), int(self.high) + 1).astype(dtype)
        return jax.random.uniform(key, shape, dtype, self.low, self.high)

    def contains(self, value) -> bool:
        """Whether shape and bounds hold; any leading batch axes are allowed."""
        value = np.asarray(value)
        trailing = value.shape[value.ndim - len(self.shape) :]
        return bool(trailing == self.shape and (value >= self.low).all() and (value <= self.high).all())


Space = Discrete | MultiDiscrete | Box


def flat_size(space) -> int:
    """Number of scalars in one agent's value of a space, or of a pytree of spaces."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(space))
