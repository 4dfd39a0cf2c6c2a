"""The distribution that tokens are drawn from: temperature, top-k, top-p, allowed tokens; to sample and to score."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.arguments import check_number, check_whole

# The log-probability of an impossible token.
LOWEST = float(jnp.finfo(jnp.float32).min)
# Running sums over vocabularies of real models go over blocks of so many tokens, then over the tokens of one block.
_BLOCK = 128
MANY_TOKENS = 4096


def token_log_probs(
    logits: jax.Array,
    *,
    temperature: jax.typing.ArrayLike = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    allowed: jax.Array | None = None,
) -> jax.Array:
    """Log-probabilities of all tokens.

    Args:
      logits: `[..., V]` float32.
      temperature: `[]` float, may be traced; at 0 the likeliest token, the first at a tie, has all the probability
        (and below 0 too, where it is traced).
      top_k: only the k likeliest tokens (all that tie with the last of them) are possible; 0 for no limit.
      top_p: after temperature and `top_k`, only the fewest likeliest tokens with at least this probability together
        (all that tie with the last of them) are possible (Holtzman et al. 2020, eq. 2); 1 for no limit.
      allowed: `[..., V]` bool, same rank, tokens that are possible; where none is, all are. They go before `top_k`.

    Returns:
      `[..., V]` float32; the lowest finite number for an impossible token.

    Raises:
      ValueError: a temperature or a `top_k` below 0, a `top_p` outside `(0, 1]`, or no number.
    """
    weights = token_log_weights(logits, temperature=temperature, top_k=top_k, top_p=top_p, allowed=allowed)
    return jnp.where(weights > LOWEST, jax.nn.log_softmax(weights, axis=-1), LOWEST)


def token_log_weights(
    logits: jax.Array,
    *,
    temperature: jax.typing.ArrayLike = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    allowed: jax.Array | None = None,
) -> jax.Array:
    """Logarithms of what the probabilities of all tokens are proportional to, for `draw_token`.

    Args:
      logits: `[..., V]` float32.
      temperature, top_k, top_p, allowed: as for `token_log_probs`.

    Returns:
      `[..., V]` float32: 0 for the likeliest token, less for others, the lowest finite number for an impossible one.

    Raises:
      ValueError: as `token_log_probs`.
    """
    if np.shape(temperature):
        raise ValueError(f"temperature must be one number for all rows, got shape {np.shape(temperature)}")
    check_number("temperature", temperature)
    check_whole("top_k", top_k, at_least=0)
    check_number("top_p", top_p, above=True, at_most=1.0)
    if allowed is not None:
        allowed = allowed | ~jnp.any(allowed, axis=-1, keepdims=True)
        logits = jnp.where(allowed, logits, LOWEST)
    if 0 < top_k < logits.shape[-1]:
        last = jax.lax.top_k(jax.lax.stop_gradient(logits), top_k)[0][..., -1:]
        logits = jnp.where(logits >= last, logits, LOWEST)
    possible = logits > LOWEST
    is_greedy = jnp.asarray(temperature) <= 0
    # Shifted first, so that no division overflows.
    shifted = logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    scaled = shifted / jnp.where(is_greedy, 1.0, temperature)
    if top_p < 1:
        possible = possible & _nucleus(jax.lax.stop_gradient(jnp.where(possible, scaled, LOWEST)), top_p)
    weights = jnp.where(possible, scaled, LOWEST)
    if isinstance(temperature, int | float) and temperature > 0:
        return weights
    likeliest = _token_index(logits) == first_token(shifted == 0)[..., None]
    return jnp.where(is_greedy, jnp.where(likeliest, 0.0, LOWEST), weights)


def first_token(where: jax.Array) -> jax.Array:
    """The first token for which `where` `[..., V]` bool holds, `[...]` int32; the last token where none does."""
    # A minimum rather than an argmax, which XLA's CPU compiler does not vectorise.
    last = where.shape[-1] - 1
    return jnp.min(jnp.where(where, _token_index(where), last), axis=-1)


def draw_token(uniform: jax.Array, log_weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One token a row by the inverse of the cumulative distribution.

    Args:
      uniform: `[...]` float32 in `[0, 1)`.
      log_weights: `[..., V]` float32, of `token_log_weights`, or log-probabilities: an exponential of each token is
        taken once, whose sum gives the probability of the one that is drawn.

    Returns:
      `(token, log_prob)`, `[...]` int32 and float32; a possible token always.
    """
    weights = jnp.exp(log_weights)
    num_tokens = weights.shape[-1]
    if num_tokens < MANY_TOKENS:
        cumulative = _running_sum(weights)
        total = jnp.max(cumulative, axis=-1)
        token = first_token(cumulative > (uniform * total)[..., None])
    else:
        padding = ((0, 0),) * (weights.ndim - 1) + ((0, -num_tokens % _BLOCK),)
        blocks = jnp.pad(weights, padding).reshape(*weights.shape[:-1], -1, _BLOCK)
        cumulative = _running_sum(jnp.sum(blocks, axis=-1))
        total = jnp.max(cumulative, axis=-1)
        threshold = (uniform * total)[..., None]
        block = first_token(cumulative > threshold)
        before = _token_index(cumulative) < block[..., None]
        before = jnp.max(jnp.where(before, cumulative, 0.0), axis=-1, keepdims=True)
        inside = _running_sum(jnp.take_along_axis(blocks, block[..., None, None], axis=-2)[..., 0, :])
        # The block's sum and the last of its running sums may differ in rounding: the last possible token then.
        found = (inside > threshold - before) | (inside == jnp.max(inside, axis=-1, keepdims=True))
        token = block * _BLOCK + first_token(found)
    log_weight = jnp.take_along_axis(log_weights, token[..., None], axis=-1)[..., 0]
    return token, log_weight - jnp.log(total)


