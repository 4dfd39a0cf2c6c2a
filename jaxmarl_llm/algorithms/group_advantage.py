"""Advantages relative to a group of samples of the same prompt, state or role."""

import jax
import jax.numpy as jnp

from jaxmarl_llm.arguments import of_one_shape
from jaxmarl_llm.errors import unknown_name

GROUP_SCALES = ("std", "sample_std", "none")
_EPSILON = 1e-6


def group_relative_advantage(reward, group, num_groups, *, scale="std", clip=None):
    """Reward over the mean of its group, in units of the group's deviation (Shao et al. 2024, GRPO, sec. 4.1.2).

    The group decides what is learned: one group per prompt, per (prompt, agent), or per (prompt, agent, turn).
    A group of equal rewards (or of one) has advantage exactly 0.

    Args:
      reward: `[...]` float.
      group: `[...]` int, same shape, in `[0, num_groups)`; an element outside (padding) gets 0 and counts nowhere.
      num_groups: static number of groups.
      scale: `"std"` (population deviation), `"sample_std"` (one degree of freedom less) or `"none"` (mean only,
        Liu et al. 2025, Dr. GRPO).
      clip: the result is clipped to `[-clip, clip]` (TeamTR's A_clip); `None` for no clipping.

    Returns:
      `[...]` float.

    Raises:
      ValueError: unknown scale, or shapes that differ.
    """
    if scale not in GROUP_SCALES:
        raise unknown_name("scale", scale, GROUP_SCALES)
    of_one_shape(reward=reward, group=group)
    flat = reward.reshape(-1)
    belongs = ((group >= 0) & (group < num_groups)).reshape(-1)
    # One more segment takes what belongs nowhere.
    segment = jnp.where(belongs, group.reshape(-1), num_groups)

    def total(value):
        return jax.ops.segment_sum(value, segment, num_groups + 1)

    # Measured from the group's least reward, so that equal rewards have a deviation of 0 and not of a rounding error.
    flat = flat - jax.ops.segment_min(flat, segment, num_groups + 1)[segment]
    count = jnp.maximum(total(jnp.ones_like(flat)), 1.0)
    deviation = flat - (total(flat) / count)[segment]
    if scale != "none":
        degrees = count if scale == "std" else jnp.maximum(count - 1.0, 1.0)
        deviation = deviation / (jnp.sqrt(total(jnp.square(deviation)) / degrees)[segment] + _EPSILON)
    if clip is not None:
        deviation = jnp.clip(deviation, -clip, clip)
    return jnp.where(belongs, deviation, 0.0).reshape(reward.shape)
