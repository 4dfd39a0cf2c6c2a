"""Divergences of categorical policies and their estimates from samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm import algorithms as alg
from jaxmarl_llm.errors import UserError


def test_published_values():
    log_prob, reference = jnp.log(jnp.array([0.3, 0.6])), jnp.log(jnp.array([0.4, 0.5]))
    np.testing.assert_allclose(alg.kl_estimate(log_prob, reference, kind="k1"), [-0.287682, 0.182322], atol=1e-6)
    np.testing.assert_allclose(alg.kl_estimate(log_prob, reference), [0.045651, 0.015655], atol=1e-6)
    half_squares = [0.5 * 0.287682**2, 0.5 * 0.182322**2]
    np.testing.assert_allclose(alg.kl_estimate(log_prob, reference, kind="k2"), half_squares, atol=1e-6)
    with pytest.raises(UserError, match="unknown kind 'k4'"):
        alg.kl_estimate(log_prob, reference, kind="k4")


def test_categorical_kl_equals_a_loop_and_the_mean_of_the_unbiased_estimates():
    rng = np.random.default_rng(0)
    logits, other = rng.normal(size=(2, 13, 7)).astype(np.float32)
    mask = rng.random((13, 7)) < 0.6
    mask[:, 3] = True
    logits, other = alg.masked_logits(logits, mask), alg.masked_logits(other, mask)
    divergence = alg.categorical_kl(logits, other)
    p, q = np.asarray(jax.nn.softmax(logits)), np.asarray(jax.nn.softmax(other))
    expected = [sum(p[i, a] * np.log(p[i, a] / q[i, a]) for a in range(7) if mask[i, a]) for i in range(13)]
    np.testing.assert_allclose(divergence, expected, atol=1e-5)
    log_p, log_q = jnp.where(mask, jnp.log(p), 0), jnp.where(mask, jnp.log(q), 0)
    for kind in ("k1", "k3"):
        mean = jnp.sum(p * alg.kl_estimate(log_p, log_q, kind=kind), -1)
        np.testing.assert_allclose(mean, divergence, atol=1e-5)
    np.testing.assert_allclose(alg.categorical_kl(logits, logits), 0.0, atol=1e-6)
    gradient = jax.grad(lambda x: alg.categorical_kl(logits, alg.masked_logits(x, mask)).sum())(other)
    assert np.all(np.isfinite(gradient)) and not np.any(np.asarray(gradient)[~mask])


def test_estimates_are_exact_near_the_reference():
    """The naive r - 1 - log r loses all digits for small log-ratios."""
    log_ratio = jnp.float32(1e-4)
    assert float(alg.kl_estimate(jnp.float32(0), log_ratio)) == pytest.approx(5e-9, rel=0.05)


def test_a_teams_divergence_is_that_of_the_agent_that_speaks_and_a_messages_is_the_sum_over_tokens():
    """Two agents take turns; a message is two tokens of five, the second drawn after reading the first."""
    rng = np.random.default_rng(1)
    first, second = jnp.asarray(rng.normal(size=(2, 2, 5))), jnp.asarray(rng.normal(size=(2, 2, 5, 5)))
    silent = alg.masked_logits(jnp.zeros(25), jnp.arange(25) == 0)

    def message_log_probs(version, agent):
        return (jax.nn.log_softmax(first[version, agent])[:, None] + jax.nn.log_softmax(second[version, agent])).ravel()

    for speaker in range(2):
        old, new = message_log_probs(0, speaker), message_log_probs(1, speaker)
        message = float(alg.categorical_kl(old, new))
        after = alg.categorical_kl(second[0, speaker], second[1, speaker])
        tokens = alg.categorical_kl(first[0, speaker], first[1, speaker]) + jax.nn.softmax(first[0, speaker]) @ after
        assert float(tokens) == pytest.approx(message, abs=1e-6)
        # The joint policy of the team: the listener has the empty message alone, whatever its parameters.
        joint = [
            sum(np.meshgrid(*((p, silent) if speaker == 0 else (silent, p)), indexing="ij")).ravel() for p in (old, new)
        ]
        team = alg.categorical_kl(jnp.asarray(joint[0]), jnp.asarray(joint[1]))
        assert float(team) == pytest.approx(message, abs=1e-6)
