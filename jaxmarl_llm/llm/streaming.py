"""Sampling of one completion, token by token, for those who read along. Axes: L prompt tokens."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.arguments import check_number, check_whole, elements
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.decoder import Cache, Decoder
from jaxmarl_llm.llm.distribution import draw_token, token_log_weights
from jaxmarl_llm.llm.layout import check_tokens

# Prompts and caches have multiples of it: one program serves many lengths.
_BUCKET = 128


def stream_tokens(
    module: Decoder,
    params: Any,
    prompt: Sequence[int],
    key: jax.Array,
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    stop_tokens: Sequence[int] = (),
) -> Iterator[int]:
    """Draws the tokens of a completion one after the other, up to a stop token, which is left out.

    Args:
      module: the decoder; for a loaded model, `for_one_row` has the fastest one and its parameters.
      params: its parameters.
      prompt: L tokens, at least one.
      key: consumed.
      max_new_tokens: the most tokens.
      temperature, top_k, top_p: of the distribution; temperature 0 for the likeliest token.
      stop_tokens: tokens that end the completion.

    Yields:
      Tokens as they are drawn.

    Raises:
      ValueError: a prompt that leaves no room for `max_new_tokens`, an empty one, or one with a token outside the
        vocabulary; or numbers out of range. It is raised where the first token is asked for.
    """
    check_whole("max_new_tokens", max_new_tokens, at_least=1)
    check_number("temperature", temperature)
    stop_tokens = elements("stop_tokens", stop_tokens, int, np.integer)
    length, most = len(prompt), module.config.max_length
    if not length:
        raise UserError("the prompt is empty: give at least one token")
    if length + max_new_tokens > most:
        raise UserError(f"the prompt has {length} tokens, and {max_new_tokens} to write, but the decoder holds {most}")
    width = min(_up(length), most)
    tokens = np.zeros((1, width), np.int32)
    tokens[0, :length] = prompt
    check_tokens("prompt", tokens, np.ones_like(tokens, bool), module.config.vocab_size)
    settings = {"temperature": np.float32(temperature), "top_k": top_k, "top_p": top_p}
    lengths = np.asarray([length], np.int32)
    token, cache = _begin(module, params, tokens, lengths, key, slots=_up(max_new_tokens), **settings)
    for number in range(max_new_tokens):
        drawn = int(token[0])
        if drawn in stop_tokens:
            return
        yield drawn
        if number + 1 < max_new_tokens:
            position = np.asarray(length + number, np.int32)
            token, cache = _step(module, params, token, position, cache, key, **settings)


def _up(length: int) -> int:
    return -(-length // _BUCKET) * _BUCKET


@functools.partial(jax.jit, static_argnums=0, static_argnames=("slots", "top_k", "top_p"))
def _begin(module: Decoder, params, prompt, length, key, *, slots, **settings) -> tuple[jax.Array, Cache]:
    """The first token `[1]`, and a cache with so many free slots."""
    bound = module.bind({"params": params})
    hidden, cache = bound.prefill(prompt, length)
    return _draw(bound, hidden, key, length[0], settings), cache.grow(slots)


@functools.partial(jax.jit, static_argnums=0, static_argnames=("top_k", "top_p"), donate_argnums=4)
def _step(module: Decoder, params, token, position, cache, key, **settings) -> tuple[jax.Array, Cache | None]:
    """The token after the one at `position`."""
    bound = module.bind({"params": params})
    hidden, cache = bound.hidden(token[:, None], position[None, None], jnp.ones((1, 1), bool), cache)
    return _draw(bound, hidden[:, 0], key, position + 1, settings), cache


def _draw(bound, hidden, key, position, settings) -> jax.Array:
    log_weights = token_log_weights(bound.logits(hidden), **settings)
    return draw_token(jax.random.uniform(jax.random.fold_in(key, position), (1,)), log_weights)[0]
