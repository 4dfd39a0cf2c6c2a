"""Exact counterfactual returns against enumeration on games small enough to enumerate."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_environments import ConstantReward, DyingAgents, RememberCue

from jaxmarl_llm import algorithms as alg
from jaxmarl_llm import make
from jaxmarl_llm.errors import UserError


def zeros_policy(timestep, key):
    del key
    return jnp.zeros(timestep.active.shape, jnp.int32)


@pytest.mark.parametrize(("game", "settings"), [("climbing", {}), ("penalty", {"penalty": -25.0})])
def test_matrix_games_equal_enumeration(game, settings):
    env = make("matrix_game", game=game, **settings)
    payoff = env.payoff_tensor()[..., 0]
    timestep, state = env.reset(jax.random.key(0))
    joint = jnp.asarray(list(itertools.product(range(3), repeat=2)))

    def returns(action):
        return alg.counterfactual_returns(env, zeros_policy, jax.random.key(1), timestep, state, action, horizon=0)

    values = jax.jit(jax.vmap(returns))(joint)
    expected = [[payoff[:, column], payoff[row, :]] for row, column in joint]
    np.testing.assert_allclose(values, expected, atol=1e-5)


def test_returns_of_the_agent_itself():
    env = make("matrix_game", game="prisoners_dilemma")
    timestep, state = env.reset(jax.random.key(0))
    arguments = (env, zeros_policy, jax.random.key(1), timestep, state, jnp.array([0, 1]))
    own = alg.counterfactual_returns(*arguments, horizon=0, of="own")
    np.testing.assert_allclose(own, [[0, 1], [3, 5]], atol=1e-5)
    team = alg.counterfactual_returns(*arguments, horizon=0)
    np.testing.assert_allclose(team, [[2.5, 1], [3, 2.5]], atol=1e-5)
    with pytest.raises(UserError, match="unknown return"):
        alg.counterfactual_returns(*arguments, horizon=0, of="mine")
    with pytest.raises(ValueError, match="horizon must be at least 0"):
        alg.counterfactual_returns(*arguments, horizon=-1)


def test_two_step_equals_enumeration_under_a_stochastic_policy():
    """The exact value under a stochastic policy is the mean over its deterministic outcomes, by their probability."""
    env, discount = make("two_step"), 0.9
    timestep, state = env.reset(jax.random.key(0))
    action, prob_one = jnp.array([1, 0]), np.array([0.3, 0.8])

    def given(outcome):
        policy = lambda timestep, key: outcome  # noqa: E731
        return alg.counterfactual_returns(
            env, policy, jax.random.key(1), timestep, state, action, horizon=1, discount=discount
        )

    outcomes = np.asarray(list(itertools.product(range(2), repeat=2)))
    probs = np.prod(np.where(outcomes, prob_one, 1 - prob_one), axis=1)
    values = np.einsum("k,kia->ia", probs, jax.vmap(given)(jnp.asarray(outcomes)))
    in_b = sum(p * [[0, 1], [1, 8]][a][b] for p, (a, b) in zip(probs, outcomes, strict=True))
    np.testing.assert_allclose(values, discount * np.array([[7, in_b], [in_b, in_b]]), atol=1e-5)

    def stochastic(timestep, key):
        del timestep
        return jax.random.bernoulli(key, jnp.asarray(prob_one)).astype(jnp.int32)

    sampled = alg.counterfactual_returns(
        env, stochastic, jax.random.key(2), timestep, state, action, horizon=1, discount=discount, num_replays=4096
    )
    np.testing.assert_allclose(sampled, values, atol=0.15)
    once = alg.counterfactual_returns(env, stochastic, jax.random.key(3), timestep, state, action, horizon=1)
    assert float(once[1, 0]) == float(once[1, 1]), "branches that differ in nothing must share their random numbers"


def run_to_the_end(env, step, policy, state, action, discount):
    """The discounted shared return of one joint action and then the policy, step by step."""
    total, weight = 0.0, 1.0
    while True:
        timestep, state = step(jax.random.key(0), state, action)
        total += weight * float(timestep.reward[0])
        weight *= discount
        if bool(timestep.done):
            return total
        action = policy(timestep, None)


def race_policy(env):
    """Agent 0 walks down and then right, agent 1 never moves (4)."""

    def policy(timestep, key):
        del key
        cell = jnp.argmax(timestep.observation[0, : env.size**2])
        return jnp.where(jnp.arange(2) == 0, jnp.where(cell // env.size < env.size - 1, 1, 3), 4)

    return policy


def test_grid_race_equals_enumeration():
    env, discount = make("grid_race", size=3, max_steps=7), 0.95
    policy, step = race_policy(env), jax.jit(env.step)
    decisions, (timestep, state) = [], env.reset(jax.random.key(0))
    while not bool(timestep.done):
        decisions.append((timestep, state, policy(timestep, None)))
        timestep, state = step(jax.random.key(0), state, decisions[-1][2])
    assert len(decisions) == 4

    def returns(timestep, state, action):
        return alg.counterfactual_returns(
            env, policy, jax.random.key(1), timestep, state, action, horizon=env.max_steps - 1, discount=discount
        )

    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *decisions)
    values = jax.jit(jax.vmap(returns))(*batch)
    for t, (_, state, action) in enumerate(decisions):
        for i, u in itertools.product(range(2), range(5)):
            joint = action.at[i].set(u)
            assert float(values[t, i, u]) == pytest.approx(
                run_to_the_end(env, step, policy, state, joint, discount), abs=1e-5
            )


def test_a_free_rider_gets_no_credit():
    """In `grid_race` agent 1 never moves: shared reward pays it like the runner, counterfactual credit does not."""
    env, discount, stay = make("grid_race", size=3, max_steps=9), 0.95, 4
    policy = race_policy(env)

    def episode(carry, key):
        timestep, state = carry
        action = policy(timestep, key)
        after = env.step(key, state, action)
        return after, (timestep, state, action, after[0])

    _, (timestep, state, action, after) = jax.lax.scan(
        episode, env.reset(jax.random.key(0)), jax.random.split(jax.random.key(1), 4)
    )
    assert bool(after.done[-1])

    def returns(timestep, state, action):
        return alg.counterfactual_returns(
            env, policy, jax.random.key(2), timestep, state, action, horizon=8, discount=discount
        )

    values = jax.vmap(returns)(timestep, state, action)
    team = alg.at_action(values[:, 0], action[:, 0])
    difference = alg.difference_reward(team, values[..., stay])
    assert np.all(np.asarray(difference[:, 0]) > 0.01)
    np.testing.assert_allclose(difference[:, 1], 0.0, atol=1e-6)
    # The runner's habits are unknown to the credit here: any of its actions may be its default.
    uniform = jnp.full(values.shape, 1 / 5).at[:, 1].set(jax.nn.one_hot(stay, 5)[None])
    utility = alg.aristocrat_utility(team, values, uniform)
    assert np.all(np.asarray(utility[:, 0]) > 0.01) and np.all(np.asarray(utility[:, 1]) <= 1e-6)
    advantage = alg.counterfactual_advantage(values, jnp.log(uniform + 1e-30), action)
    np.testing.assert_allclose(advantage, utility, atol=1e-6)
    nothing = jnp.zeros((4, 2))
    shared, _ = alg.gae(after.reward, nothing, nothing, after.terminated, after.boundary, discount=discount)
    assert np.all(np.asarray(shared[:, 1]) > 0.5)


def test_illegal_alternatives_and_idle_agents_hold_the_factual_return():
    env = make("matrix_game", payoff=[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    timestep, state = env.reset(jax.random.key(0))
    arguments = (env, zeros_policy, jax.random.key(1))
    values = alg.counterfactual_returns(*arguments, timestep, state, jnp.array([1, 2]), horizon=0)
    np.testing.assert_allclose(values, [[3, 6, 6], [4, 5, 6]], atol=1e-5)
    joint = alg.alternative_actions(timestep, jnp.array([1, 2]))
    assert joint.tolist() == [[[0, 2], [1, 2], [1, 2]], [[1, 0], [1, 1], [1, 2]]]
    dead = timestep.replace(terminated=jnp.array([True, False]))
    assert alg.alternative_actions(dead, jnp.array([1, 2]))[0].tolist() == [[1, 2]] * 3
    assert bool(jnp.all(alg.alternative_actions(dead, jnp.array([1, 2]), alive=jnp.ones(2, bool)) == joint))
    idle = timestep.replace(active=jnp.array([True, False]))
    values = alg.counterfactual_returns(*arguments, idle, state, jnp.array([1, 2]), horizon=0)
    np.testing.assert_allclose(values, [[3, 6, 6], [6, 6, 6]], atol=1e-5)


@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize(("terminates_at", "horizon"), [(0, 2), (0, 9), (3, 9), (7, 9)])
def test_ends_of_episodes(terminates_at, horizon, bootstrap):
    """Constant reward 1 with a time limit of 7: terminations have no value, time limits and horizons have."""
    env, discount = ConstantReward(max_steps=7, terminates_at=terminates_at), 0.9
    timestep, state = env.reset(jax.random.key(0))
    value = (lambda timestep, state: jnp.full(3, 10.0)) if bootstrap else None
    replays = alg.replay(
        env,
        zeros_policy,
        jax.random.key(1),
        timestep,
        state,
        jnp.zeros((5, 3), jnp.int32),
        horizon=horizon,
        discount=discount,
        num_replays=2,
        bootstrap=value,
    )
    length = min(horizon + 1, 7, terminates_at or 7)
    expected = sum(discount**t for t in range(length))
    if bootstrap and length != terminates_at:
        expected += discount**length * 10
    np.testing.assert_allclose(replays.returns, np.full((2, 5, 3), expected), rtol=1e-5)
    assert int(replays.steps) == 2 * 5 * length


def test_dead_agents_earn_nothing_and_flags_of_an_earlier_episode_can_be_overruled():
    env = DyingAgents(max_steps=5)
    timestep, state = env.reset(jax.random.key(0))
    nothing = jnp.zeros((1, 3), jnp.int32)
    settings = {"horizon": 9, "discount": 1.0}
    replays = alg.replay(env, zeros_policy, jax.random.key(1), timestep, state, nothing, **settings)
    np.testing.assert_allclose(replays.returns[0, 0], [1, 2, 5])
    stale = timestep.replace(terminated=jnp.ones(3, bool))
    replays = alg.replay(env, zeros_policy, jax.random.key(1), stale, state, nothing, **settings)
    np.testing.assert_allclose(replays.returns, 0)
    alive = jnp.ones(3, bool)
    replays = alg.replay(env, zeros_policy, jax.random.key(1), stale, state, nothing, alive=alive, **settings)
    np.testing.assert_allclose(replays.returns[0, 0], [1, 2, 5])


def test_a_policy_with_memory_goes_on_from_it():
    env = RememberCue(max_steps=4)
    timestep, state = env.reset(jax.random.key(0))
    cue = jnp.argmax(timestep.observation, -1)

    def policy(timestep, memory, key):
        del timestep, key
        return memory, memory

    def returns(memory):
        settings = {"horizon": 3, "discount": 1.0, "memory": memory}
        return alg.counterfactual_returns(env, policy, jax.random.key(1), timestep, state, cue, of="own", **settings)

    np.testing.assert_allclose(returns(cue), 1.0)
    np.testing.assert_allclose(returns((cue + 1) % 4), 0.0)


def test_other_rewards_can_be_summed():
    env = make("grid_race", size=2)
    timestep, state = env.reset(jax.random.key(0))
    move = jnp.array([1, 4])
    values = alg.counterfactual_returns(
        env,
        lambda timestep, key: jnp.array([3, 4]),
        jax.random.key(1),
        timestep,
        state,
        move,
        horizon=1,
        discount=0.5,
        of="own",
        reward=lambda timestep: timestep.info["arrival"],
    )
    np.testing.assert_allclose(values, [[0, 0.5, 0, 0, 0], [0] * 5], atol=1e-6)
