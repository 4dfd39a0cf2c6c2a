"""Estimators of credit on games where every one of them can be worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_environments import ConstantReward

from jaxmarl_llm import algorithms as alg
from jaxmarl_llm import make, report

LOGITS = jnp.log(jnp.array([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]]))


def logits_policy(timestep):
    del timestep
    return LOGITS


@pytest.fixture(scope="module")
def climbing():
    """The estimators of the climbing game, each jitted, and one decision: row 1, column 2, which pays 6."""
    env = make("matrix_game", game="climbing")
    payoff = jnp.asarray(env.payoff_tensor()[..., 0])
    estimators = report.credit_estimators(
        env,
        logits_policy,
        horizon=0,
        value=lambda timestep, state: jnp.full(2, 1.5),
        q_values=lambda timestep, state, action: jnp.stack([payoff[:, action[1]], payoff[action[0]]]),
        default_action=(2, 0),
    )
    timestep, state = env.reset(jax.random.key(0))
    decision = report.Decision(timestep=timestep, state=state, memory=None, logits=LOGITS, action=jnp.array([1, 2]))
    return {name: jax.jit(estimator) for name, estimator in estimators.items()}, decision


@pytest.mark.parametrize(
    ("name", "credit", "steps"),
    [
        ("shared_return", [6, 6], 1),
        ("gae", [4.5, 4.5], 1),
        ("coma", [6 - (0.2 * 6 + 0.3 * 5), 6 - (-30 * 0.1 + 7 * 0.6 + 6 * 0.3)], 0),
        ("counterfactual", [6 - (0.2 * 6 + 0.3 * 5), 6 - (-30 * 0.1 + 7 * 0.6 + 6 * 0.3)], 6),
        ("difference", [6 - 5, 6 + 30], 3),
        # Worth of nobody 0, of agent 0 alone -30, of agent 1 alone 5, of both 6.
        ("shapley", [(-30 + 1) / 2, (5 + 36) / 2], 4),
    ],
)
def test_estimators_of_a_matrix_game(climbing, name, credit, steps):
    estimators, decision = climbing
    result, cost = estimators[name](decision, jax.random.key(0))
    np.testing.assert_allclose(result, credit, atol=1e-5)
    assert int(cost) == steps


def test_leave_one_out_is_an_unbiased_estimate_of_the_counterfactual_advantage(climbing):
    estimators, decision = climbing
    credit, steps = jax.vmap(estimators["leave_one_out"], in_axes=(None, 0))(
        decision, jax.random.split(jax.random.key(1), 3000)
    )
    exact, _ = estimators["counterfactual"](decision, jax.random.key(0))
    np.testing.assert_allclose(credit.mean(0), exact, atol=0.4)
    assert float(credit.std(0).min()) > 0.5 and set(np.asarray(steps).tolist()) == {9}


def test_gae_estimator_equals_gae_on_the_rollout():
    env, discount = make("grid_race", size=3, max_steps=4), 0.9

    def policy(timestep):
        cell = jnp.argmax(timestep.observation[:, :9], -1)
        return 1e3 * jax.nn.one_hot((cell * 7 + jnp.arange(2)) % 4, 5)

    def value(timestep, state):
        del state
        return jnp.cos(jnp.argmax(timestep.observation[:, :9], -1) + 2.0 * jnp.arange(2))

    act, step = report.sampling_policy(policy), jax.jit(env.step)
    timestep, state = env.reset(jax.random.key(0))
    first = report.Decision(
        timestep=timestep, state=state, memory=None, logits=policy(timestep), action=act(timestep, jax.random.key(0))
    )
    rows = []
    while not bool(timestep.done):
        before = value(timestep, state)
        timestep, state = step(jax.random.key(0), state, act(timestep, jax.random.key(0)))
        rows.append((timestep.reward, before, value(timestep, state), timestep.terminated, timestep.boundary))
    expected, _ = alg.gae(*map(jnp.stack, zip(*rows, strict=True)), discount=discount, gae_lambda=0.8)
    estimator = report.credit_estimators(env, policy, horizon=9, discount=discount, gae_lambda=0.8, value=value)["gae"]
    credit, steps = jax.jit(estimator)(first, jax.random.key(1))
    np.testing.assert_allclose(credit, expected[0], atol=1e-5)
    assert int(steps) == len(rows) == 4


def test_visited_decisions_are_uniform_over_the_steps_of_episodes_and_carry_memory():
    env = ConstantReward(max_steps=7, terminates_at=5)

    def policy(timestep, memory):
        return jnp.zeros(timestep.action_mask.shape), memory + 1

    decisions = jax.jit(lambda key: report.visited_decisions(env, policy, key, 4000, memory=jnp.zeros((), jnp.int32)))(
        jax.random.key(0)
    )
    step = np.asarray(decisions.state.step)
    np.testing.assert_allclose(np.bincount(step, minlength=7) / 4000, [0.2] * 5 + [0, 0], atol=0.03)
    np.testing.assert_array_equal(decisions.memory, step + 1)
    assert decisions.logits.shape == (4000, 3, 4) and decisions.action.shape == (4000, 3)
    assert set(np.unique(decisions.action)) == {0, 1, 2, 3}
