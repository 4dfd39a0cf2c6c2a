import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxmarl_llm.envs import Box, Discrete, Environment, EnvState
from jaxmarl_llm.training.evaluation import describe, evaluate, mean_with_interval


@struct.dataclass
class CountdownState(EnvState):
    left: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Countdown(Environment[CountdownState]):
    """Two agents get (1, 3) a step until a random count of 1 to 5 is down; later steps would pay a fortune."""

    num_agents = 2
    observation_space = Box(0.0, 10.0, (1,))
    action_space = Discrete(2)

    def initial_state(self, key):
        return CountdownState(step=jnp.int32(0), left=jax.random.randint(key, (), 1, 6))

    def transition(self, key, state, action):
        left = state.left - 1
        reward = jnp.where(left < 0, 1e6, 1.0) * jnp.array([1.0, 3.0]) * (action == 0)
        return state.replace(left=left), reward, left <= 0, {}

    def observe(self, state):
        return jnp.full((2, 1), state.left, jnp.float32)


@struct.dataclass
class Policy:
    """Acts 0 when greedy, else 1; its memory counts calls."""

    env: Environment = struct.field(pytree_node=False)

    def initial_memory(self, batch_shape=()):
        return jnp.zeros((*batch_shape, 2), jnp.int32)

    def act(self, params, timestep, memory, key, greedy=True):
        action = jnp.where(memory < params, 0 if greedy else 1, 1)
        return action, memory + 1


def play(env, params, greedy, episodes=64):
    learner = Policy(env)
    return jax.jit(lambda key: evaluate(learner, params, key, episodes, greedy))(jax.random.key(0))


def test_only_first_episodes_count():
    result = play(Countdown(), 100, greedy=True)
    assert result.length.shape == (64,) and result.agent_return.shape == (64, 2)
    assert set(np.unique(result.length)) == {1, 2, 3, 4, 5}
    np.testing.assert_array_equal(result.agent_return, np.stack([result.length, 3 * result.length], 1))
    np.testing.assert_array_equal(result.episode_return, 2 * result.length)


def test_the_time_limit_ends_an_episode():
    result = play(Countdown(max_steps=2), 100, greedy=True)
    assert set(np.unique(result.length)) == {1, 2}


def test_greedy_and_memory_reach_the_policy():
    assert np.all(play(Countdown(), 100, greedy=False).episode_return == 0)
    # The policy's memory makes it stop after two steps.
    result = play(Countdown(), 2, greedy=True)
    np.testing.assert_array_equal(result.episode_return, 2 * np.minimum(result.length, 2))


def test_interval_is_over_episodes_or_seeds():
    returns = np.array([[0.0, 1.0, 2.0, 3.0]])
    mean, low, high = mean_with_interval(returns)
    assert mean == 1.5 and 0 <= low < 1.5 < high <= 3
    # Two seeds that each always earn the same: nothing but the seeds varies.
    mean, low, high = mean_with_interval(np.array([[1.0] * 4, [3.0] * 4]))
    assert (mean, low, high) == (2.0, 1.0, 3.0)


def test_description():
    result = jax.tree.map(lambda leaf: np.asarray(leaf)[None], play(Countdown(), 100, greedy=True))
    described = describe(result)
    assert described["return_by_agent"] == pytest.approx([result.length.mean(), 3 * result.length.mean()])
    assert described["return_by_seed"] == pytest.approx([described["return"]])