def _running_sum(weights):
    # Rounding may leave the sum over all tokens above that up to the last possible one: the latter is the total.
    return jnp.where(weights > 0, jnp.cumsum(weights, axis=-1), 0.0)


def _nucleus(scaled, top_p):
    """The fewest likeliest tokens, bool, with at least the probability `top_p` together.

    The least of their probabilities is found bit by bit: 30 sums cost less than to sort a large vocabulary.
    """
    probs = jax.nn.softmax(scaled, axis=-1)
    target = top_p * jnp.sum(probs, axis=-1)
    # Numbers of one sign are ordered as their bits are.
    bits = jax.lax.bitcast_convert_type(probs, jnp.int32)

    def narrow(_, bounds):
        enough, too_much = bounds
        middle = enough + (too_much - enough) // 2
        reached = jnp.sum(jnp.where(bits >= middle[..., None], probs, 0.0), axis=-1) >= target
        return jnp.where(reached, middle, enough), jnp.where(reached, too_much, middle)

    above_one = int(np.float32(2.0).view(np.int32))
    bounds = jnp.zeros_like(target, jnp.int32), jnp.full_like(target, above_one, jnp.int32)
    return bits >= jax.lax.fori_loop(0, above_one.bit_length(), narrow, bounds)[0][..., None]


def at_token(log_probs: jax.Array, token: jax.Array) -> jax.Array:
    """The entry of `log_probs` `[..., V]` at `token` `[...]` int32; outside the vocabulary, that of the impossible."""
    # A sum over one entry instead of a gather, whose gradient would be a scatter.
    entry = jnp.sum(jnp.where(_token_index(log_probs) == token[..., None], log_probs, 0.0), axis=-1)
    return jnp.where((token >= 0) & (token < log_probs.shape[-1]), entry, LOWEST)


def entropy(log_probs: jax.Array) -> jax.Array:
    """Entropy in nats, `[...]`, of log-probabilities `[..., V]` from `token_log_probs`."""
    possible = log_probs > LOWEST
    return -jnp.sum(jnp.where(possible, jnp.exp(log_probs) * log_probs, 0.0), axis=-1)


def _token_index(values):
    return jnp.arange(values.shape[-1], dtype=jnp.int32).reshape((1,) * (values.ndim - 1) + (-1,))
