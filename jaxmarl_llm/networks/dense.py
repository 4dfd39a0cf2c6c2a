"""Dense layers over the last axis."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn


class AdaptedDense(nn.Dense):
    """A dense layer with a low-rank adapter, `x W + adapter_scale * x A B` (LoRA, Hu et al. 2021, eq. 3).

    B begins at 0, so that the layer begins as one without an adapter.

    Attributes:
      rank: of the adapter: `lora_a` is `[inputs, rank]`, `lora_b` `[rank, features]`.
      adapter_scale: factor on what the adapter adds.
    """

    rank: int = 1
    adapter_scale: float = 1.0

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """`[..., inputs]` to `[..., features]`."""
        out = super().__call__(inputs)
        shapes = (inputs.shape[-1], self.rank), (self.rank, self.features)
        down = self.param("lora_a", nn.initializers.lecun_normal(), shapes[0], self.param_dtype)
        up = self.param("lora_b", nn.initializers.zeros, shapes[1], self.param_dtype)
        dot_general = self.dot_general or jax.lax.dot_general
        for matrix in (down, up):
            contract = (((inputs.ndim - 1,), (0,)), ((), ()))
            inputs = dot_general(inputs.astype(out.dtype), matrix.astype(out.dtype), contract, precision=self.precision)
        return out + self.adapter_scale * inputs


def dense(features: int, kernel_init: Callable, *, use_bias: bool = True, rank: int = 0, **settings: Any) -> nn.Dense:
    """A dense layer that multiplies with all batch axes merged into one; parameters and values are `nn.Dense`'s.

    Args:
      features: number of outputs.
      kernel_init: initialiser of the kernel `[inputs, features]`.
      use_bias: whether a bias is added.
      rank: of an adapter, see `AdaptedDense`; 0 for none.
      **settings: other fields of `nn.Dense`, such as `name`, `dtype` and `param_dtype`; `adapter_scale`.
    """
    # With several batch axes XLA's CPU compiler transposes an operand of the kernel's gradient element by element:
    # the gradient of a whole network then takes a fifth to a third longer.
    layer = functools.partial(AdaptedDense, rank=rank) if rank else nn.Dense
    return layer(features, use_bias, kernel_init=kernel_init, dot_general=_merged_dot_general, **settings)


def _merged_dot_general(x, kernel, dimension_numbers, precision=None):
    del dimension_numbers  # The last axis of x with the first one of the kernel: all that a dense layer asks for.
    out = jax.lax.dot(x.reshape(-1, x.shape[-1]), kernel, precision=precision)
    return out.reshape(*x.shape[:-1], kernel.shape[-1])
