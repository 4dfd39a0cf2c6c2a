"""Names and shapes of a decoder's parameters, and what the same tensors are called in checkpoints."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxmarl_llm.llm.config import LAYERS, DecoderConfig
from jaxmarl_llm.llm.decoder import Decoder

Kind = Literal["hf", "gguf"]
# The part of a decoder: its module in Hugging Face's checkpoints, and in GGUF files.
_TOP = {
    "embedding": ("model.embed_tokens", "token_embd"),
    "norm": ("model.norm", "output_norm"),
    "output": ("lm_head", "output"),
}
_LAYER = {
    "attention_norm": ("input_layernorm", "attn_norm"),
    "query_projection": ("self_attn.q_proj", "attn_q"),
    "key_projection": ("self_attn.k_proj", "attn_k"),
    "value_projection": ("self_attn.v_proj", "attn_v"),
    "query_norm": ("self_attn.q_norm", "attn_q_norm"),
    "key_norm": ("self_attn.k_norm", "attn_k_norm"),
    "attention_output": ("self_attn.o_proj", "attn_output"),
    "gated_norm": ("post_attention_layernorm", "ffn_norm"),
    "gate": ("mlp.gate_proj", "ffn_gate"),
    "up": ("mlp.up_proj", "ffn_up"),
    "down": ("mlp.down_proj", "ffn_down"),
}
_PREFIX = {"hf": "model.layers.", "gguf": "blk."}


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A parameter of a decoder with stacked layers.

    Attributes:
      path: its names in the tree of parameters.
      shape: with the leading axis `num_layers` where `is_stacked`.
      dtype: its name.
    """

    path: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str

    @property
    def is_stacked(self) -> bool:
        """Whether it belongs to the layers."""
        return self.path[0] == LAYERS

    @property
    def is_kernel(self) -> bool:
        """Whether checkpoints hold its matrices transposed, `[outputs, inputs]`."""
        return self.path[-1] == "kernel"

    @property
    def part(self) -> str:
        """Of the decoder or of a layer, such as `"query_projection"`."""
        return self.path[1] if self.is_stacked else self.path[0]

    def tensors(self, kind: Kind) -> list[str]:
        """Names of its tensors in a checkpoint: one, or one a layer."""
        column = ("hf", "gguf").index(kind)
        suffix = "bias" if self.path[-1] == "bias" else "weight"
        if not self.is_stacked:
            return [f"{_TOP[self.part][column]}.{suffix}"]
        module = _LAYER[self.part][column]
        return [f"{_PREFIX[kind]}{layer}.{module}.{suffix}" for layer in range(self.shape[0])]

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Of each of its tensors in a checkpoint."""
        shape = self.shape[1:] if self.is_stacked else self.shape
        return shape[::-1] if self.is_kernel else shape


def hf_module(target: str) -> str:
    """The module of a layer that an adapter's target, such as `"query"`, has in Hugging Face's checkpoints."""
    return _LAYER[target if target in _LAYER else f"{target}_projection"][0]


@functools.lru_cache(maxsize=8)
def abstract_params(config: DecoderConfig) -> dict[str, Any]:
    """Shapes and dtypes of a decoder's parameters."""
    return jax.eval_shape(Decoder(config).init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]


def leaves(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Paths and leaves of a tree of dictionaries."""
    for name, part in tree.items():
        if isinstance(part, Mapping):
            yield from leaves(part, (*path, name))
        else:
            yield (*path, name), part


def decoder_leaves(config: DecoderConfig) -> list[Leaf]:
    """All parameters of a decoder without adapters."""
    return [Leaf(path, leaf.shape, leaf.dtype.name) for path, leaf in leaves(abstract_params(config))]


def put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Puts a leaf into a tree of dictionaries, making those that are missing."""
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value
