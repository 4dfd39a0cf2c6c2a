"""Sampling and scoring of completions."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.llm import Decoder, DecoderConfig, generate, score, token_log_probs
from jaxmarl_llm.llm.distribution import draw_token, entropy

B, L, M, V = 5, 7, 11, 13
CONFIG = DecoderConfig(
    vocab_size=V,
    hidden_size=10,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    intermediate_size=17,
    max_length=29,
    value_head=True,
)
DECODER = Decoder(CONFIG)
LENGTH = jnp.array([7, 1, 4, 2, 6])
STATIC = ("max_new_tokens", "top_k", "top_p", "stop_tokens", "pad_token", "early_stop", "group")
sample = jax.jit(functools.partial(generate, DECODER), static_argnames=STATIC)
evaluate = jax.jit(functools.partial(score, DECODER), static_argnames=("top_k", "top_p"))


@pytest.fixture(scope="module")
def params():
    """A decoder whose distributions are far from uniform."""
    params = jax.jit(DECODER.init)(jax.random.key(1), jnp.zeros((1, 2), jnp.int32))["params"]
    return {**params, "embedding": 3.0 * params["embedding"]}


@pytest.fixture(scope="module")
def prompt():
    return jax.random.randint(jax.random.key(2), (B, L), 0, V)


@jax.jit
def all_logits(params, tokens):
    return DECODER.apply({"params": params}, tokens)[0]


def next_logits(params, tokens):
    """Logits after one sequence, through the plain forward pass: `[V]` NumPy."""
    padded = np.zeros((1, L + M), np.int32)
    padded[0, : len(tokens)] = tokens
    return np.array(all_logits(params, padded))[0, len(tokens) - 1]


ALLOWED = jnp.arange(V) % 3 != 1
BY_STEP = jnp.arange(M)[:, None] % 3 != jnp.arange(V)[None] % 3
BY_ROW = (jnp.arange(B)[:, None] % 2 == jnp.arange(V)[None] % 2)[:, None]
SETTINGS = {
    "top_k": {"temperature": 0.7, "top_k": 3},
    "allowed": {"allowed": ALLOWED, "stop_tokens": (2, 5)},
    "by_step": {"allowed": BY_STEP, "temperature": 2.0, "stop_tokens": (2,), "pad_token": 6},
    "top_p": {"temperature": 1.3, "top_p": 0.8, "allowed": ALLOWED},
    "by_row_and_step": {"allowed": BY_ROW & BY_STEP[None], "top_k": 2, "temperature": 1.3},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_sampling_and_scoring_agree(settings, params, prompt, key):
    drawn = sample(params, prompt, LENGTH, key, max_new_tokens=M, **settings)
    shared = {name: value for name, value in settings.items() if name in ("temperature", "top_k", "top_p", "allowed")}
    found = evaluate(params, prompt, LENGTH, drawn.tokens, drawn.mask, **shared)
    np.testing.assert_allclose(found.log_prob, drawn.log_prob, atol=1e-4)
    assert found.value.shape == found.entropy.shape == (B, M)
    assert jnp.all(drawn.log_prob <= 0) and jnp.all(drawn.log_prob > -50)
    stop_tokens, pad_token = settings.get("stop_tokens", ()), settings.get("pad_token", 0)
    allowed = np.broadcast_to(settings.get("allowed", np.ones(V, bool)), (B, M, V))
    for row in range(B):
        length = int(drawn.length[row])
        tokens = list(np.asarray(drawn.tokens[row]))
        np.testing.assert_array_equal(drawn.mask[row], np.arange(M) < length)
        assert all(token not in stop_tokens for token in tokens[: length - 1])
        assert length == M or tokens[length - 1] in stop_tokens
        assert all(token == pad_token for token in tokens[length:])
        assert all(allowed[row, step, tokens[step]] for step in range(length))
        assert not drawn.log_prob[row, length:].any() and not found.entropy[row, length:].any()
    if stop_tokens:
        assert 1 <= drawn.length.min() < M


def test_log_probs_and_entropy_are_those_of_the_plain_forward_pass(params, prompt, key):
    drawn = sample(params, prompt, LENGTH, key, max_new_tokens=M, temperature=0.7, top_k=3, allowed=ALLOWED)
    found = evaluate(params, prompt, LENGTH, drawn.tokens, drawn.mask, temperature=0.7, top_k=3, allowed=ALLOWED)
    row, step = 2, 5
    logits = next_logits(params, [*np.asarray(prompt)[row, : LENGTH[row]], *np.asarray(drawn.tokens)[row, :step]])
    logits[~np.asarray(ALLOWED)] = -np.inf
    kept = np.argsort(logits)[-3:]
    probs = np.exp(logits[kept] / 0.7) / np.exp(logits[kept] / 0.7).sum()
    place = list(kept).index(int(drawn.tokens[row, step]))
    np.testing.assert_allclose(drawn.log_prob[row, step], np.log(probs[place]), atol=1e-4)
    np.testing.assert_allclose(found.entropy[row, step], -(probs * np.log(probs)).sum(), atol=1e-4)


def test_greedy_generation_is_the_argmax_loop(params, prompt, key):
    drawn = sample(params, prompt, LENGTH, key, max_new_tokens=3, temperature=0.0)
    assert not drawn.log_prob.any()
    for row in range(B):
        tokens = list(np.asarray(prompt[row, : LENGTH[row]]))
        for step in range(3):
            tokens.append(int(np.argmax(next_logits(params, tokens))))
            assert drawn.tokens[row, step] == tokens[-1]


def test_frequencies_are_the_probabilities(params, prompt):
    prompts, lengths = jnp.tile(prompt[:1], (4001, 1)), jnp.full(4001, L)
    drawn = sample(params, prompts, lengths, jax.random.key(3), max_new_tokens=1)
    probs = np.asarray(jax.nn.softmax(next_logits(params, prompt[0])))
    counts = np.bincount(np.asarray(drawn.tokens[:, 0]), minlength=V)
    expected = 4001 * probs
    # Chi squared with V - 1 = 12 degrees of freedom stays below 33 with probability 0.999.
    assert (np.square(counts - expected) / expected).sum() < 33


def test_a_row_depends_on_no_other_row_and_on_no_padding(params, prompt, key):
    drawn = sample(params, prompt, LENGTH, key, max_new_tokens=M, stop_tokens=(2,))
    assert len({tuple(row) for row in np.asarray(drawn.tokens)}) == B
    row = 2
    wider = jnp.pad(prompt[row : row + 1], ((0, 0), (0, 3)), constant_values=9)
    alone = sample(params, wider, LENGTH[row : row + 1], key, max_new_tokens=M, stop_tokens=(2,), row=jnp.array([row]))
    np.testing.assert_array_equal(alone.tokens[0], drawn.tokens[row])
    np.testing.assert_allclose(alone.log_prob[0], drawn.log_prob[row], atol=1e-4)


def test_early_stop_changes_only_the_time(params, prompt, key):
    settings = {"max_new_tokens": M, "stop_tokens": (1, 2, 3, 4, 5, 6)}
    early, late = (sample(params, prompt, LENGTH, key, early_stop=flag, **settings) for flag in (True, False))
    assert early.length.max() < M
    jax.tree.map(np.testing.assert_array_equal, early, late)


def test_devices_that_share_the_batch_draw_the_same(params, prompt, key):
    mesh = jax.make_mesh((2,), ("env",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.sharding.PartitionSpec("env")
    prompts, lengths = jnp.tile(prompt, (2, 1)), jnp.tile(LENGTH, 2)

    def run(prompt, length, row):
        return generate(DECODER, params, prompt, length, key, max_new_tokens=3, row=row)

    spread = jax.shard_map(run, mesh=mesh, in_specs=(split,) * 3, out_specs=split, check_vma=False)
    found = jax.jit(spread)(prompts, lengths, jnp.arange(2 * B))
    np.testing.assert_array_equal(found.tokens, sample(params, prompts, lengths, key, max_new_tokens=3).tokens)


def test_one_prompt_of_one_token(params, key):
    drawn = sample(params, jnp.array([[3]]), jnp.array([1]), key, max_new_tokens=1)
    found = evaluate(params, jnp.array([[3]]), jnp.array([1]), drawn.tokens, drawn.mask)
    np.testing.assert_allclose(found.log_prob, drawn.log_prob, atol=1e-4)
    assert drawn.tokens.shape == (1, 1) and drawn.length[0] == 1


def test_scores_have_gradients_everywhere(params, prompt, key):
    drawn = sample(params, prompt, LENGTH, key, max_new_tokens=M, stop_tokens=(2, 5), top_k=3)

    @jax.jit
    @jax.grad
    def gradient(params):
        found = score(DECODER, params, prompt, LENGTH, drawn.tokens, drawn.mask, top_k=3, temperature=0.7)
        return jnp.sum(found.log_prob + found.entropy + found.value)

    for path, leaf in jax.tree_util.tree_flatten_with_path(gradient(params))[0]:
        assert np.all(np.isfinite(leaf)) and np.any(leaf != 0), path


def test_distribution_at_its_edges():
    logits = jnp.array([[1.0, 3.0, 3.0, -2.0], [9.0, 0.0, 0.5, 0.25]])
    allowed = jnp.array([[True, False, True, True], [False] * 4])
    probs = jnp.exp(token_log_probs(logits, top_k=1, allowed=allowed))
    np.testing.assert_array_equal(probs, [[0, 0, 1, 0], [1, 0, 0, 0]])
    # Ties with the last of the k stay in; at temperature 0 the first of them is taken.
    np.testing.assert_allclose(jnp.exp(token_log_probs(logits[:1], top_k=1)), [[0, 0.5, 0.5, 0]])
    np.testing.assert_array_equal(jnp.exp(token_log_probs(logits[:1], temperature=0.0)), [[0, 1, 0, 0]])
    assert entropy(token_log_probs(logits, temperature=0.0)).tolist() == [0, 0]
    log_probs = jnp.log(jnp.array([[0.0, 0.25, 0.0, 0.75, 0.0]]))
    below_one = np.nextafter(np.float32(1), np.float32(0))
    for uniform, token in [(0.0, 1), (0.2499, 1), (0.2501, 3), (below_one, 3)]:
        drawn, log_prob = draw_token(jnp.array([uniform]), log_probs + 3.0)
        assert drawn == token
        np.testing.assert_allclose(log_prob, log_probs[:, token], rtol=1e-5)


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
def test_the_nucleus_is_that_of_a_sort(top_p):
    logits = np.random.default_rng(4).normal(0, 3, (B, 499)).astype(np.float32)
    found = np.asarray(jax.jit(lambda logits: token_log_probs(logits, top_p=top_p, temperature=0.7))(logits))
    probs = np.exp(logits / 0.7 - np.max(logits / 0.7, axis=1, keepdims=True)).astype(np.float64)
    probs /= probs.sum(1, keepdims=True)
    for row in range(B):
        order = np.argsort(-probs[row])
        kept = order[: 1 + np.searchsorted(np.cumsum(probs[row][order]), top_p)]
        assert set(np.flatnonzero(found[row] > -1e30)) == set(kept)
        np.testing.assert_allclose(found[row][kept], np.log(probs[row][kept] / probs[row][kept].sum()), atol=1e-4)


def test_a_nucleus_keeps_ties_and_all_of_a_sure_token():
    probs = jnp.exp(token_log_probs(jnp.log(jnp.array([[0.2, 0.3, 0.3, 0.2]])), top_p=0.25))
    np.testing.assert_allclose(probs, [[0, 0.5, 0.5, 0]], atol=1e-6)
    sure = token_log_probs(jnp.array([[0.0, 200.0, 0.0]]), top_p=0.5)
    np.testing.assert_array_equal(jnp.exp(sure), [[0, 1, 0]])
    np.testing.assert_array_equal(token_log_probs(sure, top_p=1), token_log_probs(sure))


def test_a_large_vocabulary_is_drawn_from_as_a_small_one():
    """Block by block: the token is where the running sum passes the number, and possible always."""
    random = np.random.default_rng(5)
    logits = random.normal(0, 4, (7, 5003)).astype(np.float32)
    logits[:, random.permutation(5003)[:4000]] = -np.inf
    log_probs = np.asarray(token_log_probs(jnp.maximum(logits, np.finfo(np.float32).min)))
    running = np.cumsum(np.exp(log_probs.astype(np.float64)), axis=1)
    draw = jax.jit(draw_token)
    for uniform in (0.0, 0.1, 0.37, 0.5, 0.93, np.nextafter(np.float32(1), np.float32(0))):
        drawn = draw(jnp.full(7, uniform, jnp.float32), log_probs)
        for row, (token, log_prob) in enumerate(zip(*map(np.asarray, drawn), strict=True)):
            assert log_probs[row, token] > -1e30
            np.testing.assert_allclose(log_prob, log_probs[row, token], atol=1e-5)
            before = running[row, token - 1] if token else 0.0
            assert before - 1e-5 <= uniform <= running[row, token] + 1e-5


SCANNED = dataclasses.replace(CONFIG, num_layers=2, scan_layers=True, lora_rank=2, num_adapters=3)


@pytest.fixture(scope="module")
def scanned_params():
    adapter = jnp.zeros(1, jnp.int32)
    shapes = jax.eval_shape(
        lambda: Decoder(SCANNED).init(jax.random.key(1), jnp.zeros((1, 2), jnp.int32), adapter=adapter)
    )
    random = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(random.normal(0.1, 0.4, leaf.shape), leaf.dtype), shapes["params"])


def test_a_step_of_stacked_layers_copies_no_cache(scanned_params, prompt, key, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "other")
    run = functools.partial(generate, Decoder(SCANNED), max_new_tokens=10, adapter=jnp.zeros(B, jnp.int32))
    text = jax.jit(run).lower(scanned_params, prompt, LENGTH, key).compile().as_text()
    # Of all slots, 2 layers and 2 heads of 6; the loop's lines come before those of the whole program.
    loops = text[: text.index("ENTRY")]
    lines = [line for line in loops.splitlines() if f"= f32[2,{B},2,16,6]" in line]
    assert any("dynamic-update-slice" in line for line in lines)
    assert not any(" copy(" in line for line in lines)


@pytest.mark.parametrize("backend", ["cpu", "other"])
def test_completions_of_a_prompt_share_it(backend, scanned_params, prompt, key, monkeypatch):
    """In groups as with repeated prompts; with the layers one by one, and stacked."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    group, adapter = 3, jnp.array([0, 2, 1, 2, 0])

    @functools.partial(jax.jit, static_argnames="group")
    def run(prompt, length, adapter, group):
        settings = {"max_new_tokens": 4, "stop_tokens": (2,)}
        module = Decoder(SCANNED)
        return generate(module, scanned_params, prompt, length, key, adapter=adapter, group=group, **settings)

    repeated = [jnp.repeat(x, group, axis=0) for x in (prompt, LENGTH, adapter)]
    shared, alone = run(prompt, LENGTH, adapter, group), run(*repeated, 1)
    np.testing.assert_array_equal(shared.tokens, alone.tokens)
    np.testing.assert_allclose(shared.log_prob, alone.log_prob, atol=1e-4)
    assert len({tuple(row) for row in np.asarray(shared.tokens)}) > B


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_new_tokens": 23}, "prompts of 7 and completions of 23 tokens exceed max_length 29"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"max_new_tokens": 2.5}, "max_new_tokens must be a whole number, got 2.5"),
        ({"stop_tokens": (V,)}, "token 13 is outside the vocabulary of 13"),
        ({"pad_token": -1}, "token -1 is outside the vocabulary of 13"),
        ({"allowed": jnp.ones((B, V), bool)}, r"broadcasts to \[B, M, V\] = \(5, 11, 13\), got \(5, 13\)"),
        ({"allowed": jnp.ones(V)}, "allowed must hold booleans, got float32"),
        ({"prompt_length": LENGTH[:, None]}, "prompt_length"),
        ({"prompt": jnp.ones((B, L))}, "prompt must hold integers"),
        ({"prompt": [[1, 2], [3]], "prompt_length": [2, 1]}, "prompt must be an array of integers, its rows of one"),
        ({"prompt": [[1, V]], "prompt_length": [2]}, "token 13 of the prompt is outside the vocabulary of 13"),
        ({"prompt": jnp.zeros((0, L), jnp.int32), "prompt_length": LENGTH[:0]}, "a batch needs at least one prompt"),
        ({"prompt_length": LENGTH - 1}, r"prompt_length must lie between 1 and 7, got \[6, 0, 3, 1, 5\]"),
        ({"prompt_length": LENGTH + 1}, r"prompt_length must lie between 1 and 7, got \[8, 2, 5, 3, 7\]"),
        ({"temperature": float("nan")}, "temperature must be at least 0, and finite, got nan"),
        ({"temperature": -0.5}, "temperature must be at least 0, and finite, got -0.5"),
        ({"temperature": "1"}, "temperature must be a number, got '1'"),
        ({"temperature": jnp.ones(B)}, r"temperature must be one number for all rows, got shape \(5,\)"),
        ({"top_k": -1}, "top_k must be at least 0, got -1"),
        ({"top_p": 0.0}, "top_p must lie between 0 and 1, and finite, got 0.0"),
        ({"top_p": 1.5}, "top_p must lie between 0 and 1, and finite, got 1.5"),
        ({"group": 0}, "group must be at least 1, got 0"),
        ({"top_k": 1.5}, "top_k must be a whole number, got 1.5"),
        ({"stop_tokens": 2.0}, "stop_tokens must be a tuple .whole number each., got 2.0"),
        ({"stop_tokens": (True,)}, "each stop token and pad_token must be a whole number, got True"),
        ({"pad_token": 0.5}, "each stop token and pad_token must be a whole number, got 0.5"),
        ({"row": jnp.arange(B + 1)}, r"row must have shape \[B\] = \(5,\), got \(6,\)"),
        ({"row": jnp.ones(B)}, "row must hold integers"),
    ],
)
def test_bad_input_is_refused(changes, message, params, prompt, key):
    arguments = {"prompt": prompt, "prompt_length": LENGTH, "max_new_tokens": M, **changes}
    with pytest.raises(ValueError, match=message) as error:
        jax.eval_shape(lambda key: generate(DECODER, params, key=key, **arguments), key)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("completion", "mask", "message"),
    [
        (
            jnp.zeros((B - 1, M), jnp.int32),
            jnp.ones((B - 1, M), bool),
            "completion and completion_mask must have shape",
        ),
        (jnp.zeros((B, M)), jnp.ones((B, M), bool), "completion must hold integers, got float32"),
        (jnp.zeros((B, M), jnp.int32), jnp.ones((B, M)), "completion_mask must hold booleans, got float32"),
        (jnp.full((B, M), V), jnp.ones((B, M), bool), "token 13 of the completion is outside the vocabulary of 13"),
        (jnp.full((B, M), -1), jnp.ones((B, M), bool), "token -1 of the completion is outside the vocabulary of 13"),
    ],
)
def test_completions_that_do_not_fit_are_refused(completion, mask, message, params, prompt):
    with pytest.raises(ValueError, match=message):
        score(DECODER, params, prompt, LENGTH, completion, mask)


