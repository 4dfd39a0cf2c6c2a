"""Dense layers over the last axis."""

from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn


def dense(features: int, kernel_init: Callable, *, use_bias: bool = True, **settings: Any) -> nn.Dense:
    """A dense layer that multiplies with all batch axes merged into one; parameters and values are `nn.Dense`'s.

    Args:
      features: number of outputs.
      kernel_init: initialiser of the kernel `[inputs, features]`.
      use_bias: whether a bias is added.
      **settings: other fields of `nn.Dense`, such as `name`, `dtype` and `param_dtype`.
    """
    # With several batch axes XLA's CPU compiler transposes an operand of the kernel's gradient element by element:
    # the gradient of a whole network then takes a fifth to a third longer.
    return nn.Dense(features, use_bias, kernel_init=kernel_init, dot_general=_merged_dot_general, **settings)


def _merged_dot_general(x, kernel, dimension_numbers, precision=None):
    del dimension_numbers  # The last axis of x with the first one of the kernel: all that a dense layer asks for.
    out = jax.lax.dot(x.reshape(-1, x.shape[-1]), kernel, precision=precision)
    return out.reshape(*x.shape[:-1], kernel.shape[-1])
