"""Statistics within each policy's agents, over all environments of all devices.

Axes: K independent sets of elements (such as quantities or minibatches), N agents, P policies.
"""

import jax
import jax.numpy as jnp

from jaxmarl_llm import mesh


def policy_sums(policy_of_agent: tuple[int, ...], values: jax.Array, mask: jax.Array) -> jax.Array:
    """Sums over the masked elements of each policy's agents.

    Args:
      policy_of_agent: the sharing table.
      values: `[K, ..., N]` float32.
      mask: `[K or 1, ..., N]` bool.

    Returns:
      `[K, P]` float32.
    """
    of_agent = mesh.sum_over_devices(jnp.sum(jnp.where(mask, values, 0.0), axis=tuple(range(1, values.ndim - 1))))
    member = jnp.arange(max(policy_of_agent) + 1)[:, None] == jnp.asarray(policy_of_agent)[None]
    return jnp.sum(jnp.where(member, of_agent[:, None, :], 0.0), axis=-1)


def policy_counts(policy_of_agent: tuple[int, ...], mask: jax.Array) -> jax.Array:
    """How many elements of a mask `[K, ..., N]` belong to each policy's agents: `[K, P]` float32."""
    return policy_sums(policy_of_agent, jnp.ones(mask.shape), mask)


def policy_means(policy_of_agent: tuple[int, ...], values: jax.Array, mask: jax.Array) -> jax.Array:
    """Means over the masked elements of each policy's agents: `[K, P]`, 0 without any; see `policy_sums`."""
    return policy_sums(policy_of_agent, values, mask) / jnp.maximum(policy_counts(policy_of_agent, mask), 1.0)


def standardize(policy_of_agent: tuple[int, ...], values: jax.Array, weight: jax.Array) -> jax.Array:
    """Shifts and scales to mean 0 and deviation 1 within each policy's agents.

    Args:
      policy_of_agent: the sharing table.
      values: `[K, ..., N]` float32.
      weight: the same shape, from `mean_weights`; elements without weight do not enter the statistics.

    Returns:
      The same shape; elements without weight are transformed alike.
    """

    def mean(values):
        return spread(policy_of_agent, policy_sums(policy_of_agent, values * weight, weight > 0), values)

    centered = values - mean(values)
    return centered / (jnp.sqrt(mean(jnp.square(centered))) + 1e-8)


def mean_weights(policy_of_agent: tuple[int, ...], mask: jax.Array) -> jax.Array:
    """Weights `[K, ..., N]` with which a sum over elements is the sum over policies of their masked means."""
    count = jnp.maximum(policy_counts(policy_of_agent, mask), 1.0)
    return mask / spread(policy_of_agent, count, mask)


def spread(policy_of_agent: tuple[int, ...], of_policy: jax.Array, like: jax.Array) -> jax.Array:
    """`[K, P]` to `[K, 1, ..., 1, N]`."""
    of_agent = of_policy[:, jnp.asarray(policy_of_agent)]
    return of_agent.reshape(of_agent.shape[0], *(1,) * (like.ndim - 2), of_agent.shape[1])
