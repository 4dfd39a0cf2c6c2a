"""The transformer coordinator and the attention critic."""

import functools
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.algorithms import categorical_from_uniform, categorical_log_prob, categorical_mode, masked_logits
from jaxmarl_llm.networks import (
    AttentionCritic,
    Coordinator,
    DenseInput,
    EntityInput,
    InputLayer,
    TeamInput,
    attention_maps,
    masked_attention,
)

T, B, N, A, F, H = 2, 3, 5, 7, 11, 13
INPUT = InputLayer(DenseInput, (("event_ndims", (1,)),))
# Memory, several layers and a blackboard at once: what holds for all of them holds for each.
FULL = {"num_layers": 2, "memory_size": H, "memory_tokens": 3}


def coordinator(**settings):
    return Coordinator(INPUT, A, width=16, **settings)


def team_input(key, num_agents=N, active=None, width=F):
    shape = (T, B, num_agents)
    active = jnp.ones(shape, bool) if active is None else jnp.broadcast_to(jnp.asarray(active), shape)
    reset = jnp.zeros(shape, bool).at[1, 0].set(True)
    observation = jax.random.normal(key, (*shape, width))
    return TeamInput(observation=observation, global_state=None, reset=reset, active=active)


def test_more_agents_than_agent_id_tells_apart_are_refused(key):
    with pytest.raises(ValueError, match="tells 2 agents apart, got 5"):
        jax.eval_shape(coordinator(agent_id=True, num_agents=2).init, key, {}, team_input(key), jnp.arange(N))


def memory_of(module, key, num_agents=N):
    if isinstance(module, AttentionCritic):
        return {"critic": jax.random.normal(key, (B, num_agents, H))} if module.memory_size else {}
    return {name: jax.random.normal(key, (B, *shape)) for name, shape in module.memory_shapes(num_agents).items()}


def actions(key, num_agents=N):
    return jax.random.randint(key, (T, B, num_agents), 0, A)


@functools.partial(jax.jit, static_argnums=0)
def evaluate(module, params, memory, inputs, action=None):
    inputs = inputs.replace(action=action)
    return module.apply({"params": params}, memory, inputs, jnp.arange(inputs.active.shape[-1]))


@functools.partial(jax.jit, static_argnums=0)
def maps_of(module, params, memory, inputs, action=None):
    inputs = inputs.replace(action=action)
    return attention_maps(module, params, memory, inputs, jnp.arange(inputs.active.shape[-1]))


@functools.partial(jax.jit, static_argnums=0)
def gradient(module, params, memory, inputs, action=None):
    def total(params):
        return sum(
            jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(evaluate(module, params, memory, inputs, action))
        )

    return jax.grad(total)(params)


def init(module, key, inputs, action=None):
    """Random parameters, none of them zero or small as they are at the start; no time spent on orthogonal ones."""
    memory, index = memory_of(module, key, inputs.active.shape[-1]), jnp.arange(inputs.active.shape[-1])
    shapes = jax.eval_shape(module.init, key, memory, inputs.replace(action=action), index)["params"]
    random = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: random.normal(0, 0.3, leaf.shape).astype(leaf.dtype), shapes), memory


def permute(tree, order):
    """Permutes the agents: the last axis of bools, the one before it elsewhere; the blackboard is no agent's."""
    if isinstance(tree, dict) and "blackboard" in tree:
        return permute({"actor": tree["actor"]}, order) | {"blackboard": tree["blackboard"]}
    return jax.tree.map(lambda leaf: leaf[..., order] if leaf.dtype == bool else leaf[..., order, :], tree)


def test_masked_attention_equals_a_loop(key):
    q, k, v = (
        np.asarray(jax.random.normal(key, (3, n, 2, 7)))
        for n, key in zip((5, 4, 4), jax.random.split(key, 3), strict=True)
    )
    mask = np.array(jax.random.bernoulli(key, 0.5, (3, 5, 4)))
    mask[1, 2] = False
    out, weights = masked_attention(q, k, v, mask)
    assert out.shape == (3, 5, 2, 7) and weights.shape == (3, 2, 5, 4)
    for b, i, h in np.ndindex(3, 5, 2):
        allowed = np.flatnonzero(mask[b, i])
        expected = np.zeros(4)
        if len(allowed):
            scores = np.exp([q[b, i, h] @ k[b, j, h] / np.sqrt(7) for j in allowed])
            expected[allowed] = scores / scores.sum()
        np.testing.assert_allclose(weights[b, h, i], expected, atol=1e-5)
        np.testing.assert_allclose(out[b, i, h], expected @ v[b, :, h], atol=1e-5)


