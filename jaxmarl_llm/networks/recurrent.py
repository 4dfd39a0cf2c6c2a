"""The recurrent core, the same one for acting and for learning."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxmarl_llm.networks.dense import dense
from jaxmarl_llm.networks.initializers import blockwise_orthogonal


class RecurrentCore(nn.Module):
    """A gated recurrent unit over time (Cho et al. 2014) that forgets at the start of an episode.

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
        gates = dense(3 * self.size, nn.initializers.lecun_normal(), name="input")(x)
        kernel = self.param("kernel", blockwise_orthogonal((self.size,) * 3, 1.0), (self.size, 3 * self.size))
        bias = self.param("bias", nn.initializers.zeros, (self.size,))
        keep = 1.0 - reset[..., None]
        rows = _gated_scan(
            kernel,
            bias,
            memory.reshape(-1, self.size),
            gates.reshape(x.shape[0], -1, 3 * self.size),
            keep.reshape(x.shape[0], -1, 1),
        )
        y = rows.reshape(*x.shape[:-1], self.size)
        return y[-1], y


@jax.custom_vjp
def _gated_scan(kernel, bias, memory, gates, keep):
    """Gated recurrent steps.

    Its gradient is written out, since only then the kernel's is one product after the loop instead of one in each step
    of it. The input's share of the gates comes ready, and each gate is an array of its own: XLA's CPU compiler does not
    vectorise over slices of one array.

    Args:
      kernel: `[H, 3 H]`, of memory, for the reset gate, the update gate and the candidate.
      bias: `[H]`, of the candidate's share of memory.
      memory: `[R, H]`, R rows.
      gates: `[T, R, 3 H]`, the input's share of the gates, biases included.
      keep: `[T, R, 1]`, 0 where memory is forgotten before the step, else 1.

    Returns:
      `[T, R, H]`.
    """
    return _gated_scan_forward(kernel, bias, memory, gates, keep)[0]


def _gated_scan_forward(kernel, bias, memory, gates, keep):
    to_reset, to_update, to_new = jnp.split(kernel, 3, -1)
    bias = bias[None]

    def step(memory, inputs):
        (reset_in, update_in, new_in), keep = inputs
        memory = memory * keep
        reset = jax.nn.sigmoid(reset_in + memory @ to_reset)
        update = jax.nn.sigmoid(update_in + memory @ to_update)
        share = memory @ to_new + bias
        new = jnp.tanh(new_in + reset * share)
        memory = new + update * (memory - new)
        return memory, (memory, reset, update, new, share)

    _, (y, *activations) = jax.lax.scan(step, memory, (jnp.split(gates, 3, -1), keep))
    return y, (kernel, memory, keep, y, activations)


def _gated_scan_backward(saved, dy):
    kernel, memory, keep, y, (reset, update, new, share) = saved
    size = kernel.shape[0]
    from_reset, from_update, from_new = jnp.split(kernel.T, 3, 0)
    before = jnp.concatenate([memory[None], y[:-1]]) * keep
    # Derivatives of the memory after a step by what goes into the candidate and into the update gate, and of what goes
    # into the candidate by what goes into the reset gate.
    by_new = (1.0 - update) * (1.0 - jnp.square(new))
    by_update = (before - new) * update * (1.0 - update)
    by_reset = share * reset * (1.0 - reset)

    def step(dmemory, inputs):
        dy, by_new, by_update, by_reset, reset, update, keep = inputs
        dafter = dy + dmemory
        dnew, dupdate = dafter * by_new, dafter * by_update
        dreset, dshare = dnew * by_reset, dnew * reset
        dmemory = dafter * update + dreset @ from_reset + dupdate @ from_update + dshare @ from_new
        return dmemory * keep, (dreset, dupdate, dshare, dnew)

    inputs = (dy, by_new, by_update, by_reset, reset, update, keep)
    dmemory, (dreset, dupdate, dshare, dnew) = jax.lax.scan(step, jnp.zeros_like(memory), inputs, reverse=True)
    rows = jnp.concatenate([dreset, dupdate, dshare], axis=-1).reshape(-1, 3 * size)
    dkernel = before.reshape(-1, size).T @ rows
    dgates = jnp.concatenate([dreset, dupdate, dnew], axis=-1)
    return dkernel, dshare.sum((0, 1)), dmemory, dgates, jnp.zeros_like(keep)


_gated_scan.defvjp(_gated_scan_forward, _gated_scan_backward)
