"""Reward scaling, mixtures, shaping by history and novelty."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxmarl_llm import algorithms as alg
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.networks import RandomDistillation


def test_normalized_rewards_follow_the_running_range():
    rng = np.random.default_rng(0)
    state, low, high = alg.init_reward_range((3,)), np.full(3, np.inf), np.full(3, -np.inf)
    for size in (1.0, 5.0, 0.1):
        reward = (size * rng.normal(size=(7, 5, 3)) + 2).astype(np.float32)
        state = alg.update_reward_range(state, jnp.asarray(reward), axis=(0, 1))
        low, high = np.minimum(low, reward.min((0, 1))), np.maximum(high, reward.max((0, 1)))
        ranged = alg.normalize_reward(jax.tree.map(lambda x: x[None, None], state), reward)
        np.testing.assert_allclose(ranged, 2 * (reward - low) / (high - low) - 1, atol=1e-5)
        scaled = alg.normalize_reward(jax.tree.map(lambda x: x[None, None], state), reward, kind="scale")
        np.testing.assert_allclose(scaled, reward / np.maximum(abs(low), abs(high)), atol=1e-5)
    assert float(jnp.abs(alg.normalize_reward(state, jnp.full(3, 1e9))).max()) == 1.0


def test_normalized_rewards_before_and_without_variation():
    empty = alg.init_reward_range()
    for kind in ("range", "scale"):
        np.testing.assert_array_equal(alg.normalize_reward(empty, jnp.array([-3.0, 0.5]), kind=kind), [-1.0, 0.5])
        zeros = alg.update_reward_range(empty, jnp.zeros(7))
        np.testing.assert_array_equal(alg.normalize_reward(zeros, jnp.zeros(7), kind=kind), jnp.zeros(7))
    with pytest.raises(UserError, match="unknown kind"):
        alg.normalize_reward(empty, jnp.zeros(3), kind="sign")


def test_mix_rewards():
    rng = np.random.default_rng(1)
    rewards, shared, own = rng.normal(size=(7, 5, 3)), rng.normal(size=3), rng.normal(size=(5, 3))
    for weights in (shared, own):
        mixed = alg.mix_rewards(jnp.asarray(rewards), jnp.asarray(weights))
        for t, n in np.ndindex(7, 5):
            row = weights if weights.ndim == 1 else weights[n]
            expected = sum(reward * weight for reward, weight in zip(rewards[t, n], row, strict=True))
            assert float(mixed[t, n]) == pytest.approx(expected, abs=1e-5)
    for weights in (jnp.ones(5), jnp.ones((7, 3)), jnp.float32(1)):
        with pytest.raises(ValueError, match="do not fit"):
            alg.mix_rewards(jnp.asarray(rewards), weights)


def test_history_shaped_reward_published_values():
    reward = jnp.array([1.0, 0.0])
    np.testing.assert_allclose(alg.history_shaped_reward(reward, 0.4), [1.3, -0.2], atol=1e-6)
    np.testing.assert_allclose(alg.history_shaped_reward(reward, 0.4, kind="quality"), [1.2, -0.3], atol=1e-6)
    with pytest.raises(UserError, match="did you mean quality"):
        alg.history_shaped_reward(reward, 0.4, kind="qualty")


def test_novelty_wears_off_where_the_predictor_was_trained():
    module = RandomDistillation(hidden_sizes=(32,), features=7)
    seen, unseen = jax.random.normal(jax.random.key(0), (2, 31, 5))
    params = module.init(jax.random.key(1), seen)
    optimizer = optax.adam(3e-3)

    def loss(params):
        return alg.novelty_reward(*module.apply(params, seen)).mean()

    def step(carry, _):
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return (optax.apply_updates(params, updates), state), None

    (trained, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), length=300)
    novelty = {name: alg.novelty_reward(*module.apply(trained, x)) for name, x in (("seen", seen), ("new", unseen))}
    assert novelty["seen"].shape == (31,)
    assert float(novelty["seen"].mean()) < 0.1 * float(novelty["new"].mean())
    same = jax.tree.map(lambda a, b: np.array_equal(a, b), params["params"]["target"], trained["params"]["target"])
    assert all(jax.tree.leaves(same)), "the target must stay as it was drawn"


def test_novelty_reward_equals_a_loop():
    prediction, target = np.random.default_rng(2).normal(size=(2, 7, 5, 3)).astype(np.float32)
    novelty = alg.novelty_reward(jnp.asarray(prediction), jnp.asarray(target))
    for i in np.ndindex(7, 5):
        assert float(novelty[i]) == pytest.approx(np.mean((prediction[i] - target[i]) ** 2), rel=1e-5)
