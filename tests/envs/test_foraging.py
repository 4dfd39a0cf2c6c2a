import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.envs import auto_reset, vectorize
from jaxmarl_llm.envs.checks import check_env
from jaxmarl_llm.envs.gridworld.foraging import Foraging, ForagingState
from jaxmarl_llm.errors import UserError

STAY, UP, DOWN, LEFT, RIGHT, LOAD = range(6)


def state_at(agents, foods, step=0):
    """Agents and foods as lists of (row, column, level)."""
    agents, foods = np.array(agents, np.int32), np.array(foods, np.int32)
    return ForagingState(
        step=jnp.int32(step),
        agent_row=jnp.array(agents[:, 0]),
        agent_column=jnp.array(agents[:, 1]),
        agent_level=jnp.array(agents[:, 2]),
        food_row=jnp.array(foods[:, 0]),
        food_column=jnp.array(foods[:, 1]),
        food_level=jnp.array(foods[:, 2]),
        food_total=jnp.array(foods[:, 2].sum()),
    )


def places(state):
    return list(zip(state.agent_row.tolist(), state.agent_column.tolist(), strict=True))


def play(env, state, plan):
    rewards, step = [], jax.jit(env.step)
    for t, action in enumerate(plan):
        timestep, state = step(jax.random.key(t), state, jnp.array(action))
        rewards.append(np.asarray(timestep.reward))
    return timestep, state, np.array(rewards)


def test_golden_episode_shares_food_by_level():
    env = Foraging(rows=5, columns=7, num_agents=3, num_foods=2, max_agent_level=3, penalty=0.125)
    # Foods of level 3 at (1, 1) and 5 at (3, 4): total 8.
    state = state_at([(1, 2, 1), (0, 0, 2), (3, 6, 3)], [(1, 1, 3), (3, 4, 5)])
    plan = [
        (LOAD, RIGHT, LEFT),  # agent 0 alone: 1 < 3 fails, costs the penalty; the others come near
        (LOAD, LOAD, LOAD),  # 1 + 2 = 3: food taken, shares 1/3 and 2/3 of 3/8; agent 2 alone: 3 < 5
        (DOWN, DOWN, STAY),  # agent 1 walks over the cell of the food that is gone
        (RIGHT, RIGHT, STAY),
        (RIGHT, DOWN, STAY),  # agents 0 and 1 now at (2, 4) and (2, 2): down of agent 1 from (1, 2)
        (LOAD, DOWN, STAY),  # agent 0 alone: 1 < 5
        (LOAD, RIGHT, LOAD),  # agent 1 reaches (3, 3); 1 + 3 = 4 < 5
        (LOAD, LOAD, LOAD),  # 1 + 2 + 3 = 6 >= 5: shares of 5/8 by level over 6
    ]
    timestep, end, rewards = play(env, state, plan)
    p = 0.125
    expected = np.zeros((8, 3))
    expected[0] = [-p, 0, 0]
    expected[1] = [3 / 8 / 3, 2 * 3 / 8 / 3, -p]
    expected[5] = [-p, 0, 0]
    expected[6] = [-p, 0, -p]
    expected[7] = np.array([1, 2, 3]) / 6 * 5 / 8
    np.testing.assert_allclose(rewards, expected, atol=1e-6)
    assert timestep.terminated.all() and not timestep.truncated and timestep.info["food_level_taken"] == 5
    assert places(end) == [(2, 4), (3, 3), (3, 5)]
    # Without penalties everything sums to 1; raw rewards sum to the levels; shared ones are the sum.
    _, _, rewards = play(Foraging(rows=5, columns=7, num_agents=3, num_foods=2), state, plan)
    np.testing.assert_allclose(rewards.sum(), 1.0, atol=1e-6)
    settings = {"rows": 5, "columns": 7, "num_agents": 3, "num_foods": 2, "normalize_reward": False}
    _, _, rewards = play(Foraging(**settings), state, plan)
    np.testing.assert_allclose(rewards.sum(), 8.0, atol=1e-5)
    _, _, rewards = play(Foraging(**settings, shared_reward=True), state, plan)
    np.testing.assert_allclose(rewards.sum(axis=0), np.full(3, 8.0), atol=1e-5)


def test_one_agent_alone(key):
    env = Foraging(rows=3, columns=5, num_agents=1, num_foods=1, max_agent_level=1)
    timestep, end, rewards = play(env, state_at([(0, 0, 1)], [(1, 2, 1)]), [(RIGHT,), (RIGHT,), (LOAD,)])
    np.testing.assert_allclose(rewards[:, 0], [0, 0, 1])
    assert timestep.done and places(end) == [(0, 2)]
    start = jax.vmap(env.initial_state)(jax.random.split(key, 50))
    assert (start.food_row == 1).all() and (start.food_level == 1).all()
    assert set(start.food_column.ravel().tolist()) == {1, 2, 3}


