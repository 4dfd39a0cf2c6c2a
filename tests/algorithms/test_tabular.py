"""Tabular learners on games and grids with known answers, many tables in one vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_environments import NumberedEpisodes

import jaxmarl_llm
from jaxmarl_llm.algorithms import q_learning_step, tabular_q_learning
from jaxmarl_llm.envs.tabular.matrix_game import MatrixGame

NUM_TABLES = 200


def greedy_payoffs(game, penalty=0.0, **settings):
    """Payoff of the best actions of each of many trained teams."""
    env = MatrixGame(game=game, penalty=penalty)
    learn = jax.jit(jax.vmap(lambda key: tabular_q_learning(env, key, num_steps=2000, **settings)[0]))
    q = np.asarray(learn(jax.random.split(jax.random.key(0), NUM_TABLES)))[:, :, 0]
    payoff = env.payoff_tensor()[..., 0]
    choice = q.argmax(-1)
    return payoff.reshape(-1)[choice[:, 0]] if settings.get("joint") else payoff[choice[:, 0], choice[:, 1]]


@pytest.mark.parametrize(
    ("game", "penalty", "shares"),
    [
        ("climbing", 0.0, {5: (0.85, 1.0), 6: (0.0, 0.15), 11: (0.0, 0.01)}),
        ("penalty", 0.0, {10: (1.0, 1.0)}),
        ("penalty", -25.0, {2: (0.9, 1.0), 10: (0.0, 0.1)}),
        ("penalty", -100.0, {2: (1.0, 1.0)}),
    ],
)
def test_independent_learners_settle_for_less(game, penalty, shares):
    payoffs = greedy_payoffs(game, penalty)
    for value, (low, high) in shares.items():
        assert low <= (payoffs == value).mean() <= high, value


@pytest.mark.parametrize("settings", [{"joint": True}, {"decrease_rate": 0.0}, {"decrease_rate": 0.01}])
@pytest.mark.parametrize(("game", "penalty", "best"), [("climbing", 0.0, 11), ("penalty", -25.0, 10)])
def test_hysteretic_and_joint_action_learners_find_the_best(settings, game, penalty, best):
    assert (greedy_payoffs(game, penalty, **settings) == best).mean() >= 0.99


def test_one_agent_learns_the_exact_value_of_a_grid():
    env = jaxmarl_llm.make("grid_4x4")

    def learn(key):
        return tabular_q_learning(
            env,
            key,
            num_steps=30_000,
            num_states=16,
            state_index=lambda observation: observation.argmax(-1),
            learning_rate=0.5,
            discount=0.95,
            epsilon_final=1.0,
        )[0]

    q = jax.jit(jax.vmap(learn))(jax.random.split(jax.random.key(0), 3))
    np.testing.assert_allclose(q[:, 0, 0].max(-1), 0.95**5 - 0.01 * (1 - 0.95**5) / 0.05, atol=1e-4)


def test_two_agents_race_the_shortest_way():
    env = jaxmarl_llm.make("grid_race")

    def state_index(observation):
        own, other = observation[:, :16].argmax(-1), observation[:, 16:].argmax(-1)
        return 16 * own + other

    @jax.jit
    @jax.vmap
    def run(key):
        q, _ = tabular_q_learning(
            env,
            key,
            num_steps=200_000,
            num_states=256,
            state_index=state_index,
            discount=0.95,
            epsilon_final=0.05,
        )

        def step(carry, _):
            timestep, state, discount, total, steps = carry
            over = timestep.done
            action = q[jnp.arange(2), state_index(timestep.observation)].argmax(-1)
            timestep, state = env.step(key, state, action)
            timestep = timestep.replace(truncated=timestep.truncated | over)
            total += jnp.where(over, 0.0, discount * timestep.reward[0])
            return (timestep, state, discount * 0.95, total, steps + ~over), None

        carry = (*env.reset(key), jnp.float32(1.0), jnp.float32(0.0), jnp.int32(0))
        (*_, total, steps), _ = jax.lax.scan(step, carry, None, 12)
        return total, steps

    total, steps = run(jax.random.split(jax.random.key(0), 3))
    np.testing.assert_allclose(total, 0.728537, atol=1e-4)
    assert steps.tolist() == [6, 6, 6]


def test_a_step_by_hand():
    arguments = (jnp.array([1.0, 1.0, 1.0]), jnp.array([2.0, 2.0, -3.0]), 0.5, jnp.array([False, True, False]))
    new = q_learning_step(*arguments, discount=0.9, learning_rate=0.1, decrease_rate=0.01)
    np.testing.assert_allclose(new, [1 + 0.1 * 1.3, 1 - 0.01 * 0.5, 1 - 0.01 * 3.2], rtol=1e-6)
    same = q_learning_step(*arguments, discount=0.9, learning_rate=0.1)
    np.testing.assert_allclose(same, [1 + 0.1 * 1.3, 1 - 0.1 * 0.5, 1 - 0.1 * 3.2], rtol=1e-6)


def test_what_outlasts_an_episode_goes_on():
    env = NumberedEpisodes(team_size=2, max_steps=5)
    _, reward = jax.jit(lambda key: tabular_q_learning(env, key, num_steps=23))(jax.random.key(0))
    np.testing.assert_array_equal(reward, np.arange(23) // 5)
