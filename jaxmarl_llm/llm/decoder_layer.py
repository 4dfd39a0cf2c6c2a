"""A layer of the decoder, and its kernels laid out for fast products."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from jaxmarl_llm.llm.config import DecoderConfig
from jaxmarl_llm.llm.layers import KEPT, RMSNorm, grouped_attention, rotate
from jaxmarl_llm.networks.dense import AdaptedDense, dense

# The projections of a layer, those of the same vectors together.
PROJECTIONS = {
    "query_key_value": ("query_projection", "key_projection", "value_projection"),
    "attention_output": ("attention_output",),
    "gate_up": ("gate", "up"),
    "down": ("down",),
}


@dataclasses.dataclass(frozen=True)
class KernelLayout:
    """How a decoder holds the kernels of its projections.

    Attributes:
      products: P, by how many products the projections of the same vectors are made, at least 1.
      turned: kernels are `[outputs, inputs]`.
    """

    products: int = 1
    turned: bool = False


class DecoderLayer(nn.Module):
    """Attention, then a gated layer, each on normed vectors and added to them.

    Attributes:
      config: of the decoder.
      layout: of kernels that `lay_out` gives; None for a product of its own for each projection.
    """

    config: DecoderConfig
    layout: KernelLayout | None = None

    @nn.compact
    def __call__(self, x, angles, masks, chosen, start, stored, read=None):
        """One layer.

        Args:
          x: `[B, L, E]` float.
          angles: of the tokens' positions, cosine and sine `[B, L, 1, D]` float32 of `rotary_angles`.
          masks: of the blocks that `grouped_attention` is to go over, the tokens' own last: `[B / G, L or 1, S]` bool
            each, the slots of a block that each token attends to.
          chosen: `[B, P]` float, 1 at each row's adapter, or None.
          start: `[]` int32, the slot of the first token in the last of the caches, where they are to be written into
            it; None where they are a block of their own.
          stored: `(keys, values)` `[B / G, K, S, D]` of each cache; none where the slots are the tokens themselves.
          read: `[B]` int32, the one token of each row whose vector is wanted; None for all.

        Returns:
          `(x, (keys, values))`: `[B, L, E]`, or `[B, 1, E]` of the tokens in `read`, and `[B, K, S, D]` of the last
          block, of all tokens.
        """
        config = self.config
        out_scale = 1.0 / math.sqrt(2 * config.num_layers)

        def linear(y, features, name, *out, **settings):
            rank = config.lora_rank if name.removesuffix("_projection") in config.lora_targets else 0
            if out and not rank:
                return out[0]
            layer = linear_layer(config, features, rank=rank, name=name, **settings)
            return layer(y, chosen, *out) if isinstance(layer, AdaptedDense) else layer(y)

        def linears(y, group, *features, **settings):
            names, outs = PROJECTIONS[group], [()] * len(features)
            if self.layout:
                turned = self.layout.turned
                parts = [
                    linear_layer(config, count, name=f"{group}_{index}", turned=turned, **settings)(y)
                    for index, count in enumerate(_shares(sum(features), self.layout.products))
                ]
                # What is added to `x` is padded and summed: one pass with that sum, where a concatenation is one more.
                whole = _padded_sum(parts) if len(features) == 1 else jnp.concatenate(parts, -1)
                outs = [(out,) for out in jnp.split(whole, np.cumsum(features)[:-1], axis=-1)]
            found = zip(names, features, outs, strict=True)
            return [linear(y, count, name, *out, **settings) for name, count, out in found]

        def heads(y, name):
            y = y.reshape(*y.shape[:-1], -1, config.head_dim)
            if config.qk_norm and name != "value":
                y = rms_norm(config, name=f"{name}_norm")(y)
            return y if name == "value" else rotate(y, angles)

        y = rms_norm(config, name="attention_norm")(x)
        widths = [config.head_dim * count for count in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
        query, keys, values = linears(y, "query_key_value", *widths, use_bias=config.attention_bias)
        query = heads(query, "query")
        keys, values = jnp.swapaxes(heads(keys, "key"), 1, 2), jnp.swapaxes(heads(values, "value"), 1, 2)
        if start is not None:
            *stored, last = stored
            keys, values = (
                jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), start, axis=2)
                for old, new in zip(last, (keys, values), strict=True)
            )
        if read is not None:
            x, query, *masks = (of_token(one, read) for one in (x, query, *masks))
        pairs = zip([*stored, (keys, values)], masks, strict=True)
        blocks = [(both[0], both[1], mask) for both, mask in pairs]
        y = grouped_attention(query, *blocks)
        (y,) = linears(y.astype(x.dtype), "attention_output", config.hidden_size, scale=out_scale)
        x = checkpoint_name(x + y, KEPT)
        y = rms_norm(config, name="gated_norm")(x)
        gate, up = (checkpoint_name(one, KEPT) for one in linears(y, "gate_up", *(config.intermediate_size,) * 2))
        (y,) = linears(nn.silu(gate) * up, "down", config.hidden_size, scale=out_scale)
        return x + y, (keys, values)


def _padded_sum(parts):
    """`jnp.concatenate(parts, -1)`, which XLA makes together with what is done to the result."""
    ends = np.cumsum([part.shape[-1] for part in parts])
    widths = [(end - part.shape[-1], ends[-1] - end) for part, end in zip(parts, ends, strict=True)]
    return sum(jnp.pad(part, [(0, 0)] * (part.ndim - 1) + [width]) for part, width in zip(parts, widths, strict=True))


def of_token(x: jax.Array, token: jax.Array) -> jax.Array:
    """One token of each row, `[B, 1, ...]`, of `x` `[B, L, ...]`; `token` `[B]` int32 lies below L."""
    return jnp.take_along_axis(x, token.reshape(-1, *[1] * (x.ndim - 1)), axis=1)


def lay_out(layer: Mapping[str, Any], layout: KernelLayout) -> dict[str, Any]:
    """The parameters of a layer in a layout: kernels of the same vectors side by side, then cut into P.

    Args:
      layer: parameters of a layer, as it is without a layout.
      layout: of the result.

    Returns:
      A layer in which each group of `PROJECTIONS` has P kernels, `[inputs, outputs / P]` or turned, and biases, if it
      has any; adapters stay with their projections.
    """
    layer = dict(layer)
    for group, names in PROJECTIONS.items():
        projections = [dict(layer.pop(name)) for name in names]
        for kind in ("kernel", "bias"):
            if kind in projections[0]:
                whole = jnp.concatenate([projection.pop(kind) for projection in projections], axis=-1)
                ends = np.cumsum(_shares(whole.shape[-1], layout.products))[:-1]
                for index, part in enumerate(jnp.split(whole, ends, axis=-1)):
                    part = part.T if kind == "kernel" and layout.turned else part
                    layer.setdefault(f"{group}_{index}", {})[kind] = part
        layer |= {name: rest for name, rest in zip(names, projections, strict=True) if rest}
    return layer


def _shares(features, products):
    """How many outputs each of several products has; there are no more products than outputs."""
    return [len(share) for share in np.array_split(np.arange(features), min(products, features))]


def scaled_init(gain: float) -> nn.initializers.Initializer:
    """Kernels that multiply the size of a vector's entries by `gain`."""
    return nn.initializers.variance_scaling(gain**2, "fan_in", "normal")


def linear_layer(
    config: DecoderConfig, features: int, *, scale: float = 1.0, use_bias: bool = False, rank: int = 0, **settings: Any
) -> nn.Dense:
    """A dense layer as a decoder has them; `scale` is of the initial kernel, `settings` are as in `dense`."""
    settings |= {"dtype": config.dtype, "param_dtype": config.param_dtype}
    if rank:
        settings |= {"rank": rank, "adapter_scale": config.lora_alpha / rank, "num_adapters": config.num_adapters}
    return dense(features, scaled_init(scale), use_bias=use_bias, **settings)


def rms_norm(config: DecoderConfig, **settings: Any) -> RMSNorm:
    """A norm as a decoder has them."""
    return RMSNorm(config.norm_epsilon, dtype=config.dtype, param_dtype=config.param_dtype, **settings)
