"""Log-probabilities, entropies and values of given completions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.arguments import as_array
from jaxmarl_llm.llm.automata import RowConstraints, TokenAutomaton, rows_of
from jaxmarl_llm.llm.decoder import Decoder
from jaxmarl_llm.llm.layout import allowed_by_step, check_tokens, checked_prompt, last_of_prompt, prompt_slots
from jaxmarl_llm.llm.vocabulary import score_tokens


@struct.dataclass
class Score:
    """What a decoder says about completions; 0 where their mask does not hold.

    Attributes:
      log_prob: `[B, M]` float32, of each token given what comes before it.
      entropy: `[B, M]` float32, in nats, of the distribution that the token is drawn from.
      value: `[B, M]` float32, of what comes before the token; None without a value head.
    """

    log_prob: jax.Array
    entropy: jax.Array
    value: jax.Array | None


def score(
    module: Decoder,
    params: Any,
    prompt: jax.Array,
    prompt_length: jax.Array,
    completion: jax.Array,
    completion_mask: jax.Array,
    *,
    temperature: jax.typing.ArrayLike = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    allowed: jax.Array | None = None,
    constraint: TokenAutomaton | RowConstraints | None = None,
    adapter: jax.Array | None = None,
) -> Score:
    """Scores completions in one pass; differentiable in `params`, in reverse mode alone (`jax.grad`, not `jax.jvp`).

    With the settings of the `generate` that drew them the log-probabilities are the same up to rounding. A token that
    has become impossible since (outside the `top_k` or `top_p` after an update, say) has the lowest finite
    log-probability, so its ratio to the old one is 0; so has a traced token outside the vocabulary.

    Args:
      module: the decoder.
      params: its parameters.
      prompt: `[B, L]` int32, padded on the right with any tokens.
      prompt_length: `[B]` int32, tokens of each prompt, 1 to L; clipped to that where it is traced.
      completion: `[B, M]` int32.
      completion_mask: `[B, M]` bool, a prefix of each row.
      temperature, top_k, top_p, allowed, constraint: as in `generate`. With one automaton for all rows, M is the
        `max_new_tokens` that they were drawn with.
      adapter: `[B]` int32, the number of each row's adapter; None without them.

    Returns:
      A `Score`, float32 whatever the decoder's dtype: `log_prob` and `entropy` `[B, M]`, in nats, under what the
      settings allow; `value` `[B, M]` or None. 0 where `completion_mask` does not hold.

    Raises:
      ValueError: shapes that do not fit, more tokens than the decoder's `max_length`, or, where they are not traced,
        lengths or tokens out of range.
      UserError: a constraint that is none, or with `allowed`.
    """
    config = module.config
    given = completion, completion_mask
    completion = as_array("completion", completion, jnp.integer)
    completion_mask = as_array("completion_mask", completion_mask, jnp.bool_)
    if (
        completion.ndim != 2
        or completion.shape[:1] != np.shape(prompt)[:1]
        or completion_mask.shape != completion.shape
    ):
        raise ValueError(
            "completion and completion_mask must have shape [B, M] with the prompt's B, "
            f"got {completion.shape} and {completion_mask.shape}, prompt {np.shape(prompt)}"
        )
    steps = completion.shape[1]
    prompt, prompt_length = checked_prompt(config, prompt, prompt_length, steps)
    check_tokens("completion", *given, config.vocab_size)
    length = prompt.shape[1]
    allowed = allowed_by_step(allowed, completion.shape[0], steps, config.vocab_size)
    rows = rows_of(constraint, completion.shape[0], steps, config.vocab_size, allowed)
    if rows is not None:
        allowed = rows.along(completion)
    position, valid = prompt_slots(prompt, prompt_length)
    # The last token is never read.
    tokens = jnp.concatenate([prompt, completion[:, :-1]], axis=1)
    after = prompt_length[:, None] + jnp.arange(steps - 1)[None]
    position = jnp.concatenate([position, after], axis=1)
    valid = jnp.concatenate([valid, completion_mask[:, :-1]], axis=1)
    decoder = module.bind({"params": params})
    hidden, _ = decoder.hidden(tokens, position, valid, adapter=adapter)
    hidden = jnp.concatenate([last_of_prompt(hidden[:, :length], prompt_length)[:, None], hidden[:, length:]], axis=1)
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "allowed": allowed}
    found = Score(*score_tokens(decoder, hidden, completion, **settings), decoder.value(hidden, adapter))
    return jax.tree.map(lambda x: jnp.where(completion_mask, x, 0.0), found)
