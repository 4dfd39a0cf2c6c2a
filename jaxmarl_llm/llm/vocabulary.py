"""What a decoder says about given tokens, a large vocabulary being gone through in blocks.

Logits of all completions at once would be written to memory, and read, several times over: most of the time of an
output layer on a CPU, and most of a gradient's memory. Sums over a block are corrected by the largest logit so far, as
in online softmax (Milakov and Gimelshein 2018, algorithm 3).

Axes: N tokens, V vocabulary, E width.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.custom_derivatives import SymbolicZero

from jaxmarl_llm.llm.decoder import Decoder
from jaxmarl_llm.llm.distribution import LOWEST, MANY_TOKENS, at_token, entropy, token_log_probs

# Tokens of the vocabulary whose logits are in memory at a time.
BLOCK = 2048
# Below, logits could overflow: vectors are divided by the temperature, so that the blocks need not be.
_LEAST_TEMPERATURE = 1e-3


def score_tokens(
    decoder: Decoder,
    hidden: jax.Array,
    token: jax.Array,
    *,
    temperature: jax.typing.ArrayLike = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    allowed: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities of tokens and the entropy of what they are drawn from.

    Where the whole of a large vocabulary is possible, at a temperature that is known before compilation, no more than a
    block of logits is ever in memory.

    Args:
      decoder: bound to its parameters.
      hidden: `[..., E]`, of `Decoder.hidden`.
      token: `[...]` int32.
      temperature, top_k, top_p, allowed: as for `token_log_probs`.

    Returns:
      Two arrays `[...]` float32, as `at_token` and `entropy` give them.
    """
    config = decoder.config
    is_fixed = isinstance(temperature, int | float) and _LEAST_TEMPERATURE < temperature < math.inf
    if not is_fixed or top_k or top_p != 1 or allowed is not None or config.vocab_size < MANY_TOKENS:
        settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "allowed": allowed}
        log_probs = token_log_probs(decoder.logits(hidden), **settings)
        return at_token(log_probs, token), entropy(log_probs)
    scaled = hidden.reshape(-1, hidden.shape[-1]) / temperature
    table = {"rows" if config.tied_embeddings else "columns": decoder.output_table().astype(hidden.dtype)}
    found = _score(scaled, table, token.reshape(-1))
    log_prob, entropies = (x.reshape(token.shape) for x in found)
    return jnp.where((token >= 0) & (token < config.vocab_size), log_prob, LOWEST), entropies


def score_among(
    decoder: Decoder,
    hidden: jax.Array,
    token: jax.Array,
    candidate: jax.Array,
    possible: jax.Array,
    *,
    temperature: jax.typing.ArrayLike = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> tuple[jax.Array, jax.Array]:
    """As `score_tokens` where few tokens are allowed: no other logit is computed.

    Args:
      decoder: bound to its parameters.
      hidden: `[..., E]`, of `Decoder.hidden`.
      token: `[...]` int32.
      candidate: `[..., K]` int32, different tokens where they are possible.
      possible: `[..., K]` bool, those that are allowed; at least one.
      temperature, top_k, top_p: as for `token_log_probs`.

    Returns:
      Two arrays `[...]` float32, as `at_token` and `entropy` give them.
    """
    rows = _rows(decoder.output_table(), 0 if decoder.config.tied_embeddings else 1, candidate).astype(hidden.dtype)
    logits = jnp.einsum("...e,...ke->...k", hidden, rows).astype(jnp.float32)
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "allowed": possible}
    log_probs = token_log_probs(logits, **settings)
    is_token = possible & (candidate == token[..., None])
    log_prob = jnp.sum(jnp.where(is_token, log_probs, 0.0), axis=-1)
    return jnp.where(jnp.any(is_token, axis=-1), log_prob, LOWEST), entropy(log_probs)


@struct.dataclass
class _Sums:
    """Over the blocks so far, `[N]` each.

    Attributes:
      top: the largest logit.
      total: sum of `exp(logit - top)`, the weights.
      logits: sum of the weighted logits.
      chosen: the given token's logit.
      mean: `[N, E]`, sum of the weighted rows of the table, by which a log-probability changes with `hidden`; None if
        not wanted.
    """

    top: jax.Array
    total: jax.Array
    logits: jax.Array
    chosen: jax.Array
    mean: Any


