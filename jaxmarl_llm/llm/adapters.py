"""Adapters and value heads apart from the body of a decoder, and low-rank adapters added into its projections.

Axes: P adapters, or policies. A tree of adapters has the leading axis P on every leaf, whatever the layout of layers.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.arguments import check_whole
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.config import LAYERS, DecoderConfig
from jaxmarl_llm.llm.decoder import Decoder

# What a policy may have of its own, beside a body that all share.
ADAPTER_PARTS = ("lora_a", "lora_b", "value_output")


def split_adapters(params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parts parameters of a decoder with `num_adapters` into the body and the adapters.

    Args:
      params: of the decoder.

    Returns:
      `(body, adapters)`, two trees that hold each part once; the leaves of `adapters` are `[P, ...]`.
    """
    body: dict[str, Any] = {}
    adapters: dict[str, Any] = {}
    for name, part in params.items():
        if name in ADAPTER_PARTS:
            adapters[name] = part
        elif isinstance(part, Mapping):
            inner_body, inner = split_adapters(part)
            if name == LAYERS:
                inner = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), inner)
            body |= {name: inner_body} if inner_body else {}
            adapters |= {name: inner} if inner else {}
        else:
            body[name] = part
    return body, adapters


def join_adapters(body: Mapping[str, Any], adapters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that `split_adapters` parts."""
    joined = dict(body)
    for name, part in adapters.items():
        if name == LAYERS:
            part = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), part)
        is_inner = name in body and isinstance(part, Mapping)
        joined[name] = join_adapters(body[name], part) if is_inner else part
    return joined


def init_adapters(config: DecoderConfig, key: jax.Array) -> dict[str, Any]:
    """Adapters that change nothing yet, and random value heads.

    Args:
      config: with `num_adapters` of at least 1.
      key: consumed.

    Returns:
      A tree with leaves `[P, ...]`.

    Raises:
      UserError: a configuration without adapters.
    """
    if not config.num_adapters:
        raise UserError("the decoder has no adapters of its rows: set num_adapters to at least 1")
    return _init(config, key)


# Jitted, the body is never computed.
@functools.partial(jax.jit, static_argnums=0)
def _init(config: DecoderConfig, key: jax.Array) -> dict[str, Any]:
    token, adapter = jnp.zeros((1, 1), jnp.int32), jnp.zeros(1, jnp.int32)
    return split_adapters(Decoder(config).init(key, token, adapter=adapter)["params"])[1]


def merge_adapter(config: DecoderConfig, body: Mapping[str, Any], adapters: Mapping[str, Any], index: int) -> dict:
    """The body with one adapter added into its projections, for a decoder without adapters.

    Args:
      config: of the adapters.
      body: without adapters.
      adapters: leaves `[P, ...]`.
      index: of the adapter, below P.

    Returns:
      A body, leaves in their dtypes; the value head is left out, so that adapters that are value heads alone change
      nothing.

    Raises:
      UserError: `index` is no whole number from 0 to P - 1.
    """
    return _change(config, body, adapters, index, lambda kernel, change: kernel + change)


def unmerge_adapter(config: DecoderConfig, body: Mapping[str, Any], adapters: Mapping[str, Any], index: int) -> dict:
    """The body that `merge_adapter` started from, up to rounding.

    Args:
      config, adapters, index: as they were merged.
      body: of `merge_adapter`.

    Returns:
      A body, leaves in their dtypes.

    Raises:
      UserError: `index` is no whole number from 0 to P - 1.
    """
    return _change(config, body, adapters, index, lambda kernel, change: kernel - change)


def without_adapters(config: DecoderConfig) -> DecoderConfig:
    """The configuration of the body alone."""
    return dataclasses.replace(config, lora_rank=0, num_adapters=0, value_head=False)


def _change(config: DecoderConfig, body, adapters, index, apply: Callable) -> dict[str, Any]:
    check_whole("index of the adapter", index, at_least=0)
    if index >= config.num_adapters:
        raise UserError(f"there is no adapter {index}: they run from 0 to {config.num_adapters - 1}")
    # Without a rank there are value heads alone, which are no part of the body.
    scale = config.lora_alpha / max(config.lora_rank, 1)

    def walk(body, adapters):
        changed = dict(body)
        for name, part in adapters.items():
            if not isinstance(part, Mapping) or name in ADAPTER_PARTS:
                continue
            changed[name] = walk(body[name], part)
            if "lora_a" in part:
                kernel = body[name]["kernel"]
                change = part["lora_a"][index].astype(jnp.float32) @ part["lora_b"][index].astype(jnp.float32)
                changed[name]["kernel"] = apply(kernel.astype(jnp.float32), scale * change).astype(kernel.dtype)
        return changed

    return walk(body, adapters)
