"""Losses of packed completions and their gradients with respect to one policy's adapter.

Axes as in `model`; F parameters of an adapter in one vector.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.flatten_util import ravel_pytree

from jaxmarl_llm.algorithms.losses import clipped_surrogate_loss
from jaxmarl_llm.algorithms.masking import masked_mean
from jaxmarl_llm.errors import unknown_name
from jaxmarl_llm.llm import DecoderConfig
from jaxmarl_llm.llm.devices import jit_replicated
from jaxmarl_llm.llm.packing import Pack, score_pack
from jaxmarl_llm.workflows.loss import LossWeights, possible_log_prob, token_losses

RATIOS = ("token", "message")


@struct.dataclass
class Lessons:
    """What is to be learned from a pack.

    Attributes:
      old_log_prob, base_log_prob: `[B, C, M]` float32, of the policy that acted and of the base model.
      advantage: `[B, C, M]` float32.
      weight: `[B, C]` float32, of a completion in the policy's loss; 0 for none.
      imitation: `[B, C]` float32, weight of its negative log-likelihood.
      value, target: `[B, C, M]` float32, of the critic; None without one.
    """

    old_log_prob: jax.Array
    base_log_prob: jax.Array
    advantage: jax.Array
    weight: jax.Array
    imitation: jax.Array
    value: jax.Array | None = None
    target: jax.Array | None = None


def message_losses(scored, mask: jax.Array, lessons: Lessons, weights: LossWeights, penalty, ratio: str) -> dict:
    """`[B, C]` each: the loss of every completion and what it is made of, means over its tokens.

    Args:
      scored: of the policy that is trained.
      mask: `[B, C, M]` bool.
      lessons: of the same completions.
      weights: of the terms.
      penalty: weight of the divergence from the acting policy, in nats a message.
      ratio: `"token"`, each token's ratio is clipped (PPO, GRPO); `"message"`, the product over the tokens (TeamTR,
        arXiv 2605.15207, algorithm 1). Tokens that have become impossible are as in `token_losses`.

    Raises:
      UserError: unknown ratio.
    """
    if ratio not in RATIOS:
        raise unknown_name("ratio", ratio, RATIOS)
    old = lessons.old_log_prob
    by_token = token_losses(
        scored.log_prob,
        scored.entropy,
        old,
        lessons.base_log_prob,
        lessons.advantage,
        weights,
        value=scored.value,
        old_value=lessons.value,
        target=lessons.target,
    )
    parts = {name: masked_mean(part, mask, axis=-1) for name, part in by_token.items()}
    difference = jnp.sum(jnp.where(mask, possible_log_prob(scored.log_prob, old) - old, 0.0), axis=-1)
    if ratio == "message":
        of_message = clipped_surrogate_loss(
            difference,
            jnp.zeros_like(difference),
            masked_mean(lessons.advantage, mask, axis=-1),
            clip_low=weights.clip_low,
            clip_high=weights.clip_high,
        )
        parts |= {"loss": parts["loss"] - parts["policy_loss"] + of_message, "policy_loss": of_message}
    # The mean over tokens with the number of tokens taken out again: nats a message.
    divergence = jnp.sum(jnp.where(mask, by_token["rollout_kl"], 0.0), axis=-1)
    parts |= {"loss": parts["loss"] + penalty * divergence, "message_kl": divergence, "message_log_ratio": -difference}
    return parts


@functools.partial(
    jit_replicated, params=1, static_argnums=0, static_argnames=("ratio", "temperature", "top_k", "top_p")
)
def pack_gradient(
    config: DecoderConfig,
    upper: Any,
    adapter: Any,
    trunk: jax.Array | None,
    pack: Pack,
    lessons: Lessons,
    weights: LossWeights,
    penalty: jax.typing.ArrayLike,
    *,
    ratio: str,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Gradient of the summed losses of a pack.

    Args:
      config, upper, adapter, trunk, pack, temperature, top_k, top_p: as for `score_pack`.
      lessons, weights, penalty, ratio: as for `message_losses`.

    Returns:
      `(gradient [F], sums)`: the parts of `message_losses` summed over the completions that have a weight, and their
      number `learned`. The body is an argument and no constant of the program.
    """

    def loss(adapter):
        settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        found = score_pack(config, upper, adapter, trunk, pack, **settings)
        parts = message_losses(found, pack.mask, lessons, weights, penalty, ratio)
        # What is not imitated may hold impossible tokens.
        written = jnp.where(lessons.imitation > 0, -masked_mean(found.log_prob, pack.mask, axis=-1), 0.0)
        total = jnp.sum(lessons.weight * parts["loss"] + lessons.imitation * written)
        counts = (lessons.weight > 0).astype(jnp.float32)
        sums = {name: jnp.sum(counts * part) for name, part in parts.items()}
        copied = (lessons.imitation > 0).astype(jnp.float32)
        sums |= {"learned": jnp.sum(counts), "imitated": jnp.sum(copied), "imitation_loss": jnp.sum(copied * written)}
        return total, sums | {"loss": total}

    gradient, sums = jax.grad(loss, has_aux=True)(adapter)
    return ravel_pytree(gradient)[0], sums
