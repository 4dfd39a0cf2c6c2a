"""A frozen decoder with an adapter for each policy in its last layers, scored on completions that share their prompts.

The backward pass ends where the adapters begin: the layers below them give the same vectors whatever is learned, so
these are computed once for all passes over the same packs.

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
from jaxmarl_llm.llm.adapters import init_adapters, join_adapters, without_adapters
from jaxmarl_llm.llm.automata import RowConstraints
from jaxmarl_llm.llm.devices import jit_replicated, num_shards, replicated_like
from jaxmarl_llm.llm.layers import rotary_angles
from jaxmarl_llm.llm.memory import check_fits, gradient_memory, kept_bytes
from jaxmarl_llm.llm.unstacking import UnstackedBody
from jaxmarl_llm.llm.vocabulary import score_among, score_tokens

_LAYERS = "layers"


@struct.dataclass
class Pack:
    """Completions, packed behind their prompts.

    Attributes:
      prompt: `[B, L]` int32, padded on the right.
      prompt_length: `[B]` int32, at least 1.
      completion: `[B, C, M]` int32.
      mask: `[B, C, M]` bool, a prefix of each completion; none where there is no completion.
      constraint: `[B, C]`, what they were held to; all of them to something, or None for nothing.
    """

    prompt: jax.Array
    prompt_length: jax.Array
    completion: jax.Array
    mask: jax.Array
    constraint: RowConstraints | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class AdaptedModel:
    """A decoder whose body is frozen; see `adapt`.

    Attributes:
      config: of the decoder with all its adapters, as a sampler uses it.
      trained_layers: K, the last layers, which have adapters that are learned.
      body: the whole body.
      upper: the body without the layers below the trained ones. Unless all are trained it is a copy of K layers, which
        else every gradient would make again.
      unstacked: the body as samplers draw from it, one copy for all of them.
    """

    config: DecoderConfig
    trained_layers: int
    body: Any
    upper: Any
    unstacked: UnstackedBody = dataclasses.field(default_factory=UnstackedBody, repr=False)

    @property
    def part(self) -> DecoderConfig:
        """The configuration of the trained layers with one adapter."""
        return dataclasses.replace(self.config, num_layers=self.trained_layers, num_adapters=1)

    def init(self, key: jax.Array) -> Any:
        """Adapters of the trained layers that change nothing yet, `[P, ...]`; the key is consumed."""
        return _init(dataclasses.replace(self.config, num_layers=self.trained_layers), key)

    def whole(self, adapters: Any) -> Any:
        """Adapters of all layers, for a sampler: those below the trained ones add nothing."""
        missing = self.config.num_layers - self.trained_layers

        def pad(leaf):
            return jnp.pad(leaf, ((0, 0), (missing, 0)) + ((0, 0),) * (leaf.ndim - 2))

        return {name: jax.tree.map(pad, part) if name == _LAYERS else part for name, part in adapters.items()}

    def trunk(self, pack: Pack) -> jax.Array | None:
        """`[B, S, E]`, what the layers below the trained ones make of a pack; None where all are trained.

        Nothing that is learned changes it.
        """
        below = self.config.num_layers - self.trained_layers
        if not below:
            return None
        return _trunk(without_adapters(self.config), below, self.body, dataclasses.replace(pack, constraint=None))

    def trunk_bytes(self, tokens: int) -> int:
        """What trunks of so many tokens take."""
        has_trunk = self.trained_layers < self.config.num_layers
        return has_trunk * tokens * self.config.hidden_size * jnp.dtype(self.config.dtype).itemsize

    def check_fits(
        self,
        batch: int,
        length: int,
        copies: int,
        steps: int,
        *,
        limited: bool = False,
        candidates: int = 0,
        trunks: int = 0,
    ) -> None:
        """Refuses packs whose gradient does not fit into memory.

        Args:
          batch, length, copies, steps: B, L, C, M of a pack.
          limited: `top_k` or `top_p` say what may be drawn.
          candidates: the most tokens that any of them may be; 0 where all may be written.
          trunks: bytes of the trunks that are kept meanwhile.

        Raises:
          UserError: what takes how much, and how much there is.
        """
        found = gradient_memory(
            self.config,
            batch,
            length,
            steps,
            copies=copies,
            trained_layers=self.trained_layers,
            limited=limited,
            candidates=candidates,
            kept=kept_bytes(self.config, self.body, batch * copies) + trunks,
        )
        what = f"a gradient over {batch * copies} completions (pack_tokens, group_size)"
        check_fits(found, what, shards=num_shards(self.body))


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
      UserError: layers that are not stacked, more trained layers than there are, or a rank above the model's width.
    """
    if not config.scan_layers:
        raise UserError("fine-tuning needs a decoder with stacked layers: set scan_layers=True")
    check_whole("trained_layers", trained_layers, at_least=0)
    if trained_layers > config.num_layers:
        raise UserError(f"trained_layers must be at most the {config.num_layers} layers of the model")
    if rank > config.hidden_size:
        raise UserError(f"lora_rank must be at most {config.hidden_size}, the width of the model, got {rank}")
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

    upper = dict(body)
    if below:
        upper[_LAYERS] = jax.tree.map(functools.partial(_without_first, below), body[_LAYERS])
    return AdaptedModel(config, trained, body, upper)