@pytest.mark.parametrize(
    ("heads", "shapes"),
    [
        (("policy", "value"), ((T, B, N, A), (T, B, N))),
        (("policy", "q"), ((T, B, N, A), (T, B, N, A))),
        (("q",), ((T, B, N, A), None)),
        (("value",), ((T, B, N), None)),
    ],
)
def test_heads(heads, shapes, key):
    module = coordinator(heads=heads, **FULL)
    inputs = team_input(key)
    params, memory = init(module, key, inputs)
    after, *results = evaluate(module, params, memory, inputs)
    assert tuple(None if result is None else result.shape for result in results) == shapes
    assert jax.tree.map(jnp.shape, after) == {"actor": (B, N, H), "blackboard": (B, 3, 16)}


def test_policy_starts_near_uniform(key):
    module = coordinator()
    inputs = team_input(key)
    params = jax.jit(module.init)(key, {}, inputs, jnp.arange(N))["params"]
    _, logits, value = evaluate(module, params, {}, inputs)
    assert float(jnp.abs(logits).max()) < 0.1 < float(value.std())


@pytest.mark.parametrize("settings", [{}, FULL], ids=["plain", "full"])
def test_permuted_agents_give_permuted_outputs(settings, key):
    module = coordinator(**settings)
    inputs = team_input(key, active=[True, True, False, True, True])
    params, memory = init(module, key, inputs)
    order = jnp.array([3, 0, 4, 2, 1])
    after, logits, value = evaluate(module, params, memory, inputs)
    turned = evaluate(module, params, permute(memory, order), permute(inputs, order))
    expected = permute(after, order), logits[..., order, :], value[..., order]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), turned, expected)
    assert float(jnp.abs(logits[..., order, :] - logits).max()) > 0.01


def test_agent_ids_tell_equal_agents_apart(key):
    inputs = team_input(key)
    inputs = inputs.replace(observation=jnp.broadcast_to(inputs.observation[..., :1, :], inputs.observation.shape))
    for agent_id in (False, True):
        module = coordinator(agent_id=agent_id, num_agents=N)
        params, memory = init(module, key, inputs)
        value = evaluate(module, params, memory, inputs)[2]
        assert (float(value.std(axis=-1).min()) > 1e-3) == agent_id


@pytest.mark.parametrize("settings", [FULL, {"decoder": True}], ids=["full", "decoder"])
@pytest.mark.parametrize("size", [2, 11])
def test_other_team_sizes_use_the_same_parameters(settings, size, key):
    """And a larger team whose further agents are inactive is the smaller team."""
    module = coordinator(**settings)
    inputs, action = team_input(key), actions(key)
    params, memory = init(module, key, inputs)
    other = team_input(key, size)
    results = evaluate(module, params, memory_of(module, key, size), other, actions(key, size))
    assert results[1].shape == (T, B, size, A) and all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(results))
    if size < N:
        part = jax.tree.map(lambda leaf: leaf[..., :size] if leaf.dtype == bool else leaf[..., :size, :], inputs)
        memory_of_part = {name: leaf[:, :size] if name == "actor" else leaf for name, leaf in memory.items()}
        small = evaluate(module, params, memory_of_part, part, action[..., :size])
        alone = inputs.replace(active=inputs.active & (jnp.arange(N) < size)[None, None])
        large = evaluate(module, params, memory, alone, action)
        np.testing.assert_allclose(small[1], large[1][..., :size, :], atol=1e-5)
        np.testing.assert_allclose(small[2], large[2][..., :size], atol=1e-5)


