"""Dense layers over the last axis."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.dtypes import promote_dtype


class AdaptedDense(nn.Dense):
    """A dense layer with low-rank adapters, `x W + adapter_scale * x A B` (LoRA, Hu et al. 2021, eq. 3).

    B begins at 0, so that the layer begins as one without an adapter.

    Attributes:
      rank: of the adapters: `lora_a` is `[inputs, rank]`, `lora_b` `[rank, features]`.
      adapter_scale: factor on what an adapter adds.
      num_adapters: P; 0 for one adapter, else both matrices have a leading axis P, and each row uses its own.
    """

    rank: int = 1
    adapter_scale: float = 1.0
    num_adapters: int = 0

    @nn.compact
    def __call__(
        self, inputs: jax.Array, chosen: jax.Array | None = None, product: jax.Array | None = None
    ) -> jax.Array:
        """`[B, ..., inputs]` to `[B, ..., features]`.

        Args:
          inputs: float.
          chosen: `[B, P]` float, 1 at the adapter of each row and else 0; None without an axis P.
          product: `x W`, where it is there already: the layer then has no kernel.
        """
        out = super().__call__(inputs) if product is None else product
        shapes = (inputs.shape[-1], self.rank), (self.rank, self.features)
        axes = (self.num_adapters,) if self.num_adapters else ()
        normal = nn.initializers.lecun_normal(batch_axis=tuple(range(len(axes))))
        down = self.param("lora_a", normal, (*axes, *shapes[0]), self.param_dtype).astype(out.dtype)
        up = self.param("lora_b", nn.initializers.zeros, (*axes, *shapes[1]), self.param_dtype).astype(out.dtype)
        rows = inputs.reshape(-1, inputs.shape[-1]).astype(out.dtype)
        if chosen is None:
            added = rows @ down @ up
        else:
            # All adapters side by side are one wider adapter, of which each row keeps its own part: no matrices are
            # gathered for each row, and no gradients scattered.
            inner = rows @ jnp.moveaxis(down, 0, 1).reshape(shapes[0][0], -1)
            inner = inner.reshape(chosen.shape[0], -1, self.num_adapters, self.rank)
            inner = inner * chosen.astype(out.dtype)[:, None, :, None]
            added = inner.reshape(rows.shape[0], -1) @ up.reshape(-1, self.features)
        return out + self.adapter_scale * added.reshape(out.shape)


class ChosenDense(nn.Module):
    """Several dense layers of which each row uses one.

    Attributes:
      features: number of outputs.
      num_layers: P.
      kernel_init: initialiser of each kernel `[inputs, features]`.
      dtype: of the result.
    """

    features: int
    num_layers: int
    kernel_init: Callable
    dtype: Any = None

    @nn.compact
    def __call__(self, inputs: jax.Array, chosen: jax.Array) -> jax.Array:
        """`[B, ..., inputs]` to `[B, ..., features]`; `chosen` `[B, P]` float is 1 at the layer of each row."""
        kernels = (self.num_layers, inputs.shape[-1], self.features)

        def init(key, shape):
            return jax.vmap(lambda key: self.kernel_init(key, shape[1:]))(jax.random.split(key, shape[0]))

        kernel = self.param("kernel", init, kernels).astype(self.dtype)
        bias = self.param("bias", nn.initializers.zeros, (self.num_layers, self.features)).astype(self.dtype)
        rows = inputs.reshape(chosen.shape[0], -1, inputs.shape[-1]).astype(self.dtype)
        out = jnp.einsum("bli,pif->blpf", rows, kernel) + bias[None, None]
        out = jnp.sum(out * chosen.astype(self.dtype)[:, None, :, None], axis=2)
        return out.reshape(*inputs.shape[:-1], self.features)


class TurnedDense(nn.Dense):
    """A dense layer whose kernel is `[features, inputs]`."""

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """`[..., inputs]` to `[..., features]`."""

        def init(key, shape, dtype):
            return self.kernel_init(key, shape[::-1], dtype).T

        kernel = self.param("kernel", init, (self.features, inputs.shape[-1]), self.param_dtype)
        bias = self.param("bias", self.bias_init, (self.features,), self.param_dtype) if self.use_bias else None
        inputs, kernel, bias = promote_dtype(inputs, kernel, bias, dtype=self.dtype)
        out = inputs.reshape(-1, inputs.shape[-1]) @ kernel.T
        out = out if bias is None else out + bias[None]
        return out.reshape(*inputs.shape[:-1], self.features)


def dense(
    features: int,
    kernel_init: Callable,
    *,
    use_bias: bool = True,
    rank: int = 0,
    turned: bool = False,
    **settings: Any,
) -> nn.Dense:
    """A dense layer that multiplies with all batch axes merged into one; parameters and values are `nn.Dense`'s.

    Args:
      features: number of outputs.
      kernel_init: initialiser of the kernel `[inputs, features]`.
      use_bias: whether a bias is added.
      rank: of an adapter, see `AdaptedDense`; 0 for none.
      turned: the kernel is `[features, inputs]`; not together with an adapter.
      **settings: other fields of `nn.Dense`, such as `name`, `dtype` and `param_dtype`; those of `AdaptedDense`.

    Returns:
      A layer from `[..., inputs]` to `[..., features]`, in the promoted dtype unless `dtype` is set: `nn.Dense`,
      `AdaptedDense` with a rank, which also takes what each row has chosen, or `TurnedDense`.

    Raises:
      ValueError: an adapter on a turned kernel.
    """
    if rank and turned:
        raise ValueError(f"a layer has an adapter or a turned kernel, not both: got rank={rank} and turned=True")
    if turned:
        return TurnedDense(features, use_bias, kernel_init=kernel_init, **settings)
    # With several batch axes XLA's CPU compiler transposes an operand of the kernel's gradient element by element:
    # the gradient of a whole network then takes a fifth to a third longer.
    layer = functools.partial(AdaptedDense, rank=rank) if rank else nn.Dense
    return layer(features, use_bias, kernel_init=kernel_init, dot_general=_merged_dot_general, **settings)


def _merged_dot_general(x, kernel, dimension_numbers, precision=None):
    del dimension_numbers  # The last axis of x with the first one of the kernel: all that a dense layer asks for.
    out = jax.lax.dot(x.reshape(-1, x.shape[-1]), kernel, precision=precision)
    return out.reshape(*x.shape[:-1], kernel.shape[-1])
