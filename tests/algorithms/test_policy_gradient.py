"""The policy-gradient learner: shapes, time limits, memory, masks, sharing, seeds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_environments import ConstantReward, DyingAgents, MatchTarget, RememberCue

from jaxmarl_llm import algorithms
from jaxmarl_llm.algorithms.categorical import categorical_log_prob, masked_logits
from jaxmarl_llm.algorithms.policy_gradient import rollout as rollouts
from jaxmarl_llm.algorithms.policy_gradient import update as updates
from jaxmarl_llm.algorithms.rollout import team_input
from jaxmarl_llm.errors import UserError

# Policies that are not penalised take no notice of the penalty.
COEFFICIENTS = updates.Coefficients(learning_rate=jnp.ones(()), entropy=jnp.full((), 0.01), penalty=jnp.zeros(3))
ALGORITHMS = {"ippo": algorithms.ippo, "mappo": algorithms.mappo}


def collect(learner, state, key=None):
    """One rollout with the learner's settings."""
    run = jax.jit(functools.partial(rollouts.collect, learner, shaped_weight=1.0))
    return run(state, jax.random.key(9) if key is None else key)


def init(learner, seed=0):
    return jax.jit(learner.init)(jax.random.key(seed))


def train(learner, num_updates, seed=0):
    state = init(learner, seed)
    update = jax.jit(learner.update, donate_argnums=0)
    for _ in range(num_updates):
        state, metrics = update(state)
    return state, metrics


@pytest.mark.parametrize(
    "algorithm, network, sharing",
    [
        pytest.param("ippo", "mlp", "shared", marks=pytest.mark.wide),
        ("mappo", "mlp", (0, 1, 0)),
        pytest.param("ippo", "gru", "isolated", marks=pytest.mark.wide),
        pytest.param("mappo", "gru", "shared", marks=pytest.mark.wide),
    ],
)
def test_every_axis_is_a_different_prime(algorithm, network, sharing):
    learner = ALGORITHMS[algorithm](
        MatchTarget(team_size=3, choices=2, max_steps=5),
        num_envs=11,
        rollout_length=7,
        num_minibatches=11,
        num_epochs=1,
        network=network,
        hidden_sizes=(13, 17),
        **({"gru_size": 19} if network == "gru" else {}),
        sharing=sharing,
        agent_id=True,
    )
    state = init(learner)
    before = jax.device_get(state.params)
    shapes = jax.eval_shape(lambda: state)
    state, metrics = jax.jit(learner.update)(state)
    assert jax.eval_shape(lambda: state) == shapes
    assert metrics["agent_return"].shape == (3,)
    assert all(np.isfinite(value).all() for value in jax.tree.leaves(metrics))
    for path, leaf in jax.tree_util.tree_leaves_with_path(
        jax.tree.map(np.subtract, jax.device_get(state.params), before)
    ):
        for policy in range(leaf.shape[0]):
            assert np.abs(leaf[policy]).max() > 0, f"{jax.tree_util.keystr(path)}[{policy}] never moves"


@pytest.mark.parametrize(
    "algorithm, team_size, num_envs",
    [("ippo", 1, 1), pytest.param("mappo", 1, 3, marks=pytest.mark.wide), ("mappo", 2, 1)],
)
def test_one_agent_and_one_environment(algorithm, team_size, num_envs):
    env = MatchTarget(team_size=team_size, max_steps=5)
    learner = ALGORITHMS[algorithm](env, num_envs=num_envs, rollout_length=12, num_minibatches=2)
    _, metrics = train(learner, 1)
    assert np.isfinite(metrics["total_loss"])


