"""Matrix games: payoffs by hand, repeated play, masks, bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm import make
from jaxmarl_llm.envs.tabular.matrix_game import MatrixGame
from jaxmarl_llm.errors import UserError


def play(env, joint_actions):
    """Rewards `[T, N]`, terminated `[T, N]` and observations `[T + 1, ...]` of one episode."""
    key = jax.random.key(0)
    timestep, state = env.reset(key)
    step = jax.jit(env.step)
    rewards, terminated, observations = [], [], [timestep.observation]
    for action in joint_actions:
        timestep, state = step(key, state, jnp.array(action))
        rewards.append(timestep.reward)
        terminated.append(timestep.terminated)
        observations.append(timestep.observation)
    return np.stack(rewards), np.stack(terminated), np.stack(observations)


CELLS = {
    "climbing": [[11, -30, 0], [-30, 7, 6], [0, 0, 5]],
    "penalty": [[10, 0, -25], [0, 2, 0], [-25, 0, 10]],
    "coordination": [[1, 0], [0, 1]],
    "prisoners_dilemma": [[(3, 3), (0, 5)], [(5, 0), (1, 1)]],
    "stag_hunt": [[(4, 4), (1, 3)], [(3, 1), (2, 2)]],
}


@pytest.mark.parametrize("game", CELLS)
def test_every_cell_of_the_named_games(game):
    table = CELLS[game]
    size = len(table)
    actions = [(row, column) for row in range(size) for column in range(size)]
    env = MatrixGame(game=game, penalty=-25.0, max_steps=len(actions))
    rewards, terminated, _ = play(env, actions)
    expected = [np.broadcast_to(table[row][column], (2,)) for row, column in actions]
    np.testing.assert_array_equal(rewards, np.array(expected, np.float32))
    assert not terminated[:-1].any() and terminated[-1].all()


def test_25_plays_of_climbing_pay_275_at_best():
    rewards, terminated, _ = play(MatrixGame(max_steps=25), [(0, 0)] * 25)
    assert rewards[:, 0].sum() == 275.0
    assert terminated[:, 0].tolist() == [False] * 24 + [True]


def test_one_shot_game_terminates_at_once():
    rewards, terminated, observations = play(make("matrix_game"), [(1, 1)])
    assert rewards.tolist() == [[7.0, 7.0]] and terminated.all()
    np.testing.assert_array_equal(observations, np.ones((2, 2, 1)))


def test_last_action_is_seen_own_first():
    env = MatrixGame(game="coordination", num_agents=3, observation="last_action", max_steps=3)
    _, _, observations = play(env, [(0, 1, 1), (1, 1, 0)])
    assert not observations[0].any()
    zero, one = [1, 0], [0, 1]
    np.testing.assert_array_equal(observations[1], [zero + one + one, one + one + zero, one + zero + one])
    np.testing.assert_array_equal(observations[2], [one + one + zero, one + zero + one, zero + one + one])


def test_own_payoff_of_any_shape():
    rng = np.random.default_rng(0)
    shared = rng.integers(-9, 9, (2, 3, 4)).astype(np.float32)
    env = MatrixGame(payoff=shared, num_agents=3, max_steps=24)
    assert env == MatrixGame(payoff=shared.tolist(), num_agents=3, max_steps=24) and hash(env) == hash(
        MatrixGame(payoff=tuple(shared.tolist()), num_agents=3, max_steps=24)
    )
    actions = list(np.ndindex(2, 3, 4))
    rewards, _, _ = play(env, actions)
    np.testing.assert_array_equal(rewards, [[shared[action]] * 3 for action in actions])
    mask = env.reset(jax.random.key(0))[0].action_mask
    assert mask.sum(axis=-1).tolist() == [2, 3, 4]

    general = rng.integers(-9, 9, (2, 3, 2)).astype(np.float32)
    actions = list(np.ndindex(2, 3))
    rewards, _, _ = play(MatrixGame(payoff=general, max_steps=6), actions)
    np.testing.assert_array_equal(rewards, [general[action] for action in actions])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"game": "climbin"}, "did you mean climbing"),
        ({"observation": "last"}, "did you mean last_action"),
        ({"game": "penalty", "num_agents": 3}, "penalty has 2 agents"),
        ({"payoff": [[1, 2], [3]]}, "not a regular tensor"),
        ({"payoff": [1, 2]}, r"shape \(2,\): for num_agents=2 give 2 axes"),
        ({"payoff": [[1, float("nan")]]}, "NaN"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(UserError, match=message):
        make("matrix_game", **settings)


@pytest.mark.parametrize("env", [MatrixGame(max_steps=2), MatrixGame(game="coordination", num_agents=3)])
def test_picture(env):
    _, state = env.reset(jax.random.key(0))
    picture = env.render(state)
    assert picture.dtype == np.uint8 and picture.shape[-1] == 3
    _, state = env.step(jax.random.key(0), state, jnp.zeros(env.num_agents, jnp.int32))
    assert (env.render(state) != picture).any()
