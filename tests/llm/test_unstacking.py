"""Decoders whose layers are laid out for the steps of a CPU."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from llm.toy_decoder import parameters

from jaxmarl_llm.llm import Decoder, DecoderConfig, generate, join_adapters, score, split_adapters, unstack
from jaxmarl_llm.llm.memory import generation_memory, gradient_memory, kept_bytes
from jaxmarl_llm.llm.unstacking import UnstackedBody, unstack_adapters

Q, L, M, P = 3, 7, 5, 2
CONFIG = DecoderConfig(
    vocab_size=29,
    hidden_size=11,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=10,
    intermediate_size=13,
    max_length=23,
    qk_norm=True,
    attention_bias=True,
    scan_layers=True,
    lora_rank=2,
    num_adapters=P,
)
LENGTH = jnp.array([7, 1, 4])
ADAPTER = jnp.array([0, 1, 1])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("prompts", "group"), [(1, 1), (3, 1), (1, 4)])
def test_unstacked_decoders_are_the_stacked_ones(tied, prompts, group, key):
    """For one row, for several, and for completions that share a prompt; adapters are unstacked apart from the body."""
    config = dataclasses.replace(CONFIG, tied_embeddings=tied)
    params = parameters(config)
    body, adapters = split_adapters(params)
    module, separate = unstack(Decoder(config), body, prompts * group)
    separate = join_adapters(separate, unstack_adapters(adapters))
    prompt, length, adapter = jax.random.randint(key, (Q, L), 0, 29)[:prompts], LENGTH[:prompts], ADAPTER[:prompts]
    run = functools.partial(generate, max_new_tokens=M, adapter=adapter, group=group)
    run = jax.jit(run, static_argnums=0)
    expected = run(Decoder(config), params, prompt, length, key)
    found = run(module, separate, prompt, length, key)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_allclose(found.log_prob, expected.log_prob, atol=1e-5)
    if group == 1:
        judged = score(module, separate, prompt, length, found.tokens, found.mask, adapter=adapter)
        np.testing.assert_allclose(judged.log_prob, expected.log_prob, atol=1e-5)


def test_layers_that_are_not_stacked_stay_as_they_are(monkeypatch):
    single = dataclasses.replace(CONFIG, scan_layers=False)
    params = {"embedding": jnp.zeros((2, 3))}
    assert unstack(Decoder(single), params, 4) == (Decoder(single), params)
    monkeypatch.setattr(jax, "default_backend", lambda: "other")
    assert unstack(Decoder(CONFIG), params, 4) == (Decoder(CONFIG), params)
    assert kept_bytes(CONFIG, params, 4) == 0


def test_a_body_is_unstacked_once_while_it_is_the_same():
    body, store, decoder = parameters(CONFIG), UnstackedBody(), Decoder(CONFIG)
    module, first = store.of(decoder, body, 5)
    assert store.of(decoder, body, 7)[1] is first
    one_row = store.of(decoder, body, 1)
    assert one_row[0] != module and one_row[1] is not first
    changed = {**body, "embedding": body["embedding"] + 1}
    np.testing.assert_array_equal(store.of(decoder, changed, 5)[1]["embedding"], changed["embedding"])
    assert store.of(decoder, changed, 5)[1]["layers_1"].keys() == first["layers_1"].keys()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rows", [1, 5])
def test_memory_of_what_is_kept_is_counted(tied, rows, monkeypatch):
    config = dataclasses.replace(
        CONFIG, hidden_size=64, intermediate_size=201, tied_embeddings=tied, lora_rank=0, num_adapters=0
    )
    shapes = jax.eval_shape(lambda: Decoder(config).init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32)))["params"]
    separate = jax.eval_shape(lambda params: unstack(Decoder(config), params, rows)[1], shapes)
    new = sum(leaf.size for name, part in separate.items() if name != "embedding" for leaf in jax.tree.leaves(part))
    if not tied and rows == 1:
        new -= shapes["output"]["kernel"].size
    kept = kept_bytes(config, shapes, rows)
    # Biases and norms are left out.
    assert 0.95 * 4 * new < kept <= 4 * new
    assert generation_memory(config, rows, 61, 1, kept=kept).weights >= 4 * config.num_parameters + kept
    alone = gradient_memory(config, rows, 61, 5)
    assert gradient_memory(config, rows, 61, 5, kept=kept).total == alone.total + kept
    monkeypatch.setattr("jaxmarl_llm.llm.memory.available_memory", lambda: 3.9 * kept)
    assert kept_bytes(config, shapes, rows) == 0
