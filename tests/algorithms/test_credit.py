"""Credit functions against NumPy loops and exact values."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm import algorithms as alg


def random_team(seed, shape=(7, 5), num_agents=3, num_actions=11):
    rng = np.random.default_rng(seed)
    q_values, logits = rng.normal(size=(2, *shape, num_agents, num_actions)).astype(np.float32)
    action = rng.integers(num_actions, size=(*shape, num_agents))
    mask = rng.random(q_values.shape) < 0.6
    np.put_along_axis(mask, action[..., None], True, axis=-1)
    return q_values, logits, action, mask


def coma_by_loop(q_values, logits, action, mask):
    out = np.zeros(action.shape)
    for i in np.ndindex(action.shape):
        weight = np.where(mask[i], np.exp(logits[i].astype(np.float64)), 0.0)
        out[i] = q_values[i][action[i]] - sum(w * q for w, q in zip(weight / weight.sum(), q_values[i], strict=True))
    return out


def test_counterfactual_advantage_equals_a_loop_and_never_reads_illegal_values():
    q_values, logits, action, mask = random_team(0)
    expected = coma_by_loop(q_values, logits, action, mask)
    poisoned = np.where(mask, q_values, np.nan)
    advantage = alg.counterfactual_advantage(jnp.asarray(poisoned), logits, action, action_mask=jnp.asarray(mask))
    np.testing.assert_allclose(advantage, expected, atol=1e-5)
    everything = alg.counterfactual_advantage(q_values, logits, action)
    np.testing.assert_allclose(everything, coma_by_loop(q_values, logits, action, np.ones_like(mask)), atol=1e-5)


def test_counterfactual_advantage_published_values_and_zero_mean():
    q_values, logits = jnp.array([1.0, 3.0, -2.0]), jnp.log(jnp.array([0.2, 0.5, 0.3]))
    assert float(alg.counterfactual_baseline(q_values, logits)) == pytest.approx(1.1, abs=1e-6)
    advantage = alg.counterfactual_advantage(jnp.tile(q_values, (3, 1)), jnp.tile(logits, (3, 1)), jnp.arange(3))
    np.testing.assert_allclose(advantage, [-0.1, 1.9, -3.1], atol=1e-6)
    q_values, logits, _, mask = map(jnp.asarray, random_team(1))
    every = jnp.moveaxis(jnp.broadcast_to(jnp.arange(11), q_values.shape), -1, 0)
    advantage = jax.vmap(lambda a: alg.counterfactual_advantage(q_values, logits, a, action_mask=mask))(every)
    probs = jax.nn.softmax(alg.masked_logits(logits, mask))
    np.testing.assert_allclose(jnp.sum(probs * jnp.moveaxis(advantage, 0, -1), -1), 0.0, atol=1e-6)


def test_aristocrat_utility_with_exact_values_is_the_counterfactual_advantage():
    rng = np.random.default_rng(2)
    team = rng.normal(size=(7, 5)).astype(np.float32)
    alternative, logits = rng.normal(size=(2, 7, 5, 3, 11)).astype(np.float32)
    action = rng.integers(11, size=(7, 5, 3))
    np.put_along_axis(alternative, action[..., None], team[..., None, None], axis=-1)
    utility = alg.aristocrat_utility(team, alternative, jax.nn.softmax(logits))
    np.testing.assert_allclose(utility, alg.counterfactual_advantage(alternative, logits, action), atol=1e-5)
    worst = alternative[..., 0]
    difference = alg.difference_reward(team, worst)
    for i in np.ndindex(worst.shape):
        assert float(difference[i]) == pytest.approx(team[i[:2]] - worst[i], abs=1e-6)


@pytest.mark.parametrize("shape", [(5, 7), (7,), (7, 5, 3, 2, 2)])
def test_credit_rejects_shapes_that_do_not_match(shape):
    with pytest.raises(ValueError, match="counterfactual_reward must have the axes of team_reward"):
        alg.difference_reward(jnp.zeros((7, 5)), jnp.zeros(shape))
    with pytest.raises(ValueError, match="alternative_reward must have the axes of"):
        alg.aristocrat_utility(jnp.zeros((7, 5)), jnp.zeros(shape), jnp.zeros(shape))


def shapley_by_loop(worth, num_agents):
    """Mean marginal contribution over all orders of arrival."""
    value = np.zeros(num_agents)
    for order in itertools.permutations(range(num_agents)):
        members = 0
        for agent in order:
            value[agent] += worth[members | 1 << agent] - worth[members]
            members |= 1 << agent
    return value / math.factorial(num_agents)


@pytest.mark.parametrize("num_agents", [1, 2, 3, 5])
def test_shapley_values_equal_the_mean_over_orders(num_agents):
    worth = np.random.default_rng(num_agents).normal(size=(7, 2**num_agents)).astype(np.float32)
    values = alg.shapley_values(jnp.asarray(worth))
    np.testing.assert_allclose(values, [shapley_by_loop(row, num_agents) for row in worth], atol=1e-5)


def test_shapley_values_of_a_glove_game_and_of_eight_agents():
    # Agent 0 has a left glove, 1 and 2 a right one; a pair is worth 1.
    worth = [float((s & 1) and (s & 6)) and 1.0 for s in range(8)]
    np.testing.assert_allclose(alg.shapley_values(jnp.asarray(worth)), [2 / 3, 1 / 6, 1 / 6], atol=1e-6)
    np.testing.assert_allclose(alg.shapley_values(jnp.arange(8)), [1.0, 2.0, 4.0], atol=1e-6)
    worth = jax.random.normal(jax.random.key(0), (13, 2**8))
    values = alg.shapley_values(worth)
    assert values.shape == (13, 8)
    np.testing.assert_allclose(values.sum(-1), worth[:, -1] - worth[:, 0], atol=1e-5)


@pytest.mark.parametrize("size", [1, 3, 24, 2**17])
def test_shapley_values_reject_what_is_no_set_of_coalitions(size):
    with pytest.raises(ValueError, match="must be 2"):
        alg.shapley_values(jnp.zeros((5, size)))


def test_sampled_shapley_values_converge_as_one_over_the_root():
    num_agents = 5
    worth = jax.random.normal(jax.random.key(1), (3, 2**num_agents))
    exact = alg.shapley_values(worth)

    def value_fn(member):
        return worth[:, jnp.sum(jnp.where(member, 2 ** jnp.arange(num_agents), 0))]

    def estimate(keys, num):
        return jax.vmap(lambda k: alg.sampled_shapley_values(value_fn, k, num_agents=5, num_permutations=num))(keys)

    keys = jax.random.split(jax.random.key(2), 211)
    few, many = estimate(keys, 7), estimate(keys, 7 * 16)
    np.testing.assert_allclose(few.sum(-1), jnp.broadcast_to(worth[:, -1] - worth[:, 0], (211, 3)), atol=1e-5)
    np.testing.assert_allclose(many.mean(0), exact, atol=0.02)
    assert float(jnp.std(few - exact[None]) / jnp.std(many - exact[None])) == pytest.approx(4.0, rel=0.1)
    with pytest.raises(ValueError, match="must be 1 or more"):
        alg.sampled_shapley_values(value_fn, keys[0], num_agents=5, num_permutations=0)


def test_leave_one_out_advantage():
    reward = jnp.array([1.0, 0, 0, 1, 0, 0, 0, 0])
    advantage = alg.leave_one_out_advantage(reward, axis=0)
    np.testing.assert_allclose(advantage, np.where(reward > 0, 0.857143, -0.285714), atol=1e-6)
    np.testing.assert_allclose(alg.leave_one_out_advantage(jnp.array([1.0, 0, 1]), axis=0), [0.5, -1, 0.5], atol=1e-6)
    reward = np.random.default_rng(0).normal(size=(3, 7, 5)).astype(np.float32)
    expected = np.zeros_like(reward)
    for i, j, k in np.ndindex(reward.shape):
        expected[i, j, k] = reward[i, j, k] - np.mean([reward[i, other, k] for other in range(7) if other != j])
    np.testing.assert_allclose(alg.leave_one_out_advantage(jnp.asarray(reward), axis=1), expected, atol=1e-5)
    with pytest.raises(ValueError, match="no sibling"):
        alg.leave_one_out_advantage(reward[:, :1], axis=1)


def test_leave_one_out_of_those_that_count():
    rng = np.random.default_rng(0)
    reward, mask = rng.normal(size=(3, 7, 2)).astype(np.float32), rng.random((3, 7, 2)) < 0.6
    mask[0, :, 0], mask[1, :, 1] = False, np.arange(7) == 3
    expected = np.zeros_like(reward)
    for t, b, n in np.ndindex(*reward.shape):
        siblings = [reward[t, other, n] for other in range(7) if other != b and mask[t, other, n]]
        if mask[t, b, n] and siblings:
            expected[t, b, n] = reward[t, b, n] - np.mean(siblings)
    np.testing.assert_allclose(alg.leave_one_out_advantage(reward, axis=1, mask=mask), expected, rtol=1e-5, atol=1e-6)


def test_leave_one_episode_out_of_a_swarm():
    """Baseline: the mean over the agents of the other episode; `[G, N]`, two episodes of three agents."""
    own, team = jnp.array([[1.0, 0, 1], [0, 0, 1]]), jnp.array([1.0, 0.0])

    def over_other_episodes(reward):
        mean = reward.mean(1)
        return reward - (mean - alg.leave_one_out_advantage(mean, axis=0))[:, None]

    individual = over_other_episodes(own)
    np.testing.assert_allclose(individual, [[2 / 3, -1 / 3, 2 / 3], [-2 / 3, -2 / 3, 1 / 3]], atol=1e-6)
    shared = over_other_episodes(jnp.broadcast_to(team[:, None], (2, 3)))
    np.testing.assert_allclose(shared, [[1, 1, 1], [-1, -1, -1]], atol=1e-6)
    mixed = alg.mix_rewards(jnp.stack([shared, individual], -1), jnp.array([0.5, 0.5]))
    np.testing.assert_allclose(mixed, [[5 / 6, 1 / 3, 5 / 6], [-5 / 6, -5 / 6, -1 / 3]], atol=1e-6)
