"""Replay of sequences: a ring, uniform and prioritised draws, shares of devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_environments import MatchTarget

from jaxmarl_llm import algorithms
from jaxmarl_llm.algorithms.value.replay import (
    add_to_replay,
    init_replay,
    sample_replay,
    set_priority,
    take_sequences,
)
from jaxmarl_llm.training.devices import place
from jaxmarl_llm.training.program import compile_program


def stored(count, capacity=3):
    replay = init_replay({"x": jnp.zeros((2, 5))}, capacity)
    for number in range(count):
        replay = add_to_replay(replay, {"x": jnp.full((2, 5), number) + jnp.array([[0.0], [100.0]])}, number)
    return replay


def test_the_newest_sequences_stay():
    replay = stored(5)
    assert replay.sequences["x"][:, :, 0].tolist() == [[3, 4, 2], [103, 104, 102]]
    taken = take_sequences(replay, jnp.array([4, 2]))["x"]
    assert taken.shape == (2, 5) and taken[:, 0].tolist() == [104, 2]


def draw(priority, count=3000, **settings):
    index, weight = sample_replay(jax.random.key(0), priority, count, **settings)
    return np.bincount(index, minlength=priority.size) / count, index, weight


def test_empty_places_are_never_drawn_and_the_rest_evenly():
    share, _, weight = draw(stored(2).priority)
    np.testing.assert_allclose(share, [0.25, 0.25, 0, 0.25, 0.25, 0], atol=0.01)
    np.testing.assert_array_equal(weight, 1.0)


def test_draws_follow_priorities_and_weights_undo_them():
    priority = set_priority(stored(3).priority, jnp.arange(6), jnp.array([1.0, 4.0, 1.0, 16.0, 1.0, 1.0]))
    share, index, weight = draw(priority, exponent=0.5, weight_exponent=1.0)
    np.testing.assert_allclose(share, np.array([1, 2, 1, 4, 1, 1]) / 10, atol=0.01)
    # Weighted draws estimate the plain mean of anything.
    anything = jnp.array([3.0, -1.0, 5.0, 2.0, 0.0, 7.0])
    np.testing.assert_allclose(jnp.mean(weight * anything[index]), anything.mean(), atol=0.1)
    in_groups, *_ = draw(priority, exponent=1.0, num_groups=2)
    np.testing.assert_allclose(in_groups, np.array([1, 4, 1, 16 / 3, 1 / 3, 1 / 3]) / 12, atol=0.01)


def test_what_is_learned_has_other_priorities_than_what_is_new():
    learner = algorithms.iql(
        MatchTarget(max_steps=5),
        num_envs=2,
        rollout_length=4,
        replay_size=24,
        gradient_steps=1,
        batch_size=2,
        hidden_sizes=(4,),
        priority_exponent=0.6,
    )
    state, _ = jax.jit(lambda key: learner.update(learner.init(key)))(jax.random.key(0))
    priority = np.asarray(state.rollout.replay.priority)
    assert priority.shape == (2, 3)
    assert (priority[:, 1:] == 0).all() and (priority[:, 0] > 0).all() and (priority[:, 0] != 1).all()


@pytest.mark.wide
def test_two_devices_learn_what_one_does():
    learner = algorithms.qmix(
        MatchTarget(max_steps=5),
        num_envs=4,
        rollout_length=6,
        replay_size=48,
        gradient_steps=2,
        batch_size=8,
        hidden_sizes=(4,),
        embed_dim=3,
        hypernet_size=4,
        priority_exponent=0.6,
    )
    outcomes = []
    for num_devices in (1, 2):
        placement = place(num_devices, learner.env_groups)
        program = compile_program(learner, placement, np.array([3], np.uint32), num_episodes=1, greedy=True)
        state = program.init()
        for _ in range(3):
            state, packed = program.update(state)
        outcomes.append((jax.tree.map(np.asarray, (state.params, state.rollout.replay.priority)), np.asarray(packed)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), *outcomes)
