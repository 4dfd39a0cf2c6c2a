"""A small stack machine: programs of whole-number instructions, run inside jit in a fixed number of steps."""

import jax
import jax.numpy as jnp
import numpy as np

# A program is a list of codes: one of these, or `len(INSTRUCTIONS) + d`, which puts the digit d on the stack.
INSTRUCTIONS = ("add", "sub", "mul", "dup", "swap", "drop", "over")
ADD, SUB, MUL, DUP, SWAP, DROP, OVER, PUSH = range(8)
# How deep the stack must be for each kind, and by how much it grows.
NEEDS = np.asarray([2, 2, 2, 1, 2, 1, 2, 0], np.int32)
GROWS = np.asarray([-1, -1, -1, 1, 0, -1, 1, 1], np.int32)


def run_program(program: jax.Array, length: jax.Array, inputs: jax.Array, *, modulus: int):
    """Runs a program.

    Args:
      program: `[P]` int32 codes; any number that is no code is an error, as is an instruction without enough below it.
      length: `[]` int32, how many of them are the program.
      inputs: `[I]` int32, on the stack at the start, the last one on top.
      modulus: values are taken modulo this.

    Returns:
      `(result, ok)`: `[]` int32, what is on top at the end; `[]` bool, false for an empty program, an unknown code,
      too few values below an instruction, or an empty stack at the end.
    """
    capacity = inputs.shape[0] + program.shape[0]
    # The top is at place 0, so that pushes and pops are shifts.
    stack = jnp.concatenate([inputs[::-1] % modulus, jnp.zeros((program.shape[0],), inputs.dtype)])
    needs, grows = jnp.asarray(NEEDS), jnp.asarray(GROWS)

    def step(state, step_and_code):
        stack, depth, ok = state
        index, code = step_and_code
        running = index < length
        known = (code >= 0) & (code < PUSH + 10)
        kind = jnp.clip(code, 0, PUSH)
        legal = known & (depth >= needs[kind])
        top, below = stack[0], stack[min(1, capacity - 1)]
        popped, pushed = jnp.roll(stack, -1), jnp.roll(stack, 1)
        binary = jnp.where(kind == ADD, below + top, jnp.where(kind == SUB, below - top, below * top)) % modulus
        new_top = jnp.where(kind == DUP, top, jnp.where(kind == PUSH, (code - PUSH) % modulus, below))
        moved = jnp.select([kind <= MUL, kind == SWAP, kind == DROP], [popped.at[0].set(binary), stack, popped], pushed)
        moved = jnp.where((kind == DROP) | (kind <= MUL), moved, moved.at[0].set(new_top))
        moved = jnp.where(kind == SWAP, moved.at[min(1, capacity - 1)].set(top), moved)
        act = running & legal & ok
        return (jnp.where(act, moved, stack), depth + jnp.where(act, grows[kind], 0), ok & (legal | ~running)), None

    start = (stack, jnp.asarray(inputs.shape[0], jnp.int32), length > 0)
    (stack, depth, ok), _ = jax.lax.scan(step, start, (jnp.arange(program.shape[0]), program))
    return stack[0], ok & (depth > 0)
