"""Small models with random parameters, and comparison of parameters."""

import dataclasses

import jax
import numpy as np

from jaxmarl_llm.llm import DecoderConfig
from jaxmarl_llm.llm.adapters import split_adapters
from jaxmarl_llm.llm.checkpoints import LanguageModel, fingerprint
from jaxmarl_llm.llm.checkpoints.names import abstract_params
from jaxmarl_llm.llm.config import RopeScaling

SIZES = {
    "vocab_size": 23,
    "hidden_size": 13,
    "num_layers": 3,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 10,
    "intermediate_size": 19,
    "max_length": 29,
    "rope_base": 700.0,
}
SCALING = RopeScaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_max_length=8192)


def make_model(family="llama", sizes=SIZES, **changes):
    """A model whose parameters are random float16 numbers, which every format holds exactly."""
    settings = {"qk_norm": family == "qwen3", "attention_bias": family == "qwen2", "scan_layers": True}
    config = DecoderConfig(**{**sizes, **settings, **changes})
    random = np.random.default_rng(0)

    def one(leaf):
        return random.normal(0, 0.3, leaf.shape).astype(np.float16).astype(leaf.dtype)

    params = jax.tree.map(one, abstract_params(config))
    return LanguageModel(config, params, None, family, "made", fingerprint(config, params))


def chatting(tokenizer, **changes):
    """A tiny random model that goes with a tokenizer."""
    sizes = SIZES | {"vocab_size": tokenizer.vocab_size, "max_length": 512, "num_layers": 2} | changes
    return dataclasses.replace(make_model(sizes=sizes), tokenizer=tokenizer)


def make_adapters(model, *, scale=1.0, **changes):
    """Configuration and random adapters of three roles."""
    config = dataclasses.replace(model.config, **{"lora_rank": 7, "lora_alpha": 11.0, "num_adapters": 3, **changes})
    random = np.random.default_rng(1)
    abstract = jax.eval_shape(lambda params: split_adapters(params)[1], abstract_params(config))
    return config, jax.tree.map(lambda leaf: random.normal(0, scale, leaf.shape).astype(leaf.dtype), abstract)


def only_last(adapters, count):
    """Adapters that add nothing below the last `count` layers."""

    def zeroed(leaf):
        leaf = leaf.copy()
        leaf[:, : leaf.shape[1] - count] = 0
        return leaf

    return {**adapters, "layers": jax.tree.map(zeroed, adapters["layers"])}


def assert_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
