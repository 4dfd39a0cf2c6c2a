"""Small decoders whose parameters are all random: biases, norms and adapters too."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.llm import Decoder


def parameters(config):
    adapter = jnp.zeros(1, jnp.int32) if config.num_adapters else None
    token = jnp.zeros((1, 1), jnp.int32)
    shapes = jax.eval_shape(lambda: Decoder(config).init(jax.random.key(0), token, adapter=adapter))["params"]
    random = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(random.normal(0.1, 0.3, leaf.shape), leaf.dtype), shapes)
