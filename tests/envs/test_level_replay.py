"""Prioritised level replay against loops in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.envs import (
    init_level_scores,
    level_score,
    replay_probabilities,
    sample_levels,
    update_level_scores,
)

K, B = 7, 5


def random_scores(seed, seen):
    """Scores after ten batches over the levels of `seen`, and the same from a loop."""
    random = np.random.default_rng(seed)
    scores, twin = init_level_scores(K), {"score": [0.0] * K, "last": [-1] * K, "count": 0}
    for _ in range(10):
        level, score, finished = random.choice(seen, B), random.random(B).astype(np.float32), random.random(B) < 0.7
        scores = update_level_scores(scores, level, score, finished)
        twin["count"] += sum(finished)
        for k in range(K):
            own = [score[b] for b in range(B) if level[b] == k and finished[b]]
            if own:
                twin["score"][k], twin["last"][k] = np.mean(own), twin["count"]
    return scores, twin


def test_update_equals_a_loop():
    for seed in range(3):
        scores, twin = random_scores(seed, np.arange(K))
        np.testing.assert_allclose(scores.score, twin["score"], atol=1e-6)
        np.testing.assert_array_equal(scores.last_played, twin["last"])
        assert int(scores.count) == twin["count"]


def test_probabilities_equal_a_loop():
    for seed, temperature, staleness in [(0, 0.1, 0.1), (1, 1.0, 0.3), (2, 0.5, 0.0)]:
        seen = [0, 2, 3, 6]
        scores, twin = random_scores(seed, seen)
        ranked = sorted(seen, key=lambda k: -twin["score"][k])
        by_score, age = np.zeros(K), np.zeros(K)
        for k in seen:
            by_score[k] = (1 / (ranked.index(k) + 1)) ** (1 / temperature)
            age[k] = twin["count"] - twin["last"][k]
        expected = (1 - staleness) * by_score / by_score.sum() + staleness * age / age.sum()
        probability = jax.jit(replay_probabilities)(scores, temperature=temperature, staleness=staleness)
        np.testing.assert_allclose(probability, expected, atol=1e-6)


def test_nothing_played_and_all_played_at_once():
    np.testing.assert_array_equal(replay_probabilities(init_level_scores(K)), 0.0)
    scores = update_level_scores(init_level_scores(K), jnp.arange(K), jnp.ones(K), jnp.ones(K, bool))
    probability = replay_probabilities(scores, staleness=0.5)
    assert np.isfinite(probability).all() and abs(float(probability.sum()) - 1) < 1e-6


def test_many_levels_stay_finite():
    scores = update_level_scores(init_level_scores(500), jnp.arange(500), jnp.arange(500.0), jnp.ones(500, bool))
    probability = replay_probabilities(scores, temperature=0.01)
    assert int(jnp.argmax(probability)) == 499 and abs(float(probability.sum()) - 1) < 1e-6


def test_new_levels_and_replays_are_mixed(key):
    scores, _ = random_scores(0, [1, 4])
    level = np.asarray(sample_levels(key, scores, 2000, replay_probability=0.3))
    share = np.bincount(level, minlength=K) / 2000
    assert abs(share[[1, 4]].sum() - 0.3) < 0.05
    np.testing.assert_allclose(share[[0, 2, 3, 5, 6]], 0.7 / 5, atol=0.03)
    fresh = np.asarray(sample_levels(key, init_level_scores(K), 500, replay_probability=1.0))
    assert len(np.unique(fresh)) == K
    every, _ = random_scores(1, np.arange(K))
    share = np.bincount(np.asarray(sample_levels(key, every, 2000, replay_probability=0.0)), minlength=K) / 2000
    np.testing.assert_allclose(share, replay_probabilities(every), atol=0.04)


def test_level_score_is_the_mean_absolute_advantage():
    advantage = jnp.array([[1.0, -3.0, 5.0], [-2.0, 100.0, 7.0]])
    mask = jnp.array([[True, True, False], [True, False, False]])
    np.testing.assert_allclose(level_score(advantage, mask), [1.5, 3.0, 0.0])
    np.testing.assert_allclose(level_score(advantage, mask, axis=(0, 1)), 2.0)
