"""Sizes and variants of the decoder, and the presets that are trained from scratch."""

import dataclasses
from typing import Any

import numpy as np

from jaxmarl_llm.arguments import check_kind, check_number, check_whole, elements
from jaxmarl_llm.errors import UserError, unknown_name

DTYPES = ("float32", "bfloat16")
# The part of the parameters that holds the layers; with `scan_layers` one stack, each leaf with a leading axis.
LAYERS = "layers"
LORA_TARGETS = ("query", "key", "value", "attention_output", "gate", "up", "down")
# Named by their number of parameters at a vocabulary of about 64: 0.05, 0.2, 0.8 and 3 million.
PRESETS = {
    "tiny": {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 64},
    "small": {"hidden_size": 96, "num_layers": 3, "num_heads": 6, "num_kv_heads": 2, "intermediate_size": 128},
    "base": {"hidden_size": 128, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 384},
    "medium": {"hidden_size": 256, "num_layers": 5, "num_heads": 8, "num_kv_heads": 4, "intermediate_size": 512},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How Llama 3.1 and later slow down the rotary angles for contexts longer than the first training (Meta 2024).

    Attributes:
      factor: by which slow angles turn slower still.
      low_frequency_factor, high_frequency_factor: angles that turn less often than the first in `original_max_length`
        tokens are slowed down, those that turn more often than the second stay, and between them it is interpolated.
        The second is above the first.
      original_max_length: context of the first training, in tokens.
    """

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_max_length: int

    def __post_init__(self):
        check_number("factor", self.factor, at_least=1.0)
        check_number("low_frequency_factor", self.low_frequency_factor, above=True)
        check_number(
            "high_frequency_factor", self.high_frequency_factor, at_least=self.low_frequency_factor, above=True
        )
        check_whole("original_max_length", self.original_max_length, at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """What a decoder of the Llama family is made of; hashable, so that it can be a static argument.

    Attributes:
      vocab_size: V, number of tokens.
      hidden_size: E, width of a token's vector.
      num_layers: number of layers.
      num_heads: H, query heads.
      num_kv_heads: K, heads of keys and values; each serves `H / K` query heads (Ainslie et al. 2023). It divides H.
      head_dim: D, width of a head, even; by default `hidden_size / num_heads`.
      intermediate_size: F, width inside the gated layer.
      rope_base: base of the rotary angles (Su et al. 2021).
      rope_scaling: of the rotary angles; None for none.
      norm_epsilon: added to the mean square in every norm.
      qk_norm: norm of each head's queries and keys before the rotation (Qwen3).
      attention_bias: biases of the query, key and value projections (Qwen2).
      tied_embeddings: the output layer is the embedding table.
      value_head: a value for each token beside the logits.
      lora_rank: of the low-rank adapters of a layer's projections (LoRA, Hu et al. 2021); 0 for none.
      lora_alpha: what an adapter adds is multiplied by `lora_alpha / lora_rank`.
      lora_targets: the projections that have an adapter, of `LORA_TARGETS`.
      num_adapters: P, adapters and value heads that the parameters hold, of which each row of a batch uses the one of
        its number; 0 for one that all rows use, without an axis for it.
      scan_layers: parameters of all layers are stacked on a leading axis, and one layer is compiled for all; for deep
        decoders.
      max_length: most tokens of a sequence, prompt and completion.
      dtype: of the computation, `"float32"` or `"bfloat16"`; norms, softmax, logits and values are float32 always.
      param_dtype: of the parameters, likewise. `jnp.float32` and the like become their names.

    Raises:
      UserError: sizes that do not fit together, or an unknown dtype.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    max_length: int
    head_dim: int = 0
    rope_base: float = 10000.0
    rope_scaling: RopeScaling | None = None
    norm_epsilon: float = 1e-5
    qk_norm: bool = False
    attention_bias: bool = False
    tied_embeddings: bool = True
    value_head: bool = False
    lora_rank: int = 0
    lora_alpha: float = 8.0
    lora_targets: tuple[str, ...] = LORA_TARGETS
    num_adapters: int = 0
    scan_layers: bool = False
    dtype: str = "float32"
    param_dtype: str = "float32"

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is int:
                may_be_0 = field.name in ("head_dim", "lora_rank", "num_adapters")
                check_whole(field.name, value, at_least=0 if may_be_0 else 1)
            elif field.type is bool:
                check_kind(field.name, value, bool)
            elif field.type is float:
                check_number(field.name, value, above=True)
                object.__setattr__(self, field.name, float(value))
            elif field.name.endswith("dtype"):
                object.__setattr__(self, field.name, _dtype_name(field.name, value))
        check_kind("rope_scaling", self.rope_scaling, RopeScaling, type(None))
        object.__setattr__(self, "lora_targets", elements("lora_targets", self.lora_targets, str))
        for target in self.lora_targets:
            if target not in LORA_TARGETS:
                raise unknown_name("target of an adapter", target, LORA_TARGETS)
        if not self.head_dim:
            if self.hidden_size % self.num_heads:
                raise UserError(
                    f"hidden_size {self.hidden_size} is no multiple of num_heads {self.num_heads}: set head_dim"
                )
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_heads)
        if self.num_heads % self.num_kv_heads:
            raise UserError(f"num_kv_heads {self.num_kv_heads} must divide num_heads {self.num_heads}")
        if self.head_dim % 2:
            raise UserError(f"head_dim must be even for rotary positions, got {self.head_dim}")

    @property
    def num_parameters(self) -> int:
        """Number of parameters of the whole decoder, value head and adapters included."""
        width = self.hidden_size
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = 2 * width * queries + 2 * width * keys
        attention += self.attention_bias * (queries + 2 * keys) + self.qk_norm * 2 * self.head_dim
        layer = attention + 3 * width * self.intermediate_size + 2 * width
        inner = self.intermediate_size
        ends = {
            "query": width + queries,
            "key": width + keys,
            "value": width + keys,
            "attention_output": queries + width,
            "gate": width + inner,
            "up": width + inner,
            "down": inner + width,
        }
        copies = max(1, self.num_adapters)
        layer += copies * self.lora_rank * sum(ends[target] for target in self.lora_targets)
        tables = (1 if self.tied_embeddings else 2) * self.vocab_size * width
        return self.num_layers * layer + tables + width + copies * self.value_head * (width + 1)


