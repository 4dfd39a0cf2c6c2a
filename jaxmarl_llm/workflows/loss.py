"""The loss of completions: means over sequences of means over tokens, role by role.

Axes: T rounds of a call, B episodes, C copies, M tokens.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.algorithms.divergence import kl_estimate
from jaxmarl_llm.algorithms.losses import clipped_surrogate_loss, clipped_value_loss
from jaxmarl_llm.algorithms.masking import masked_mean
from jaxmarl_llm.llm import Score, score
from jaxmarl_llm.llm.distribution import LOWEST
from jaxmarl_llm.workflows.bound import BoundWorkflow
from jaxmarl_llm.workflows.graph import Call
from jaxmarl_llm.workflows.rollout import CallSamples, allowed_mask
from jaxmarl_llm.workflows.team import TeamPolicy

# What an impossible token has lost of its log-probability, in nats: its true loss is infinite.
EXCLUDED_NATS = 20.0
# A larger difference of log-probabilities would overflow.
_LARGEST_LOG_RATIO = 80.0


@struct.dataclass
class CallRows:
    """The samples of a call and what is learned from them.

    Attributes:
      samples: of the rollout.
      advantage: `[T, B, C, M]` float32, or M of 1 for one advantage a completion.
      base_log_prob: `[T, B, C, M]` float32, under the base policy.
      value, target: `[T, B, C, M]` float32, what the critic said at the time of acting, and what it is to say; None
        without one.
    """

    samples: CallSamples
    advantage: jax.Array
    base_log_prob: jax.Array
    value: jax.Array | None = None
    target: jax.Array | None = None


@struct.dataclass
class LossWeights:
    """Numbers of the loss.

    Attributes:
      clip_low, clip_high: the ratio is clipped to `[1 - clip_low, 1 + clip_high]`.
      kl: weight of the divergence from the base policy.
      entropy: weight of the entropy bonus.
      value: weight of the value loss.
      value_clip: largest useful move of a value.
    """

    clip_low: Any = 0.2
    clip_high: Any = 0.2
    kl: Any = 0.0
    entropy: Any = 0.0
    value: Any = 0.5
    value_clip: Any = 0.2


def possible_log_prob(log_prob: jax.Array, old_log_prob: jax.Array) -> jax.Array:
    """Log-probabilities in which tokens that have become impossible are as if `EXCLUDED_NATS` less likely than before.

    Args:
      log_prob: `[...]` float32, of the policy that is trained: the lowest number for an impossible token, see `score`.
      old_log_prob: `[...]` float32, of the policy that drew them.

    Returns:
      `[...]` float32, finite sums of which are finite; constant in `log_prob` where a token is impossible.
    """
    return jnp.where(log_prob > LOWEST, log_prob, old_log_prob - EXCLUDED_NATS)


def token_losses(
    log_prob: jax.Array,
    entropy: jax.Array,
    old_log_prob: jax.Array,
    base_log_prob: jax.Array,
    advantage: jax.Array,
    weights: LossWeights,
    *,
    value: jax.Array | None = None,
    old_value: jax.Array | None = None,
    target: jax.Array | None = None,
) -> dict[str, jax.Array]:
    """Clipped surrogate, anchor to the base policy (k3, as in Shao et al. 2024, eq. 4) and entropy bonus, per token.

    A token that an update has put outside the `top_k` or `top_p` has the ratio 0 and no gradient. The divergence from
    the base is one over what the policy writes, and has no part there. The divergence of the policy that acted is
    infinite; it counts as that of a token that is `EXCLUDED_NATS` less likely, and so does a token that the base
    excludes.

    Args:
      log_prob, entropy: `[..., M]` float32, of the policy that is trained.
      old_log_prob, base_log_prob: `[..., M]` float32, of the policy that acted and of the base policy.
      advantage: `[..., M]` or `[..., 1]` float32.
      weights: of the terms.
      value, old_value, target: `[..., M]` float32, of the critic, of the one that was there when the policy acted, and
        what it is to give; without the latter two the loss has no such term.

    Returns:
      `[..., M]` float32 each, finite: `loss`, and what it is made of, `value_loss` too with a target; `rollout_kl` and
      `clip_fraction` are not part of it.

    Raises:
      ValueError: a target and no `value`.
    """
    advantage = jnp.broadcast_to(advantage, log_prob.shape)
    policy_loss = clipped_surrogate_loss(
        log_prob, old_log_prob, advantage, clip_low=weights.clip_low, clip_high=weights.clip_high
    )
    possible = possible_log_prob(log_prob, old_log_prob)
    base_log_prob = possible_log_prob(base_log_prob, jax.lax.stop_gradient(possible))
    near = jnp.maximum(possible, base_log_prob - _LARGEST_LOG_RATIO)
    base_kl = jnp.where(log_prob > LOWEST, kl_estimate(near, base_log_prob), 0.0)
    ratio = jnp.exp(log_prob - old_log_prob)
    clipped = (ratio < 1.0 - weights.clip_low) | (ratio > 1.0 + weights.clip_high)
    parts = {
        "loss": policy_loss + weights.kl * base_kl - weights.entropy * entropy,
        "policy_loss": policy_loss,
        "base_kl": base_kl,
        "entropy": entropy,
        "rollout_kl": kl_estimate(old_log_prob, possible),
        "clip_fraction": clipped.astype(jnp.float32),
    }
    if old_value is not None and target is not None:
        if value is None:
            raise ValueError("there is a target of the critic and no value: the decoder has no value head")
        parts["value_loss"] = clipped_value_loss(value, old_value, target, clip=weights.value_clip)
        parts["loss"] = parts["loss"] + weights.value * parts["value_loss"]
    return parts


def score_samples(
    team: TeamPolicy,
    policy_params: Any,
    bound: BoundWorkflow,
    call: Call,
    samples: CallSamples,
    *,
    temperature: jax.typing.ArrayLike,
    constrained: bool,
) -> Score:
    """What one policy says about the samples of a call, under the distribution that they were drawn from.

    Args:
      team: whose decoder.
      policy_params: of one policy.
      bound, call: the workflow and one of its calls.
      samples: of that call, any leading axes.
      temperature, constrained: as in `play`.

    Returns:
      `[T, B, C, M]` arrays.
    """

    def rows(leaf, last=0):
        return leaf.reshape(-1, *leaf.shape[leaf.ndim - last :])

    found = score(
        team.decoder,
        policy_params,
        rows(samples.prompt, 1),
        rows(samples.prompt_length),
        rows(samples.completion, 1),
        rows(samples.mask, 1),
        temperature=temperature,
        allowed=allowed_mask(bound, call, constrained),
    )
    return jax.tree.map(lambda leaf: leaf.reshape(samples.mask.shape), found)


def sequence_sums(scored: Score, rows: CallRows, weights: LossWeights) -> dict[str, jax.Array]:
    """Sums over the completions that were asked for of means over their tokens; `[]` each.

    Args:
      scored: of the policy that is trained, `[T, B, C, M]`.
      rows: of one call.
      weights: of the terms.

    Returns:
      The parts of `token_losses` and `count`, the number of completions.
    """
    samples = rows.samples
    parts = token_losses(
        scored.log_prob,
        scored.entropy,
        samples.log_prob,
        rows.base_log_prob,
        rows.advantage,
        weights,
        value=scored.value,
        old_value=rows.value,
        target=rows.target,
    )
    sums = {name: jnp.sum(masked_mean(part, samples.mask, axis=-1)) for name, part in parts.items()}
    return sums | {"count": jnp.sum(samples.asked, dtype=jnp.float32)}
