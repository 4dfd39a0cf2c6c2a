"""Moves on a grid of cells: collisions between agents, and random placement without repetition."""

import jax
import jax.numpy as jnp

from jaxmarl_llm.envs.random import index_from_bits

# Row and column change of the actions stay, up, down, left, right.
STEP_ROW = (0, -1, 1, 0, 0)
STEP_COLUMN = (0, 0, 0, -1, 1)


def resolve_moves(cell: jax.Array, target: jax.Array) -> jax.Array:
    """Where agents end up that all move at once and never share a cell.

    An agent stays where it is when another agent wants the same cell, or stays on it, or when the two would swap
    places. It may enter a cell that its occupant leaves on the same step, so that agents can follow one another
    and can rotate in a ring of three or more.

    Args:
      cell: `[N]` int, distinct: where the agents are.
      target: `[N]` int: where they want to be; equal to `cell` for those that stay.

    Returns:
      `[N]` int, distinct: `target` for those that move, `cell` for the others.
    """
    num_agents = cell.shape[0]
    if num_agents == 1:
        return target
    swaps = (target[:, None] == cell[None, :]) & (cell[:, None] == target[None, :])
    not_self = ~jnp.eye(num_agents, dtype=bool)
    target = jnp.where(jnp.any(swaps & not_self, axis=1), cell, target)

    def send_back(_, target):
        clash = jnp.any((target[:, None] == target[None, :]) & not_self, axis=1)
        return jnp.where(clash, cell, target)

    # Every round that is not the last sends at least one more agent back to its own cell.
    return jax.lax.fori_loop(0, num_agents, send_back, target, unroll=num_agents <= 8)


def sort_few(values: jax.Array) -> jax.Array:
    """Sorts a short vector by counting smaller entries: under `vmap` much cheaper than `jnp.sort`.

    Args:
      values: `[K]` int.

    Returns:
      `[K]`, rising.
    """
    index = jnp.arange(values.shape[0])
    before = (values[None, :] < values[:, None]) | (values[None, :] == values[:, None]) & (
        index[None, :] < index[:, None]
    )
    rank = jnp.sum(before, axis=1)
    return jnp.sum(jnp.where(rank[None, :] == index[:, None], values[None, :], 0), axis=1)


def random_distinct(bits: jax.Array, size: int, *, taken: jax.Array | None = None) -> jax.Array:
    """Uniform integers in `0 .. size - 1` without repetition, in random order.

    Args:
      bits: `[count]` uint32 from `jax.random.bits`; few.
      size: number of values, at most 2**16.
      taken: optional `[K]` int, distinct and rising: values that must not be drawn; `size` or more takes nothing.

    Returns:
      `[count]` int32.
    """
    count = bits.shape[0]
    taken = jnp.zeros((0,), jnp.int32) if taken is None else taken.astype(jnp.int32)
    slots = jnp.arange(taken.shape[0] + count)
    # Empty slots hold values so high that no draw steps over them.
    chosen = jnp.concatenate([jnp.where(taken < size, taken, 2 * size + count), jnp.full((count,), 2 * size + count)])
    free = size - jnp.sum(taken < size) - jnp.arange(count)
    rank = index_from_bits(bits, free)

    def draw(chosen, rank):
        # `rank` counts free values. The chosen one in slot k has `chosen - k` free values below it.
        value = rank + jnp.sum(chosen - slots <= rank)
        place = jnp.sum(chosen < value)
        chosen = jnp.where(slots < place, chosen, jnp.where(slots == place, value, jnp.roll(chosen, 1)))
        return chosen, value

    return jax.lax.scan(draw, chosen, rank)[1]
