"""Losses, masks, categorical policies, value statistics and schedules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm import algorithms as alg
from jaxmarl_llm.errors import UserError


def test_clipped_surrogate_published_values():
    ratio, advantage = jnp.array([1.5, 1.5, 0.5, 0.5]), jnp.array([1.0, -1.0, 1.0, -1.0])
    loss = alg.clipped_surrogate_loss(jnp.log(ratio), jnp.zeros(4), advantage, clip_low=0.2, clip_high=0.28)
    np.testing.assert_allclose(loss, [-1.28, 1.5, -0.5, 0.8], rtol=1e-6)


@pytest.mark.parametrize("clip", [None, 0.2, np.inf])
@pytest.mark.parametrize("huber_delta", [None, 0.7])
def test_clipped_value_loss_equals_a_loop(clip, huber_delta):
    rng = np.random.default_rng(0)
    value, old, target = rng.normal(size=(3, 41)).astype(np.float32)

    def error_loss(error):
        if huber_delta is None or abs(error) <= huber_delta:
            return 0.5 * error**2
        return huber_delta * (abs(error) - 0.5 * huber_delta)

    expected = []
    for v, o, t in zip(value, old, target, strict=True):
        near = v if clip is None else o + min(max(v - o, -clip), clip)
        expected.append(max(error_loss(v - t), error_loss(near - t)))
    loss = alg.clipped_value_loss(*map(jnp.asarray, (value, old, target)), clip=clip, huber_delta=huber_delta)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-6)


def test_masked_mean_ignores_what_is_masked_even_if_not_finite():
    value = jnp.array([1.0, jnp.nan, 3.0, jnp.inf])
    mask = jnp.array([True, False, True, False])
    assert float(alg.masked_mean(value, mask)) == 2.0
    assert float(jax.grad(lambda v: alg.masked_mean(v, mask))(value)[0]) == 0.5
    assert float(alg.masked_mean(value, jnp.zeros(4, bool))) == 0.0


def test_masked_standardize():
    value = jnp.arange(24.0).reshape(2, 3, 4)
    mask = (jnp.arange(24) % 3 > 0).reshape(2, 3, 4)
    out = np.asarray(alg.masked_standardize(value, mask))[np.asarray(mask)]
    np.testing.assert_allclose([out.mean(), out.std()], [0, 1], atol=1e-5)


def test_masked_policy_is_finite_and_exact():
    logits = jax.random.normal(jax.random.key(0), (101, 7)) * 5
    mask = jax.random.bernoulli(jax.random.key(1), 0.4, (101, 7)).at[0].set(False)
    masked = alg.masked_logits(logits, mask)
    legal = np.asarray(mask | ~mask.any(-1, keepdims=True))
    probs = np.where(legal, np.exp(np.asarray(logits, np.float64)), 0)
    probs /= probs.sum(-1, keepdims=True)
    np.testing.assert_allclose(jax.nn.softmax(masked), probs, atol=1e-6)
    entropy = -np.where(probs > 0, probs * np.log(np.maximum(probs, 1e-300)), 0).sum(-1)
    np.testing.assert_allclose(alg.categorical_entropy(masked), entropy, atol=1e-5)
    for action in range(7):
        log_prob = alg.categorical_log_prob(masked, jnp.full(101, action))
        assert bool(jnp.all(jnp.isfinite(log_prob)))
        np.testing.assert_allclose(jnp.exp(log_prob), probs[:, action], atol=1e-6)
    gradient = jax.grad(lambda x: alg.categorical_entropy(alg.masked_logits(x, mask)).sum())(logits)
    assert bool(jnp.all(jnp.isfinite(gradient)))


def test_samples_are_legal_and_follow_the_distribution():
    logits = jnp.array([[2.0, 0.0, -1.0, 1.0, 5.0]])
    mask = jnp.array([[True, True, False, True, False]])
    masked = jnp.repeat(alg.masked_logits(logits, mask), 100_003, axis=0)
    action = np.asarray(alg.categorical_sample(jax.random.key(0), masked))
    frequency = np.bincount(action, minlength=5) / action.size
    assert frequency[2] == frequency[4] == 0
    np.testing.assert_allclose(frequency, np.asarray(jax.nn.softmax(masked[0])), atol=5e-3)
    assert int(alg.categorical_mode(masked)[0]) == 0


def test_a_certain_action_is_always_sampled():
    logits = jnp.repeat(jnp.array([[0.0, 40.0, 0.0]]), 10_007, axis=0)
    assert bool(jnp.all(alg.categorical_sample(jax.random.key(3), logits) == 1))


def test_value_statistics_are_debiased_and_invertible():
    statistics = alg.init_value_statistics((2,))
    value = jnp.array([3.0, -7.0])
    np.testing.assert_array_equal(alg.normalize_value(statistics, value), value)
    rng = np.random.default_rng(0)
    for _ in range(3):
        batch = rng.normal([5.0, -100.0], [2.0, 30.0], size=(20_000, 2)).astype(np.float32)
        statistics = alg.update_value_statistics(
            statistics, batch.mean(0), np.square(batch).mean(0), np.full(2, len(batch)), decay=0.9
        )
    normalized = jax.vmap(alg.normalize_value, in_axes=(None, 0))(statistics, jnp.asarray(batch))
    np.testing.assert_allclose(normalized.mean(0), 0, atol=0.05)
    np.testing.assert_allclose(normalized.std(0), 1, atol=0.05)
    back = jax.vmap(alg.denormalize_value, in_axes=(None, 0))(statistics, normalized)
    np.testing.assert_allclose(back, batch, rtol=1e-3, atol=1e-3)
    same = alg.update_value_statistics(statistics, jnp.ones(2) * 9, jnp.ones(2) * 99, jnp.zeros(2))
    np.testing.assert_array_equal(same.mean, statistics.mean)


def test_schedules():
    def value(progress, schedule):
        return float(alg.anneal(2.0, 1.0, jnp.asarray(progress), schedule=schedule))

    assert [value(p, "linear") for p in (0.0, 0.25, 1.0, 3.0)] == [2.0, 1.75, 1.0, 1.0]
    assert value(0.7, "constant") == 2.0
    np.testing.assert_allclose([value(p, "cosine") for p in (0.0, 0.5, 1.0)], [2.0, 1.5, 1.0], atol=1e-6)
    with pytest.raises(UserError, match="did you mean linear"):
        alg.anneal(1.0, 0.0, jnp.asarray(0.0), schedule="liner")


@pytest.mark.parametrize(
    ("function", "num_arrays"),
    [
        (alg.clipped_surrogate_loss, 3),
        (alg.clipped_value_loss, 3),
        (alg.kl_estimate, 2),
        (alg.categorical_kl, 2),
        (alg.counterfactual_baseline, 2),
        (alg.novelty_reward, 2),
        (lambda values, action: alg.at_action(values[..., None], action.astype(int)), 2),
        (lambda logits, uniform: alg.categorical_from_uniform(uniform, logits[..., None]), 2),
        (lambda reward, mask: alg.leave_one_out_advantage(reward, axis=0, mask=mask > 0), 2),
        (lambda reward, probs: alg.aristocrat_utility(reward[..., 0, 0], reward, probs), 2),
    ],
)
def test_shapes_that_would_broadcast_are_refused(function, num_arrays):
    whole = jnp.zeros((5, 3, 2))
    function(*[whole] * num_arrays)
    for wrong in range(1, num_arrays):
        for shape in [(5, 3, 1), (1, 3, 2)]:
            arrays = [whole] * num_arrays
            arrays[wrong] = jnp.zeros(shape)
            with pytest.raises(ValueError, match=r"got shape|one shape"):
                function(*arrays)
