"""Categorical policies: finite everywhere, probability 0 where illegal. Shapes that differ raise `ValueError`."""

import jax
import jax.numpy as jnp

from jaxmarl_llm.arguments import of_batch_shape, of_one_shape


def masked_logits(logits, action_mask=None):
    """Logits with illegal actions at the lowest finite number, so that softmax gives them probability 0.

    Args:
      logits: `[..., A]` float.
      action_mask: `[..., A]` bool, legal actions; `None` for all. A row with none legal is treated as all legal.

    Returns:
      `[..., A]` float.
    """
    if action_mask is None:
        return logits
    legal = action_mask | ~jnp.any(action_mask, axis=-1, keepdims=True)
    return jnp.where(legal, logits, jnp.finfo(logits.dtype).min)


def categorical_log_prob(logits, action):
    """Log-probability of actions.

    Args:
      logits: `[..., A]` float, masked or not.
      action: `[...]` int.

    Returns:
      `[...]` float; the lowest finite number (not minus infinity) for an illegal action.
    """
    return at_action(jax.nn.log_softmax(logits, axis=-1), action)


def at_action(values, action):
    """The entry of each row at an action.

    Args:
      values: `[..., A]` float.
      action: `[...]` int.

    Returns:
      `[...]` float.
    """
    of_batch_shape(1, action=action, values=values)
    # A one-hot sum instead of a gather: its gradient is elementwise, where a gather's would be a scatter.
    chosen = jax.nn.one_hot(action, values.shape[-1], dtype=bool)
    return jnp.sum(jnp.where(chosen, values, 0.0), axis=-1)


def categorical_kl(logits, other_logits):
    """Kullback-Leibler divergence from the first policy to the second, in nats.

    Args:
      logits: `[..., A]` float, masked or not; the expectation is under this policy.
      other_logits: `[..., A]` float, with the same actions masked.

    Returns:
      `[...]` float, at least 0 up to rounding; huge but finite where the second policy forbids what the first does.
    """
    of_one_shape(logits=logits, other_logits=other_logits)
    log_probs, other = jax.nn.log_softmax(logits, axis=-1), jax.nn.log_softmax(other_logits, axis=-1)
    probs = jnp.exp(log_probs)
    return jnp.sum(jnp.where(probs > 0, probs * (log_probs - other), 0.0), axis=-1)


def categorical_entropy(logits):
    """Entropy in nats.

    Args:
      logits: `[..., A]` float, masked or not.

    Returns:
      `[...]` float, at least 0.
    """
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    probs = jnp.exp(log_probs)
    return -jnp.sum(jnp.where(probs > 0, probs * log_probs, 0.0), axis=-1)


def categorical_sample(key, logits):
    """One action a row.

    Args:
      key: consumed.
      logits: `[..., A]` float, masked or not.

    Returns:
      `[...]` int32.
    """
    return categorical_from_uniform(jax.random.uniform(key, logits.shape[:-1]), logits)


def categorical_from_uniform(uniform, logits):
    """One action a row from given random numbers, so that a loop can draw all of them beforehand.

    Args:
      uniform: `[...]` float in `[0, 1)`.
      logits: `[..., A]` float, masked or not.

    Returns:
      `[...]` int32.
    """
    of_batch_shape(1, uniform=uniform, logits=logits)
    # Inverse of the cumulative distribution: one uniform number a row, where Gumbel noise needs A of them.
    probs = jax.nn.softmax(logits, axis=-1)
    cumulative = jnp.cumsum(probs, axis=-1)
    possible = (cumulative > uniform[..., None] * cumulative[..., -1:]) & (probs > 0)
    index = jnp.arange(logits.shape[-1]).reshape((1,) * uniform.ndim + (-1,))
    # Rounding can leave no action above the draw: then the last one of positive probability.
    last = jnp.max(jnp.where(probs > 0, index, 0), axis=-1)
    first = jnp.min(jnp.where(possible, index, logits.shape[-1]), axis=-1)
    return jnp.minimum(first, last).astype(jnp.int32)


def categorical_mode(logits):
    """The likeliest action, `[...]` int32, the first one at a tie."""
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)
