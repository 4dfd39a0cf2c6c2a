"""GGUF files written by their own library, and files that are damaged or of other kinds."""

import dataclasses

import gguf
import numpy as np
import pytest
from toy_gguf import write_gguf
from toy_models import SCALING, SIZES, assert_same, make_model

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.checkpoints import load_model

# Rows of quantised tensors are whole blocks of 32 numbers, or of 256.
BLOCKS = {**SIZES, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "head_dim": 8}
WIDE = {**SIZES, "hidden_size": 256, "intermediate_size": 256, "num_heads": 8, "head_dim": 32, "num_layers": 2}


@pytest.mark.parametrize(
    ("family", "kind", "tied"),
    [("llama", "F32", True), ("llama", "F16", False), ("qwen2", "F32", False), ("qwen3", "F16", True)],
)
def test_gguf_holds_the_same(tmp_path, family, kind, tied):
    model = make_model(family, tied_embeddings=tied)
    found = load_model(write_gguf(tmp_path / "m.gguf", model, kind))
    assert_same(model.params, found.params)
    assert (found.config, found.family, found.fingerprint) == (model.config, family, model.fingerprint)


@pytest.mark.parametrize("kind", ["BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_gguf_quantised(tmp_path, kind):
    model = make_model("qwen2", BLOCKS)
    found = load_model(write_gguf(tmp_path / "m.gguf", model, kind)).params
    number = gguf.GGMLQuantizationType[kind]

    def rounded(kernel):
        return gguf.quants.dequantize(gguf.quants.quantize(np.asarray(kernel).T, number), number).T

    for part in ("query_projection", "key_projection", "attention_output", "gate", "down"):
        expected = np.stack([rounded(kernel) for kernel in model.params["layers"][part]["kernel"]])
        np.testing.assert_array_equal(found["layers"][part]["kernel"], expected)
    np.testing.assert_allclose(found["embedding"], model.params["embedding"], atol=0.2)
    np.testing.assert_array_equal(found["norm"]["scale"], model.params["norm"]["scale"])


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_gguf_kinds_that_are_only_read(tmp_path, kind):
    number = gguf.GGMLQuantizationType[kind]
    random = np.random.default_rng(0)
    block, size = gguf.GGML_QUANT_SIZES[number]
    made = []

    def raw(shape):
        # Small bytes: scales of half precision that are finite.
        made.append(random.integers(0, 60, (shape[0], shape[1] // block * size), np.uint8))
        return made[-1]

    model = make_model("qwen3", WIDE)
    found = load_model(write_gguf(tmp_path / "m.gguf", model, kind, raw=raw)).params
    np.testing.assert_array_equal(found["embedding"], gguf.quants.dequantize(made[0], number))
    assert np.std(found["embedding"]) > 0
    last = next(reversed(model.params["layers"]))
    assert "kernel" in model.params["layers"][last]
    np.testing.assert_array_equal(found["layers"][last]["kernel"][-1].T, gguf.quants.dequantize(made[-1], number))


def test_gguf_scaled_angles(tmp_path):
    model = make_model(rope_scaling=dataclasses.replace(SCALING, factor=32.0), rope_base=500000.0)
    frequency = 500000.0 ** (-np.arange(5) / 5)
    turns = 8192 * frequency / (2 * np.pi)
    kept = np.clip((turns - 1) / 3, 0, 1)
    factors = 1 / ((1 - kept) / 32 + kept)
    path = write_gguf(tmp_path / "m.gguf", model, tensors={"rope_freqs.weight": factors.astype(np.float32)})
    assert load_model(path).config.rope_scaling.factor == pytest.approx(32.0)
    path = write_gguf(tmp_path / "n.gguf", model, tensors={"rope_freqs.weight": np.arange(1, 6, dtype=np.float32)})
    with pytest.raises(UserError, match="the factors of rope_freqs"):
        load_model(path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"llama.expert_count": 8}, "mixtures of experts"),
        ({"llama.rope.dimension_count": 4}, "rope.dimension_count"),
        ({"llama.attention.value_length": 12}, "value_length"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}, "rope scaling 'yarn'"),
        ({"split.count": 2}, "one of 2 parts"),
        ({"llama.expert_count": [1, 2, 3]}, "differs between layers"),
        ({"llama.attention.sliding_window": "wide"}, "damaged: its fields"),
        (
            {"llama.block_count": 10**9},
            "m.gguf: its configuration has 1,000,000,000 layers, its weights only 29 tensors",
        ),
        ({"general.alignment": "wide"}, "m.gguf is damaged: its general.alignment must be a whole number"),
        ({"lists": [[1], [2]]}, "m.gguf is damaged: it has a list of lists"),
    ],
)
def test_gguf_that_the_decoder_cannot_do(tmp_path, fields, message):
    path = write_gguf(tmp_path / "m.gguf", make_model(), fields=fields)
    with pytest.raises(UserError, match=message):
        load_model(path)


def test_gguf_other_architectures_and_kinds(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", make_model("gemma"))
    with pytest.raises(UserError, match="architecture 'gemma' is not supported"):
        load_model(path)
    content = write_gguf(tmp_path / "m.gguf", make_model()).read_bytes()
    # The kind of a tensor stands behind its name, the number of its axes and its two sizes.
    place = content.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16
    for number, message in (
        (26, "token_embd.weight is quantised as I32, which cannot be read"),
        (35, "in blocks of 256"),
        (99, r"n.gguf is damaged, or newer .*'token_embd.weight' is of kind 99"),
    ):
        changed = bytearray(content)
        changed[place : place + 4] = number.to_bytes(4, "little")
        (tmp_path / "n.gguf").write_bytes(changed)
        with pytest.raises(UserError, match=message):
            load_model(tmp_path / "n.gguf")


def test_gguf_cut_anywhere(tmp_path):
    content = write_gguf(tmp_path / "m.gguf", make_model()).read_bytes()
    for size in (*range(0, 1000, 37), len(content) // 2, len(content) - 40):
        (tmp_path / "n.gguf").write_bytes(content[:size])
        with pytest.raises(UserError, match=r"truncated|no GGUF file") as error:
            load_model(tmp_path / "n.gguf")
        assert "\n" not in str(error.value)
    (tmp_path / "n.gguf").write_bytes(content[:4] + b"\x07" + content[5:])
    with pytest.raises(UserError, match="version 7"):
        load_model(tmp_path / "n.gguf")