@pytest.mark.parametrize("settings", [FULL, {"decoder": True}], ids=["full", "decoder"])
def test_nobody_attends_to_an_inactive_agent(settings, key):
    module = coordinator(**settings)
    active = jnp.array([True, False, True, True, False])
    inputs, action = team_input(key, active=active), actions(key)
    params, memory = init(module, key, inputs)
    _, logits, value = evaluate(module, params, memory, inputs, action)
    poisoned = inputs.replace(observation=jnp.where(active[:, None][None, None], inputs.observation, 1e6))
    poisoned_action = jnp.where(active[None, None], action, 0)
    _, logits_after, value_after = evaluate(module, params, memory, poisoned, poisoned_action)
    np.testing.assert_array_equal(logits[..., active, :], logits_after[..., active, :])
    np.testing.assert_array_equal(value[..., active], value_after[..., active])
    for weights in maps_of(module, params, memory, inputs, action).values():
        np.testing.assert_array_equal(weights[..., :N][..., ~active], 0.0)


@pytest.mark.parametrize("settings", [{}, FULL, {"decoder": True}], ids=["plain", "full", "decoder"])
def test_all_inactive_is_finite_with_finite_gradients(settings, key):
    module = coordinator(**settings)
    inputs = team_input(key, active=False)
    params, memory = init(module, key, inputs)

    results = (
        evaluate(module, params, memory, inputs, actions(key)),
        gradient(module, params, memory, inputs, actions(key)),
    )
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(results))


def test_attention_maps_are_named_and_sum_to_one(key):
    module = coordinator(**FULL, decoder=True)
    inputs = team_input(key)
    params, memory = init(module, key, inputs)
    maps = maps_of(module, params, memory, inputs, actions(key))
    among = {f"layers_{layer}/attention": (T, B, 4, N + 3, N + 3) for layer in (0, 1)}
    deciding = {f"action_decoder/layers_{layer}/attention": (T, B, 4, N, N) for layer in (0, 1)}
    assert {name: weights.shape for name, weights in maps.items()} == among | deciding
    for name, weights in maps.items():
        total = np.asarray(weights.sum(-1))
        assert np.all(total[..., 0] == 0 if "decoder" in name else total[..., 0] > 0.999), (
            "the first agent has no one before it"
        )
        np.testing.assert_allclose(total[..., 1:], 1.0, atol=1e-5)
        if "decoder" in name:
            assert not np.triu(weights).any()


@pytest.mark.parametrize("settings", [{"memory_size": H}, {"memory_tokens": 2}], ids=["recurrent", "tokens"])
def test_memory_is_used_and_forgotten_at_a_reset(settings, key):
    module = coordinator(**settings)
    inputs = team_input(key)
    params, memory = init(module, key, inputs)
    _, first, _ = evaluate(module, params, memory, inputs)
    _, second, _ = evaluate(module, params, jax.tree.map(lambda leaf: -leaf, memory), inputs)
    changed = np.abs(first - second).max(axis=(-1, -2)) > 1e-4
    # The first environment forgets before the second step.
    np.testing.assert_array_equal(changed, [[True, True, True], [False, True, True]])


def test_memory_tokens_carry_what_one_agent_saw_to_another(key):
    module = coordinator(memory_tokens=2)
    # The first agent is there in the first step alone, the others in the second.
    active = jnp.array([[True] + [False] * 4, [False] + [True] * 4])[:, None]
    inputs = team_input(key, active=active)
    params, memory = init(module, key, inputs)
    after, first, _ = evaluate(module, params, memory, inputs)
    changed = inputs.replace(observation=inputs.observation.at[0, :, 0].add(1.0))
    _, second, _ = evaluate(module, params, memory, changed)
    moved = np.abs(first - second)[1].max(axis=-1) > 1e-4
    assert not moved[0].any() and moved[1:].all(), "the first environment begins an episode in between"
    # Steps one by one are steps at once.
    for step in range(T):
        part = jax.tree.map(lambda leaf, step=step: leaf[step : step + 1], inputs)
        memory, logits, _ = evaluate(module, params, memory, part)
        np.testing.assert_allclose(logits[0], first[step], atol=1e-5)
    np.testing.assert_allclose(memory["blackboard"], after["blackboard"], atol=1e-5)


