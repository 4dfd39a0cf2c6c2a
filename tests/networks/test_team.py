"""Networks in which agents see each other, as a team's: from one pass to an update of each learner."""

import functools
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_environments import AllDifferent, DyingAgents, MatchTarget, PaidByOthers

from jaxmarl_llm import algorithms, make
from jaxmarl_llm.envs.spaces import Box
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.networks import (
    Coordinator,
    EntityInput,
    InputLayer,
    TeamInput,
    TeamNetwork,
    build_actor_critic,
)

T, B, N, A, F, H = 2, 5, 3, 7, 11, 13
GRU_ATTENTION = {"network": "gru", "gru_size": 17, "critic": "attention", "hidden_sizes": (13, 19)}
PREDICTED = {"num_minibatches": 11, "num_epochs": 1}
REPLAYED = {"batch_size": 13, "gradient_steps": 1, "replay_size": 200}


def learner_of(algorithm, env, **settings):
    family = REPLAYED if algorithm in ("iql", "vdn", "qmix") else PREDICTED
    settings = family | {"network": "coordinator", "hidden_sizes": (12,)} | settings
    return getattr(algorithms, algorithm)(env, num_envs=11, rollout_length=7, **settings)


def team_input(key, active=True):
    reset = jnp.zeros((T, B, N), bool)
    active = jnp.broadcast_to(jnp.asarray(active), reset.shape)
    return TeamInput(jax.random.normal(key, (T, B, N, F)), None, reset, active)


def coordinator(**settings):
    module = build_actor_critic(Box(-1, 1, (F,)), A, N, network="coordinator", hidden_sizes=(8, 8), agent_id=True)
    return module.clone(**settings)


def params_of(network, key, width=F):
    """One policy's worth of noise for each policy: at the start, the policies are nearly the same."""
    shapes = jax.eval_shape(network.init, key, jnp.zeros((N, width)), jnp.zeros((2,)))
    random = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: random.normal(0, 0.3, leaf.shape).astype(leaf.dtype), shapes)


@pytest.mark.parametrize("memory", [{}, {"memory_size": H, "memory_tokens": 2}], ids=["forgets", "remembers"])
@pytest.mark.wide
def test_isolated_policies_see_the_whole_team(memory, key):
    """Each agent's outputs are those that its policy gives it in a team that uses this policy alone."""
    table = (1, 0, 1)
    module = coordinator(**memory)
    network, alone = TeamNetwork(module, table), TeamNetwork(module, (0, 0, 0))
    params, inputs = params_of(network, key), team_input(key, [True, True, False])
    memory, logits, value = jax.jit(network.apply)(params, network.initial_memory((B,)), inputs)
    assert logits.shape == (T, B, N, A) and value.shape == (T, B, N)
    for agent, policy in enumerate(table):
        own = jax.tree.map(lambda leaf, policy=policy: leaf[policy : policy + 1], params)
        expected = jax.jit(alone.apply)(own, alone.initial_memory((B,)), inputs)
        np.testing.assert_allclose(logits[:, :, agent], expected[1][:, :, agent], atol=1e-5)
        np.testing.assert_allclose(value[:, :, agent], expected[2][:, :, agent], atol=1e-5)
        for name, leaf in memory.items():
            np.testing.assert_allclose(leaf[:, :, policy], expected[0][name], atol=1e-5)

    def seen(agent):
        changed = inputs.replace(observation=inputs.observation.at[:, :, agent].add(1.0))
        after = jax.jit(network.apply)(params, network.initial_memory((B,)), changed)[1]
        return np.abs(after - logits).max(axis=(0, 1, 3)) > 1e-4

    assert seen(0).all() and seen(1).all()
    np.testing.assert_array_equal(seen(2), [False, False, True])


def test_one_agent_shows_the_shapes_of_all(key):
    module = coordinator()
    small = jax.eval_shape(TeamNetwork(module, (0,) * N).init, key, jnp.zeros((N, F)), jnp.zeros((2,)))
    inputs = jax.tree.map(lambda leaf: leaf[:1, 0], team_input(key))
    whole = jax.eval_shape(module.init, key, {}, inputs, jnp.arange(N))["params"]
    assert jax.tree.map(lambda leaf: leaf.shape[1:], small) == jax.tree.map(lambda leaf: leaf.shape, whole)


