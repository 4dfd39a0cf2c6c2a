"""Losses of the proximal policy optimisation family, per element. Shapes that differ raise `ValueError`."""

import jax
import jax.numpy as jnp
import optax

from jaxmarl_llm.arguments import of_one_shape


def clipped_surrogate_loss(log_prob, old_log_prob, advantage, *, clip_low=0.2, clip_high=0.2):
    """Negative clipped surrogate objective (Schulman et al. 2017, eq. 7).

    The clip may be asymmetric (Yu et al. 2025, eq. 10).

    Args:
      log_prob: `[...]` float, log-probability of the action under the policy that is trained.
      old_log_prob: `[...]` float, the same under the policy that acted.
      advantage: `[...]` float.
      clip_low, clip_high: the ratio is clipped to `[1 - clip_low, 1 + clip_high]`.

    Returns:
      `[...]` loss; average it with `masked_mean`.
    """
    of_one_shape(log_prob=log_prob, old_log_prob=old_log_prob, advantage=advantage)
    ratio = jnp.exp(log_prob - old_log_prob)
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def clipped_value_loss(value, old_value, target, *, clip: float | jax.Array | None = 0.2, huber_delta=None):
    """Half squared (or Huber) value error, with the move away from the old value clipped (Yu et al. 2022, app. A).

    Args:
      value: `[...]` float, prediction that is trained.
      old_value: `[...]` float, prediction at the time of acting.
      target: `[...]` float, return to predict.
      clip: largest useful move from `old_value`, in units of value; `None` for no clipping.
      huber_delta: error beyond which the loss is linear; `None` for the squared loss.

    Returns:
      `[...]` loss.
    """
    of_one_shape(value=value, old_value=old_value, target=target)

    def error_loss(error):
        return 0.5 * jnp.square(error) if huber_delta is None else optax.huber_loss(error, delta=huber_delta)

    loss = error_loss(value - target)
    if clip is None:
        return loss
    near = old_value + jnp.clip(value - old_value, -clip, clip)
    return jnp.maximum(loss, error_loss(near - target))
