"""Value decomposition without parameters; the monotonic mixer is `networks.QMixer`."""

import jax.numpy as jnp


def vdn_mix(q):
    """Team value as the sum of the agents' values (Sunehag et al. 2018, eq. 3).

    Args:
      q: `[..., N]` float, each agent's value of its own action; 0 for an agent that does not count.

    Returns:
      `[...]` float.
    """
    return jnp.sum(q, axis=-1)
