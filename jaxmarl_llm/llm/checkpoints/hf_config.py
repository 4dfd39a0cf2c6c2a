"""Hugging Face's `config.json` to a decoder's configuration and back; what the decoder cannot do is refused."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.config import DecoderConfig, RopeScaling
from jaxmarl_llm.user_files import read_object

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
}
_ROPE_SCALING = {
    "factor": "factor",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
    "original_max_length": "original_max_position_embeddings",
}


def read_config(folder: Path, dtype: str) -> tuple[str, DecoderConfig]:
    """Family and decoder of a Hugging Face folder.

    Args:
      folder: with `config.json`.
      dtype: of parameters and computation.

    Raises:
      UserError: there is no such file, or it names something that the decoder cannot do.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{folder} holds no config.json: it is no Hugging Face model folder")
    given = read_object(path)
    try:
        return from_hf(given, dtype)
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} cannot be understood: {type(error).__name__} {error}") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def from_hf(given: Mapping[str, Any], dtype: str) -> tuple[str, DecoderConfig]:
    """Family and decoder that the content of a `config.json` describes; see `read_config`."""
    family = given.get("model_type")
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        if given.get(name):
            raise UserError(f"mixtures of experts ({name} {given[name]}) are not supported")
    if family not in FAMILIES:
        raise UserError(f"model_type '{family}' is not supported: only {', '.join(FAMILIES)} are")
    quantization = given.get("quantization_config")
    if quantization:
        raise UserError(
            f"quantization_config {quantization.get('quant_method', 'of unknown kind')} is not supported: take the "
            "unquantised model, or a GGUF file"
        )
    for name in ("attention_bias", "mlp_bias"):
        if given.get(name):
            raise UserError(f"{name} is not supported: the decoder has no biases in these projections")
    if given.get("hidden_act", "silu") not in ("silu", "swish"):
        raise UserError(f"hidden_act '{given['hidden_act']}' is not supported: only silu is")
    missing = [name for name in (*_SIZES.values(), "max_position_embeddings") if given.get(name) is None]
    if missing:
        raise UserError(f"{missing[0]} is missing")
    base, scaling = _rope(given)
    return family, DecoderConfig(
        **{ours: given[theirs] for ours, theirs in _SIZES.items()},
        num_kv_heads=given.get("num_key_value_heads") or given["num_attention_heads"],
        head_dim=given.get("head_dim") or (128 if family == "qwen3" else 0),
        rope_base=base,
        rope_scaling=scaling,
        norm_epsilon=given.get("rms_norm_eps", 1e-6),
        qk_norm=family == "qwen3",
        attention_bias=family == "qwen2",
        tied_embeddings=given.get("tie_word_embeddings", False),
        # Where no sequence is longer than the window, all of it is attended to.
        max_length=min(given["max_position_embeddings"], _window(family, given) or math.inf),
        scan_layers=True,
        dtype=dtype,
        param_dtype=dtype,
    )


def _window(family: str, given: Mapping[str, Any]) -> int | None:
    """Tokens that a token attends to at most, in the layers where they are fewest."""
    window = given.get("sliding_window")
    kinds = given.get("layer_types")
    if kinds is not None:
        return window if "sliding_attention" in kinds else None
    if family == "mistral":
        return window
    is_used = given.get("use_sliding_window") and given.get("max_window_layers", 0) < given["num_hidden_layers"]
    return window if is_used else None


def _rope(given: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    # Version 5 of transformers writes one dictionary, the versions before it the base apart.
    rope = {**(given.get("rope_scaling") or {}), **(given.get("rope_parameters") or {})}
    base = rope.get("rope_theta", given.get("rope_theta", 10000.0))
    for where in (given, rope):
        if where.get("partial_rotary_factor", 1.0) != 1.0:
            raise UserError("partial_rotary_factor is not supported: whole heads are turned")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return base, None
    if kind != "llama3":
        raise UserError(f"rope scaling '{kind}' is not supported: only llama3 is")
    return base, RopeScaling(**{ours: rope[theirs] for ours, theirs in _ROPE_SCALING.items()})


def to_hf(
    family: str, config: DecoderConfig, max_length: int, stop_tokens: tuple[int, ...], pad_token: int | None
) -> dict[str, Any]:
    """The content of a `config.json`, the inverse of `from_hf`.

    Args:
      family: of the model.
      config: without adapters.
      max_length: most tokens of a sequence that the model was trained on.
      stop_tokens, pad_token: of the tokenizer; `()` and None where there is none.

    Raises:
      UserError: the family has not what the decoder has.
    """
    if family not in FAMILIES:
        raise UserError(f"family '{family}' is not supported: only {', '.join(FAMILIES)} are")
    if (config.qk_norm, config.attention_bias) != (family == "qwen3", family == "qwen2"):
        raise UserError(
            f"a {family} model cannot have qk_norm={config.qk_norm} and attention_bias={config.attention_bias}: qwen3 "
            "has the one, qwen2 the other, llama and mistral neither"
        )
    scaling = None
    if config.rope_scaling is not None:
        numbers = {theirs: getattr(config.rope_scaling, ours) for ours, theirs in _ROPE_SCALING.items()}
        scaling = {"rope_type": "llama3", **numbers}
    return {
        "architectures": [f"{family.capitalize()}ForCausalLM"],
        "model_type": family,
        **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": max_length,
        "rope_theta": config.rope_base,
        "rope_scaling": scaling,
        "rms_norm_eps": config.norm_epsilon,
        "tie_word_embeddings": config.tied_embeddings,
        "hidden_act": "silu",
        "sliding_window": None,
        "torch_dtype": config.param_dtype,
        "bos_token_id": None,
        "eos_token_id": list(stop_tokens) or None,
        "pad_token_id": pad_token,
    }