def test_moves_are_blocked_by_rim_foods_and_agents():
    env = Foraging(rows=5, columns=7, num_agents=3, num_foods=2)
    foods = [(1, 1, 1), (3, 3, 1)]
    cases = [
        ([(0, 0), (4, 6), (0, 3)], (UP, RIGHT, UP), [(0, 0), (4, 6), (0, 3)]),  # rim
        ([(0, 1), (3, 2), (4, 3)], (DOWN, RIGHT, UP), [(0, 1), (3, 2), (4, 3)]),  # foods
        ([(2, 0), (2, 2), (4, 6)], (RIGHT, LEFT, STAY), [(2, 0), (2, 2), (4, 6)]),  # both want (2, 1)
        ([(2, 0), (2, 1), (4, 6)], (RIGHT, LEFT, STAY), [(2, 0), (2, 1), (4, 6)]),  # a swap
        ([(2, 0), (2, 1), (2, 2)], (RIGHT, RIGHT, RIGHT), [(2, 1), (2, 2), (2, 3)]),  # a train
        ([(2, 0), (2, 1), (2, 2)], (RIGHT, RIGHT, STAY), [(2, 0), (2, 1), (2, 2)]),  # a train against a stop
    ]
    step = jax.jit(env.step)
    for before, action, after in cases:
        state = state_at([(*place, 1) for place in before], foods)
        assert places(step(jax.random.key(0), state, jnp.array(action))[1]) == after


def test_action_mask():
    env = Foraging(rows=5, columns=7, num_agents=2, num_foods=2)
    state = state_at([(0, 1, 1), (4, 6, 1)], [(1, 1, 1), (3, 4, 2)])
    np.testing.assert_array_equal(env.action_mask(state), [[1, 0, 0, 1, 1, 1], [1, 1, 0, 1, 0, 0]])
    gone = state.replace(food_level=jnp.array([0, 2]))
    np.testing.assert_array_equal(env.action_mask(gone)[0], [1, 0, 1, 1, 1, 0])


def test_vector_observation():
    state = state_at([(0, 1, 1), (4, 6, 2), (2, 2, 3)], [(1, 3, 4), (3, 5, 5)])
    full = np.asarray(Foraging(rows=5, columns=7, num_agents=3, num_foods=2).observe(state))
    np.testing.assert_array_equal(full[1], [1, 3, 4, 3, 5, 5, 4, 6, 2, 0, 1, 1, 2, 2, 3])
    near = np.asarray(Foraging(rows=5, columns=7, num_agents=3, num_foods=2, sight=2).observe(state))
    # Agent 0 at (0, 1) sees from (0, 0): the first food, itself, agent 2.
    np.testing.assert_array_equal(near[0], [1, 3, 4, -1, -1, 0, 0, 1, 1, 2, 2, 3, -1, -1, 0])
    # Agent 1 at (4, 6) sees from (2, 4): the second food moves to the front; nobody else is near.
    np.testing.assert_array_equal(near[1], [1, 1, 5, -1, -1, 0, 2, 2, 2, -1, -1, 0, -1, -1, 0])
    # Agent 2 at (2, 2) sees from (0, 0).
    np.testing.assert_array_equal(near[2], [1, 3, 4, -1, -1, 0, 2, 2, 3, 0, 1, 1, -1, -1, 0])


def test_grid_observation():
    env = Foraging(rows=5, columns=7, num_agents=2, num_foods=1, sight=1, grid_observation=True)
    seen = np.asarray(env.observe(state_at([(0, 1, 1), (1, 2, 2)], [(1, 1, 3)])))
    assert seen.shape == (2, 3, 3, 3)
    np.testing.assert_array_equal(seen[0, :, :, 0], [[0, 0, 0], [0, 1, 0], [0, 0, 2]])
    np.testing.assert_array_equal(seen[0, :, :, 1], [[0, 0, 0], [0, 0, 0], [0, 3, 0]])
    np.testing.assert_array_equal(seen[0, :, :, 2], [[0, 0, 0], [1, 0, 1], [1, 0, 0]])


@pytest.mark.parametrize("cooperative", [False, True])
def test_starts(cooperative):
    env = Foraging(rows=7, columns=11, num_agents=5, num_foods=3, max_agent_level=3, cooperative=cooperative)
    state = jax.vmap(env.initial_state)(jax.random.split(jax.random.key(3), 500))
    state = jax.tree.map(np.asarray, state)
    food_cell = state.food_row * 11 + state.food_column
    assert (np.diff(food_cell) > 0).all()
    for i in range(3):
        for j in range(i):
            d_row = abs(state.food_row[:, i] - state.food_row[:, j])
            d_column = abs(state.food_column[:, i] - state.food_column[:, j])
            assert (np.maximum(d_row, d_column) > 1).all() and not (
                (d_row + d_column == 2) & (d_row * d_column == 0)
            ).any()
    assert state.food_row.min() == 1 and state.food_row.max() == 5
    assert state.food_column.min() == 1 and state.food_column.max() == 9
    everything = np.concatenate([food_cell, state.agent_row * 11 + state.agent_column], axis=1)
    assert all(len(set(row)) == 8 for row in everything.tolist())
    assert set(state.agent_level.ravel()) == {1, 2, 3}
    highest = np.sort(state.agent_level, axis=1)[:, :3].sum(axis=1, keepdims=True)
    assert (state.food_level == highest).all() if cooperative else (state.food_level <= highest).all()
    assert state.food_level.min() >= 1 and (state.food_total == state.food_level.sum(axis=1)).all()
    first = np.bincount(state.agent_row[:, 0] * 11 + state.agent_column[:, 0], minlength=77)
    assert first.max() < 25  # mean 6.5: spread over the field


