"""Sizes of the decoder."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm import Decoder, decoder_config


@pytest.mark.parametrize(("preset", "millions"), [("tiny", 0.05), ("small", 0.2), ("base", 0.8), ("medium", 3.0)])
def test_presets_have_the_size_of_their_name(preset, millions):
    config = decoder_config(preset, vocab_size=64, max_length=96)
    assert abs(config.num_parameters / 1e6 - millions) < 0.15 * millions
    assert hash(config) == hash(dataclasses.replace(config))
    sizes = (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads)
    row = f"| `{preset}` | {config.num_parameters:,} | " + " | ".join(map(str, sizes)) + " |"
    assert row in (Path(__file__).parents[2] / "docs" / "language_models.md").read_text()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"qk_norm": True, "attention_bias": True, "tied_embeddings": False, "value_head": True},
        {"lora_rank": 3, "num_kv_heads": 1},
        {"hidden_size": 22, "num_heads": 6, "num_kv_heads": 3, "head_dim": 10, "intermediate_size": 7},
    ],
)
def test_number_of_parameters(changes, key):
    config = decoder_config("tiny", vocab_size=13, max_length=7, **changes)
    params = jax.eval_shape(Decoder(config).init, key, jnp.zeros((1, 2), jnp.int32))["params"]
    assert config.num_parameters == sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
    ("preset", "changes", "message"),
    [
        ("tinny", {}, "unknown decoder size 'tinny': did you mean tiny?"),
        ("tiny", {"num_layer": 3}, "unknown decoder setting 'num_layer': did you mean num_layers"),
        ("tiny", {"num_heads": 3}, "hidden_size 64 is no multiple of num_heads 3: set head_dim"),
        ("tiny", {"num_kv_heads": 3}, "num_kv_heads 3 must divide num_heads 4"),
        ("tiny", {"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ("tiny", {"head_dim": 7}, "head_dim must be even for rotary positions, got 7"),
        ("tiny", {"rope_base": 0.0}, "rope_base must be above 0"),
        ("tiny", {"dtype": "float16"}, "unknown dtype 'float16'"),
        ("tiny", {"param_dtype": jnp.float16}, "unknown param_dtype 'float16': did you mean bfloat16"),
        ("tiny", {"dtype": None}, "unknown dtype 'None': choose one of bfloat16, float32"),
        ("tiny", {"dtype": 3.5}, "unknown dtype '3.5'"),
        ("tiny", {"hidden_size": "64"}, "hidden_size must be a whole number, got '64'"),
        ("tiny", {"num_layers": 2.0}, "num_layers must be a whole number, got 2.0"),
        ("tiny", {"num_heads": True}, "num_heads must be a whole number, got True"),
        ("tiny", {"head_dim": None}, "head_dim must be a whole number, got None"),
        ("tiny", {"rope_base": float("inf")}, "rope_base must be above 0, and finite, got inf"),
        ("tiny", {"norm_epsilon": "1e-5"}, "norm_epsilon must be a number, got '1e-5'"),
        ("tiny", {"lora_rank": -1}, "lora_rank must be at least 0, got -1"),
        ("tiny", {"lora_rank": 2.0}, "lora_rank must be a whole number, got 2.0"),
        ("tiny", {"lora_alpha": 0}, "lora_alpha must be above 0"),
        ("tiny", {"value_head": 1}, "value_head must be True or False, got 1"),
        (None, {}, "the decoder size must be text, got None"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(preset, changes, message):
    with pytest.raises(UserError, match=message) as error:
        decoder_config(preset, vocab_size=13, max_length=7, **changes)
    assert "\n" not in str(error.value)


def test_dtypes_may_be_those_of_jax():
    config = decoder_config("tiny", 13, 7, dtype=jnp.bfloat16, param_dtype=np.dtype("float32"), rope_base=10000)
    assert config == decoder_config("tiny", 13, 7, dtype="bfloat16")
    assert isinstance(config.dtype, str) and hash(config) == hash(decoder_config("tiny", 13, 7, dtype="bfloat16"))
