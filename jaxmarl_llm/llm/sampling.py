"""Sampling of completions, prompt and loop in one program."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.arguments import as_array, check_whole, elements
from jaxmarl_llm.llm.automata import RowConstraints, TokenAutomaton, rows_of
from jaxmarl_llm.llm.decoder import Decoder
from jaxmarl_llm.llm.distribution import draw_token, token_log_weights
from jaxmarl_llm.llm.layout import allowed_by_step, checked_prompt
from jaxmarl_llm.llm.unstacking import bind_in_loop, unstack, unstack_cache, unstacks

# The attention of a step over 33 slots takes 1.4 times as long as over 32 on a CPU, whose vectors hold 8 or 16 numbers.
_SLOTS_MULTIPLE = 8


@struct.dataclass
class Generation:
    """Completions of B prompts, M tokens at most.

    Attributes:
      tokens: `[B, M]` int32; the pad token where `mask` does not hold.
      log_prob: `[B, M]` float32, of the distribution that each token was drawn from; 0 where `mask` does not hold.
      mask: `[B, M]` bool, up to the first stop token, which is included.
      length: `[B]` int32, number of tokens for which `mask` holds.
    """

    tokens: jax.Array
    log_prob: jax.Array
    mask: jax.Array
    length: jax.Array


def generate(
    module: Decoder,
    params: Any,
    prompt: jax.Array,
    prompt_length: jax.Array,
    key: jax.Array,
    *,
    max_new_tokens: int,
    temperature: jax.typing.ArrayLike = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    allowed: jax.Array | None = None,
    constraint: TokenAutomaton | RowConstraints | None = None,
    stop_tokens: Sequence[int] = (),
    pad_token: int = 0,
    row: jax.Array | None = None,
    early_stop: bool = True,
    adapter: jax.Array | None = None,
    group: int = 1,
) -> Generation:
    """Samples completions of prompts; to be called inside `jax.jit`.

    Axes: Q prompts, G completions of each, B = Q G rows; those of one prompt are next to each other.

    Each row has random numbers of its own: what is drawn for it depends on `key` and its number in `row`, not on the
    other rows, on padding or on the number of devices that share the batch.

    Args:
      module: the decoder.
      params: its parameters.
      prompt: `[Q, L]` int32, padded on the right with any tokens.
      prompt_length: `[Q]` int32, tokens of each prompt, 1 to L; clipped to that where it is traced.
      key: of the whole batch, the same on every device.
      max_new_tokens: M.
      temperature: divides the logits; 0 for the likeliest token. May be traced.
      top_k: draw among the k likeliest tokens; 0 for all.
      top_p: draw among the likeliest tokens that together have this probability; 1 for all.
      allowed: bool, tokens that may be drawn, of a shape that broadcasts to `[B, M, V]` from the right: `[V]`; `[M, V]`
        by step; `[B, 1, V]` by row; `[B, M, V]`. Where no token is allowed, all are.
      constraint: what rows may write, by their tokens so far: one automaton for all, or `constrain_rows`. A row always
        comes to an end within its room if that holds any of its texts; not together with `allowed`.
      stop_tokens: tokens that end a completion.
      pad_token: what stands behind the end.
      row: `[B]` int32, the row's number in the whole batch; `0 ... B - 1` by default.
      early_stop: leave the loop when all rows have stopped. Under `vmap` the loops then wait for each other and copy
        what they hold at each step: False is better there.
      adapter: `[Q]` int32, the number of each prompt's adapter; None without them.
      group: G. A prompt is computed once, and kept once, for all its completions.

    Returns:
      The completions. `score` with the same settings gives the same log-probabilities.

    Raises:
      ValueError: shapes that do not fit, no new tokens, more tokens than the decoder's `max_length`, or a token outside
        the vocabulary. Lengths, tokens and settings are judged where they are not traced.
      UserError: a constraint that is none, or with `allowed`.
    """
    config = module.config
    check_whole("max_new_tokens", max_new_tokens, at_least=1)
    prompt, prompt_length = checked_prompt(config, prompt, prompt_length, max_new_tokens)
    stop_tokens = elements("stop_tokens", stop_tokens, int, np.integer)
    for token in (*stop_tokens, pad_token):
        check_whole("each stop token and pad_token", token)
        if not 0 <= token < config.vocab_size:
            raise ValueError(f"token {token} is outside the vocabulary of {config.vocab_size}")
    check_whole("group", group, at_least=1)
    num_prompts, length = prompt.shape
    batch = num_prompts * group
    allowed = allowed_by_step(allowed, batch, max_new_tokens, config.vocab_size)
    rows = rows_of(constraint, batch, max_new_tokens, config.vocab_size, allowed)
    row = jnp.arange(batch) if row is None else as_array("row", row, jnp.integer)
    if row.shape != (batch,):
        raise ValueError(f"row must have shape [B] = {(batch,)}, got {row.shape}")
    uniform = jax.vmap(lambda number: jax.random.uniform(jax.random.fold_in(key, number), (max_new_tokens,)))(row)

    hidden, cache = module.bind({"params": params}).prefill(prompt, prompt_length, adapter)
    # The last token is never read, so it needs no slot.
    slots = -(-(length * (group == 1) + max_new_tokens - 1) // _SLOTS_MULTIPLE) * _SLOTS_MULTIPLE
    cache = cache.grow(slots - length) if group == 1 else cache.share(group, max(slots, 1))
    hidden, prompt_length, adapter = jax.tree.map(
        lambda x: jnp.repeat(x, group, axis=0, total_repeat_length=batch),
        (hidden, prompt_length, adapter),
    )
    if unstacks(config):
        (module, params), cache = unstack(module, params, batch), unstack_cache(cache)

    def decoder(step):
        # Bound anew in the loop: a bound module does not cross into a transformation.
        return bind_in_loop(module, params, step)

    def choose(hidden, step, state):
        now = allowed if rows is None else rows.automaton.allowed(state, rows.room - step)
        if allowed is not None:
            index = jnp.minimum(step, allowed.shape[1] - 1)
            now = jax.lax.dynamic_index_in_dim(allowed, index, axis=1, keepdims=False)
        log_weights = token_log_weights(
            decoder(step).logits(hidden), temperature=temperature, top_k=top_k, top_p=top_p, allowed=now
        )
        random = jax.lax.dynamic_index_in_dim(uniform, step, axis=1, keepdims=False)
        token, log_prob = draw_token(random, log_weights)
        state = None if rows is None else rows.automaton.advance(state, token)
        return token, log_prob, state

    def write(drawn, step, running, token, log_prob):
        values = (jnp.where(running, token, pad_token), jnp.where(running, log_prob, 0.0), running)
        return jax.tree.map(lambda all_, new: jax.lax.dynamic_update_index_in_dim(all_, new, step, 0), drawn, values)

    def goes_on(running, token):
        for stop in stop_tokens:
            running = running & (token != stop)
        return running

    def unfinished(carry):
        step, _, running, *_ = carry
        more = step < max_new_tokens
        return more & jnp.any(running) if early_stop and stop_tokens else more

    def advance(carry):
        step, token, running, cache, drawn, state = carry
        position = (prompt_length + step - 1)[:, None]
        hidden, cache = decoder(step).hidden(token[:, None], position, running[:, None], cache, adapter)
        token, log_prob, state = choose(hidden[:, 0], step, state)
        drawn = write(drawn, step, running, token, log_prob)
        return step + 1, token, goes_on(running, token), cache, drawn, state

    running = jnp.ones(batch, bool)
    shape = (max_new_tokens, batch)
    drawn = (jnp.full(shape, pad_token, jnp.int32), jnp.zeros(shape), jnp.zeros(shape, bool))
    token, log_prob, state = choose(hidden, 0, None if rows is None else rows.start)
    drawn = write(drawn, 0, running, token, log_prob)
    carry = (jnp.ones((), jnp.int32), token, goes_on(running, token), cache, drawn, state)
    *_, drawn, _ = jax.lax.while_loop(unfinished, advance, carry)
    tokens, log_prob, mask = (values.T for values in drawn)
    return Generation(tokens, log_prob, mask, jnp.sum(mask, axis=1, dtype=jnp.int32))
