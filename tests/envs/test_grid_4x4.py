"""The grid walk: exact optimum by value iteration, a golden path, walls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm import make
from jaxmarl_llm.errors import UserError

UP, DOWN, LEFT, RIGHT = range(4)


def tabulate(env):
    """Next cell, reward and termination `[cells, actions]` of the environment's own transition."""
    size = env.size
    _, state = env.reset(jax.random.key(0))

    def one(cell, action):
        start = state.replace(position=jnp.stack([cell // size, cell % size]))
        timestep, after = env.step(jax.random.key(0), start, action[None])
        return after.position[0] * size + after.position[1], timestep.reward[0], timestep.terminated[0]

    over_actions = jax.vmap(one, in_axes=(None, 0))
    table = jax.jit(jax.vmap(over_actions, in_axes=(0, None)))(jnp.arange(size**2), jnp.arange(4))
    return [np.asarray(array, np.float64 if array.dtype == jnp.float32 else None) for array in table]


def best_values(env, discount):
    following, reward, terminated = tabulate(env)
    value = np.zeros(env.size**2)
    for _ in range(200):
        value = (reward + discount * ~terminated * value[following]).max(axis=1)
    return value


def test_optimum_is_0_728537():
    start = best_values(make("grid_4x4"), 0.95)[0]
    assert start == pytest.approx(0.95**5 - 0.01 * (1 - 0.95**5) / 0.05, abs=1e-6)
    assert start == pytest.approx(0.728537, abs=1e-6)


@pytest.mark.parametrize("size", [2, 5])
def test_optimum_of_other_sizes(size):
    steps = 2 * (size - 1) - 1
    expected = 0.9**steps - 0.01 * (1 - 0.9**steps) / 0.1
    assert best_values(make("grid_4x4", size=size), 0.9)[0] == pytest.approx(expected, abs=1e-6)


def test_golden_path():
    env = make("grid_4x4")
    step = jax.jit(env.step)
    key = jax.random.key(0)
    timestep, state = env.reset(key)
    assert timestep.observation.shape == (1, 16) and timestep.observation[0].argmax() == 0
    path = [(UP, 0), (LEFT, 0), (DOWN, 4), (RIGHT, 5), (LEFT, 4), (RIGHT, 5), (DOWN, 9), (DOWN, 13), (DOWN, 13)]
    for action, cell in path:
        timestep, state = step(key, state, jnp.array([action]))
        assert timestep.observation[0].argmax() == cell
        assert timestep.reward[0] == np.float32(-0.01) and not timestep.done
    timestep, state = step(key, state, jnp.array([RIGHT]))
    assert not timestep.done
    timestep, state = step(key, state, jnp.array([RIGHT]))
    assert timestep.reward.tolist() == [1.0] and timestep.terminated.tolist() == [True] and not timestep.truncated


def test_time_limit_truncates():
    env = make("grid_4x4", max_steps=3)
    key = jax.random.key(0)
    _, state = env.reset(key)
    truncated = []
    for _ in range(3):
        timestep, state = env.step(key, state, jnp.array([UP]))
        truncated.append(bool(timestep.truncated))
    assert truncated == [False, False, True] and not timestep.terminated.any()


def test_bad_settings():
    with pytest.raises(UserError, match="size must be at least 2"):
        make("grid_4x4", size=1)


def test_picture_follows_the_agent():
    env = make("grid_4x4")
    key = jax.random.key(0)
    _, state = env.reset(key)
    before = env.render(state)
    after = env.render(env.step(key, state, jnp.array([DOWN]))[1])
    assert before.shape == after.shape and (before[:48, :48] != after[:48, :48]).any()
