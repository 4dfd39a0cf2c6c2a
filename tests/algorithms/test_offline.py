"""Offline functions against published values and what their definitions promise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm import algorithms as alg
from jaxmarl_llm import make


def test_conservative_penalty():
    q_values = jnp.array([1.0, 2.0, 0.0])
    penalty = alg.conservative_penalty(jnp.tile(q_values, (2, 1)), jnp.arange(2))
    np.testing.assert_allclose(penalty, [1.407606, 0.407606], atol=1e-6)
    rng = np.random.default_rng(0)
    q_values, action = rng.normal(size=(5, 7, 11)).astype(np.float32), rng.integers(11, size=(5, 7))
    mask = rng.random((5, 7, 11)) < 0.5
    np.put_along_axis(mask, action[..., None], True, axis=-1)
    penalty = alg.conservative_penalty(np.where(mask, q_values, 1e9), action, action_mask=jnp.asarray(mask))
    for i in np.ndindex(action.shape):
        expected = np.log(np.sum(np.exp(q_values[i][mask[i]], dtype=np.float64))) - q_values[i][action[i]]
        assert float(penalty[i]) == pytest.approx(expected, abs=1e-5) and expected >= 0


@pytest.mark.parametrize(
    ("sample", "expectile", "expected"),
    [((0, 1), 0.5, 0.5), ((0, 1), 0.7, 0.7), ((0, 1), 0.9, 0.9), ((0, 1, 2, 3), 0.7, 1.9)],
)
def test_minimiser_of_the_expectile_loss(sample, expectile, expected):
    sample = jnp.asarray(sample, float)
    slope = jax.grad(lambda value: alg.expectile_loss(sample - value, expectile=expectile).sum())
    assert float(slope(jnp.float32(expected))) == pytest.approx(0.0, abs=1e-5)
    assert float(slope(jnp.float32(expected - 0.1))) < 0 < float(slope(jnp.float32(expected + 0.1)))


def test_bcq_action_mask():
    probs = jnp.array([0.5, 0.2, 0.14, 0.16])
    assert alg.bcq_action_mask(probs).tolist() == [True, True, False, True]
    probs = np.random.default_rng(0).dirichlet(np.full(7, 0.5), size=(3, 5))
    for threshold in (0.0, 0.3, 0.99):
        mask = alg.bcq_action_mask(jnp.asarray(probs), threshold=threshold)
        for i in np.ndindex(probs.shape):
            assert bool(mask[i]) == (np.float32(probs[i]) > np.float32(threshold) * np.float32(probs[i[:2]].max()))


def test_advantage_weights():
    advantage = jnp.array([-1e9, -1.0, 0.0, 0.5, 1.0, 1e9])
    weights = alg.advantage_weights(advantage, beta=2.0, clip=5.0)
    np.testing.assert_allclose(weights, [0, np.exp(-2), 1, np.exp(1), 5, 5], rtol=1e-5)
    assert float(alg.advantage_weights(jnp.float32(1e9), beta=0.0)) == 1.0


def grid_data(num_seeds, num_transitions=4000):
    """Transitions of a behaviour policy on `grid_4x4` that never goes left; `[S, K]` arrays, and the dynamics."""
    env = make("grid_4x4")
    cell = jnp.arange(16)
    states = jax.vmap(lambda c: env.reset(jax.random.key(0))[1].replace(position=jnp.stack([c // 4, c % 4])))(cell)
    take = jax.vmap(jax.vmap(lambda s, a: env.step(jax.random.key(0), s, a[None]), (None, 0)), (0, None))
    after, _ = jax.jit(take)(states, jnp.arange(4))
    table = [np.asarray(x[..., 0]) for x in (jnp.argmax(after.observation, -1), after.reward, after.terminated)]

    def walk(key):
        def step(cell, key):
            action = jax.random.choice(key, 4, p=jnp.array([0.3, 0.35, 0.0, 0.35]))
            following, reward, end = (jnp.asarray(x)[cell, action] for x in table)
            return jnp.where(end, 0, following), (cell, action, reward, following, end)

        return jax.lax.scan(step, jnp.zeros((), jnp.int32), jax.random.split(key, num_transitions))[1]

    return table, jax.vmap(walk)(jax.random.split(jax.random.key(0), num_seeds))


def learn_offline(data, key, *, method, alpha=0.1, discount=0.95, rate=0.1, batch=40, epochs=30):
    """The greedy policy `[16]` after stochastic gradient steps on tables that begin too high."""
    cell, action, _, _, _ = data
    count = jnp.zeros((16, 4)).at[cell, action].add(1.0)
    behaviour = count / jnp.maximum(count.sum(-1, keepdims=True), 1.0)
    supported = alg.bcq_action_mask(behaviour) if method == "bcq" else jnp.ones((16, 4), bool)
    if method == "cloning":
        return jnp.argmax(behaviour, -1)

    def loss(tables, rows):
        q_table, v_table = tables
        cell, action, reward, following, end = rows
        q_values = q_table[cell]
        best = jnp.max(alg.masked_logits(q_table, supported), -1)
        value = v_table if method == "implicit" else best
        target = jax.lax.stop_gradient(reward + discount * jnp.where(end, 0.0, value[following]))
        taken = alg.at_action(q_values, action)
        total = 0.5 * jnp.square(taken - target)
        if method == "conservative":
            total += alpha * alg.conservative_penalty(q_values, action)
        if method == "implicit":
            total += alg.expectile_loss(jax.lax.stop_gradient(taken) - v_table[cell], expectile=0.9)
        return total.sum()

    def step(tables, rows):
        gradient = jax.grad(loss)(tables, rows)
        return jax.tree.map(lambda table, slope: table - rate * slope, tables, gradient), None

    def epoch(tables, key):
        order = jax.random.permutation(key, cell.shape[0]).reshape(-1, batch)
        return jax.lax.scan(step, tables, jax.tree.map(lambda x: x[order], data))

    start = (jnp.full((16, 4), 1.5), jnp.full(16, 1.5))
    (q_table, v_table), _ = jax.lax.scan(epoch, start, jax.random.split(key, epochs))
    if method == "implicit":
        # The weighted likelihood of the data has this policy as its maximum.
        return jnp.argmax(count * alg.advantage_weights(q_table - v_table[:, None], beta=30.0), -1)
    return jnp.argmax(jnp.where(supported, q_table, -jnp.inf), -1)


@pytest.mark.slow
def test_offline_methods_on_a_grid_of_which_the_data_know_three_actions():
    """Values of the action that is not in the data stay at their start: trusting them loses, all cures win."""
    num_seeds, optimum = 5, 0.728537
    (following, reward, end), data = grid_data(num_seeds)
    keys = jax.random.split(jax.random.key(1), num_seeds)

    def returns(method, **settings):
        policies = jax.jit(jax.vmap(lambda data, key: learn_offline(data, key, method=method, **settings)))(data, keys)
        results = []
        for policy in np.asarray(policies):
            cell, total = 0, 0.0
            for t in range(50):
                action = policy[cell]
                total += 0.95**t * reward[cell, action]
                if end[cell, action]:
                    break
                cell = following[cell, action]
            results.append(total)
        return np.asarray(results)

    np.testing.assert_allclose(returns("naive"), -0.1846, atol=1e-4)
    for method in ("bcq", "implicit", "conservative"):
        np.testing.assert_allclose(returns(method), optimum, atol=1e-5, err_msg=method)
    assert np.sum(returns("cloning") > optimum - 1e-5) <= 3
