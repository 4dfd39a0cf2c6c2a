"""How prompts and completions lie in the slots of a sequence, in sampling as in scoring."""

import jax
import jax.numpy as jnp

from jaxmarl_llm.llm.config import DecoderConfig


def check_prompt(config: DecoderConfig, prompt: jax.Array, prompt_length: jax.Array, max_new_tokens: int) -> None:
    """Refuses shapes that do not fit together.

    Args:
      config: of the decoder.
      prompt: `[B, L]` int32.
      prompt_length: `[B]` int32.
      max_new_tokens: M.

    Raises:
      ValueError: they do not.
    """
    if prompt.ndim != 2 or prompt_length.shape != prompt.shape[:1]:
        raise ValueError(
            f"prompt must have shape [B, L] and prompt_length [B], got {prompt.shape} and {prompt_length.shape}"
        )
    if not jnp.issubdtype(prompt.dtype, jnp.integer):
        raise ValueError(f"prompt must hold integers, got {prompt.dtype}")
    if prompt.shape[1] < 1 or max_new_tokens < 1:
        raise ValueError(
            f"a prompt and a completion need at least one token, got {prompt.shape[1]} and {max_new_tokens}"
        )
    if prompt.shape[1] + max_new_tokens > config.max_length:
        raise ValueError(
            f"prompts of {prompt.shape[1]} and completions of {max_new_tokens} tokens exceed max_length "
            f"{config.max_length} of the decoder"
        )


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
    shape = (1,) * (3 - allowed.ndim) + allowed.shape
    fits = len(shape) == 3 and shape[2] == vocab_size and shape[0] in (1, batch) and shape[1] in (1, steps)
    if not fits or allowed.dtype != bool:
        raise ValueError(
            f"allowed must be bool of a shape that broadcasts to [B, M, V] = {(batch, steps, vocab_size)}, "
            f"got {allowed.dtype} {allowed.shape}"
        )
    return allowed.reshape(shape)
