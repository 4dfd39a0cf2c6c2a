"""Replay of sequences on the device: pure functions, for use inside jit."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm import mesh
from jaxmarl_llm.algorithms.value.state import Replay

# Keeps a sequence that is learned perfectly from never being drawn again.
_MIN_PRIORITY = 1e-3


def init_replay(sequences: Any, capacity: int) -> Replay:
    """An empty replay.

    Args:
      sequences: a pytree of `[B, ...]`, or of their shapes.
      capacity: C, sequences kept of each environment.
    """
    num_envs = jax.tree.leaves(sequences)[0].shape[0]
    zeros = jax.tree.map(lambda leaf: jnp.zeros((num_envs, capacity, *leaf.shape[1:]), leaf.dtype), sequences)
    return Replay(zeros, jnp.zeros((num_envs, capacity)))


def add_to_replay(replay: Replay, sequences: Any, number: jax.Array) -> Replay:
    """Stores one sequence of each environment over its oldest one, at its highest priority so far.

    Args:
      replay: `[B, C, ...]`.
      sequences: pytree of `[B, ...]`.
      number: `[]` int32, how many were stored before.
    """
    num_envs, capacity = replay.priority.shape
    highest = jnp.max(replay.priority, axis=1)
    new = Replay(sequences, jnp.where(highest > 0, highest, 1.0))

    def put(env, replay):
        def put_leaf(leaf, new):
            start = (env, number % capacity, *(0,) * (new.ndim - 1))
            return jax.lax.dynamic_update_slice(leaf, new[env][None, None], start)

        return jax.tree.map(put_leaf, replay, new)

    # A loop works in place; at one stroke, XLA copies the whole replay wherever it has another shape outside.
    return jax.lax.fori_loop(0, num_envs, put, replay)


def sample_replay(
    key: jax.Array, priority: jax.Array, count: int, *, num_groups: int = 1, exponent=0.0, weight_exponent=0.0
) -> tuple[jax.Array, jax.Array]:
    """Draws sequences with probability proportional to `priority ** exponent` (Schaul et al. 2016, eq. 1 and sec. 3.4).

    Args:
      key: consumed.
      priority: `[B, C]` float32, of the environments on this device; 0 for what is never drawn. Each group of
        environments needs a positive one.
      count: K, how many over all devices, with replacement, `K / num_groups` from each group.
      num_groups: groups of environments, over all devices; see `jaxmarl_llm.mesh`.
      exponent: 0 draws uniformly from all stored sequences of a group.
      weight_exponent: 1 corrects wholly for drawing some too often, 0 not at all.

    Returns:
      `(index, weight)`: int32 into the flattened `[B * C]`, and importance weights float32, 1 for what is drawn as
      often as by a uniform draw; both `[K]`, this device's share of it.
    """
    local_groups = num_groups // mesh.num_devices()
    in_group = priority.reshape(local_groups, -1)
    share = count // num_groups

    def draw(key, priority):
        mass = jnp.where(priority > 0, jnp.maximum(priority, _MIN_PRIORITY) ** exponent, 0.0)
        cumulative = jnp.cumsum(mass)
        # One draw from each of equal parts of the mass: the same expectation, less variance.
        level = (jnp.arange(share) + jax.random.uniform(key, (share,))) / share
        index = jnp.searchsorted(cumulative, level * cumulative[-1], side="right")
        # Rounding can end a draw at what is never drawn: then the one before it that may be.
        allowed = jax.lax.cummax(jnp.where(mass > 0, jnp.arange(priority.shape[0]), 0))
        index = allowed[jnp.minimum(index, priority.shape[0] - 1)]
        mean = cumulative[-1] / jnp.sum(priority > 0)
        return index, (mean / jnp.maximum(mass[index], jnp.finfo(mass.dtype).tiny)) ** weight_exponent

    index, weight = jax.vmap(draw)(mesh.local_keys(key, local_groups), in_group)
    index = index + in_group.shape[1] * jnp.arange(local_groups)[:, None]
    return index.reshape(-1).astype(jnp.int32), weight.reshape(-1)


def take_sequences(replay: Replay, index: jax.Array) -> Any:
    """`index.shape + (...)`: the sequences at flat indices of any shape."""
    row, column = jnp.divmod(index, replay.priority.shape[1])
    return jax.tree.map(lambda leaf: leaf.at[row, column].get(mode="promise_in_bounds"), replay.sequences)


def set_priority(priority: jax.Array, index: jax.Array, value: jax.Array) -> jax.Array:
    """`[B, C]` priorities after those at flat indices became `value`, both of one shape."""
    index, value = index.reshape(-1), jnp.maximum(value, _MIN_PRIORITY).reshape(-1)
    return priority.reshape(-1).at[index].set(value).reshape(priority.shape)
