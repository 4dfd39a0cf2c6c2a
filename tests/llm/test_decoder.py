"""The decoder against a slow NumPy twin, its cache, padding and gradients."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.llm import Decoder, DecoderConfig, init_cache
from jaxmarl_llm.llm.layout import prompt_slots

B, L, M = 5, 7, 3
SIZES = {
    "vocab_size": 17,
    "hidden_size": 11,
    "num_layers": 2,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 10,
    "intermediate_size": 13,
    "max_length": 23,
    "rope_base": 100.0,
}
PLAIN = DecoderConfig(**SIZES)
FULL = DecoderConfig(**SIZES, qk_norm=True, attention_bias=True, tied_embeddings=False, value_head=True)


def parameters(config):
    """Parameters none of which is 0 or 1."""
    shapes = jax.eval_shape(Decoder(config).init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32))["params"]
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: jnp.asarray(random.normal(1.0 / leaf.ndim - 0.5, 0.3, leaf.shape), leaf.dtype), shapes
    )


@functools.partial(jax.jit, static_argnums=0, static_argnames="method")
def run(config, params, *args, method=None):
    return Decoder(config).apply({"params": params}, *args, method=method)


def rms_norm(x, scale, epsilon):
    return x / np.sqrt((x**2).mean() + epsilon) * scale


def twin(config, params, tokens, position, valid):
    """Logits and values of one sequence, a token and a head at a time."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    half, group = config.head_dim // 2, config.num_heads // config.num_kv_heads

    def turn(x, where):
        out = x.copy()
        for pair in range(half):
            angle = where * config.rope_base ** (-2 * pair / config.head_dim)
            a, b = x[pair], x[pair + half]
            out[pair] = a * np.cos(angle) - b * np.sin(angle)
            out[pair + half] = b * np.cos(angle) + a * np.sin(angle)
        return out

    xs = [params["embedding"][token].copy() for token in tokens]
    for index in range(config.num_layers):
        layer = params[f"layers_{index}"]

        def heads(y, name, where, layer=layer):
            y = y @ layer[f"{name}_projection"]["kernel"] + layer[f"{name}_projection"].get("bias", 0.0)
            y = y.reshape(-1, config.head_dim)
            if config.qk_norm and name != "value":
                y = np.stack([rms_norm(head, layer[f"{name}_norm"]["scale"], config.norm_epsilon) for head in y])
            return y if name == "value" else np.stack([turn(head, where) for head in y])

        normed = [rms_norm(x, layer["attention_norm"]["scale"], config.norm_epsilon) for x in xs]
        query, key, value = (
            [heads(y, name, where) for y, where in zip(normed, position, strict=True)]
            for name in ("query", "key", "value")
        )
        for slot in range(len(xs)):
            seen = [s for s in range(slot + 1) if valid[s]]
            out = np.zeros((config.num_heads, config.head_dim))
            for head in range(config.num_heads if seen else 0):
                scores = [query[slot][head] @ key[s][head // group] / np.sqrt(config.head_dim) for s in seen]
                weights = np.exp(scores - np.max(scores))
                out[head] = sum(w * value[s][head // group] for w, s in zip(weights / weights.sum(), seen, strict=True))
            x = xs[slot] + out.reshape(-1) @ layer["attention_output"]["kernel"]
            y = rms_norm(x, layer["gated_norm"]["scale"], config.norm_epsilon)
            gate = y @ layer["gate"]["kernel"]
            xs[slot] = x + (gate / (1 + np.exp(-gate)) * (y @ layer["up"]["kernel"])) @ layer["down"]["kernel"]
    xs = np.stack([rms_norm(x, params["norm"]["scale"], config.norm_epsilon) for x in xs])
    logits = xs @ (params["embedding"].T if config.tied_embeddings else params["output"]["kernel"])
    value = xs @ params["value_output"]["kernel"] + params["value_output"]["bias"] if config.value_head else None
    return logits, None if value is None else value[:, 0]


def sequences(key, vocab_size=17):
    """Prompts of 1 to L tokens, padding behind them, then M more tokens."""
    prompt_length = jnp.array([L, 1, 4, 2, 6])
    tokens = jax.random.randint(key, (B, L + M), 0, vocab_size)
    slot = jnp.arange(L + M)[None]
    position = jnp.where(slot < L, slot, slot - L + prompt_length[:, None])
    valid = (slot < prompt_length[:, None]) | (slot >= L)
    return tokens, position, valid


@pytest.mark.parametrize("config", [PLAIN, FULL], ids=["plain", "full"])
def test_equals_the_numpy_twin(config, key):
    params = parameters(config)
    tokens, position, valid = sequences(key)
    logits, value, cache = run(config, params, tokens, position, valid)
    assert logits.shape == (B, L + M, config.vocab_size) and cache is None
    assert (value is not None) == config.value_head
    for row in range(B):
        seen = np.asarray(valid[row])
        expected, expected_value = twin(config, params, *(np.asarray(x[row]) for x in (tokens, position, valid)))
        np.testing.assert_allclose(logits[row][seen], expected[seen], atol=2e-4, rtol=1e-4)
        if expected_value is not None:
            np.testing.assert_allclose(value[row][seen], expected_value[seen], atol=2e-4, rtol=1e-4)


def test_cached_equals_uncached(key):
    params = parameters(FULL)
    tokens, position, valid = sequences(key)
    whole, value, _ = run(FULL, params, tokens, position, valid)
    cache = init_cache(FULL, B, L)
    logits, _, cache = run(FULL, params, tokens[:, :L], position[:, :L], valid[:, :L], cache)
    np.testing.assert_allclose(logits[valid[:, :L]], whole[:, :L][valid[:, :L]], atol=1e-4)
    cache = cache.grow(M)
    for slot in range(L, L + M):
        one = slice(slot, slot + 1)
        logits, one_value, cache = run(FULL, params, tokens[:, one], position[:, one], valid[:, one], cache)
        np.testing.assert_allclose(logits, whole[:, one], atol=1e-4)
        np.testing.assert_allclose(one_value, value[:, one], atol=1e-4)
    assert cache.length == L + M


@pytest.mark.parametrize("scan_layers", [True, False], ids=["stacked", "unstacked"])
def test_prefill_gives_the_last_vector_of_each_prompt_and_a_cache(scan_layers, key):
    config = dataclasses.replace(FULL, scan_layers=scan_layers)
    params = parameters(config)
    prompt, length = jax.random.randint(key, (B, L), 0, 17), jnp.array([7, 1, 4, 5, 2])
    position, valid = prompt_slots(prompt, length)
    hidden, cache = run(config, params, prompt, length, method=Decoder.prefill)
    whole, filled = run(config, params, prompt, position, valid, init_cache(config, B, L), method=Decoder.hidden)
    assert hidden.shape == (B, config.hidden_size)
    np.testing.assert_allclose(hidden, whole[jnp.arange(B), length - 1], atol=1e-5)
    np.testing.assert_array_equal(cache.valid, filled.valid)
    assert cache.length == filled.length == L
    for mine, theirs in ((cache.keys, filled.keys), (cache.values, filled.values)):
        mine, theirs = jnp.stack(list(mine)), jnp.stack(list(theirs))
        seen = jnp.broadcast_to(valid[None, :, None, :, None], mine.shape)
        np.testing.assert_allclose(mine[seen], theirs[seen], atol=1e-5)


def test_adapters_are_added_to_the_kernels(key):
    config = dataclasses.replace(FULL, lora_rank=3, lora_alpha=5.0)
    params = parameters(config)
    tokens, position, valid = sequences(key)

    def dense_ones(params, scale):
        if "lora_a" not in params:
            return {name: dense_ones(part, scale) if isinstance(part, dict) else part for name, part in params.items()}
        own = scale * params["lora_a"] @ params["lora_b"]
        return {name: part for name, part in params.items() if "lora" not in name} | {"kernel": params["kernel"] + own}

    logits, *_ = run(config, params, tokens, position, valid)
    kernels, without = dense_ones(params, 5 / 3), dense_ones(params, 0.0)
    expected, *_ = run(FULL, kernels, tokens, position, valid)
    np.testing.assert_allclose(logits[valid], expected[valid], atol=1e-4, rtol=1e-4)
    last, cache = slice(L + M - 1, L + M), init_cache(config, B, L + M)
    before = slice(0, L + M - 1)
    *_, cache = run(config, params, tokens[:, before], position[:, before], valid[:, before], cache)
    cached, *_ = run(config, params, tokens[:, last], position[:, last], valid[:, last], cache)
    np.testing.assert_allclose(cached, expected[:, last], atol=1e-4, rtol=1e-4)
    zero = jax.tree_util.tree_map_with_path(lambda path, leaf: leaf * (path[-1].key != "lora_b"), params)
    base, *_ = run(FULL, without, tokens, position, valid)
    np.testing.assert_array_equal(run(config, zero, tokens, position, valid)[0][valid], base[valid])
    assert jnp.abs(base - expected)[valid].max() > 0.1


def test_a_full_cache_is_refused_or_poisons(key):
    params = parameters(FULL)
    tokens = jnp.array([[3, 5], [2, 7]])
    _, _, cache = run(FULL, params, tokens, None, None, init_cache(FULL, 2, 2))
    # Inside jit the number of filled slots is not known.
    logits, value, _ = run(FULL, params, tokens[:, :1], None, None, cache)
    assert jnp.isnan(logits).all() and jnp.isnan(value).all()
    logits, *_ = run(FULL, params, tokens[:, :1], None, None, cache.grow(1))
    assert jnp.isfinite(logits).all()

    def call(tokens, cache=None):
        Decoder(FULL).apply({"params": params}, tokens, None, None, cache)

    with pytest.raises(ValueError, match="a cache of 2 slots has no room for 1 more tokens"):
        call(tokens[:, :1], cache)
    with pytest.raises(ValueError, match="a cache of 2 slots has no room for 3 more tokens"):
        jax.eval_shape(call, jnp.zeros((2, 3), jnp.int32), init_cache(FULL, 2, 2))
    with pytest.raises(ValueError, match="24 tokens exceed max_length 23"):
        call(jnp.zeros((1, 24), jnp.int32))
    with pytest.raises(ValueError, match="tokens must hold integers, got float32"):
        call(jnp.zeros((1, 2)))
    with pytest.raises(ValueError, match=r"tokens must have shape \[B, L\], got \(2,\)"):
        call(jnp.zeros(2, jnp.int32))
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        init_cache(FULL, 1, 0)


def test_padding_and_what_it_holds_change_nothing(key):
    params = parameters(PLAIN)
    tokens, position, valid = sequences(key)
    logits, *_ = run(PLAIN, params, tokens, position, valid)
    other = jnp.where(valid, tokens, (tokens + 5) % 17)
    np.testing.assert_array_equal(logits[valid], run(PLAIN, params, other, position, valid)[0][valid])
    # Row 2 without its padding, alone.
    packed, *_ = run(PLAIN, params, tokens[2:3][:, valid[2]])
    np.testing.assert_allclose(packed[0], logits[2][valid[2]], atol=1e-4)


def test_finite_where_a_token_sees_nothing(key):
    params = parameters(PLAIN)
    tokens, position, _ = sequences(key)

    @jax.jit
    @jax.value_and_grad
    def total(params):
        return run(PLAIN, params, tokens, position, jnp.zeros_like(tokens, bool))[0].sum()

    value, gradient = total(params)
    assert all(jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((value, gradient)))


def test_gradient_reaches_every_parameter(key):
    params = parameters(FULL)
    tokens, position, valid = sequences(key)

    @jax.jit
    @jax.grad
    def gradient(params):
        logits, value, _ = run(FULL, params, tokens, position, valid)
        return jnp.square(logits).mean() + value.mean()

    for path, leaf in jax.tree_util.tree_flatten_with_path(gradient(params))[0]:
        assert np.all(np.isfinite(leaf)) and np.any(leaf != 0), path


def test_bfloat16_computes_in_bfloat16_and_answers_in_float32(key):
    config = dataclasses.replace(FULL, dtype="bfloat16", param_dtype="bfloat16")
    params = parameters(config)
    tokens, position, valid = sequences(key)
    logits, value, cache = run(config, params, tokens, position, valid, init_cache(config, B, L + M))
    exact, *_ = run(FULL, jax.tree.map(jnp.float32, params), tokens, position, valid)
    # The value head alone stays exact.
    assert {leaf.dtype for leaf in jax.tree.leaves(params.pop("value_output"))} == {jnp.dtype("float32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("bfloat16")}
    assert logits.dtype == value.dtype == jnp.float32
    assert {leaf.dtype for leaf in (*cache.keys, *cache.values)} == {jnp.dtype("bfloat16")}
    spread = jnp.std(exact[valid])
    assert 0 < jnp.abs(logits[valid] - exact[valid]).max() < 0.2 * spread