@pytest.mark.parametrize(
    ("algorithm", "sharing", "settings"),
    [
        pytest.param("mappo", (0, 1, 0), {}, marks=pytest.mark.wide),
        pytest.param("vdn", "isolated", {"memory_size": 17, "memory_tokens": 2}, marks=pytest.mark.wide),
        pytest.param("mappo", "isolated", GRU_ATTENTION, marks=pytest.mark.wide),
        ("coma", (0, 1, 0), {"network": "mlp", "critic": "attention"}),
        pytest.param("happo", (0, 1, 0), GRU_ATTENTION, marks=pytest.mark.wide),
        pytest.param("ippo", "shared", {"decoder": True}, marks=pytest.mark.wide),
    ],
)
def test_every_axis_is_a_different_prime(algorithm, sharing, settings):
    env = MatchTarget(team_size=3, choices=2, max_steps=5)
    learner = learner_of(algorithm, env, sharing=sharing, agent_id=True, **settings)
    state = jax.jit(learner.init)(jax.random.key(0))
    before = jax.device_get(state.params)
    shapes = jax.eval_shape(lambda: state)
    state, metrics = jax.jit(learner.update)(state)
    assert jax.eval_shape(lambda: state) == shapes
    assert all(np.isfinite(value).all() for value in jax.tree.leaves(metrics))
    for path, leaf in jax.tree_util.tree_leaves_with_path(
        jax.tree.map(np.subtract, jax.device_get(state.params), before)
    ):
        for policy in range(leaf.shape[0]):
            # Queries, keys and values are one kernel.
            parts = np.split(leaf[policy], 3, axis=-1) if "query_key_value" in str(path) else [leaf[policy]]
            # A bias of keys adds the same to all scores of a query.
            parts = parts[::2] if leaf.ndim == 2 and len(parts) == 3 else parts
            for part in parts:
                assert np.abs(part).max() > 0, f"{jax.tree_util.keystr(path)}[{policy}] never moves"


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        pytest.param("ippo", {"decoder": True}, marks=pytest.mark.wide),
        ("coma", {"network": "mlp", "critic": "attention"}),
    ],
)
def test_one_agent(algorithm, settings):
    learner = learner_of(algorithm, MatchTarget(team_size=1, max_steps=5), **settings)
    state, metrics = jax.jit(learner.update)(jax.jit(learner.init)(jax.random.key(0)))
    assert np.isfinite(metrics["total_loss"])
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(state.params))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("mappo", {}),
        ("iql", {}),
        ("ippo", {"decoder": True}),
        ("mappo", {"network": "mlp", "critic": "attention"}),
        ("coma", {"network": "gru", "gru_size": 5, "critic": "attention", "sharing": (0, 1, 0)}),
    ],
)
def test_what_dead_agents_see_changes_nothing(algorithm, settings):
    """The dead see, and are shown, numbers that would move any parameter."""

    def outcome(poison):
        learner = learner_of(algorithm, DyingAgents(team_size=3, max_steps=5, poison=poison), **settings)
        return jax.jit(learner.update)(jax.jit(learner.init)(jax.random.key(0)))

    (state, metrics), (poisoned, poisoned_metrics) = outcome(0.0), outcome(500.0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), state.params, poisoned.params)
    np.testing.assert_allclose(metrics["total_loss"], poisoned_metrics["total_loss"], rtol=1e-4)


