"""Schedules of hyper-parameters over training."""

import jax.numpy as jnp

from jaxmarl_llm.errors import unknown_name

SCHEDULES = ("constant", "linear", "cosine")


def anneal(initial, final, progress, *, schedule="linear"):
    """From `initial` to `final` as `progress` goes from 0 to 1; constant afterwards.

    Args:
      initial, final: `[]` float.
      progress: `[]` float.
      schedule: `"constant"` (always `initial`), `"linear"` or `"cosine"` (half a wave).

    Returns:
      `[]` float.
    """
    if schedule not in SCHEDULES:
        raise unknown_name("schedule", schedule, SCHEDULES)
    progress = jnp.clip(progress, 0.0, 1.0)
    if schedule == "constant":
        progress = jnp.zeros_like(progress)
    elif schedule == "cosine":
        progress = 0.5 - 0.5 * jnp.cos(jnp.pi * progress)
    return initial + (final - initial) * progress
