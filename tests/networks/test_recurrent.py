"""The recurrent core: values and the gradient that is written out, against Flax's cell step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxmarl_llm.networks.recurrent import RecurrentCore

T, B, N, F, H = 7, 5, 3, 11, 13


def cell_parameters(params):
    """Ours as those of Flax's cell."""
    own, names = params["params"], ("r", "z", "n")
    kernels, biases = jnp.split(own["input"]["kernel"], 3, -1), jnp.split(own["input"]["bias"], 3, -1)
    cell = {f"i{name}": {"kernel": k, "bias": b} for name, k, b in zip(names, kernels, biases, strict=True)}
    cell |= {f"h{name}": {"kernel": k} for name, k in zip(names, jnp.split(own["kernel"], 3, -1), strict=True)}
    cell["hn"]["bias"] = own["bias"]
    return {"params": cell}


def step_by_step(params, memory, x, reset):
    outputs = []
    for t in range(T):
        memory = jnp.where(reset[t][..., None], 0.0, memory)
        memory, y = nn.GRUCell(H).apply(cell_parameters(params), memory, x[t])
        outputs.append(y)
    return memory, jnp.stack(outputs)


@pytest.fixture(scope="module")
def problem():
    keys = jax.random.split(jax.random.key(0), 6)
    memory, x = jax.random.normal(keys[0], (B, N, H)), jax.random.normal(keys[1], (T, B, N, F))
    reset = jax.random.bernoulli(keys[2], 0.3, (T, B, N))
    params = jax.jit(RecurrentCore(H).init)(keys[3], memory, x, reset)
    params = jax.tree.map(lambda leaf: leaf + 0.1 * jax.random.normal(keys[4], leaf.shape), params)
    return params, memory, x, reset, jax.random.normal(keys[5], (T, B, N, H))


def test_values_and_gradients_are_those_of_the_cell(problem):
    params, memory, x, reset, weight = problem

    def objective(run):
        def loss(params, memory, x):
            last, y = run(params, memory, x, reset)
            return jnp.sum(y * weight) + jnp.sum(jnp.square(last)), y

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(params, memory, x)

    ours, theirs = objective(RecurrentCore(H).apply), objective(step_by_step)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), ours, theirs)


def test_second_derivatives_exist(problem):
    """The natural gradient differentiates the gradient forwards."""
    params, memory, x, reset, weight = problem

    def gradient(run):
        return jax.grad(lambda params: jnp.sum(run(params, memory, x, reset)[1] * weight))

    direction = jax.tree.map(jnp.cos, params)
    ours, theirs = (
        jax.jit(lambda run=run: jax.jvp(gradient(run), (params,), (direction,))[1])()
        for run in (RecurrentCore(H).apply, step_by_step)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), ours, theirs)
