"""Group-relative advantages against a NumPy loop and published values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm import algorithms as alg
from jaxmarl_llm.errors import UserError

REWARD = jnp.array([1.0, 0, 0, 1, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("settings", "success", "failure"),
    [
        ({"scale": "std"}, 1.732047, -0.577349),
        ({"scale": "sample_std"}, 1.620182, -0.540061),
        ({"scale": "none"}, 0.75, -0.25),
        ({"scale": "std", "clip": 1.5}, 1.5, -0.577349),
    ],
)
def test_published_values(settings, success, failure):
    advantage = alg.group_relative_advantage(REWARD, jnp.zeros(8, int), 1, **settings)
    np.testing.assert_allclose(advantage, np.where(REWARD > 0, success, failure), atol=1.5e-6)


@pytest.mark.parametrize("scale", ["std", "sample_std", "none"])
@pytest.mark.parametrize("clip", [None, 0.7])
def test_equals_a_loop_over_groups(scale, clip):
    rng = np.random.default_rng(0)
    reward = (5 + 3 * rng.normal(size=(13, 7))).astype(np.float32)
    group = rng.integers(-1, 6, size=(13, 7))  # -1 and 5 are outside
    expected = np.zeros_like(reward)
    for g in range(5):
        members = reward[group == g].astype(np.float64)
        deviation = members - members.mean()
        if scale != "none":
            deviation /= np.std(members, ddof=scale == "sample_std") + 1e-6
        expected[group == g] = deviation if clip is None else np.clip(deviation, -clip, clip)
    advantage = jax.jit(lambda r, g: alg.group_relative_advantage(r, g, 5, scale=scale, clip=clip))(reward, group)
    np.testing.assert_allclose(advantage, expected, rtol=1e-4, atol=1e-5)
    assert not np.any(np.asarray(advantage)[(group < 0) | (group == 5)])


@pytest.mark.parametrize("scale", ["std", "sample_std", "none"])
def test_equal_rewards_and_lone_samples_have_no_advantage(scale):
    reward = jnp.concatenate([jnp.full(7, 0.1), jnp.array([1e6])])
    group = jnp.array([0] * 7 + [1])
    assert not np.any(alg.group_relative_advantage(reward, group, 3, scale=scale))


def test_the_group_key_decides_the_groups():
    """Three generators times eight rollouts: three groups of 8, one of 24 or eight of 4 learn different things."""
    reward = np.random.default_rng(1).random((3, 8)).astype(np.float32)
    slot, rollout = np.indices((3, 8))
    per_slot = alg.group_relative_advantage(reward, slot, 3, scale="none")
    np.testing.assert_allclose(per_slot, reward - reward.mean(1, keepdims=True), atol=1e-6)
    one = alg.group_relative_advantage(reward, 0 * slot, 1, scale="none")
    np.testing.assert_allclose(one, reward - reward.mean(), atol=1e-6)
    per_rollout = alg.group_relative_advantage(reward, rollout, 8, scale="none")
    np.testing.assert_allclose(per_rollout, reward - reward.mean(0, keepdims=True), atol=1e-6)


def test_pooled_statistics_inflate_an_agents_second_moment():
    """Feng et al. 2026, Dr. MAS: pooled, agent k's second moment is ((mean_k - mean)^2 + var_k) / var; its own is 1."""
    rng = np.random.default_rng(2)
    reward = (rng.normal(size=(3, 101)) * [[0.1], [1.0], [2.0]] + [[3.0], [0.0], [-1.0]]).astype(np.float32)
    agent = np.indices(reward.shape)[0]
    pooled = alg.group_relative_advantage(reward, 0 * agent, 1)
    expected = (np.square(reward.mean(1) - reward.mean()) + reward.var(1)) / reward.var()
    np.testing.assert_allclose(jnp.square(pooled).mean(1), expected, rtol=1e-4)
    own = alg.group_relative_advantage(reward, agent, 3)
    np.testing.assert_allclose(jnp.square(own).mean(1), 1.0, rtol=1e-4)


def test_groups_by_agent_and_turn_have_less_variance():
    """Zhao et al. 2025, AT-GRPO: a group that mixes two roles' scales of reward has the roles' difference as noise."""
    rng = np.random.default_rng(3)
    role = np.indices((1000, 2, 8))[1]
    reward = (rng.normal(size=role.shape) + np.where(role == 0, 0.0, 3.0)).astype(np.float32)
    episode = np.indices(role.shape)[0]
    mixed = alg.group_relative_advantage(reward, episode, 1000, scale="none")
    by_role = alg.group_relative_advantage(reward, 2 * episode + role, 2000, scale="none")
    assert float(by_role.var()) < 0.7 * float(mixed.var())


def test_bad_input():
    with pytest.raises(UserError, match="did you mean std"):
        alg.group_relative_advantage(REWARD, jnp.zeros(8, int), 1, scale="stdd")
    with pytest.raises(ValueError, match="must have one shape"):
        alg.group_relative_advantage(REWARD, jnp.zeros(7, int), 1)
