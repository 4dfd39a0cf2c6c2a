"""`gae` and `td_lambda` against NumPy loops and exact values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.algorithms import gae, td_lambda


def random_rollout(seed, shape=(13, 5, 3)):
    rng = np.random.default_rng(seed)
    reward, value, next_value = rng.normal(size=(3, *shape)).astype(np.float32)
    terminated = rng.random(shape) < 0.2
    truncated = rng.random(shape) < 0.2
    return reward, value, next_value, terminated, terminated | truncated


def gae_by_loop(reward, value, next_value, terminated, boundary, discount, decay):
    """Each advantage as an explicit sum of temporal differences, up to the end of the episode."""
    advantage = np.zeros_like(reward)
    for index in np.ndindex(reward.shape):
        total, weight = 0.0, 1.0
        for t in range(index[0], reward.shape[0]):
            i = (t, *index[1:])
            bootstrap = 0.0 if terminated[i] else next_value[i]
            total += weight * (reward[i] + discount * bootstrap - value[i])
            if boundary[i]:
                break
            weight *= discount * decay
        advantage[index] = total
    return advantage


def lambda_return_by_loop(reward, next_value, terminated, boundary, discount, decay):
    """Each target as an explicit mixture of n-step returns."""
    target = np.zeros_like(reward)
    length = reward.shape[0]
    for index in np.ndindex(reward.shape):
        start, rest = index[0], index[1:]
        n_step, accumulated, weight = [], 0.0, 1.0
        for t in range(start, length):
            i = (t, *rest)
            accumulated += weight * reward[i]
            weight *= discount
            n_step.append(accumulated + (0.0 if terminated[i] else weight * next_value[i]))
            if boundary[i]:
                break
        mixed = sum((1 - decay) * decay**n * r for n, r in enumerate(n_step[:-1]))
        target[index] = mixed + decay ** (len(n_step) - 1) * n_step[-1]
    return target


@pytest.mark.parametrize("seed", range(3))
def test_gae_equals_the_sum_of_differences(seed):
    rollout = random_rollout(seed)
    advantage, target = gae(*map(jnp.asarray, rollout), discount=0.97, gae_lambda=0.9)
    expected = gae_by_loop(*rollout, 0.97, 0.9)
    np.testing.assert_allclose(advantage, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(target, expected + rollout[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_td_lambda_equals_the_mixture_of_returns(seed):
    reward, _, next_value, terminated, boundary = random_rollout(seed)
    target = td_lambda(*map(jnp.asarray, (reward, next_value, terminated, boundary)), discount=0.97, td_lambda=0.7)
    expected = lambda_return_by_loop(reward, next_value, terminated, boundary, 0.97, 0.7)
    np.testing.assert_allclose(target, expected, rtol=1e-5, atol=1e-5)


def test_gae_published_values():
    reward, value = jnp.array([1.0, 0.0, 2.0]), jnp.array([0.5, 0.6, 0.7])
    terminated = jnp.array([False, False, True])
    advantage, _ = gae(
        reward, value, jnp.array([0.6, 0.7, 9.0]), terminated, terminated, discount=0.99, gae_lambda=0.95
    )
    np.testing.assert_allclose(advantage, [2.331369, 1.315650, 1.3], atol=1e-6)


def test_gae_with_lambda_one_and_td_lambda_agree():
    reward, value, next_value, terminated, boundary = map(jnp.asarray, random_rollout(7))
    # A chain is consistent only if the successor's value is the next step's value.
    next_value = next_value.at[:-1].set(value[1:])
    _, target = gae(reward, value, next_value, terminated, boundary, gae_lambda=0.8)
    other = td_lambda(reward, next_value, terminated, boundary, td_lambda=0.8)
    np.testing.assert_allclose(target, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [1, 2, 7])
def test_constant_reward_has_no_advantage_even_at_the_time_limit(length):
    discount = 0.9
    shape = (3 * length, 2)
    exact = jnp.full(shape, 1 / (1 - discount))
    limit = jnp.broadcast_to((jnp.arange(3 * length) % length == length - 1)[:, None], shape)
    never = jnp.zeros(shape, bool)
    advantage, _ = gae(jnp.ones(shape), exact, exact, never, limit, discount=discount)
    np.testing.assert_allclose(advantage, 0.0, atol=1e-5)
    ended, _ = gae(jnp.ones(shape), exact, exact, limit, limit, discount=discount)
    assert float(jnp.max(ended)) < -0.1, "a termination must not bootstrap"


def test_termination_wins_over_truncation():
    one = jnp.ones((1,))
    both = jnp.array([True])
    advantage, _ = gae(one, 0 * one, 100 * one, both, both)
    assert float(advantage[0]) == 1.0


def test_gradients_flow_to_the_values():
    reward, value, next_value, terminated, boundary = map(jnp.asarray, random_rollout(1))
    gradient = jax.grad(lambda v: gae(reward, v, next_value, terminated, boundary)[0].sum())(value)
    assert bool(jnp.all(gradient < 0))


@pytest.mark.parametrize("wrong", ["reward", "value", "next_value", "terminated", "boundary"])
def test_shapes_that_would_broadcast_are_refused(wrong):
    arrays = {name: np.zeros((5, 3, 2)) for name in ("reward", "value", "next_value", "terminated", "boundary")}
    for shape in [(5, 3), (3, 2), (5, 1, 2), (6, 3, 2)]:
        with pytest.raises(ValueError, match="must have one shape"):
            gae(**(arrays | {wrong: np.zeros(shape)}))
    with pytest.raises(ValueError, match="at least one step"):
        td_lambda(*[np.zeros((0, 2))] * 4)
    assert gae(*[[0.0, 1.0]] * 3, [False, True], [False, True])[0].shape == (2,)
