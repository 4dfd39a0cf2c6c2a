"""A wall that XLA's fusion does not look through."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap


def compute_apart(function: Callable, always_true: jax.Array, *operands: Any) -> Any:
    """`function(*operands)` as a loop nest of its own, with operands and results in memory.

    On CPU, XLA merges elementwise code with the reshapes after it and with the code before it. The merged loop runs
    over the reshaped axes, where a short last axis does not fill a vector register, and repeats the earlier code for
    every element. The body of a real branch is compiled by itself, so a branch on a condition that always holds,
    which the compiler cannot know, keeps the loop as it was written (`optimization_barrier` is gone before fusion on
    CPU). Other platforms call the function directly.

    Args:
      function: a function of `*operands` that closes over no batched values.
      always_true: `[]` bool, computed from run-time values, always true.
      *operands: pytrees of arrays.
    """
    return jax.lax.platform_dependent(
        always_true, *operands, cpu=lambda *values: _branch(function, *values), default=lambda _, *rest: function(*rest)
    )


def _branch(function, always_true, *operands):
    @custom_vmap
    def call(always_true, *operands):
        def nothing(*values):
            # Takes shapes, types and shardings; the values themselves are not computed.
            return jax.tree.map(jnp.zeros_like, function(*values))

        return jax.lax.cond(always_true, function, nothing, *operands)

    @call.def_vmap
    def batched_call(axis_size, in_batched, always_true, *operands):
        condition_batched, *operands_batched = in_batched
        in_axes = tuple(jax.tree.map(lambda batched: 0 if batched else None, tree) for tree in operands_batched)

        def batched_function(*values):
            return jax.vmap(function, in_axes=in_axes, axis_size=axis_size)(*values)

        out = _branch(batched_function, jnp.all(always_true) if condition_batched else always_true, *operands)
        return out, jax.tree.map(lambda _: True, out)

    return call(always_true, *operands)