@pytest.mark.parametrize("algorithm, terminates_at, exact", [("ippo", 0, True), ("mappo", 0, True), ("ippo", 5, False)])
def test_time_limit_bootstraps_and_termination_does_not(algorithm, terminates_at, exact):
    env = ConstantReward(max_steps=5, terminates_at=terminates_at)
    learner = ALGORITHMS[algorithm](env, num_envs=3, rollout_length=13, discount=0.9, num_minibatches=1)
    state = init(learner)
    # The critic is made exact by hand: zero weights, and the value 1 / (1 - discount) as its bias.
    head = state.params["critic"]["Dense_1"]
    head["kernel"], head["bias"] = jnp.zeros_like(head["kernel"]), jnp.full_like(head["bias"], 10.0)
    _, trajectory, _, last_value = collect(learner, state)
    samples, _, _ = jax.jit(learner._assess)(state, trajectory, last_value)
    assert int(trajectory.done.sum()) == 3 * 2
    if exact:
        np.testing.assert_allclose(samples.advantage, 0.0, atol=1e-5)
    else:
        assert float(samples.advantage[trajectory.done].max()) == pytest.approx(-9.0, abs=1e-5)


GRU = {"network": "gru", "gru_size": 11}
REMEMBERING = {"network": "coordinator", "memory_size": 11, "memory_tokens": 2}


@pytest.mark.parametrize(
    ("sharing", "settings"),
    [
        ("shared", GRU),
        pytest.param("isolated", GRU, marks=pytest.mark.wide),
        ((0, 1, 0), GRU | {"critic": "attention"}),
        ("shared", GRU | {"critic": "action", "credit": "coma"}),
        pytest.param("shared", {"network": "coordinator", "decoder": True}, marks=pytest.mark.wide),
        pytest.param((0, 1, 0), {"network": "coordinator", "decoder": True}, marks=pytest.mark.wide),
        pytest.param("shared", REMEMBERING | {"decoder": True}, marks=pytest.mark.wide),
        pytest.param("isolated", REMEMBERING, marks=pytest.mark.wide),
    ],
)
def test_replay_gives_ratio_one(sharing, settings):
    env = MatchTarget(team_size=3, max_steps=5)
    learner = algorithms.mappo(
        env,
        num_envs=7,
        rollout_length=13,
        sharing=sharing,
        num_minibatches=7,
        hidden_sizes=(12,),
        **settings,
    )
    state = init(learner)
    rollout, *_ = collect(learner, state)
    # The second rollout starts inside an episode, from a memory that is not zero.
    state = state.replace(rollout=rollout)
    _, trajectory, _, _ = collect(learner, state, jax.random.key(4))
    assert int(trajectory.done.sum()) > 0
    assert all(np.any(leaf) for leaf in jax.tree.leaves(jax.device_get(state.rollout.memory)))

    @jax.jit
    def replay(params, memory, trajectory):
        _, logits, value = learner.network_module.apply(params, memory, trajectory.inputs)
        log_prob = categorical_log_prob(masked_logits(logits, trajectory.action_mask), trajectory.action)
        value = algorithms.at_action(value, trajectory.action) if value.ndim == 4 else value
        return jnp.exp(log_prob - trajectory.log_prob), value

    ratio, value = replay(state.params, state.rollout.memory, trajectory)
    np.testing.assert_allclose(ratio, 1.0, atol=1e-5)
    np.testing.assert_allclose(value, trajectory.value, atol=1e-5)


def test_dead_agents_carry_no_loss_and_no_statistics():
    def losses(poison):
        env = DyingAgents(team_size=3, max_steps=5, poison=poison)
        learner = algorithms.ippo(
            env, num_envs=4, rollout_length=11, num_minibatches=1, num_epochs=1, normalize_value=True
        )
        state = init(learner)
        state, metrics = jax.jit(learner.update)(state)
        assert metrics["agent_return"].shape == (3,)
        return state.params, state.value_statistics, metrics["total_loss"], metrics["explained_variance"]

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), losses(0.0), losses(500.0))