def test_values_with_attention_follow_their_agents_and_see_the_active_others():
    learner = learner_of("ippo", MatchTarget(team_size=3), **GRU_ATTENTION)
    network = learner.network_module
    params, inputs = params_of(network, jax.random.key(0)), team_input(jax.random.key(1), [True, False, True])

    @jax.jit
    def evaluate(inputs):
        return network.apply(params, network.initial_memory((B,)), inputs)[1:]

    logits, value = evaluate(inputs)
    order = jnp.array([2, 0, 1])
    permuted = jax.tree.map(lambda leaf: leaf[:, :, order], inputs)
    np.testing.assert_allclose(evaluate(permuted)[1], value[..., order], atol=1e-5)
    for agent in range(3):
        changed = inputs.replace(observation=inputs.observation.at[:, :, agent].add(1.0))
        moved = [
            np.abs(after - before) > 1e-5 for after, before in zip(evaluate(changed), (logits, value), strict=True)
        ]
        np.testing.assert_array_equal(moved[0].any((0, 1, 3)), np.arange(3) == agent)
        np.testing.assert_array_equal(moved[1].any((0, 1)), (np.arange(3) == agent) | (agent != 1))


@pytest.mark.parametrize(
    ("algorithm", "acting", "critic", "least", "most"),
    [
        pytest.param("coma", True, "attention", 0.9, 1.0, marks=pytest.mark.wide),
        ("ippo", False, "attention", 0.9, 1.0),
        ("ippo", False, "observation", -1.0, 0.2),
    ],
)
def test_the_critic_learns_what_the_others_decide(algorithm, acting, critic, least, most):
    env = PaidByOthers(team_size=3, choices=2, max_steps=11, acting=acting)
    settings = {
        "discount": 0.0,
        "learning_rate": 1e-2,
        "hidden_sizes": (16,),
        "num_epochs": 4,
        "entropy_coefficient": 0.1,
    }
    learner = learner_of(algorithm, env, network="mlp", critic=critic, **settings)
    state, update = jax.jit(learner.init)(jax.random.key(0)), jax.jit(learner.update)
    for _ in range(20):
        state, metrics = update(state)
    assert least < metrics["explained_variance"] <= most


@pytest.mark.slow
@pytest.mark.parametrize(("decoder", "least", "most"), [(True, 0.95, 1.0), (False, 0.0, 0.4)])
def test_a_decoder_breaks_the_symmetry_of_equal_agents(decoder, least, most):
    env = AllDifferent(team_size=3, choices=3, max_steps=1)
    settings = {"num_epochs": 4, "num_minibatches": 1, "learning_rate": 5e-3, "discount": 0.0, "total_steps": 60 * 77}
    learner = learner_of("ippo", env, decoder=decoder, normalize_advantage=False, role_gradient_rows=0, **settings)

    @jax.jit
    @jax.vmap
    def train(key):
        return jax.lax.scan(lambda state, _: learner.update(state), learner.init(key), None, 60)

    state, metrics = train(jax.random.split(jax.random.key(0), 5))
    assert all(least <= value <= most for value in metrics["episode_return"][:, -1].tolist())
    timestep, _ = env.reset(jax.random.key(0))
    act = jax.vmap(lambda params: learner.act(params, timestep, {}, jax.random.key(0), greedy=True)[0])
    assert [len(set(action)) for action in act(state.params).tolist()] == [3 if decoder else 1] * 5


@pytest.mark.parametrize("sharing", [pytest.param("shared", marks=pytest.mark.wide), (0, 1, 0)])
@pytest.mark.wide
def test_a_decoder_acts_in_order(sharing):
    """Each agent's action is the choice from the logits that its policy has for the actions before it."""
    learner = learner_of("ippo", MatchTarget(team_size=3, choices=5), sharing=sharing, decoder=True, agent_id=True)
    network = learner.network_module
    timestep, _ = jax.vmap(learner.env.reset)(jax.random.split(jax.random.key(0), B))
    params = params_of(network, jax.random.key(0), 5)
    inputs = TeamInput(timestep.observation[None], None, ~timestep.active[None], timestep.active[None])
    act = jax.jit(learner.act, static_argnames="greedy")
    seen = []
    for greedy in (True, False):
        action, _ = act(params, timestep, {}, jax.random.key(3), greedy=greedy)
        _, logits, _ = jax.jit(network.apply)(params, {}, inputs.replace(action=action[None]))
        uniform = jax.random.uniform(jax.random.key(3), action.shape)
        expected = jnp.argmax(logits[0], axis=-1) if greedy else algorithms.categorical_from_uniform(uniform, logits[0])
        np.testing.assert_array_equal(action, expected)
        seen.append(action)
    assert (seen[0] != seen[1]).any()
    with pytest.raises(UserError, match="call act instead"):
        learner.logits(params, timestep, {})


