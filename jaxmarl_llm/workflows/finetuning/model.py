"""A frozen decoder with an adapter for each policy in its last layers, scored on completions that share their prompts.

The backward pass ends where the adapters begin: the layers below them give the same vectors whatever is learned, so
these are computed once for all passes over the same completions.

Axes: P policies, K trained layers, B prompts, L tokens of them, C completions of each, M tokens of them,
S = L + C (M - 1) tokens in a row, E width.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.arguments import check_whole
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm import Decoder, DecoderConfig, Score
from jaxmarl_llm.llm.adapters import init_adapters, join_adapters
from jaxmarl_llm.llm.distribution import at_token, entropy, token_log_probs
from jaxmarl_llm.llm.layers import rotary_angles

_LAYERS = "layers"


@struct.dataclass
class Pack:
    """Completions, packed behind their prompts.

    Attributes:
      prompt: `[B, L]` int32, padded on the right.
      prompt_length: `[B]` int32, at least 1.
      completion: `[B, C, M]` int32.
      mask: `[B, C, M]` bool, a prefix of each completion; none where there is no completion.
    """

    prompt: jax.Array
    prompt_length: jax.Array
    completion: jax.Array
    mask: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class AdaptedModel:
    """A decoder whose body is frozen; see `adapt`.

    Attributes:
      config: of the decoder with all its adapters, as a sampler uses it.
      trained_layers: K, the last layers, which have adapters that are learned.
      body: the whole body.
      lower, upper: the parts of the body below the trained layers, and from them on.
    """

    config: DecoderConfig
    trained_layers: int
    body: Any
    lower: Any
    upper: Any

    @property
    def part(self) -> DecoderConfig:
        """The configuration of the trained layers with one adapter."""
        return dataclasses.replace(self.config, num_layers=self.trained_layers, num_adapters=1)

    def init(self, key: jax.Array) -> Any:
        """Adapters of the trained layers that change nothing yet, `[P, ...]`; the key is consumed."""
        config = dataclasses.replace(self.config, num_layers=self.trained_layers)
        adapters = init_adapters(config, key)
        # All policies start the same, so that they differ by what they learn alone.
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape).astype(jnp.float32), adapters)

    def whole(self, adapters: Any) -> Any:
        """Adapters of all layers, for a sampler: those below the trained ones add nothing."""
        missing = self.config.num_layers - self.trained_layers

        def pad(leaf):
            return jnp.pad(leaf, ((0, 0), (missing, 0)) + ((0, 0),) * (leaf.ndim - 2))

        return {name: jax.tree.map(pad, part) if name == _LAYERS else part for name, part in adapters.items()}

    def trunk(self, pack: Pack) -> jax.Array:
        """`[B, S, E]`, what the layers below the trained ones make of a pack; nothing that is learned changes it."""
        return _trunk(_body_config(self.config, self.config.num_layers - self.trained_layers), self.lower, pack)


def adapt(
    config: DecoderConfig,
    body: Mapping[str, Any],
    num_policies: int,
    *,
    rank: int,
    alpha: float,
    targets: tuple[str, ...],
    trained_layers: int = 0,
    value_head: bool = False,
) -> AdaptedModel:
    """A model with an adapter for each policy.

    Args:
      config: of the body, with `scan_layers`.
      body: parameters without adapters.
      num_policies: P.
      rank, alpha, targets: of the adapters, see `DecoderConfig`.
      trained_layers: K, how many of the last layers have adapters; 0 for all.
      value_head: each policy has one.

    Raises:
      UserError: layers that are not stacked, or more trained layers than there are.
    """
    if not config.scan_layers:
        raise UserError("fine-tuning needs a decoder with stacked layers: set scan_layers=True")
    check_whole("trained_layers", trained_layers, at_least=0)
    if trained_layers > config.num_layers:
        raise UserError(f"trained_layers must be at most the {config.num_layers} layers of the model")
    trained = trained_layers or config.num_layers
    below = config.num_layers - trained
    config = dataclasses.replace(
        config,
        lora_rank=rank,
        lora_alpha=alpha,
        lora_targets=targets,
        num_adapters=num_policies,
        value_head=value_head,
    )

    def layers(part: slice) -> Any:
        return jax.tree.map(lambda leaf: leaf[part], body[_LAYERS])

    lower = {"embedding": body["embedding"]} | ({_LAYERS: layers(slice(0, below))} if below else {})
    upper = dict(body) | ({_LAYERS: layers(slice(below, None))} if below else {})
    return AdaptedModel(config, trained, body, lower, upper)


def _body_config(config: DecoderConfig, num_layers: int) -> DecoderConfig | None:
    if not num_layers:
        return None
    return dataclasses.replace(config, num_layers=num_layers, lora_rank=0, num_adapters=0, value_head=False)


def _layout(config: DecoderConfig, pack: Pack) -> tuple[Any, jax.Array]:
    """Rotary angles and the mask `[B, S, S]` of a row: the prompt, then C completions that do not see each other."""
    (batch, length), (_, copies, steps) = pack.prompt.shape, pack.completion.shape
    fed = steps - 1
    inside = jnp.broadcast_to(jnp.arange(length)[None], (batch, length))
    after = pack.prompt_length[:, None, None] + jnp.arange(fed)[None, None]
    after = jnp.broadcast_to(after, (batch, copies, fed)).reshape(batch, -1)
    position = jnp.concatenate([inside, after], axis=1)
    # Completion 0 is the prompt: a token sees what is before it in its own completion, and the prompt.
    owner = jnp.concatenate([jnp.zeros(length, jnp.int32), jnp.repeat(jnp.arange(1, copies + 1), fed)])
    slot = jnp.arange(length + copies * fed)
    seen = (slot[None] <= slot[:, None]) & ((owner[None] == owner[:, None]) | (owner[None] == 0))
    valid = (owner[None] > 0) | (slot[None] < pack.prompt_length[:, None])
    angles = rotary_angles(position, config.head_dim, config.rope_base, config.rope_scaling)
    return angles, seen[None] & valid[:, None]


@functools.partial(jax.jit, static_argnums=0)
def _trunk(config: DecoderConfig | None, lower: Any, pack: Pack) -> jax.Array:
    batch = pack.prompt.shape[0]
    tokens = jnp.concatenate([pack.prompt, pack.completion[:, :, :-1].reshape(batch, -1)], axis=1)
    x = lower["embedding"][tokens]
    if config is None:
        return x
    x = x.astype(config.dtype)
    bound = Decoder(config).bind({"params": lower})
    angles, mask = _layout(config, pack)
    return bound.layers(x, angles, [mask], None, None, [])[0]


def score_pack(
    config: DecoderConfig,
    upper: Any,
    adapter: Any,
    trunk: jax.Array,
    pack: Pack,
    *,
    temperature: jax.typing.ArrayLike = 1.0,
    top_k: int = 0,
) -> Score:
    """What one policy says about the completions of a pack; differentiable in `adapter`, inside jit.

    Args:
      config: `AdaptedModel.part`.
      upper: of the model.
      adapter: of one policy, without the axis P.
      trunk: `AdaptedModel.trunk` of the pack.
      pack: the completions.
      temperature, top_k: of the sampling.

    Returns:
      `[B, C, M]` arrays, 0 where the mask does not hold.
    """
    batch, copies, steps = pack.completion.shape
    length = pack.prompt.shape[1]
    params = join_adapters(upper, jax.tree.map(lambda leaf: leaf[None], adapter))
    bound = Decoder(config).bind({"params": params})
    angles, mask = _layout(config, pack)
    x = bound.layers(trunk.astype(config.dtype), angles, [mask], jnp.ones((batch, 1)), None, [])[0]
    is_last = jnp.arange(length)[None] == pack.prompt_length[:, None] - 1
    last = jnp.sum(jnp.where(is_last[..., None], x[:, :length], 0), axis=1)
    last = jnp.broadcast_to(last[:, None, None], (batch, copies, 1, last.shape[-1]))
    x = jnp.concatenate([last, x[:, length:].reshape(batch, copies, steps - 1, -1)], axis=2)
    hidden = bound.norm(x)
    log_probs = token_log_probs(bound.logits(hidden), temperature=temperature, top_k=top_k)
    value = bound.value(hidden, jnp.zeros(batch, jnp.int32))
    found = Score(at_token(log_probs, pack.completion), entropy(log_probs), value)
    return jax.tree.map(lambda part: jnp.where(pack.mask, part, 0.0), found)


scored = jax.jit(score_pack, static_argnums=0, static_argnames="top_k")
