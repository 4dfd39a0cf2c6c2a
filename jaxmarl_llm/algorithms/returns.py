"""Returns and advantages over time-major arrays `[T, ...]`."""

import jax
import jax.numpy as jnp

from jaxmarl_llm.arguments import steps_of_one_shape


def gae(reward, value, next_value, terminated, boundary, *, discount=0.99, gae_lambda=0.95):
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16), with correct ends of episodes.

    `next_value` is the value of the successor in the *same* episode, so a time limit bootstraps from the observation
    that was cut off, and a termination does not bootstrap.

    Args:
      reward: `[T, ...]` float, reward of step t.
      value: `[T, ...]` float, value of the observation before step t.
      next_value: `[T, ...]` float, value of the observation after step t, before any reset.
      terminated: `[T, ...]` bool, no value after step t; wins over a time limit on the same step.
      boundary: `[T, ...]` bool, the episode ended at step t (terminated or truncated): no sum runs across it.
      discount: discount factor.
      gae_lambda: decay of the sum of temporal differences; 0 is one step, 1 is Monte Carlo.

    Returns:
      `(advantage, target)`, both `[T, ...]`; `target = advantage + value` is the λ-return.

    Raises:
      ValueError: shapes that differ.
    """
    reward, value, next_value, terminated, boundary = steps_of_one_shape(
        reward=reward, value=value, next_value=next_value, terminated=terminated, boundary=boundary
    )
    difference = reward + discount * jnp.where(terminated, 0.0, next_value) - value
    decay = discount * gae_lambda * (1.0 - boundary)

    def backward(advantage, step):
        difference, decay = step
        advantage = difference + decay * advantage
        return advantage, advantage

    _, advantage = jax.lax.scan(backward, jnp.zeros_like(difference[0]), (difference, decay), reverse=True, unroll=8)
    return advantage, advantage + value


def td_lambda(reward, next_value, terminated, boundary, *, discount=0.99, td_lambda=0.8):
    """Forward-view λ-return (Sutton and Barto 2018, eq. 12.18, in recursive form).

    Args:
      reward: `[T, ...]` float, reward of step t.
      next_value: `[T, ...]` float, value of the observation after step t, in the same episode.
      terminated: `[T, ...]` bool, no value after step t.
      boundary: `[T, ...]` bool, the episode ended at step t; the return there is the one-step return.
      discount: discount factor.
      td_lambda: weight of longer returns; 0 is one step, 1 is Monte Carlo up to the boundary.

    Returns:
      `[T, ...]` targets; the last step of the array is treated as a boundary.

    Raises:
      ValueError: shapes that differ.
    """
    reward, next_value, terminated, boundary = steps_of_one_shape(
        reward=reward, next_value=next_value, terminated=terminated, boundary=boundary
    )
    bootstrap = discount * jnp.where(terminated, 0.0, next_value)
    one_step = reward + bootstrap
    boundary = boundary.astype(bool).at[-1].set(True)

    def backward(following, step):
        reward, bootstrap, one_step, boundary = step
        mixed = reward + (1.0 - td_lambda) * bootstrap + td_lambda * discount * following
        target = jnp.where(boundary, one_step, mixed)
        return target, target

    steps = (reward, bootstrap, one_step, boundary)
    _, target = jax.lax.scan(backward, jnp.zeros_like(one_step[0]), steps, reverse=True, unroll=8)
    return target
