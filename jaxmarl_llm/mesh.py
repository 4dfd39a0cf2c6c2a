"""Sums over the devices that share the environments; nothing happens where there is one device.

A learner's update may run inside `jax.shard_map` over a mesh axis `"env"`: each device then holds its share of the
environments, and what it does alone needs no word to the others. Only sums over environments do, and are taken here.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

ENV_AXIS = "env"
# Groups of environments are the grain of sharing: at most so many devices can share them.
_MAX_GROUPS = 64


def is_split() -> bool:
    """Whether the code being traced runs on one of several devices that share the environments."""
    return ENV_AXIS in jax.sharding.get_abstract_mesh().manual_axes


def sum_over_devices(tree: Any) -> Any:
    """Sums a pytree of floats over the devices, in one message."""
    if not is_split():
        return tree
    if isinstance(tree, jax.Array):
        return jax.lax.psum(tree, ENV_AXIS)
    flat, unravel = ravel_pytree(tree)
    return unravel(jax.lax.psum(flat, ENV_AXIS))


def global_index(num_local: int) -> jax.Array:
    """`[num_local]` int32: the numbers that this device's environments, or groups of them, have among all."""
    index = jnp.arange(num_local)
    return index + jax.lax.axis_index(ENV_AXIS) * num_local if is_split() else index


def local_keys(key: jax.Array, num_local: int) -> jax.Array:
    """`[num_local]` keys, one for each of this device's environments or groups, the same on whichever device it is."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, global_index(num_local))


def num_devices() -> int:
    """How many devices share the environments."""
    return jax.lax.axis_size(ENV_AXIS) if is_split() else 1


def env_groups(num_envs: int, columns_per_env: int, num_minibatches: int) -> int:
    """The largest number of equal groups of environments that can each give every minibatch the same share.

    Minibatches are drawn within groups, so that the draw does not depend on the number of devices, which may be any
    divisor of the number of groups.

    Args:
      num_envs: B.
      columns_per_env: what an environment gives to shuffle: its T rows, or one whole sequence.
      num_minibatches: M, which divides `num_envs * columns_per_env`.
    """
    most = math.gcd(num_envs, _MAX_GROUPS)
    fits = (g for g in range(most, 0, -1) if most % g == 0 and num_envs // g * columns_per_env % num_minibatches == 0)
    return next(fits)
