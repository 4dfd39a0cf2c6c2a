"""The fields of a GGUF file to a decoder's configuration; what the decoder cannot do is refused."""

import math
from typing import Any

import numpy as np

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.checkpoints.gguf_file import GGUFFile
from jaxmarl_llm.llm.config import DecoderConfig, RopeScaling
from jaxmarl_llm.llm.layers import rotary_frequencies

# Mistral's files say llama.
_ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROPE_FACTORS = "rope_freqs.weight"
_LLAMA3 = {"low_frequency_factor": 1.0, "high_frequency_factor": 4.0, "original_max_length": 8192}


def gguf_config(file: GGUFFile, dtype: str) -> tuple[str, DecoderConfig]:
    """Family and decoder of a GGUF file.

    Args:
      file: of a model.
      dtype: of parameters and computation.

    Raises:
      UserError: something that the decoder cannot do, or a field that is missing.
    """
    fields = file.fields
    family = fields.get("general.architecture")
    if family not in _ARCHITECTURES:
        raise UserError(f"{file.path}: architecture '{family}' is not supported: only {', '.join(_ARCHITECTURES)} are")
    if fields.get("split.count", 1) > 1:
        raise UserError(f"{file.path} is one of {fields['split.count']} parts: merge them with gguf-split --merge")

    def field(name: str, default: Any = None) -> Any:
        value = fields.get(f"{family}.{name}", default)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if value is None:
            raise UserError(f"{file.path}: the field {family}.{name} is missing")
        if isinstance(value, list):
            raise UserError(f"{file.path}: {family}.{name} differs between layers, which is not supported")
        return value

    if field("expert_count", 0):
        raise UserError(f"{file.path}: mixtures of experts are not supported")
    heads, width = field("attention.head_count"), field("embedding_length")
    head_dim = field("attention.key_length", width // heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if field(name, head_dim) != head_dim:
            raise UserError(f"{file.path}: {family}.{name} other than the width of a head is not supported")
    scaling = field("rope.scaling.type", "none")
    if scaling != "none" and field("rope.scaling.factor", 1.0) != 1.0:
        raise UserError(f"{file.path}: rope scaling '{scaling}' is not supported: only that of Llama 3.1 is")
    base = field("rope.freq_base", 10000.0)
    return family, DecoderConfig(
        vocab_size=_vocab_size(file),
        hidden_size=width,
        num_layers=field("block_count"),
        num_heads=heads,
        num_kv_heads=field("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate_size=field("feed_forward_length"),
        rope_base=base,
        rope_scaling=_rope_scaling(file, head_dim, base),
        norm_epsilon=_decimal(field("attention.layer_norm_rms_epsilon")),
        qk_norm=family == "qwen3",
        attention_bias=family == "qwen2",
        tied_embeddings="output.weight" not in file.names,
        # Where no sequence is longer than the window, all of it is attended to.
        max_length=min(field("context_length"), field("attention.sliding_window", 0) or math.inf),
        scan_layers=True,
        dtype=dtype,
        param_dtype=dtype,
    )


def _vocab_size(file: GGUFFile) -> int:
    if "token_embd.weight" not in file.names:
        raise UserError(f"{file.path}: tensor token_embd.weight is missing")
    return file.shape("token_embd.weight")[0]


def _decimal(value: float) -> float:
    """The short decimal number that was stored as a float32."""
    return float(str(np.float32(value)))


def _rope_scaling(file: GGUFFile, head_dim: int, base: float) -> RopeScaling | None:
    """The scaling whose factors the file holds: GGUF stores these rather than the settings."""
    if ROPE_FACTORS not in file.names:
        return None
    factors = file.rows(ROPE_FACTORS, 0, head_dim // 2)
    scaling = RopeScaling(factor=float(np.max(factors)), **_LLAMA3)
    expected = np.asarray(rotary_frequencies(head_dim, base) / rotary_frequencies(head_dim, base, scaling))
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise UserError(f"{file.path}: the factors of {ROPE_FACTORS} are not those of Llama 3.1: not supported")
    return scaling
