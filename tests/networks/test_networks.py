"""First layers, recurrent core, and the sharing table."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxmarl_llm.envs.spaces import Box, MultiDiscrete
from jaxmarl_llm.networks import (
    DenseInput,
    FactoredInput,
    RecurrentCore,
    TeamInput,
    TeamNetwork,
    build_actor_critic,
    one_hot_factors,
)
from jaxmarl_llm.networks.dense import dense


def test_factored_input_equals_dense_on_one_hot(key):
    sizes = (3, 7, 2, 5)
    x = MultiDiscrete(sizes).sample(key, (11, 4))
    module = FactoredInput(sizes=sizes, features=(13, 2))
    params = module.init(key, x)
    one_hot = np.zeros((11, 4, sum(sizes)), np.float32)
    for index in np.ndindex(11, 4):
        for factor in range(len(sizes)):
            one_hot[(*index, sum(sizes[:factor]) + int(x[(*index, factor)]))] = 1
    np.testing.assert_array_equal(one_hot_factors(x, sizes), one_hot)
    kernel, bias = params["params"]["Dense_0"]["kernel"], params["params"]["Dense_0"]["bias"]
    np.testing.assert_allclose(module.apply(params, x), one_hot @ np.asarray(kernel) + np.asarray(bias), atol=1e-5)


def test_turned_layers_are_dense_ones_and_take_no_adapter(key):
    x = jax.random.normal(key, (2, 3, 5))
    plain, turned = (dense(7, nn.initializers.lecun_normal(), turned=turned) for turned in (False, True))
    params = plain.init(key, x)["params"]
    swapped = {"kernel": params["kernel"].T, "bias": params["bias"]}
    expected = plain.apply({"params": params}, x)
    np.testing.assert_allclose(turned.apply({"params": swapped}, x), expected, atol=1e-6)
    with pytest.raises(ValueError, match="rank=2 and turned=True"):
        dense(7, nn.initializers.lecun_normal(), rank=2, turned=True)


def test_dense_input_reads_a_tree_of_any_shapes(key):
    tree = {"image": jnp.ones((5, 2, 3, 4), jnp.uint8), "vector": jnp.zeros((5, 2, 6)), "number": jnp.ones((5, 2))}
    module = DenseInput(features=(7,), event_ndims=(2, 0, 1))
    params = module.init(key, tree)
    assert module.apply(params, tree).shape == (5, 2, 7)
    assert params["params"]["Dense_0"]["kernel"].shape == (3 * 4 + 1 + 6, 7)


def test_first_layers_of_actor_and_critic_are_each_orthogonal(key):
    module = DenseInput(features=(5, 3), event_ndims=(1,))
    kernel = module.init(key, jnp.ones((1, 17)))["params"]["Dense_0"]["kernel"]
    for block in (kernel[:, :5], kernel[:, 5:]):
        np.testing.assert_allclose(block.T @ block, 2 * np.eye(block.shape[1]), atol=1e-5)


def test_recurrent_core_forgets_at_a_reset(key):
    core = RecurrentCore(7)
    x = jax.random.normal(key, (5, 3, 2))
    reset = jnp.zeros((5, 3), bool).at[2, 1].set(True)
    memory = jax.random.normal(key, (3, 7))
    params = core.init(key, memory, x, reset)
    _, y = core.apply(params, memory, x, reset)
    _, fresh = core.apply(params, jnp.zeros((3, 7)), x[2:], jnp.zeros((3, 3), bool))
    np.testing.assert_allclose(y[2:, 1], fresh[:, 1], atol=1e-6)
    assert float(jnp.abs(y[2:, 0] - fresh[:, 0]).max()) > 1e-3


@pytest.mark.parametrize(
    ("network", "critic"),
    [
        ("mlp", "observation"),
        ("gru", "global_state"),
        pytest.param("cnn", "attention", marks=pytest.mark.wide),
        *(pytest.param(*pair, marks=pytest.mark.wide) for pair in (("mlp", "global_state"), ("mlp", "attention"))),
        *(pytest.param(*pair, marks=pytest.mark.wide) for pair in (("gru", "observation"), ("gru", "attention"))),
        *(pytest.param(*pair, marks=pytest.mark.wide) for pair in (("cnn", "observation"), ("cnn", "global_state"))),
    ],
)
def test_isolated_with_equal_parameters_equals_shared(key, network, critic):
    space = Box(0, 1, (3, 5, 2)) if network == "cnn" else Box(0, 1, (11,))
    module = build_actor_critic(
        space,
        7,
        3,
        network=network,
        hidden_sizes=(5, 13),
        critic=critic,
        agent_id=True,
        **({"gru_size": 17} if network == "gru" else {}),
    )
    shared, isolated = TeamNetwork(module, (0, 0, 0)), TeamNetwork(module, (0, 1, 2))
    observation, state = jax.random.uniform(key, (2, 19, 3, *space.shape)), jax.random.uniform(key, (2, 19, 23))
    params = jax.jit(shared.init)(key, observation[0, 0], state[0, 0])
    repeated = jax.tree.map(lambda leaf: np.repeat(leaf, 3, axis=0), jax.device_get(params))
    memory, reset = shared.initial_memory((19,)), jnp.zeros((2, 19, 3), bool)
    inputs = TeamInput(observation=observation, global_state=state, reset=reset, active=~reset)
    one = jax.jit(shared.apply)(params, memory, inputs)
    many = jax.jit(isolated.apply)(repeated, isolated.initial_memory((19,)), inputs)
    if module.joint and module.memory_size:
        # Each policy remembers every agent, here all the same.
        many = (jax.tree.map(lambda leaf: leaf[:, :, 0], many[0]), *many[1:])
    assert one[1].shape == (2, 19, 3, 7) and one[2].shape == (2, 19, 3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), one, many)
    if critic == "global_state":
        assert jax.jit(isolated.apply)(repeated, memory, inputs.replace(global_state=None))[2] is None
