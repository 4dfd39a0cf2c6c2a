"""`cond_if_any`: a branch that stays a branch under `vmap`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap


def cond_if_any(predicate: jax.Array, on_true: Callable, on_false: Callable, *operands: Any) -> Any:
    """`lax.cond` that under `vmap` runs `on_true` only when at least one element asks for it.

    `lax.cond` becomes a select under `vmap`, so a rare and expensive branch (a reset, the value of a truncated
    observation) would be computed for every element at every step. Here the batched call is one real branch on
    `any(predicate)`; inside the taken branch the elements are selected one by one.

    Args:
      predicate: `[]` bool.
      on_true, on_false: functions of `*operands` with equal output structure. They must not close over
        batched values: pass those as operands.
      *operands: pytrees of arrays.

    Returns:
      `on_true(*operands)` where `predicate` holds, else `on_false(*operands)`.
    """

    @custom_vmap
    def call(predicate, *operands):
        return jax.lax.cond(predicate, on_true, on_false, *operands)

    @call.def_vmap
    def batched_call(axis_size, in_batched, predicate, *operands):
        predicate_batched, *operands_batched = in_batched
        in_axes = [jax.tree.map(lambda batched: 0 if batched else None, tree) for tree in operands_batched]

        def batch(function):
            return lambda *values: jax.vmap(function, in_axes=tuple(in_axes), axis_size=axis_size)(*values)

        if predicate_batched:

            def select_each(predicate, *values):
                select = jax.vmap(jnp.where)
                return jax.tree.map(
                    lambda yes, no: select(predicate, yes, no), batch(on_true)(*values), batch(on_false)(*values)
                )

            def all_false(predicate, *values):
                return batch(on_false)(*values)

            out = cond_if_any(jnp.any(predicate), select_each, all_false, predicate, *operands)
        else:
            out = cond_if_any(predicate, batch(on_true), batch(on_false), *operands)
        return out, jax.tree.map(lambda _: True, out)

    return call(predicate, *operands)
