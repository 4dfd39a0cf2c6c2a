"""Learning from a fixed set of transitions, discrete actions: how not to trust values of actions never seen."""

import jax
import jax.numpy as jnp

from jaxmarl_llm.algorithms.categorical import at_action, masked_logits


def conservative_penalty(q_values, action, *, action_mask=None):
    """How far the values of all actions lie above that of the action in the data (Kumar et al. 2020, CQL(H), eq. 4).

    Args:
      q_values: `[..., A]` float.
      action: `[...]` int, the action in the data.
      action_mask: `[..., A]` bool, legal actions; `None` for all.

    Returns:
      `[...]` float, at least 0; add it to the squared temporal difference with a weight.
    """
    return jax.nn.logsumexp(masked_logits(q_values, action_mask), axis=-1) - at_action(q_values, action)


def expectile_loss(difference, *, expectile=0.7):
    """Asymmetric squared loss; its minimiser is the expectile (Kostrikov et al. 2022, IQL, eq. 5).

    Args:
      difference: `[...]` float, target less prediction.
      expectile: weight of positive differences, 0 to 1; 0.5 is half the squared loss, near 1 tends to the maximum.

    Returns:
      `[...]` float, `|expectile - (difference < 0)| * difference**2`.
    """
    return jnp.where(difference < 0, 1.0 - expectile, expectile) * jnp.square(difference)


def bcq_action_mask(behaviour_probs, *, threshold=0.3):
    """Actions that the data supports (Fujimoto et al. 2019, discrete BCQ).

    Args:
      behaviour_probs: `[..., A]` float, the behaviour policy.
      threshold: an action is kept when its probability relative to the likeliest action's is above it.

    Returns:
      `[..., A]` bool; the likeliest action is always kept for a threshold below 1.
    """
    return behaviour_probs > threshold * jnp.max(behaviour_probs, axis=-1, keepdims=True)


def advantage_weights(advantage, *, beta=3.0, clip=100.0):
    """Weights of advantage-weighted regression (Peng et al. 2019; clipped as in Kostrikov et al. 2022).

    Args:
      advantage: `[...]` float.
      beta: inverse temperature; 0 is behaviour cloning.
      clip: largest weight.

    Returns:
      `[...]` float, `min(exp(beta * advantage), clip)`, finite for any advantage.
    """
    return jnp.exp(jnp.minimum(beta * advantage, jnp.log(clip)))