def test_crowded_field_leaves_food_out_rather_than_breaking_the_spacing():
    env = Foraging(rows=5, columns=5, num_agents=2, num_foods=4, max_steps=11)
    state = jax.vmap(env.initial_state)(jax.random.split(jax.random.key(0), 200))
    spawned = np.asarray((state.food_level > 0).sum(axis=1))
    assert spawned.min() == 1 and spawned.max() > 1


@pytest.mark.parametrize(
    "settings",
    [
        {"num_agents": 1, "num_foods": 1, "rows": 3, "columns": 5, "max_steps": 7, "cooperative": True},
        {"num_agents": 3, "num_foods": 2, "rows": 7, "columns": 5, "sight": 2, "penalty": 0.1, "max_steps": 11},
        pytest.param(
            {
                "num_agents": 2,
                "num_foods": 3,
                "rows": 7,
                "columns": 11,
                "sight": 1,
                "grid_observation": True,
                "max_steps": 13,
            },
            marks=pytest.mark.wide,
        ),
    ],
)
@pytest.mark.wide
def test_contract(settings):
    check_env(Foraging(**settings), num_steps=60)


def test_batch_of_one(key):
    env = Foraging(max_steps=3)
    batch = vectorize(auto_reset(env), 1)
    first, state = jax.jit(batch.reset)(key)
    timestep, _ = jax.jit(batch.step)(key, state, jnp.array([[UP, DOWN]]))
    chex.assert_trees_all_equal_shapes_and_dtypes(first, timestep)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_agents": 0},
        {"rows": 2},
        {"sight": 0},
        {"penalty": -1.0},
        {"max_agent_level": 2, "min_agent_level": 3},
        {"num_foods": 10},
        {"rows": 3, "columns": 3, "num_foods": 1, "num_agents": 9},
        {"max_food_level": 5},
        {"min_food_level": 3},
        {"min_food_level": 3, "max_food_level": 2},
    ],
)
def test_bad_settings(settings):
    with pytest.raises(UserError) as error:
        Foraging(**settings)
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore")
def test_parity_with_lbforaging():
    """Rewards, moves, masks, observation and termination, from one random play of the original."""
    original = pytest.importorskip("lbforaging.foraging.environment")
    theirs = original.ForagingEnv(
        players=3,
        min_player_level=1,
        max_player_level=2,
        min_food_level=1,
        max_food_level=None,
        field_size=(8, 8),
        max_num_food=3,
        sight=9,
        max_episode_steps=40,
        force_coop=False,
        penalty=0.1,
    )
    ours = Foraging(rows=8, columns=8, num_agents=3, num_foods=3, penalty=0.1, max_steps=40)
    step, observe, mask = jax.jit(ours.step), jax.jit(ours.observe), jax.jit(ours.action_mask)
    random = np.random.default_rng(0)
    compared = taken = 0
    for episode in range(30):
        observation, _ = theirs.reset(seed=episode)
        field = theirs.field.copy()
        food = np.argwhere(field)
        if len(food) < 3:
            continue
        done, t = False, 0
        while not done:
            level = np.array([theirs.field[row, column] for row, column in food])
            state = state_at([(*p.position, p.level) for p in theirs.players], np.c_[food, level], step=t)
            state = state.replace(food_total=jnp.int32(field.sum()))
            np.testing.assert_array_equal(observe(state), np.stack(observation))
            legal = [[a in theirs._valid_actions[p] for a in original.Action] for p in theirs.players]
            np.testing.assert_array_equal(mask(state), legal)
            action = [LOAD if row[LOAD] and random.random() < 0.8 else int(random.integers(6)) for row in legal]
            before = [p.position for p in theirs.players]
            observation, reward, done, _, _ = theirs.step(action)
            timestep, new = step(jax.random.key(0), state, jnp.array(action))
            np.testing.assert_allclose(timestep.reward, reward, atol=1e-6)
            assert bool(timestep.done) == done
            after = [p.position for p in theirs.players]
            swapped = any(before[i] == after[j] and i != j for i in range(3) for j in range(3))
            if not swapped and len(set(after)) == 3:
                assert places(new) == [tuple(map(int, place)) for place in after]
            elif len(set(after)) < 3:
                break  # the original put two agents on one cell
            compared, taken, t = compared + 1, taken + (sum(reward) > 0), t + 1
    assert compared > 500 and taken > 20