def test_traced_tokens_and_lengths_out_of_range(params, prompt):
    """A token outside the vocabulary is impossible, behind the mask it is nothing; lengths are clipped."""
    completion = jnp.zeros((B, M), jnp.int32).at[0, 1].set(V).at[1, 0].set(-1).at[2, 3].set(V)
    mask = jnp.ones((B, M), bool).at[2, 3:].set(False)
    log_prob = np.asarray(evaluate(params, prompt, LENGTH, completion, mask).log_prob)
    lowest = np.finfo(np.float32).min
    assert np.argwhere(log_prob == lowest).tolist() == [[0, 1], [1, 0]] and not log_prob[2, 3:].any()
    wrong = evaluate(params, prompt, jnp.array([L + 2, -1, 4, 0, 6]), completion, mask)
    right = evaluate(params, prompt, jnp.array([L, 1, 4, 1, 6]), completion, mask)
    jax.tree.map(np.testing.assert_array_equal, wrong, right)


def test_lists_are_arrays(params, key):
    prompt, lengths = [[3, 1, 99], [2, 2, 5]], [2, 3]
    drawn = sample(params, prompt, lengths, key, max_new_tokens=2, stop_tokens=2)
    arrays = sample(params, jnp.array(prompt), jnp.array(lengths), key, max_new_tokens=2, stop_tokens=(2,))
    jax.tree.map(np.testing.assert_array_equal, drawn, arrays)
    closed_over = jax.jit(lambda params, key: generate(DECODER, params, prompt, lengths, key, max_new_tokens=2))
    assert closed_over(params, key).tokens.shape == (2, 2)
