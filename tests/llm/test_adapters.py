"""Stacked layers, adapters of each row, and adapters merged into the body."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from llm.toy_decoder import parameters

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm import (
    Decoder,
    DecoderConfig,
    RopeScaling,
    generate,
    init_adapters,
    init_cache,
    join_adapters,
    merge_adapter,
    score,
    split_adapters,
    unmerge_adapter,
)
from jaxmarl_llm.llm.adapters import without_adapters
from jaxmarl_llm.llm.decoder_layer import KernelLayout, lay_out
from jaxmarl_llm.llm.layers import rotary_angles

B, L, M, P = 5, 7, 3, 3
PLAIN = DecoderConfig(
    vocab_size=17,
    hidden_size=11,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=10,
    intermediate_size=13,
    max_length=23,
    qk_norm=True,
    attention_bias=True,
    tied_embeddings=False,
)
ADAPTED = dataclasses.replace(PLAIN, lora_rank=5, num_adapters=P, value_head=True, scan_layers=True)
TOKENS = jnp.asarray(np.random.default_rng(3).integers(0, 17, (B, L)), jnp.int32)
ADAPTER = jnp.asarray([0, 2, 1, 2, 0])


def logits(config, params, tokens, adapter=None):
    run = jax.jit(lambda params, tokens: Decoder(config).apply({"params": params}, tokens, adapter=adapter)[:2])
    return run(params, tokens)


@pytest.mark.parametrize(("products", "turned"), [(1, False), (2, True), (3, False), (12, True)])
def test_laid_out_projections_are_those_one_by_one(products, turned):
    """Biases, norms of queries and keys, widths that products do not divide or exceed, each row with its adapter."""
    config = dataclasses.replace(ADAPTED, scan_layers=False)
    params = parameters(config)
    names = [name for name in params if name.startswith("layers")]
    layout = KernelLayout(products, turned)
    joined = params | {name: lay_out(params[name], layout) for name in names}
    joined["output"] = {"kernel": params["output"]["kernel"].T} if turned else params["output"]
    assert len(joined["layers_0"]["down"]) == 2 and joined["layers_0"]["down_0"]["kernel"].shape[turned] == 13
    assert jax.tree.map(jnp.shape, joined) == jax.tree.map(
        jnp.shape,
        jax.eval_shape(lambda: Decoder(config, layout).init(jax.random.key(0), TOKENS, adapter=ADAPTER))["params"],
    )
    run = jax.jit(lambda module, params: module.apply({"params": params}, TOKENS, adapter=ADAPTER)[0], static_argnums=0)
    expected, found = run(Decoder(config), params), run(Decoder(config, layout), joined)
    np.testing.assert_allclose(expected, found, atol=1e-4)
    assert float(jnp.std(expected)) > 0.1


def test_stacked_layers_are_those_one_after_the_other():
    params = parameters(PLAIN)
    stacked = {name: part for name, part in params.items() if not name.startswith("layers")}
    layers = [params[f"layers_{index}"] for index in range(PLAIN.num_layers)]
    stacked["layers"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    scanned = dataclasses.replace(PLAIN, scan_layers=True)
    np.testing.assert_allclose(logits(PLAIN, params, TOKENS)[0], logits(scanned, stacked, TOKENS)[0], atol=1e-5)

    @jax.jit
    def cached(params):
        cache = init_cache(scanned, B, 4).grow(L - 4)
        decoder = Decoder(scanned)
        first, _, cache = decoder.apply({"params": params}, TOKENS[:, :4], cache=cache)
        position = jnp.broadcast_to(jnp.arange(4, L)[None], (B, L - 4))
        return first, decoder.apply({"params": params}, TOKENS[:, 4:], position, cache=cache)[0]

    np.testing.assert_allclose(jnp.concatenate(cached(stacked), axis=1), logits(scanned, stacked, TOKENS)[0], atol=1e-4)


@pytest.mark.parametrize("scan_layers", [True, False])
def test_rows_with_different_adapters_are_as_in_batches_of_their_own(scan_layers):
    config = dataclasses.replace(ADAPTED, scan_layers=scan_layers)
    params = parameters(config)
    mixed, values = logits(config, params, TOKENS, ADAPTER)
    one = dataclasses.replace(config, num_adapters=0)
    for row, number in enumerate(np.asarray(ADAPTER)):
        found, value = logits(one, of_adapter(params, number), TOKENS[row : row + 1])
        np.testing.assert_allclose(mixed[row], found[0], atol=1e-5)
        np.testing.assert_allclose(values[row], value[0], atol=1e-5)


def of_adapter(params, number):
    """Parameters of a decoder with this adapter alone."""

    def one(path, leaf):
        names = [part.key for part in path]
        if not {"lora_a", "lora_b", "value_output"} & set(names):
            return leaf
        return leaf[:, number] if names[0] == "layers" else leaf[number]

    return jax.tree_util.tree_map_with_path(one, params)


def test_adapters_part_and_join():
    params = parameters(ADAPTED)
    body, adapters = split_adapters(params)
    assert all(leaf.shape[0] == P for leaf in jax.tree.leaves(adapters))
    assert "lora_a" not in str(jax.tree.structure(body))
    jax.tree.map(np.testing.assert_array_equal, join_adapters(body, adapters), params)


def test_new_adapters_change_nothing_and_are_of_each_policy_its_own(key):
    body, _ = split_adapters(parameters(ADAPTED))
    adapters = init_adapters(ADAPTED, key)
    found, _ = logits(ADAPTED, join_adapters(body, adapters), TOKENS, ADAPTER)
    plain, _ = logits(without_adapters(ADAPTED), body, TOKENS)
    np.testing.assert_allclose(found, plain, atol=1e-6)
    down = adapters["layers"]["down"]["lora_a"]
    assert down.shape == (P, 2, 13, 5)
    assert not np.allclose(down[0], down[1])
    with pytest.raises(UserError, match="num_adapters"):
        init_adapters(PLAIN, key)


def test_a_merged_adapter_is_the_adapter(key):
    body, adapters = split_adapters(parameters(ADAPTED))
    merged = merge_adapter(ADAPTED, body, adapters, 2)
    found, _ = logits(without_adapters(ADAPTED), merged, TOKENS)
    wanted, _ = logits(ADAPTED, join_adapters(body, adapters), TOKENS, jnp.full(B, 2))
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    back = unmerge_adapter(ADAPTED, merged, adapters, 2)
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, atol=1e-5), back, body)
    with pytest.raises(UserError, match="from 0 to 2"):
        merge_adapter(ADAPTED, body, adapters, 3)


def test_only_targets_have_adapters():
    config = dataclasses.replace(ADAPTED, lora_targets=("query", "down"), value_head=False)
    _, adapters = split_adapters(parameters(config))
    assert set(adapters["layers"]) == {"query_projection", "down"}
    shapes = jax.eval_shape(lambda: Decoder(config).init(jax.random.key(0), TOKENS[:1], adapter=ADAPTER[:1]))
    assert config.num_parameters == sum(leaf.size for leaf in jax.tree.leaves(shapes))
    with pytest.raises(UserError, match="did you mean"):
        dataclasses.replace(config, lora_targets=("querry",))


def test_sampling_and_scoring_agree_row_by_row(key):
    params = parameters(ADAPTED)
    module, length = Decoder(ADAPTED), jnp.asarray([7, 1, 5, 3, 2])
    drawn = jax.jit(
        lambda params: generate(
            module, params, TOKENS, length, key, max_new_tokens=M, stop_tokens=(1,), adapter=ADAPTER
        )
    )(params)
    scored = jax.jit(lambda params: score(module, params, TOKENS, length, drawn.tokens, drawn.mask, adapter=ADAPTER))(
        params
    )
    np.testing.assert_allclose(drawn.log_prob, scored.log_prob, atol=1e-4)


def test_the_gradient_of_a_row_stays_in_its_adapter():
    params = parameters(ADAPTED)
    body, adapters = split_adapters(params)

    def loss(adapters):
        out, value, _ = Decoder(ADAPTED).apply(
            {"params": join_adapters(body, adapters)}, TOKENS, adapter=jnp.full(B, 1)
        )
        return jnp.sum(out[..., 0]) + jnp.sum(value)

    gradient = jax.jit(jax.grad(loss))(adapters)
    for leaf in jax.tree.leaves(gradient):
        assert not np.any(leaf[0]) and not np.any(leaf[2])
        assert np.any(leaf[1])


@pytest.mark.parametrize("config, adapter", [(ADAPTED, None), (PLAIN, ADAPTER), (ADAPTED, ADAPTER[:2])])
def test_numbers_of_adapters_must_fit(config, adapter):
    with pytest.raises(ValueError, match="adapter"):
        jax.eval_shape(
            lambda params: Decoder(config).apply({"params": params}, TOKENS, adapter=adapter), parameters(config)
        )


def test_scaled_angles_follow_their_definition():
    scaling = RopeScaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_max_length=64)
    found = rotary_angles(jnp.asarray([[3]]), 10, 100.0, scaling)
    for pair in range(5):
        frequency = 100.0 ** (-2 * pair / 10)
        length = 2 * np.pi / frequency
        if length > 64 / 1.0:
            frequency /= 8.0
        elif length > 64 / 4.0:
            smooth = (64 / length - 1.0) / (4.0 - 1.0)
            frequency = (1 - smooth) * frequency / 8.0 + smooth * frequency
        np.testing.assert_allclose(found[0][0, 0, 0, pair], np.cos(3 * frequency), atol=1e-6)
    with pytest.raises(UserError, match="high_frequency_factor must be above 1"):
        dataclasses.replace(scaling, high_frequency_factor=1.0)


@pytest.mark.parametrize("change", [merge_adapter, unmerge_adapter])
def test_value_heads_alone_change_no_body(change):
    config = dataclasses.replace(PLAIN, num_adapters=2, value_head=True)
    body, adapters = {"norm": {"scale": jnp.ones(11)}}, {"value_output": {"kernel": jnp.ones((2, 11, 1))}}
    assert jax.tree.leaves(change(config, body, adapters, 1))[0] is body["norm"]["scale"]
    for index, message in ((2, "there is no adapter 2"), (-1, "at least 0"), (1.0, "whole number")):
        with pytest.raises(UserError, match=message):
            change(config, body, adapters, index)