def _without_first(count: int, stack: Any) -> Any:
    """A stack without its first layers, on the devices that it was on."""
    part = stack[count:]
    return jax.device_put(part, stack.sharding) if replicated_like(stack) else part


@functools.partial(jax.jit, static_argnums=0)
def _init(config: DecoderConfig, key: jax.Array) -> Any:
    adapters = init_adapters(config, key)
    # All policies start the same, so that they differ by what they learn alone.
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape).astype(jnp.float32), adapters)


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


@functools.partial(jax.jit, static_argnums=(0, 1))
def _trunk(config: DecoderConfig, below: int, body: Any, pack: Pack) -> jax.Array:
    angles, mask = _layout(config, pack)
    decoder = Decoder(dataclasses.replace(config, num_layers=1))

    def layer(index, x):
        # One layer after the other is taken out of the stack: a slice of several would be a copy of them.
        one = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, index, 1), body[_LAYERS])
        bound = decoder.bind({"params": {"embedding": body["embedding"], _LAYERS: one}})
        return bound.layers(x, angles, [mask], None, None, [])[0]

    return jax.lax.fori_loop(0, below, layer, _embedded(config, body, pack))


def _embedded(config: DecoderConfig, body: Any, pack: Pack) -> jax.Array:
    """`[B, S, E]`, what the first layer reads."""
    batch = pack.prompt.shape[0]
    tokens = jnp.concatenate([pack.prompt, pack.completion[:, :, :-1].reshape(batch, -1)], axis=1)
    return body["embedding"][tokens].astype(config.dtype)


def score_pack(
    config: DecoderConfig,
    upper: Any,
    adapter: Any,
    trunk: jax.Array | None,
    pack: Pack,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> Score:
    """What one policy says about the completions of a pack; differentiable in `adapter`, inside jit.

    Args:
      config: `AdaptedModel.part`.
      upper: of the model.
      adapter: of one policy, without the axis P.
      trunk: `AdaptedModel.trunk` of the pack.
      pack: the completions.
      temperature, top_k, top_p: of the sampling.

    Returns:
      `[B, C, M]` arrays, 0 where the mask does not hold.
    """
    batch, copies, steps = pack.completion.shape
    length = pack.prompt.shape[1]
    params = join_adapters(upper, jax.tree.map(lambda leaf: leaf[None], adapter))
    bound = Decoder(config).bind({"params": params})
    angles, mask = _layout(config, pack)
    below = _embedded(config, upper, pack) if trunk is None else trunk
    x = bound.layers(below, angles, [mask], jnp.ones((batch, 1)), None, [])[0]
    is_last = jnp.arange(length)[None] == pack.prompt_length[:, None] - 1
    last = jnp.sum(jnp.where(is_last[..., None], x[:, :length], 0), axis=1)
    last = jnp.broadcast_to(last[:, None, None], (batch, copies, 1, last.shape[-1]))
    x = jnp.concatenate([last, x[:, length:].reshape(batch, copies, steps - 1, -1)], axis=2)
    hidden = bound.norm(x)
    value = bound.value(hidden, jnp.zeros(batch, jnp.int32))
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    if pack.constraint is None:
        opinion = score_tokens(bound, hidden, pack.completion, **settings)
    else:
        opinion = score_among(bound, hidden, pack.completion, *pack.constraint.ways_along(pack.completion), **settings)
    found = Score(*opinion, value)
    return jax.tree.map(lambda part: jnp.where(pack.mask, part, 0.0), found)


scored = jit_replicated(score_pack, params=1, static_argnums=0, static_argnames=("temperature", "top_k", "top_p"))
