"""The independent choices of the policy-gradient learner: credit, trust region, order of updates, role gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_environments import ConstantReward, DyingAgents, MatchTarget

import jaxmarl_llm
from jaxmarl_llm import algorithms
from jaxmarl_llm.algorithms.policy_gradient import order
from jaxmarl_llm.algorithms.policy_gradient import update as updates
from jaxmarl_llm.algorithms.value_normalization import update_value_statistics
from jaxmarl_llm.errors import UserError

SIZES = {"num_envs": 4, "rollout_length": 7, "num_minibatches": 2, "num_epochs": 2, "hidden_sizes": (5, 3)}


def run(learner, num_updates=1, seed=0):
    state = jax.jit(learner.init)(jax.random.key(seed))
    update = jax.jit(learner.update)
    history = []
    for _ in range(num_updates):
        old = state
        state, metrics = update(state)
        history.append((old, state, metrics))
    return history


def fresh_batch(learner, state):
    return jax.jit(lambda state, key: learner._fresh_batch(state, key, 1.0, coefficients(learner)))(
        state, jax.random.key(5)
    )


def coefficients(learner):
    return updates.Coefficients(
        learning_rate=jnp.asarray(1e-3), entropy=jnp.zeros(()), penalty=jnp.ones(learner.network_module.num_policies)
    )


@pytest.mark.parametrize("preset", [pytest.param(algorithms.hatrpo, marks=pytest.mark.wide), algorithms.teamtr])
def test_gates_keep_every_policy_within_its_radius(preset):
    learner = preset(MatchTarget(team_size=3, max_steps=5), learning_rate=0.3, kl_radius=2e-3, **SIZES)
    for _, state, metrics in run(learner, 4):
        assert metrics["agent_divergence"].shape == (3,)
        assert float(metrics["agent_divergence"].max()) <= 2e-3 * (1 + 1e-4)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
    assert float(metrics["agent_divergence"].max()) > 0


def test_a_refused_update_leaves_parameters_and_optimizer_bit_identical():
    # No step of Adam is as short as this radius asks.
    learner = algorithms.teamtr(MatchTarget(team_size=3, max_steps=5), learning_rate=1e3, kl_radius=1e-30, **SIZES)
    ((old, new, metrics),) = run(learner)
    assert float(metrics["accepted"]) == 0
    jax.tree.map(np.testing.assert_array_equal, old.params, new.params)
    jax.tree.map(np.testing.assert_array_equal, old.optimizer_state, new.optimizer_state)


@pytest.mark.wide
def test_the_gate_trains_the_critic_without_moving_the_policy():
    # No direction can be found.
    learner = algorithms.hatrpo(MatchTarget(team_size=3, max_steps=5), **SIZES)
    learner = learner.replace(fisher_damping=jnp.nan)
    ((old, new, _),) = run(learner)
    jax.tree.map(np.testing.assert_array_equal, old.params["actor"], new.params["actor"])
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), old.params["critic"], new.params["critic"])
    assert all(jax.tree.leaves(changed))


@pytest.mark.wide
def test_the_penalty_follows_the_divergence():
    env = MatchTarget(team_size=3, max_steps=5)
    for rate, expected in ((0.0, 0.5), (0.3, 2.0)):
        learner = algorithms.ippo(env, trust_region="penalty", kl_radius=1e-3, learning_rate=rate, **SIZES)
        ((old, new, _),) = run(learner)
        np.testing.assert_allclose(new.penalty / old.penalty, expected)


@pytest.mark.wide
def test_the_penalty_follows_what_was_proposed_to_the_gate():
    learner = algorithms.teamtr(MatchTarget(team_size=3, max_steps=5), learning_rate=1.0, kl_radius=1e-4, **SIZES)
    ((old, new, metrics),) = run(learner)
    assert float(metrics["agent_divergence"].max()) <= 1e-4 * (1 + 1e-4)
    np.testing.assert_allclose(new.penalty / old.penalty, 2.0)


def test_simultaneous_gates_take_no_account_of_each_other():
    env = MatchTarget(team_size=3, max_steps=5)
    learner = algorithms.hatrpo(env, update_order="simultaneous", discount=1.0, **SIZES)
    metrics = jax.eval_shape(learner.update, jax.eval_shape(learner.init, jax.random.key(0)))[1]
    assert "agent_divergence" in metrics
    assert "effective_sample_size" not in metrics and "occupancy_drift_bound" not in metrics


def test_branches_are_valued_in_units_of_rewards():
    env = ConstantReward(team_size=3)
    settings = {"credit": "counterfactual", "counterfactual_horizon": 0, "discount": 0.5, **SIZES}
    learner = algorithms.mappo(env, **settings)
    state = jax.jit(learner.init)(jax.random.key(0))
    # A critic that always says 0, which stands for a return of 8.
    state = state.replace(
        params=jax.tree.map(jnp.zeros_like, state.params),
        value_statistics=update_value_statistics(
            state.value_statistics, jnp.full(1, 8.0), jnp.full(1, 65.0), jnp.ones(1)
        ),
    )
    _, batch = fresh_batch(learner, state)
    np.testing.assert_allclose(batch.samples.trajectory.alternatives, 1.0 + 0.5 * 8.0, rtol=1e-5)


def test_a_critic_of_actions_is_told_only_what_happens():
    learner = algorithms.coma(DyingAgents(), **SIZES)
    _, batch = fresh_batch(learner, jax.jit(learner.init)(jax.random.key(0)))
    inputs, action = batch.samples.trajectory.inputs, batch.samples.trajectory.action
    assert not inputs.active.all()
    np.testing.assert_array_equal(inputs.action, jnp.where(inputs.active, action, -1))


@pytest.mark.parametrize("critic", ["global_state", pytest.param("attention", marks=pytest.mark.wide)])
@pytest.mark.wide
def test_importance_factor_is_the_ratio_of_the_agents_before(critic):
    env = MatchTarget(team_size=3, max_steps=5)
    learner = algorithms.happo(env, critic=critic, random_order=False, learning_rate=0.05, **SIZES)
    state = jax.jit(learner.init)(jax.random.key(0))
    played, batch = fresh_batch(learner, state)
    agents, member = order._agents_of_policies(learner.network_module)
    after, reweighed, _ = jax.jit(
        lambda played, batch: order._update_policy(
            learner, played, batch, 0, agents[0], member[0][None, None], jax.random.key(1), coefficients(learner)
        )
    )(played, batch)
    trajectory = batch.samples.trajectory
    _, logits, _ = learner.network_module.apply(after.params, batch.memory, trajectory.inputs)
    log_prob = algorithms.categorical_log_prob(logits, trajectory.action)
    expected = jnp.exp(log_prob - trajectory.log_prob)[..., :1]
    assert float(jnp.abs(expected - 1).max()) > 1e-3
    np.testing.assert_allclose(reweighed.samples.factor, jnp.broadcast_to(expected, (7, 4, 3)), rtol=1e-4)
    # Only the first policy has changed.
    for old, new in zip(jax.tree.leaves(played.params), jax.tree.leaves(after.params), strict=True):
        assert (old[0] != new[0]).any()
        np.testing.assert_array_equal(old[1:], new[1:])


@pytest.mark.parametrize(
    "resample,rollouts",
    [
        pytest.param("every", 3, marks=pytest.mark.wide),
        pytest.param(2, 2, marks=pytest.mark.wide),
        pytest.param("never", 1, marks=pytest.mark.wide),
        ("importance", 1),
    ],
)
@pytest.mark.wide
def test_rollouts_of_a_sequential_update(resample, rollouts):
    learner = algorithms.happo(MatchTarget(team_size=3, max_steps=7), resample=resample, **SIZES)
    ((old, new, metrics),) = run(learner)
    assert learner.steps_per_update == rollouts * 28
    # Episodes last a rollout.
    assert float(metrics["episodes_finished"]) == rollouts * 4
    assert ("effective_sample_size" in metrics) == (resample == "importance")
    changed = jax.tree.map(lambda a, b: (a != b).reshape(3, -1).any(-1).all(), old.params, new.params)
    assert all(map(bool, jax.tree.leaves(changed)))


@pytest.mark.wide
def test_groups_of_unequal_size_take_turns():
    learner = algorithms.happo(MatchTarget(team_size=3, max_steps=5), sharing=(0, 1, 0), **SIZES)
    ((old, new, metrics),) = run(learner)
    assert new.params["actor"]["Dense_0"]["kernel"].shape[0] == 2
    assert float(metrics["agent_divergence"][0]) == float(metrics["agent_divergence"][2])
    assert all(bool((a != b).any()) for a, b in zip(*map(jax.tree.leaves, (old.params, new.params)), strict=True))


@pytest.mark.parametrize(
    ("critic", "sharing"),
    [
        ("action", "shared"),
        pytest.param("attention", "isolated", marks=pytest.mark.wide),
        pytest.param("action", "isolated", marks=pytest.mark.wide),
        pytest.param("attention", "shared", marks=pytest.mark.wide),
    ],
)
def test_an_agents_own_action_does_not_move_its_own_action_values(critic, sharing):
    learner = algorithms.coma(
        MatchTarget(team_size=3, max_steps=5), critic=critic, sharing=sharing, **SIZES | {"hidden_sizes": (20, 3)}
    )
    state = jax.jit(learner.init)(jax.random.key(0))
    _, batch = fresh_batch(learner, state)
    inputs = batch.samples.trajectory.inputs
    num_actions = learner.env.action_space.n

    def values(action):
        return learner.network_module.apply(state.params, {}, inputs.replace(action=action))[2]

    changed = inputs.action.at[..., 1].set((inputs.action[..., 1] + 1) % num_actions)
    before, after = values(inputs.action), values(changed)
    assert before.shape == (7, 4, 3, num_actions)
    np.testing.assert_allclose(before[:, :, 1], after[:, :, 1], atol=1e-6)
    assert float(jnp.abs(before - after)[:, :, [0, 2]].min()) > 0


def test_coma_advantage_has_mean_zero_under_the_policy():
    learner = algorithms.coma(MatchTarget(team_size=3, max_steps=5), **SIZES)
    state = jax.jit(learner.init)(jax.random.key(0))
    _, batch = fresh_batch(learner, state)
    trajectory = batch.samples.trajectory
    _, logits, q_values = learner.network_module.apply(state.params, {}, trajectory.inputs)
    probs = jax.nn.softmax(logits)
    baseline = jnp.sum(probs * q_values, -1)
    taken = jnp.take_along_axis(q_values, trajectory.action[..., None], -1)[..., 0]
    np.testing.assert_allclose(batch.samples.advantage, taken - baseline, atol=1e-6)


def test_exact_counterfactual_credit_in_a_one_shot_game():
    env = jaxmarl_llm.make("matrix_game", game="climbing", max_steps=1)
    learner = algorithms.ippo(env, credit="counterfactual", counterfactual_horizon=0, **SIZES)
    state = jax.jit(learner.init)(jax.random.key(0))
    _, batch = fresh_batch(learner, state)
    trajectory = batch.samples.trajectory
    payoff = np.array([[11, -30, 0], [-30, 7, 6], [0, 0, 5]], float)
    probs = np.asarray(jax.nn.softmax(learner.network_module.apply(state.params, {}, trajectory.inputs)[1]))
    for index in np.ndindex(7, 4):
        row, column = np.asarray(trajectory.action[index])
        expected = [
            payoff[row, column] - probs[index][0] @ payoff[:, column],
            payoff[row, column] - probs[index][1] @ payoff[row],
        ]
        np.testing.assert_allclose(batch.samples.advantage[index], expected, rtol=1e-4, atol=1e-4)


def test_difference_rewards_in_a_one_shot_game():
    env = jaxmarl_llm.make("matrix_game", game="climbing", max_steps=1)
    learner = algorithms.ippo(env, credit="difference", default_action=2, gae_lambda=0.0, **SIZES)
    state = jax.jit(learner.init)(jax.random.key(0))
    _, batch = fresh_batch(learner, state)
    trajectory = batch.samples.trajectory
    payoff = np.array([[11, -30, 0], [-30, 7, 6], [0, 0, 5]], float)
    row, column = np.moveaxis(np.asarray(trajectory.action), -1, 0)
    expected = payoff[row, column][..., None] - np.stack([payoff[2, column], payoff[row, 2]], -1)
    np.testing.assert_allclose(batch.samples.advantage + trajectory.value, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sharing", ["shared", pytest.param("isolated", marks=pytest.mark.wide)])
def test_agents_gradients_add_up(sharing):
    learner = algorithms.ippo(MatchTarget(team_size=3, max_steps=5), sharing=sharing, role_gradient_rows=28, **SIZES)
    state = jax.jit(learner.init)(jax.random.key(0))
    _, batch = fresh_batch(learner, state)
    arguments = (learner, state.params, batch.memory, batch.samples, coefficients(learner))
    report = jax.jit(updates.agent_gradients)(*arguments)
    whole = updates.whole_batch(learner, batch.samples, batch.memory)

    @jax.jit
    def gradient_of(params):
        loss = lambda params: updates.surrogate_loss(learner, params, whole, coefficients(learner))[0]  # noqa: E731
        return updates.flatten(jax.grad(loss)(params))

    gradient = gradient_of(state.params)
    np.testing.assert_allclose(report["agent_gradient_share"].sum(), 1.0, rtol=1e-5)
    if sharing == "isolated":
        np.testing.assert_allclose(report["agent_gradient_norm"], jnp.linalg.norm(gradient, axis=-1), rtol=1e-4)
    else:
        # The shared gradient is the sum of the agents', whose squared norm follows from norms and cosines.
        norm, cosine = report["agent_gradient_norm"], report["agent_gradient_cosine"]
        assert float(jnp.linalg.norm(gradient)) <= float(norm.sum()) * (1 + 1e-5)
        assert (jnp.abs(cosine) <= 1).all()


@pytest.mark.parametrize(
    "settings,message",
    [
        ({"credit": "coma"}, "go together"),
        ({"critic": "attention", "network": "coordinator"}, "no critic of actions or with attention"),
        ({"critic": "atention"}, "did you mean attention"),
        ({"credit": "shapely"}, "unknown credit"),
        ({"update_order": "sequential"}, "all agents share one"),
        ({"trust_region": "gate", "kl_radius": -1.0}, "kl_radius must be above 0"),
        ({"credit": "counterfactual", "network": "gru"}, "without memory"),
        ({"resample": "often"}, "unknown resample"),
        ({"credit": "leave_one_out", "num_envs": 1}, "at least 2"),
        ({"credit": "difference", "default_action": 99}, "default_action must be one of"),
    ],
)
def test_choices_that_cannot_work(settings, message):
    with pytest.raises(UserError, match=message):
        algorithms.policy_gradient(MatchTarget(team_size=3), **{"num_minibatches": 1, **settings})