def decoder_config(preset: str, vocab_size: int, max_length: int, **changes) -> DecoderConfig:
    """The configuration of a preset size.

    Args:
      preset: `"tiny"`, `"small"`, `"base"` or `"medium"`.
      vocab_size: V.
      max_length: most tokens of a sequence.
      **changes: any other fields of `DecoderConfig`; they go before the preset's.

    Returns:
      A configuration, its embeddings tied and its dtypes float32 unless `changes` say otherwise.

    Raises:
      UserError: unknown preset or field, or sizes that do not fit together.
    """
    check_kind("the decoder size", preset, str)
    if preset not in PRESETS:
        raise unknown_name("decoder size", preset, PRESETS)
    names = [field.name for field in dataclasses.fields(DecoderConfig)]
    for name in changes:
        if name not in names:
            raise unknown_name("decoder setting", name, names)
    return DecoderConfig(**{**PRESETS[preset], "vocab_size": vocab_size, "max_length": max_length, **changes})


def num_trained_layers(config: DecoderConfig, trained_layers: int) -> int:
    """How many of the last layers are trained, where 0 stands for all.

    Raises:
      UserError: no whole number from 0 to the number of layers.
    """
    check_whole("trained_layers", trained_layers, at_least=0)
    if trained_layers > config.num_layers:
        raise UserError(
            f"trained_layers must be at most the {config.num_layers} layers of the model, got {trained_layers}"
        )
    return trained_layers or config.num_layers


def _dtype_name(what: str, dtype: Any) -> str:
    """The name of a dtype that the decoder computes in; `jnp.float32` and the like have one too."""
    try:
        name = dtype if isinstance(dtype, str | None) else np.dtype(dtype).name
    except TypeError:
        name = dtype
    if name not in DTYPES:
        raise unknown_name(what, str(name), DTYPES)
    return name
