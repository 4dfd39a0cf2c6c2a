"""Scores of tokens over a large vocabulary, block after block, against all logits at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.llm import Decoder, DecoderConfig
from jaxmarl_llm.llm.distribution import LOWEST
from jaxmarl_llm.llm.vocabulary import score_tokens

# Two blocks and a bit, so that the last one overlaps.
VOCABULARY = 4099


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def model(request):
    config = DecoderConfig(
        vocab_size=VOCABULARY,
        hidden_size=6,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        intermediate_size=7,
        max_length=8,
        tied_embeddings=request.param,
    )
    params = jax.jit(Decoder(config).init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    hidden = 3 * jax.random.normal(jax.random.key(1), (2, 5, 6))
    token = jnp.array([[0, 17, 2047, 2048, 4098], [4095, 4096, 2050, -1, VOCABULARY]], jnp.int32)
    return config, params, hidden, token


def loss(model, params, hidden, weight, **settings):
    config, _, _, token = model
    found = score_tokens(Decoder(config).bind({"params": params}), hidden, token, temperature=0.7, **settings)
    # Tokens outside the vocabulary have the lowest number, by which nothing is to be drowned.
    factor = jnp.cos(jnp.arange(10.0)).reshape(2, 5)
    log_prob = jnp.where(found[0] > LOWEST, found[0], 0.0)
    return jnp.sum(factor * (log_prob + weight * found[1])), found


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_blocks_equal_all_logits(model, weight):
    _, params, hidden, _ = model

    def both(params, hidden, weight, **settings):
        # With params the table is learned; by itself, hidden has a shorter way.
        by_all = jax.grad(lambda params, hidden: loss(model, params, hidden, weight, **settings)[0], argnums=(0, 1))(
            params, hidden
        )
        by_hidden = jax.grad(lambda hidden: loss(model, params, hidden, weight, **settings)[0])(hidden)
        return loss(model, params, hidden, weight, **settings)[1], by_all, by_hidden

    blocks = jax.jit(both)(params, hidden, weight)
    # All of them allowed: each logit is computed.
    whole = jax.jit(both)(params, hidden, weight, allowed=jnp.ones((1, 1, VOCABULARY), bool))
    for path, leaf in jax.tree_util.tree_flatten_with_path(whole)[0]:
        found = blocks
        for part in path:
            found = found[part.idx if hasattr(part, "idx") else part.key]
        np.testing.assert_allclose(found, leaf, rtol=1e-5, atol=1e-5, err_msg=str(path))


def test_no_more_than_a_block_is_held(model):
    _, params, hidden, _ = model
    rows = jnp.broadcast_to(hidden[:1, :1], (2, 5, 6))
    gradient = jax.grad(lambda hidden: loss(model, params, hidden, 0.0)[0])
    assert f"10,{VOCABULARY}" not in jax.jit(gradient).lower(rows).as_text().replace("x", ",")