def _blocks(hidden, table, carry, body):
    """`body(carry, logits, rows, columns, start)` on block after block, the last one overlapping that before it."""
    array, axis = _table(table)
    vocabulary = array.shape[axis]

    def step(carry, index):
        start = jnp.minimum(index * BLOCK, vocabulary - BLOCK)
        rows = jax.lax.dynamic_slice_in_dim(array, start, BLOCK, axis)
        rows = rows.T if axis else rows
        columns = (start + jnp.arange(BLOCK))[None]
        logits = (hidden @ rows.T).astype(jnp.float32)
        if vocabulary % BLOCK:
            logits = jnp.where(columns >= index * BLOCK, logits, LOWEST)
        return body(carry, logits, rows, columns, start), None

    return jax.lax.scan(step, carry, jnp.arange(-(-vocabulary // BLOCK)))[0]


def _table(table):
    """Rows of the vocabulary, and the axis that they are on."""
    return (table["rows"], 0) if "rows" in table else (table["columns"], 1)


def _rows(array, axis, token):
    """Vectors `[..., E]` of tokens `[...]` of a table whose vocabulary is on `axis`, without a turned copy of it."""
    rows = jnp.take(array, token, axis, mode="clip")
    return jnp.moveaxis(rows, 0, -1) if axis else rows


def _sums(hidden, table, token, with_mean):
    def add(sums, logits, rows, columns, _):
        top = jnp.maximum(sums.top, jnp.max(logits, axis=-1))
        weights = jnp.exp(logits - top[:, None])
        before = jnp.exp(sums.top - top)
        is_chosen = (columns == token[:, None]) & (logits > LOWEST)
        mean = None
        if with_mean:
            mean = sums.mean * before[:, None] + (weights.astype(rows.dtype) @ rows).astype(jnp.float32)
        return _Sums(
            top,
            sums.total * before + jnp.sum(weights, axis=-1),
            sums.logits * before + jnp.sum(weights * logits, axis=-1),
            sums.chosen + jnp.sum(jnp.where(is_chosen, logits, 0.0), axis=-1),
            mean,
        )

    zero = jnp.zeros(token.shape)
    start = _Sums(jnp.full(token.shape, LOWEST), zero, zero, zero, jnp.zeros(hidden.shape) if with_mean else None)
    sums = _blocks(hidden, table, start, add)
    log_total = jnp.log(sums.total)
    return (sums.chosen - sums.top - log_total, log_total + sums.top - sums.logits / sums.total), sums


@jax.custom_vjp
def _score(hidden, table, token):
    return _sums(hidden, table, token, False)[0]


def _score_forward(hidden, table, token):
    inputs = hidden.value, {name: part.value for name, part in table.items()}, token.value
    found, sums = _sums(*inputs, with_mean=True)
    return found, (inputs, sums, found[1], () if _table(table)[0].perturbed else None)


def _score_backward(kept, changes):
    (hidden, table, token), sums, entropies, learns_table = kept
    array, axis = _table(table)
    of_log_prob, of_entropy = (jnp.zeros(token.shape) if isinstance(x, SymbolicZero) else x for x in changes)

    def by_mean():
        rows = _rows(array, axis, token).astype(jnp.float32)
        return (of_log_prob[:, None] * (rows - sums.mean / sums.total[:, None])).astype(hidden.dtype)

    def add(carry, logits, rows, columns, start):
        log_probs = logits - sums.top[:, None] - jnp.log(sums.total)[:, None]
        of_logits = jnp.where(columns == token[:, None], of_log_prob[:, None], 0.0) - jnp.exp(log_probs) * (
            of_log_prob[:, None] + of_entropy[:, None] * (log_probs + entropies[:, None])
        )
        of_logits = jnp.where(logits > LOWEST, of_logits, 0.0).astype(hidden.dtype)
        of_hidden, of_table = carry
        of_hidden = of_hidden + (of_logits @ rows).astype(jnp.float32)
        if of_table is not None:
            of_rows = hidden.T @ of_logits if axis else of_logits.T @ hidden
            of_rows = jax.lax.dynamic_slice_in_dim(of_table, start, BLOCK, axis) + of_rows
            of_table = jax.lax.dynamic_update_slice_in_dim(of_table, of_rows, start, axis)
        return of_hidden, of_table

    def by_blocks():
        of_table = None if learns_table is None else jnp.zeros_like(array)
        of_hidden, of_table = _blocks(hidden, table, (jnp.zeros(hidden.shape), of_table), add)
        return of_hidden.astype(hidden.dtype), of_table

    if learns_table is not None:
        of_hidden, of_table = by_blocks()
        return of_hidden, dict.fromkeys(table, of_table), None
    if isinstance(changes[1], SymbolicZero):
        return by_mean(), dict.fromkeys(table), None
    # An entropy that has no weight is known by its gradient alone, which is then 0 everywhere.
    of_hidden = jax.lax.cond(jnp.any(of_entropy != 0), lambda: by_blocks()[0], by_mean)
    return of_hidden, dict.fromkeys(table), None


_score.defvjp(_score_forward, _score_backward, symbolic_zeros=True)
