"""Ragged token arrays inside jit: right-padded tokens `[L]` with a length `[]`, packed, split and compared.

A completion is such a pair whose length counts the `end` token, where the writer came to an end.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

PAD = 0
Ragged = tuple[jax.Array, jax.Array]


def ragged(tokens: Sequence[int]) -> Ragged:
    """Fixed tokens as a ragged pair."""
    return jnp.asarray(tokens, jnp.int32), jnp.asarray(len(tokens), jnp.int32)


def compact(tokens: jax.Array, keep: jax.Array, size: int) -> Ragged:
    """The kept tokens one after the other.

    Args:
      tokens: `[K]` int32.
      keep: `[K]` bool.
      size: L, of the result; what does not fit is dropped.

    Returns:
      `(tokens [L], length [])`, int32.
    """
    position = jnp.where(keep, jnp.cumsum(keep) - 1, size)
    packed = jnp.full((size,), PAD, jnp.int32).at[position].set(tokens.astype(jnp.int32), mode="drop")
    return packed, jnp.minimum(keep.sum(dtype=jnp.int32), size)


def assemble(parts: Sequence[Ragged], size: int | None = None) -> Ragged:
    """Packs ragged parts one after the other.

    Args:
      parts: `(tokens [K_i], length [])` each; padding between them is taken out.
      size: L, of the result; the sum of all K_i if not given. What does not fit is dropped.

    Returns:
      `(tokens [L], length [])`, int32, right-padded.
    """
    tokens = jnp.concatenate([part for part, _ in parts])
    keep = jnp.concatenate([within(part, length) for part, length in parts])
    return compact(tokens, keep, tokens.shape[0] if size is None else size)


def within(tokens: jax.Array, length: jax.Array) -> jax.Array:
    """`[K]` bool, the positions before the length."""
    return jnp.arange(tokens.shape[0]) < length


def count_token(tokens: jax.Array, length: jax.Array, token: int) -> jax.Array:
    """How often a token occurs, `[]` int32."""
    return (within(tokens, length) & (tokens == token)).sum(dtype=jnp.int32)


def split_part(tokens: jax.Array, length: jax.Array, separator: int, number: jax.Array | int) -> Ragged:
    """What stands after a number of separators and before the next one.

    Args:
      tokens, length: `[K]` and `[]` int32.
      separator: token id.
      number: `[]` int; 0 is what comes before the first separator. Empty where there are fewer.

    Returns:
      `(tokens [K], length [])`.
    """
    inside = within(tokens, length)
    is_separator = inside & (tokens == separator)
    keep = inside & ~is_separator & (jnp.cumsum(is_separator) == number)
    return compact(tokens, keep, tokens.shape[0])


def last_part(tokens: jax.Array, length: jax.Array, separator: int) -> Ragged:
    """What stands after the last separator; everything, where there is none."""
    return split_part(tokens, length, separator, count_token(tokens, length, separator))


def same_tokens(first: Ragged, second: Ragged) -> jax.Array:
    """`[]` bool, whether two ragged pairs of any sizes hold the same tokens."""
    size = max(first[0].shape[0], second[0].shape[0])
    (left, left_length), (right, right_length) = (assemble([pair], size) for pair in (first, second))
    return (left == right).all() & (left_length == right_length)


def finish(content: Ragged, end: int, size: int) -> Ragged:
    """A completion of a content: its tokens, then `end`, padded to `size`."""
    return assemble([content, ragged([end])], size)


def unfinish(tokens: jax.Array, length: jax.Array, end: int) -> tuple[Ragged, jax.Array]:
    """The content of a completion, without its `end`.

    Returns:
      `((tokens [M], length []), finished [] bool)`; not finished where the last token is not `end`.
    """
    # An `end` in the middle is content, and no format allows it there.
    last = jnp.where(jnp.arange(tokens.shape[0]) == length - 1, tokens == end, False)
    finished = last.any()
    return (jnp.where(within(tokens, length) & ~last, tokens, PAD), length - finished), finished