def test_isolated_policies_do_not_touch_each_other():
    env = MatchTarget(team_size=3, max_steps=5)
    learner = algorithms.ippo(env, num_envs=4, rollout_length=10, sharing="isolated", num_minibatches=1)
    state = init(learner)
    _, trajectory, _, last_value = collect(learner, state)
    samples, _, _ = jax.jit(learner._assess)(state, trajectory, last_value)

    @jax.jit
    def gradient(samples):
        def loss(params):
            return updates.surrogate_loss(learner, params, updates.whole_batch(learner, samples, {}), COEFFICIENTS)[0]

        return jax.grad(loss)(state.params)

    changed = gradient(samples.replace(advantage=samples.advantage.at[..., 1].multiply(-2.0)))
    same, other = gradient(samples), changed
    same, other = jax.device_get((same, other))
    for leaf, leaf_changed in zip(jax.tree.leaves(same), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(leaf[0], leaf_changed[0])
        np.testing.assert_array_equal(leaf[2], leaf_changed[2])
    assert any((a[1] != b[1]).any() for a, b in zip(jax.tree.leaves(same), jax.tree.leaves(other), strict=True))


def test_permuting_environments_permutes_the_outputs():
    env = MatchTarget(team_size=3, max_steps=5)
    learner = algorithms.mappo(env, num_envs=5, network="gru", num_minibatches=5)
    state = init(learner, 1)
    order = jnp.array([3, 0, 4, 1, 2])
    rollout = state.rollout

    @jax.jit
    def outputs(rollout):
        inputs = team_input(rollout.timestep, jax.vmap(env.global_state)(rollout.env_state), rollout.reset)
        return learner.network_module.apply_step(state.params, rollout.memory, inputs)[1:]

    straight = jax.tree.map(lambda leaf: leaf[order], outputs(rollout))
    permuted = outputs(jax.tree.map(lambda leaf: leaf[order], rollout))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), straight, permuted)


@pytest.mark.wide
def test_seeds_and_hyper_parameters_under_one_vmap():
    learner = algorithms.ippo(MatchTarget(max_steps=5), num_envs=4, rollout_length=10, num_minibatches=2)
    keys = jax.random.split(jax.random.key(0), 3)
    rates = jnp.array([0.0, 1e-3, 1e-2])
    sweep = learner.replace(learning_rate=rates, learning_rate_schedule="constant")
    axes = jax.tree.map(lambda _: None, sweep).replace(learning_rate=0)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(axes, 0))
    def run(learner, key):
        return learner.update(learner.init(key))

    state, metrics = run(sweep, keys)
    assert metrics["learning_rate"].tolist() == pytest.approx(rates.tolist())
    alone = learner.replace(learning_rate=1e-2, learning_rate_schedule="constant")
    trained, _ = jax.jit(lambda key: alone.update(alone.init(key)))(keys[2])
    jax.tree.map(
        lambda many, one: np.testing.assert_allclose(many[2], one, rtol=1e-4, atol=1e-5), state.params, trained.params
    )


