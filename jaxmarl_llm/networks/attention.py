"""Attention between tokens, with masks that may leave a token nobody to attend to."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxmarl_llm.networks.dense import dense
from jaxmarl_llm.networks.initializers import blockwise_orthogonal, orthogonal

_SQRT2 = math.sqrt(2.0)
MAPS = "attention"


def masked_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Scaled dot-product attention of several heads (Vaswani et al. 2017, eq. 1).

    Axes: Q queries, K keys, H heads, D width of a head; `...` any batch axes.

    Args:
      query: `[..., Q, H, D]` float32.
      key, value: `[..., K, H, D]` float32.
      mask: `[..., Q, K]` bool, who may attend to whom.

    Returns:
      `(out [..., Q, H, D], weights [..., H, Q, K])`. The weights of a query sum to 1 over the keys it may attend to;
      where it may attend to none, weights and output are 0.
    """
    # One batch axis, heads in it: other layouts of these small products are two to three times slower on a CPU.
    *batch, num_queries, num_heads, width = query.shape
    num_keys = key.shape[-3]

    def heads_first(x):
        return jnp.swapaxes(x, -3, -2).reshape(-1, x.shape[-3], width)

    scores = jnp.einsum("bqd,bkd->bqk", heads_first(query), heads_first(key)) / math.sqrt(width)
    allowed = jnp.broadcast_to(mask[..., None, :, :], (*batch, num_heads, num_queries, num_keys))
    allowed = allowed.reshape(scores.shape)
    # The lowest finite number, not minus infinity, which would make a row without keys not a number.
    weights = jax.nn.softmax(jnp.where(allowed, scores, jnp.finfo(scores.dtype).min), axis=-1)
    weights = jnp.where(allowed, weights, 0.0)
    out = jnp.einsum("bqk,bkd->bqd", weights, heads_first(value)).reshape(*batch, num_heads, num_queries, width)
    return jnp.swapaxes(out, -3, -2), weights.reshape(*batch, num_heads, num_queries, num_keys)


class Attention(nn.Module):
    """Multi-head attention with its projections. Its weights can be looked at, see `attention_maps`.

    Attributes:
      num_heads: H; it divides the tokens' width.
    """

    num_heads: int

    @nn.compact
    def __call__(self, x: jax.Array, context: jax.Array | None, mask: jax.Array) -> jax.Array:
        """Lets tokens attend to a context, or to each other.

        Args:
          x: `[..., Q, E]` float32.
          context: `[..., K, E]` float32; `None` for `x` itself.
          mask: `[..., Q, K]` bool, who may attend to whom.

        Returns:
          `[..., Q, E]` float32.
        """
        width = x.shape[-1]

        def project(x, count, name):
            kernel_init = blockwise_orthogonal((width,) * count, 1.0)
            y = dense(count * width, kernel_init, name=name)(x)
            y = y.reshape(*y.shape[:-1], count, self.num_heads, width // self.num_heads)
            return [y[..., index, :, :] for index in range(count)]

        if context is None:
            query, key, value = project(x, 3, "query_key_value")
        else:
            (query,), (key, value) = project(x, 1, "query"), project(context, 2, "key_value")
        out, weights = masked_attention(query, key, value, mask)
        self.sow(MAPS, "weights", weights)
        return dense(width, orthogonal(1.0), name="out")(out.reshape(x.shape))


class AttentionBlock(nn.Module):
    """A transformer layer with the norms before its parts: attention, then two dense layers, both added to the token.

    Attributes:
      num_heads: H; it divides the tokens' width.
    """

    num_heads: int

    @nn.compact
    def __call__(self, x: jax.Array, context: jax.Array | None, mask: jax.Array) -> jax.Array:
        """Arguments and result as in `Attention`."""
        context = None if context is None else nn.LayerNorm(name="norm_context")(context)
        x = x + Attention(self.num_heads, name="attention")(nn.LayerNorm(name="norm_attention")(x), context, mask)
        hidden = dense(2 * x.shape[-1], orthogonal(_SQRT2), name="hidden")
        out = dense(x.shape[-1], orthogonal(1.0), name="out")
        return x + out(nn.relu(hidden(nn.LayerNorm(name="norm_hidden")(x))))


def attention_maps(module: nn.Module, params: Any, *args: Any) -> dict[str, jax.Array]:
    """Attention weights of every layer of a network.

    Args:
      module: a network with attention in it, such as `Coordinator` or `AttentionCritic`.
      params: its parameters.
      *args: what `module.apply` takes besides.

    Returns:
      Name of the layer to weights `[..., H, Q, K]` float32: how much who (Q) attends to whom (K).
    """
    _, sown = module.apply({"params": params}, *args, mutable=[MAPS])
    leaves = jax.tree_util.tree_flatten_with_path(sown.get(MAPS, {}))[0]
    # The last two steps of a path are the name of the variable and its place in the tuple that `sow` fills.
    return {"/".join(step.key for step in path[:-2]) or "attention": weights for path, weights in leaves}