def test_decoder_sees_earlier_actions_only(key):
    module = coordinator(decoder=True, num_layers=2)
    inputs, action = team_input(key), actions(key)
    params, memory = init(module, key, inputs)
    _, logits, value = evaluate(module, params, memory, inputs, action)
    for agent in range(N):
        other = action.at[..., agent].set((action[..., agent] + 1) % A)
        _, logits_after, value_after = evaluate(module, params, memory, inputs, other)
        np.testing.assert_array_equal(value, value_after)
        np.testing.assert_array_equal(logits[..., : agent + 1, :], logits_after[..., : agent + 1, :])
        if agent + 1 < N:
            assert float(np.abs(logits - logits_after)[..., agent + 1 :, :].max(-1).min()) > 1e-5


@pytest.mark.parametrize(("num_agents", "heads"), [(1, ("policy", "value")), (5, ("q", "policy"))])
def test_sampling_agrees_with_teacher_forcing(num_agents, heads, key):
    module = coordinator(decoder=True, memory_size=H, heads=heads)
    active = jax.random.bernoulli(key, 0.7, (T, B, num_agents))
    inputs = team_input(key, num_agents, active)
    params, memory = init(module, key, inputs)
    key_uniform, key_mask = jax.random.split(key)
    uniform = jax.random.uniform(key_uniform, (T, B, num_agents))
    mask = jax.random.bernoulli(key_mask, 0.6, (T, B, num_agents, A)).at[..., 2].set(True)

    def choose(logits, agent):
        logits = masked_logits(logits, mask[..., agent, :])
        # The second environment is greedy.
        return categorical_from_uniform(uniform[..., agent], logits).at[:, 1].set(categorical_mode(logits)[:, 1])

    @jax.jit
    def sample(params):
        return module.apply({"params": params}, memory, inputs, jnp.arange(num_agents), choose, method="sample")

    after, action, *sampled = sample(params)
    forced_after, *forced = evaluate(module, params, memory, inputs, action)
    np.testing.assert_allclose(after["actor"], forced_after["actor"], atol=1e-6)
    place = heads.index("policy")
    np.testing.assert_allclose(sampled[1 - place], forced[1 - place], atol=1e-5)
    sampled, forced = (masked_logits(results[place], mask) for results in (sampled, forced))
    log_prob = categorical_log_prob(forced, action).sum(-1)
    np.testing.assert_allclose(categorical_log_prob(sampled, action).sum(-1), log_prob, atol=1e-5)
    np.testing.assert_array_equal(action[:, 1], jnp.argmax(forced, axis=-1)[:, 1])
    np.testing.assert_array_equal(action, categorical_from_uniform(uniform, forced).at[:, 1].set(action[:, 1]))
    assert len(np.unique(action)) > 1 and float(log_prob.min()) > -100


def test_decoder_without_actions_gives_values_alone(key):
    module = coordinator(decoder=True)
    inputs = team_input(key)
    params, memory = init(module, key, inputs)
    _, logits, value = evaluate(module, params, memory, inputs)
    assert logits is None
    np.testing.assert_array_equal(value, evaluate(module, params, memory, inputs, actions(key))[2])


def test_entities_are_a_set_and_may_be_more(key):
    def module(foods, others):
        groups = ((foods, 3), (1, 3), (others, 3))
        return Coordinator(InputLayer(EntityInput, (("groups", groups),)), A, width=16)

    inputs = team_input(key, width=3 * (4 + 1 + 2))
    params, memory = init(module(4, 2), key, inputs)
    _, logits, _ = evaluate(module(4, 2), params, memory, inputs)
    rows = inputs.observation.reshape(T, B, N, 7, 3)

    def logits_of(rows):
        return evaluate(module(4, 2), params, memory, inputs.replace(observation=rows.reshape(T, B, N, 21)))[1]

    np.testing.assert_allclose(logits_of(rows[..., jnp.array([2, 0, 3, 1, 4, 6, 5]), :]), logits, atol=1e-5)
    assert float(jnp.abs(logits_of(rows[..., jnp.array([4, 1, 2, 3, 0, 5, 6]), :]) - logits).max()) > 0.01
    more = evaluate(module(7, 0), params, memory, team_input(key, width=3 * 8))[1]
    assert more.shape == (T, B, N, A) and bool(jnp.isfinite(more).all())
    maps = maps_of(module(4, 2), params, memory, inputs)
    assert maps["entity_layer/attention"].shape == (T, B, N, 4, 1, 7)
    with pytest.raises(ValueError, match="make 24 numbers, the observation has 21"):
        evaluate(module(5, 2), params, memory, inputs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_heads": 3}, "num_heads must divide the width"),
        ({"heads": ("policy", "baseline")}, "heads must be one or two of policy, value, q"),
        ({"heads": ()}, "heads must be one or two of"),
    ],
)
def test_wrong_settings(settings, message, key):
    with pytest.raises(ValueError, match=message):
        coordinator(**settings).init(key, {}, team_input(key), jnp.arange(N))


