"""Completions token by token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from llm.toy_decoder import parameters

from jaxmarl_llm.llm import Decoder, DecoderConfig, generate, stream_tokens, unstack

CONFIG = DecoderConfig(
    vocab_size=29,
    hidden_size=11,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=10,
    intermediate_size=13,
    max_length=23,
    scan_layers=True,
)
DECODER = Decoder(CONFIG)
PROMPT = [3, 1, 4, 1, 5]
M = 7


def test_streamed_tokens_are_the_generated_ones(key):
    params = parameters(CONFIG)
    prompt, length = jnp.asarray([PROMPT]), jnp.asarray([len(PROMPT)])
    run = jax.jit(lambda params: generate(DECODER, params, prompt, length, key, max_new_tokens=M, temperature=0.0))
    expected = np.asarray(run(params).tokens)[0].tolist()
    one_row = unstack(DECODER, params, 1)
    assert list(stream_tokens(*one_row, PROMPT, key, max_new_tokens=M, temperature=0.0)) == expected
    # The stop token itself is left out.
    stop = expected[3]
    found = list(stream_tokens(*one_row, PROMPT, key, max_new_tokens=M, temperature=0.0, stop_tokens=[stop]))
    assert found == expected[: expected.index(stop)]
    draws = [list(stream_tokens(*one_row, PROMPT, jax.random.key(seed), max_new_tokens=M)) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize(
    ("prompt", "settings", "message"),
    [
        ([], {}, "the prompt is empty: give at least one token"),
        (PROMPT, {"max_new_tokens": 19}, "the prompt has 5 tokens, and 19 to write, but the decoder holds 23"),
        ([3, 29], {}, "token 29 of the prompt is outside the vocabulary of 29"),
        (PROMPT, {"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        (PROMPT, {"temperature": -1.0}, "temperature must be at least 0"),
        (PROMPT, {"stop_tokens": [2.0]}, "stop_tokens: each must be"),
    ],
)
def test_refused(prompt, settings, message, key):
    with pytest.raises(ValueError, match=message):
        next(stream_tokens(DECODER, {}, prompt, key, **{"max_new_tokens": M} | settings))
