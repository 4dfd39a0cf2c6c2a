"""A frozen decoder with an adapter for each policy in its last layers.

The backward pass ends where the adapters begin: the layers below them give the same vectors whatever is learned, so
these are computed once for all passes over the same packs.

Axes: P policies, K trained layers; those of a pack as in `llm.packing`.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm import DecoderConfig
from jaxmarl_llm.llm.adapters import init_adapters, without_adapters
from jaxmarl_llm.llm.config import LAYERS, num_trained_layers
from jaxmarl_llm.llm.devices import num_shards, replicated_like
from jaxmarl_llm.llm.memory import check_fits, gradient_memory, kept_bytes
from jaxmarl_llm.llm.packing import Pack, trunk_of_pack
from jaxmarl_llm.llm.unstacking import UnstackedBody


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

        return {name: jax.tree.map(pad, part) if name == LAYERS else part for name, part in adapters.items()}

    def trunk(self, pack: Pack) -> jax.Array | None:
        """`[B, S, E]`, what the layers below the trained ones make of a pack; None where all are trained.

        Nothing that is learned changes it.
        """
        below = self.config.num_layers - self.trained_layers
        if not below:
            return None
        return trunk_of_pack(
            without_adapters(self.config), below, self.body, dataclasses.replace(pack, constraint=None)
        )

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
      body: parameters without adapters, leaves of the layers `[num_layers, ...]`; kept, not copied.
      num_policies: P, at least 1.
      rank, alpha, targets: of the adapters, see `DecoderConfig`.
      trained_layers: K, how many of the last layers have adapters; 0 for all.
      value_head: each policy has one.

    Returns:
      A model whose adapters have leaves `[P, K, ...]` float32 in the layers; where layers lie below the trained ones,
      it holds a copy of the K trained ones.

    Raises:
      UserError: layers that are not stacked, more trained layers than there are, or a rank above the model's width.
    """
    if not config.scan_layers:
        raise UserError("fine-tuning needs a decoder with stacked layers: set scan_layers=True")
    trained = num_trained_layers(config, trained_layers)
    if rank > config.hidden_size:
        raise UserError(f"lora_rank must be at most {config.hidden_size}, the width of the model, got {rank}")
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
        upper[LAYERS] = jax.tree.map(functools.partial(_without_first, below), body[LAYERS])
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
