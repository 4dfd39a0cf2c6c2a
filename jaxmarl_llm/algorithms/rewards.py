"""Rewards before learning: one scale, mixtures, shaping by history, novelty. Shapes that differ raise `ValueError`."""

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.arguments import of_one_shape
from jaxmarl_llm.errors import unknown_name

REWARD_SCALINGS = ("range", "scale")


@struct.dataclass
class RewardRange:
    """Least and largest reward so far, `[...]` float32; infinite before the first."""

    low: jax.Array
    high: jax.Array


def init_reward_range(shape=()) -> RewardRange:
    """An empty range: `normalize_reward` clips and does nothing else until the first update."""
    return RewardRange(jnp.full(shape, jnp.inf), jnp.full(shape, -jnp.inf))


def update_reward_range(state: RewardRange, reward, *, axis=None) -> RewardRange:
    """Widens the range by a batch of rewards.

    Args:
      state: of shape `[...]`.
      reward: float; `axis` (all by default) is reduced, the rest must be the state's shape.
      axis: axes to reduce.
    """
    return RewardRange(
        low=jnp.minimum(state.low, jnp.min(reward, axis=axis)), high=jnp.maximum(state.high, jnp.max(reward, axis=axis))
    )


def normalize_reward(state: RewardRange, reward, *, kind="range"):
    """Rewards in [-1, 1].

    Args:
      state: broadcasts against `reward`.
      reward: `[...]` float; what lies outside the range is clipped.
      kind: `"range"` sends the least reward to -1 and the largest to 1. That shifts every reward, and so changes what
        is best where episodes differ in length. `"scale"` divides by the largest size alone and keeps 0 at 0.

    Returns:
      `[...]` float; 0 for `"range"` while all rewards are the same.

    Raises:
      ValueError: unknown kind.
    """
    if kind not in REWARD_SCALINGS:
        raise unknown_name("kind", kind, REWARD_SCALINGS)
    seen = state.high >= state.low
    if kind == "range":
        center, half = 0.5 * (state.high + state.low), 0.5 * (state.high - state.low)
    else:
        center, half = jnp.zeros_like(state.low), jnp.maximum(jnp.abs(state.low), jnp.abs(state.high))
    center = jnp.where(seen, center, 0.0)
    half = jnp.where(seen & (half > 0), half, 1.0)
    return jnp.clip((reward - center) / half, -1.0, 1.0)


def mix_rewards(rewards, weights):
    """One reward from a vector of them.

    Args:
      rewards: `[..., K]` float, K kinds of reward: the team's, the agent's own, shaping, novelty.
      weights: `[K]` float, or `[N, K]` for weights of each agent against rewards `[..., N, K]`.

    Returns:
      `[...]` float, the weighted sum.

    Raises:
      ValueError: the last axes differ.
    """
    shape, axes = jnp.shape(rewards), jnp.shape(weights)
    if not axes or shape[len(shape) - len(axes) :] != axes:
        raise ValueError(f"weights of shape {axes} do not fit rewards of shape {shape}: give one weight a kind, [K]")
    return jnp.sum(rewards * jnp.broadcast_to(jnp.asarray(weights), shape), axis=-1)


def history_shaped_reward(reward, past_reward, *, weight=0.5, kind="margin"):
    """A reward in [0, 1] changed by how the agent did before (Zhang et al. 2025, MARTI).

    Args:
      reward: `[...]` float R, 0 to 1.
      past_reward: `[...]` float Q, the agent's mean reward before.
      weight: of the change.
      kind: `"margin"`, `R - Q`: better than before counts. `"quality"`, `Q R - (1 - Q) (1 - R)`: a reliable agent's
        success and an unreliable one's failure count.

    Returns:
      `[...]` float, `R + weight * change`.

    Raises:
      ValueError: unknown kind.
    """
    if kind == "margin":
        return reward + weight * (reward - past_reward)
    if kind == "quality":
        return reward + weight * (past_reward * reward - (1.0 - past_reward) * (1.0 - reward))
    raise unknown_name("kind", kind, ("margin", "quality"))


def novelty_reward(prediction, target):
    """Intrinsic reward of random network distillation, and the predictor's loss (Burda et al. 2019, sec. 2.2).

    Args:
      prediction: `[..., F]` float, features predicted by the trained network.
      target: `[..., F]` float, features of the same observation from a fixed random network; no gradient flows to it.
        `networks.RandomDistillation` gives both.

    Returns:
      `[...]` float, mean squared error: large where the predictor was seldom trained. Divide it by its running
      deviation (`ValueStatistics`) before mixing it in.
    """
    of_one_shape(prediction=prediction, target=target)
    return jnp.mean(jnp.square(prediction - jax.lax.stop_gradient(target)), axis=-1)