def test_sample_needs_a_decoder(key):
    module = coordinator()
    params, memory = init(module, key, team_input(key))
    with pytest.raises(ValueError, match="decoder=True"):
        module.apply({"params": params}, memory, team_input(key), jnp.arange(N), categorical_mode, method="sample")


# The attention critic.


def critic(**settings):
    return AttentionCritic(INPUT, A, width=16, **settings)


def test_critic_reads_the_others_actions_and_not_its_own(key):
    module = critic()
    inputs, action = team_input(key), actions(key)
    params, memory = init(module, key, inputs, action)
    _, q = evaluate(module, params, memory, inputs, action)
    assert q.shape == (T, B, N, A)
    for agent in range(N):
        _, after = evaluate(module, params, memory, inputs, action.at[..., agent].set((action[..., agent] + 1) % A))
        changed = np.abs(q - after).max(axis=(0, 1, 3)) > 1e-4
        np.testing.assert_array_equal(changed, np.arange(N) != agent)


def test_critic_does_not_care_for_the_order_of_the_others(key):
    module = critic(memory_size=H)
    inputs, action = team_input(key, active=[True, True, False, True, True]), actions(key)
    params, memory = init(module, key, inputs, action)
    order = jnp.array([0, 4, 3, 1, 2])
    _, q = evaluate(module, params, memory, inputs, action)
    _, turned = evaluate(module, params, permute(memory, order), permute(inputs, order), action[..., order])
    np.testing.assert_allclose(turned[..., 0, :], q[..., 0, :], atol=1e-5)
    np.testing.assert_allclose(turned, q[..., order, :], atol=1e-5)


def test_critic_attends_to_active_others(key):
    module = critic()
    active = np.array([True, True, False, True, True])
    inputs, action = team_input(key, active=active), actions(key)
    params, memory = init(module, key, inputs, action)
    weights = np.asarray(maps_of(module, params, memory, inputs, action)["attention"])
    assert weights.shape == (T, B, 4, N, N)
    np.testing.assert_array_equal(weights[..., np.eye(N, dtype=bool)], 0.0)
    np.testing.assert_array_equal(weights[..., 2], 0.0)
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-5)


@pytest.mark.parametrize("head", ["q", "value"])
@pytest.mark.parametrize(("size", "active"), [(1, True), (N, False)], ids=["one agent", "all inactive"])
def test_critic_without_others(size, active, head, key):
    module = critic(head=head, memory_size=H)
    inputs, action = team_input(key, size, active), actions(key, size)
    params, memory = init(module, key, inputs, action)

    results = evaluate(module, params, memory, inputs, action), gradient(module, params, memory, inputs, action)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(results))
    weights = maps_of(module, params, memory, inputs, action)["attention"]
    np.testing.assert_array_equal(weights, 0.0)


def test_critic_of_states_needs_no_action(key):
    module = critic(head="value", agent_id=True, num_agents=N)
    inputs = team_input(key)
    params, memory = init(module, key, inputs)
    assert evaluate(module, params, memory, inputs)[1].shape == (T, B, N)
    with pytest.raises(ValueError, match="needs the team's actions"):
        critic().init(key, {}, inputs, jnp.arange(N))


@pytest.fixture(scope="module")
def partner_toy():
    path = Path(__file__).parents[2] / "docs" / "make_attention_image.py"
    spec = importlib.util.spec_from_file_location("make_attention_image", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_critic_finds_the_one_relevant_partner_of_five(partner_toy, key):
    key_train, key_test = jax.random.split(key)
    untrained = partner_toy.train(key_train, steps=1)
    trained = partner_toy.train(key_train)
    assert float(partner_toy.partner_mass(untrained, key_test).max()) < 0.4
    assert float(partner_toy.partner_mass(trained, key_test).min()) > 0.9
