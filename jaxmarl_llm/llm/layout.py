"""How prompts and completions lie in the slots of a sequence, in sampling as in scoring."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.arguments import as_array, concrete, shown
from jaxmarl_llm.llm.config import DecoderConfig


def checked_prompt(
    config: DecoderConfig, prompt: jax.Array, prompt_length: jax.Array, max_new_tokens: int
) -> tuple[jax.Array, jax.Array]:
    """Prompts and their lengths as arrays, once what is known of them before compilation has been checked.

    Args:
      config: of the decoder.
      prompt: `[B, L]` integers.
      prompt_length: `[B]` integers.
      max_new_tokens: M.

    Returns:
      `(prompt [B, L], prompt_length [B])`; traced lengths are clipped to 1 ... L.

    Raises:
      ValueError: shapes, lengths or tokens that do not fit.
    """
    given = prompt, prompt_length
    prompt, prompt_length = (
        as_array("prompt", prompt, jnp.integer),
        as_array("prompt_length", prompt_length, jnp.integer),
    )
    if prompt.ndim != 2 or prompt_length.shape != prompt.shape[:1]:
        raise ValueError(
            f"prompt must have shape [B, L] and prompt_length [B], got {prompt.shape} and {prompt_length.shape}"
        )
    batch, length = prompt.shape
    if batch < 1:
        raise ValueError("a batch needs at least one prompt, got none")
    if length < 1 or max_new_tokens < 1:
        raise ValueError(f"a prompt and a completion need at least one token, got {length} and {max_new_tokens}")
    if length + max_new_tokens > config.max_length:
        raise ValueError(
            f"prompts of {length} and completions of {max_new_tokens} tokens exceed max_length "
            f"{config.max_length} of the decoder"
        )
    lengths = concrete(given[1])
    if lengths is not None:
        if lengths.min() < 1 or lengths.max() > length:
            raise ValueError(f"prompt_length must lie between 1 and {length}, got {shown(lengths.tolist())}")
        check_tokens("prompt", given[0], np.arange(length)[None] < lengths[:, None], config.vocab_size)
    return prompt, jnp.clip(prompt_length, 1, length)


def check_tokens(what: str, tokens: jax.Array | np.ndarray, inside: jax.Array | np.ndarray, vocab_size: int) -> None:
    """Refuses tokens outside the vocabulary; what is traced is not judged.

    Args:
      what: names the tokens.
      tokens: `[B, L]` integers.
      inside: `[B, L]` bool, those that count.
      vocab_size: V.

    Raises:
      ValueError: there is one.
    """
    ids, counts = concrete(tokens), concrete(inside)
    if ids is not None and counts is not None:
        outside = ids[counts & ((ids < 0) | (ids >= vocab_size))]
        if outside.size:
            raise ValueError(f"token {outside[0]} of the {what} is outside the vocabulary of {vocab_size}")


def prompt_slots(prompt: jax.Array, prompt_length: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`(position [B, L] int32, valid [B, L] bool)` of prompts padded on the right."""
    index = jnp.broadcast_to(jnp.arange(prompt.shape[1])[None], prompt.shape)
    return index, index < prompt_length[:, None]


def last_of_prompt(hidden: jax.Array, prompt_length: jax.Array) -> jax.Array:
    """The vectors `[B, E]` of each prompt's last token among `hidden` `[B, L, E]`."""
    is_last = jnp.arange(hidden.shape[1])[None] == prompt_length[:, None] - 1
    # A sum over one entry instead of a gather, whose gradient would be a scatter.
    return jnp.sum(jnp.where(is_last[..., None], hidden, 0), axis=1)


def allowed_by_step(allowed: jax.Array | None, batch: int, steps: int, vocab_size: int) -> jax.Array | None:
    """Masks of allowed tokens as `[B or 1, M or 1, V]`.

    Args:
      allowed: bool, of a shape that broadcasts to `[B, M, V]` from the right.
      batch: B.
      steps: M.
      vocab_size: V.

    Raises:
      ValueError: the shape does not, or the dtype is not bool.
    """
    if allowed is None:
        return None
    allowed = as_array("allowed", allowed, jnp.bool_)
    shape = (1,) * (3 - allowed.ndim) + allowed.shape
    fits = len(shape) == 3 and shape[2] == vocab_size and shape[0] in (1, batch) and shape[1] in (1, steps)
    if not fits:
        raise ValueError(
            f"allowed must have a shape that broadcasts to [B, M, V] = {(batch, steps, vocab_size)}, "
            f"got {allowed.shape}"
        )
    return allowed.reshape(shape)