def foraging(num_agents, **settings):
    return make("foraging", num_agents=num_agents, rows=5, columns=5, max_steps=9, **settings)


def of_entities(learner):
    """The learner with one token an entity, whose observations have another length in another team."""
    env = learner.env
    groups = ((env.num_foods, 3), (1, 3), (env.num_agents - 1, 3))
    module = Coordinator(InputLayer(EntityInput, (("groups", groups),)), num_actions=6, width=12)
    return learner.replace(network_module=TeamNetwork(module, (0,) * env.num_agents))


@pytest.mark.slow
@pytest.mark.parametrize("entities", [False, True])
def test_parameters_of_three_agents_serve_four(entities):
    settings = {} if entities else {"grid_observation": True, "sight": 1}
    small, large = (learner_of("ippo", foraging(size, **settings)) for size in (3, 4))
    if entities:
        small, large = of_entities(small), of_entities(large)
    state = jax.jit(small.init)(jax.random.key(0))
    # One of the two ways is trained: the compiler takes its time.
    params = state.params if entities else jax.jit(small.update)(state)[0].params
    timestep, _ = jax.vmap(large.env.reset)(jax.random.split(jax.random.key(1), 50))
    act = jax.jit(functools.partial(large.act, greedy=False))
    action, _ = act(params, timestep, large.initial_memory((50,)), jax.random.key(2))
    assert action.shape == (50, 4)
    assert bool(jnp.take_along_axis(timestep.action_mask, action[..., None], axis=-1).all())
    inputs = TeamInput(timestep.observation[None], None, jnp.zeros((1, 50, 4), bool), jnp.ones((1, 50, 4), bool))
    _, logits, value = large.network_module.apply(params, {}, inputs)
    assert bool(jnp.isfinite(logits).all() & jnp.isfinite(value).all())


@pytest.mark.slow
def test_example_of_another_team_size(capsys):
    path = Path(__file__).parents[2] / "examples" / "other_team_size.py"
    spec = importlib.util.spec_from_file_location("other_team_size", path)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.main(["--steps", "1920"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("    1,920 steps  return") and len(lines) == 5
    assert lines[4].startswith("after training: 4 agents (same parameters) gather 0.0")


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        ("ippo", {"hidden_sizes": (8, 16)}, r"has several: use \(8, 8\)"),
        ("iql", {"last_action": True}, "cannot be told the last action"),
        ("qmix", {"network": "mlp", "memory_tokens": 1}, "memory_tokens is a setting of network 'coordinator'"),
        ("ippo", {"memory_size": -1}, "memory_size must be at least 0"),
        ("ippo", {"memory_tokens": 1, "num_minibatches": 7}, "does not divide num_envs = 11"),
        ("ippo", {"network": "cordinator"}, "did you mean coordinator"),
        ("ippo", {"network": "mlp", "decoder": True}, "decoder is a setting of network 'coordinator'"),
        ("ippo", {"network": "mlp", "gru_size": 65}, "the network is 'mlp': leave it out"),
        ("vdn", {"network": "coordinator", "gru_size": 65}, "gru_size is a setting of network 'gru'"),
        ("ippo", {"decoder": True, "credit": "difference"}, "choose credit=gae or leave_one_out"),
        ("coma", {"decoder": True}, "no critic of actions"),
        ("happo", {"decoder": True}, "use update_order=simultaneous"),
    ],
)
def test_bad_settings_are_refused_in_one_line(algorithm, settings, message):
    with pytest.raises(UserError, match=message) as error:
        learner_of(algorithm, MatchTarget(), **settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("width", "num_heads"), [(12, 4), (6, 2), (5, 1)])
def test_heads_divide_the_width(width, num_heads):
    module = build_actor_critic(Box(-1, 1, (F,)), A, N, network="coordinator", hidden_sizes=(width,))
    assert (module.num_heads, module.num_layers) == (num_heads, 1)
