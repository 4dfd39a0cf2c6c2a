"""The two-step game: all sixteen joint plans."""

import itertools

import jax
import jax.numpy as jnp
import pytest

from jaxmarl_llm import make
from jaxmarl_llm.errors import UserError


def test_all_plans():
    env = make("two_step")
    step = jax.jit(env.step)
    key = jax.random.key(0)
    returns = {}
    for first, second in itertools.product(itertools.product((0, 1), repeat=2), repeat=2):
        timestep, state = env.reset(key)
        assert timestep.observation.tolist() == [[1, 0, 0]] * 2
        timestep, state = step(key, state, jnp.array(first))
        assert timestep.observation.tolist() == [[0, 1, 0] if first[0] == 0 else [0, 0, 1]] * 2
        assert timestep.reward.tolist() == [0.0, 0.0] and not timestep.done
        timestep, state = step(key, state, jnp.array(second))
        assert timestep.terminated.all() and timestep.reward[0] == timestep.reward[1]
        returns[first, second] = float(timestep.reward[0])
    room_b = {(0, 0): 0.0, (0, 1): 1.0, (1, 0): 1.0, (1, 1): 8.0}
    for (first, second), value in returns.items():
        assert value == (7.0 if first[0] == 0 else room_b[second])
    assert max(returns.values()) == 8.0


def test_a_longer_limit_changes_nothing():
    env = make("two_step", max_steps=9)
    key = jax.random.key(0)
    _, state = env.reset(key)
    for _ in range(2):
        timestep, state = env.step(key, state, jnp.array([1, 1]))
    assert timestep.terminated.all() and not timestep.truncated and timestep.reward[0] == 8.0


def test_bad_settings():
    with pytest.raises(UserError, match="max_steps must be at least 2"):
        make("two_step", max_steps=1)


def test_picture_marks_the_stage():
    env = make("two_step")
    key = jax.random.key(0)
    _, state = env.reset(key)
    pictures = [env.render(state)]
    for first in (0, 1):
        pictures.append(env.render(env.step(key, state, jnp.array([first, 0]))[1]))
    assert pictures[0].shape == pictures[1].shape
    assert all((a != b).any() for a, b in itertools.combinations(pictures, 2))