def test_shaped_reward_weight_falls_to_zero():
    learner = algorithms.ippo(
        ConstantReward(), num_envs=2, rollout_length=5, num_minibatches=1, shaped_reward_horizon=20.0
    )
    state = init(learner)
    weights, update = [], jax.jit(learner.update)
    for _ in range(4):
        state, metrics = update(state)
        weights.append(float(metrics["shaped_reward_weight"]))
    assert weights == [1.0, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_learns_to_match(algorithm):
    env = MatchTarget(team_size=2, max_steps=10)
    learner = ALGORITHMS[algorithm](
        env, num_envs=16, rollout_length=20, learning_rate=1e-2, hidden_sizes=(32,), total_steps=16 * 20 * 40
    )
    _, metrics = train(learner, 40)
    assert float(metrics["episode_return"]) > 9.0


@pytest.mark.slow
def test_only_a_memory_solves_the_cue():
    def final_return(network, team_size=2, learning_rate=1e-2, **settings):
        learner = algorithms.ippo(
            RememberCue(team_size=team_size),
            num_envs=64,
            rollout_length=8,
            network=network,
            hidden_sizes=(32,),
            learning_rate=learning_rate,
            **settings,
            discount=0.9,
            total_steps=64 * 8 * 100,
        )
        return float(train(learner, 100)[1]["episode_return"])

    assert final_return("gru", gru_size=32) > 0.9
    assert final_return("coordinator", learning_rate=2e-3, memory_size=32) > 0.9
    # The blackboard is the team's: an agent alone finds its own cue on it.
    assert final_return("coordinator", team_size=1, learning_rate=2e-3, memory_tokens=2) > 0.9
    assert final_return("mlp") < 0.6


@pytest.mark.wide
def test_act_without_a_trainer():
    env = MatchTarget(team_size=3, max_steps=5)
    for name in ALGORITHMS:
        learner = ALGORITHMS[name](env, num_envs=2, network="gru", num_minibatches=1)
        state = init(learner)
        timestep, env_state = env.reset(jax.random.key(1))
        memory = learner.initial_memory()
        for step in range(5):
            before = memory
            action, memory = learner.act(state.params, timestep, before, jax.random.key(step), greedy=step % 2 == 0)
            logits, after = learner.logits(state.params, timestep, before)
            jax.tree.map(np.testing.assert_array_equal, memory, after)
            assert step % 2 or action.tolist() == jnp.argmax(logits, axis=-1).tolist()
            assert action.shape == (3,) and action.dtype == jnp.int32
            timestep, env_state = env.step(jax.random.key(step), env_state, action)
        assert bool(timestep.truncated)


@pytest.mark.parametrize("network", ["mlp", "gru"])
def test_a_start_needs_no_lapack(network):
    # Several decompositions in one program, as in a start of several seeds, can wait for each other for ever on CPUs.
    learner = algorithms.mappo(MatchTarget(), network=network)
    start = str(jax.make_jaxpr(jax.vmap(learner.init))(jax.random.split(jax.random.key(0), 3)))
    assert " qr[" not in start and "householder" not in start


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"num_minibatches": 7}, "does not divide num_envs x rollout_length = 2048: choose one of 2, 4, 8"),
        ({"network": "gru", "num_minibatches": 3}, "does not divide num_envs = 16"),
        ({"network": "mpl"}, "did you mean mlp"),
        ({"network": "cnn"}, "use network 'mlp' or 'gru'"),
        ({"sharing": "isolate"}, "did you mean isolated"),
        ({"sharing": (0, 2, 0)}, "without a gap"),
        ({"sharing": (0, 0)}, "each of the 3 agents"),
        ({"activation": "gelu"}, "unknown activation"),
        ({"learning_rate_schedule": "lin"}, "did you mean linear"),
        ({"network": "gru", "gru_size": 0}, "gru_size must be whole numbers from 1"),
        ({"num_envs": 0}, "num_envs must be a whole number of at least 1"),
        ({"hidden_sizes": ()}, "hidden_sizes must be a list of whole numbers"),
        ({"hidden_sizes": 64}, "hidden_sizes must be a list of whole numbers"),
        ({"clip_low": 1.5}, "clip_low must lie between 0 and 1"),
        ({"num_envs": "4"}, "num_envs must be a whole number"),
        ({"num_epochs": True}, "num_epochs must be a whole number"),
        ({"learning_rate": "a"}, "learning_rate must be a number"),
        ({"learning_rate": 1e39}, "learning_rate must be finite"),
        ({"learing_rate": 0.1}, "unknown setting 'learing_rate': did you mean learning_rate"),
        ({"env": "two_step"}, "env must be Environment"),
    ],
)
def test_bad_settings_are_refused_in_one_line(settings, message):
    with pytest.raises(UserError, match=message) as error:
        algorithms.ippo(**{"env": MatchTarget(team_size=3)} | settings)
    assert "\n" not in str(error.value)
