"""Completions packed behind their prompts, and what a decoder's last layers say about them.

What the layers below make of a pack can be computed once for many passes; a backward pass then ends above them.

Axes: B prompts, L tokens of them, C completions of each, M tokens of them, S = L + C (M - 1) tokens in a row, E width.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.llm.adapters import join_adapters
from jaxmarl_llm.llm.automata import RowConstraints
from jaxmarl_llm.llm.config import LAYERS, DecoderConfig
from jaxmarl_llm.llm.decoder import Decoder
from jaxmarl_llm.llm.devices import jit_replicated
from jaxmarl_llm.llm.layers import rotary_angles
from jaxmarl_llm.llm.layout import last_of_prompt
from jaxmarl_llm.llm.scoring import Score
from jaxmarl_llm.llm.vocabulary import score_among, score_tokens


@struct.dataclass
class Pack:
    """Completions, packed behind their prompts.

    Attributes:
      prompt: `[B, L]` int32, padded on the right.
      prompt_length: `[B]` int32, at least 1.
      completion: `[B, C, M]` int32.
      mask: `[B, C, M]` bool, a prefix of each completion; none where there is no completion.
      constraint: `[B, C]`, what they were held to; all of them to something, or None for nothing.
    """

    prompt: jax.Array
    prompt_length: jax.Array
    completion: jax.Array
    mask: jax.Array
    constraint: RowConstraints | None = None


def _layout(config: DecoderConfig, pack: Pack) -> tuple[Any, jax.Array]:
    """Rotary angles and the mask `[B, S, S]` of a row: the prompt, then C completions that do not see each other."""
    (batch, length), (_, copies, steps) = pack.prompt.shape, pack.completion.shape
    fed = steps - 1
    inside = jnp.broadcast_to(jnp.arange(length)[None], (batch, length))
    after = pack.prompt_length[:, None, None] + jnp.arange(fed)[None, None]
    after = jnp.broadcast_to(after, (batch, copies, fed)).reshape(batch, -1)
    position = jnp.concatenate([inside, after], axis=1)
    # Completion 0 is the prompt: a token sees what is before it in its own completion, and the prompt.
    owner = jnp.concatenate([jnp.zeros(length, jnp.int32), jnp.repeat(jnp.arange(1, copies + 1), fed)])
    slot = jnp.arange(length + copies * fed)
    seen = (slot[None] <= slot[:, None]) & ((owner[None] == owner[:, None]) | (owner[None] == 0))
    valid = (owner[None] > 0) | (slot[None] < pack.prompt_length[:, None])
    angles = rotary_angles(position, config.head_dim, config.rope_base, config.rope_scaling)
    return angles, seen[None] & valid[:, None]


@functools.partial(jax.jit, static_argnums=(0, 1))
def trunk_of_pack(config: DecoderConfig, below: int, body: Any, pack: Pack) -> jax.Array:
    """`[B, S, E]`, what the first layers of a body make of a pack.

    Args:
      config: of the body, with `scan_layers`, without adapters.
      below: how many layers, at least 1.
      body: its parameters.
      pack: without a constraint.
    """
    angles, mask = _layout(config, pack)
    decoder = Decoder(dataclasses.replace(config, num_layers=1))

    def layer(index, x):
        # One layer after the other is taken out of the stack: a slice of several would be a copy of them.
        one = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, index, 1), body[LAYERS])
        bound = decoder.bind({"params": {"embedding": body["embedding"], LAYERS: one}})
        return bound.layers(x, angles, [mask], None, None, [])[0]

    return jax.lax.fori_loop(0, below, layer, _embedded(config, body, pack))


def _embedded(config: DecoderConfig, body: Any, pack: Pack) -> jax.Array:
    """`[B, S, E]`, what the first layer reads."""
    batch = pack.prompt.shape[0]
    tokens = jnp.concatenate([pack.prompt, pack.completion[:, :, :-1].reshape(batch, -1)], axis=1)
    return body["embedding"][tokens].astype(config.dtype)


def score_pack(
    config: DecoderConfig,
    upper: Any,
    adapter: Any,
    trunk: jax.Array | None,
    pack: Pack,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> Score:
    """What one policy says about the completions of a pack; differentiable in `adapter`, inside jit.

    Args:
      config: of the last layers, with `scan_layers` and one adapter.
      upper: their parameters, and those of what is outside the layers.
      adapter: without the leading axis.
      trunk: `[B, S, E]`, of `trunk_of_pack`; None where there are no layers below.
      pack: the completions.
      temperature, top_k, top_p: of the sampling.

    Returns:
      `[B, C, M]` arrays, 0 where the mask does not hold.
    """
    batch, copies, steps = pack.completion.shape
    length = pack.prompt.shape[1]
    params = join_adapters(upper, jax.tree.map(lambda leaf: leaf[None], adapter))
    bound = Decoder(config).bind({"params": params})
    angles, mask = _layout(config, pack)
    below = _embedded(config, upper, pack) if trunk is None else trunk
    x = bound.layers(below, angles, [mask], jnp.ones((batch, 1)), None, [])[0]
    last = last_of_prompt(x[:, :length], pack.prompt_length)
    last = jnp.broadcast_to(last[:, None, None], (batch, copies, 1, last.shape[-1]))
    x = jnp.concatenate([last, x[:, length:].reshape(batch, copies, steps - 1, -1)], axis=2)
    hidden = bound.norm(x)
    value = bound.value(hidden, jnp.zeros(batch, jnp.int32))
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    if pack.constraint is None:
        opinion = score_tokens(bound, hidden, pack.completion, **settings)
    else:
        opinion = score_among(bound, hidden, pack.completion, *pack.constraint.ways_along(pack.completion), **settings)
    found = Score(*opinion, value)
    return jax.tree.map(lambda part: jnp.where(pack.mask, part, 0.0), found)


score_pack_jit = jit_replicated(
    score_pack, params=1, static_argnums=0, static_argnames=("temperature", "top_k", "top_p")
)
