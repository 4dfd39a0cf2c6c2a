"""The recurrent core, the same one for acting and for learning."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxmarl_llm.networks.initializers import orthogonal


class RecurrentCore(nn.Module):
    """A gated recurrent unit over time that forgets at the start of an episode.

    Attributes:
      size: H, width of the memory.
    """

    size: int

    @nn.compact
    def __call__(self, memory: jax.Array, x: jax.Array, reset: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Runs over the leading time axis.

        Args:
          memory: `[..., H]` float32, memory before the first step.
          x: `[T, ..., F]` float32.
          reset: `[T, ...]` bool, step t is the first of an episode: its memory is zeroed before use.

        Returns:
          `(memory, y)`: memory after the last step, and outputs `[T, ..., H]`.
        """
        # Flax's default initialiser goes through LAPACK, see `initializers.orthogonal`.
        cell = nn.GRUCell(self.size, recurrent_kernel_init=orthogonal(1.0))

        def step(cell, memory, inputs):
            x, reset = inputs
            memory = jnp.where(reset[..., None], 0.0, memory)
            return cell(memory, x)

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        return scan(cell, memory, (x, reset))
