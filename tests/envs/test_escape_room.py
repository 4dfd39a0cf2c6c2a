import collections
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.envs import auto_reset, vectorize
from jaxmarl_llm.envs.checks import check_env
from jaxmarl_llm.envs.gridworld.escape_room import EscapeRoom, EscapeRoomState
from jaxmarl_llm.envs.gridworld.escape_room_map import reachable, three_rooms
from jaxmarl_llm.errors import UserError

STAY, UP, DOWN, LEFT, RIGHT = range(5)
MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
# Key left of the red door, map right of the blue one, exit on top.
CORRIDOR = """
###e###
#krssbm
#######
"""


def state_at(env, agents, key=None, map_=None, holder=(-1, -1), door_open=None, step=0):
    """Agents as (row, column); key and map lie on their first cells unless given."""
    columns, doors = env._map.columns, len(env._map.door)
    key = env._map.key[0] if key is None else key[0] * columns + key[1]
    map_ = env._map.map[0] if map_ is None else map_[0] * columns + map_[1]
    return EscapeRoomState(
        step=jnp.int32(step),
        cell=jnp.array([row * columns + column for row, column in agents], jnp.int32),
        item_cell=jnp.array([key, map_], jnp.int32),
        holder=jnp.array(holder, jnp.int32),
        door_open=jnp.array([False] * doors if door_open is None else door_open),
    )


def play(env, state, plan):
    steps, step = [], jax.jit(env.step)
    for t, action in enumerate(plan):
        timestep, state = step(jax.random.key(t), state, jnp.array(action))
        steps.append(timestep)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *steps), state


def test_golden_escape_at_different_times():
    env = EscapeRoom(layout=CORRIDOR, step_cost=0.125)
    # Both fetch their item, the red agent leaves by the exit over column 3 first.
    plan = [
        (LEFT, RIGHT),  # both doors open
        (LEFT, RIGHT),  # key and map taken: the exit opens for the next step
        (RIGHT, STAY),
        (RIGHT, STAY),  # red stands on (1, 3), under the exit
        (UP, LEFT),  # red leaves
        (DOWN, LEFT),  # what it does now is ignored; blue walks to column 4
        (STAY, LEFT),  # column 3
        (STAY, UP),  # blue leaves: the end
    ]
    steps, end = play(env, state_at(env, [(1, 3), (1, 4)]), plan)
    expected = np.array([[-0.125, -0.125]] * 8)
    expected[4, 0], expected[5:, 0], expected[7, 1] = 0.875, 0.0, 0.875
    np.testing.assert_allclose(steps.reward, expected)
    np.testing.assert_allclose(steps.reward.sum(0), [1 - 5 / 8, 1 - 8 / 8])
    np.testing.assert_array_equal(steps.terminated[:, 0], [0, 0, 0, 0, 1, 1, 1, 1])
    np.testing.assert_array_equal(steps.terminated[:, 1], [0] * 7 + [1])
    np.testing.assert_array_equal(steps.active, ~steps.terminated)
    np.testing.assert_array_equal(steps.done, [0] * 7 + [1])
    np.testing.assert_array_equal(steps.action_mask[4, 0], [1, 0, 0, 0, 0])
    shaped = np.zeros((8, 2))
    shaped[:2] = [[0.1, 0.1], [0.2, 0.2]]
    np.testing.assert_allclose(steps.info["shaped_reward"], shaped, atol=1e-7)
    np.testing.assert_array_equal(steps.info["escapes"].sum(0), [1, 1])
    assert not steps.observation[4:, 0].any() and end.holder.tolist() == [0, 1]
    # Shared: the mean for both on every step, and both terminate at the end.
    shared = EscapeRoom(layout=CORRIDOR, step_cost=0.125, shared_reward=True)
    steps, _ = play(shared, state_at(shared, [(1, 3), (1, 4)]), plan)
    np.testing.assert_allclose(steps.reward, np.repeat(expected.mean(1, keepdims=True), 2, axis=1))
    np.testing.assert_array_equal(steps.terminated, np.array([[0, 0]] * 7 + [[1, 1]]))
    np.testing.assert_array_equal(steps.active[:, 0], [1, 1, 1, 1, 0, 0, 0, 0])


def test_doors_exit_and_collisions():
    env = EscapeRoom(rows=5, columns=11)
    step = jax.jit(env.step)

    def after(state, *action):
        timestep, new = step(jax.random.key(0), state, jnp.array(action))
        return [divmod(cell, 11) if cell < 55 else "left" for cell in new.cell.tolist()], new, timestep

    assert env._map.door == (2 * 11 + 3, 2 * 11 + 7) and env._map.exit.index(True) == 5
    # The wrong colour does not open a door; an open one lets everyone pass.
    places, new, _ = after(state_at(env, [(2, 6), (2, 4)]), RIGHT, LEFT)
    assert places == [(2, 6), (2, 4)] and not new.door_open.any()
    places, new, _ = after(state_at(env, [(2, 6), (2, 4)], door_open=(True, True)), RIGHT, LEFT)
    assert places == [(2, 7), (2, 3)]
    # Opening is for good, and counted once.
    places, new, timestep = after(state_at(env, [(2, 4), (1, 5)]), LEFT, UP)
    assert places == [(2, 3), (1, 5)] and new.door_open.tolist() == [True, False]
    assert timestep.info["doors_opened"].tolist() == [1, 0]
    _, new, timestep = after(new, LEFT, STAY)
    assert new.door_open.tolist() == [True, False] and timestep.info["doors_opened"].tolist() == [0, 0]
    # The exit is shut with one item, open with both, also when one agent holds both; two may leave at once.
    assert after(state_at(env, [(1, 5), (3, 4)], holder=(0, -1)), UP, STAY)[0] == [(1, 5), (3, 4)]
    assert after(state_at(env, [(3, 4), (1, 5)], holder=(0, 0)), STAY, UP)[0] == [(3, 4), "left"]
    wide = EscapeRoom(layout="##ee##\n#krssb\n#mmss#")
    _, new = wide.step(jax.random.key(0), state_at(wide, [(1, 3), (1, 2)], holder=(0, 0)), jnp.array([UP, UP]))
    assert new.cell.tolist() == [18, 19]
    # Nobody swaps or shares a cell; an item is taken by walking onto it, with an open way only.
    assert after(state_at(env, [(2, 4), (2, 5)]), RIGHT, LEFT)[0] == [(2, 4), (2, 5)]
    assert after(state_at(env, [(2, 4), (2, 6)]), RIGHT, LEFT)[0] == [(2, 4), (2, 6)]
    _, new, timestep = after(state_at(env, [(2, 2), (1, 9)], key=(2, 1), map_=(1, 8)), LEFT, LEFT)
    assert new.holder.tolist() == [0, 1] and timestep.info["items_taken"].tolist() == [1, 1]


class Twin:
    """The rules once more, in plain Python, for two agents: a state is (cells, holders, open doors)."""

    def __init__(self, env):
        self.map = env._map

    def step(self, cells, holders, opened, items, action):
        room, size = self.map, self.map.rows * self.map.columns
        targets, leaves = list(cells), [False, False]
        for i in (0, 1):
            if cells[i] is None:
                continue
            row, column = divmod(cells[i], room.columns)
            row, column = row + MOVES[action[i]][0], column + MOVES[action[i]][1]
            target = row * room.columns + column
            if not (0 <= row < room.rows and 0 <= column < room.columns) or room.wall[target]:
                continue
            if target in room.door and target not in opened and room.door_color[room.door.index(target)] != i:
                continue
            if room.exit[target]:
                leaves[i] = None not in holders
            else:
                targets[i] = target
        if not any(leaves) and None not in cells:  # the cell of one that leaves is free
            same, swap = targets[0] == targets[1], targets == [cells[1], cells[0]]
            if same or swap:
                targets = list(cells)
        cells = tuple(None if leave else target for leave, target in zip(leaves, targets, strict=True))
        opened = opened | {cell for cell in cells if cell in room.door}
        taken = [next((i for i in (0, 1) if cells[i] == items[k]), None) for k in (0, 1)]
        holders = tuple(taken[k] if holders[k] is None else holders[k] for k in (0, 1))
        assert all(cell is None or cell < size for cell in cells)
        return cells, holders, frozenset(opened)

    def plan(self, cells, items):
        """The shortest joint plan by which both leave; breadth first."""
        start = (tuple(cells), (None, None), frozenset())
        queue, parent = collections.deque([start]), {start: None}
        while queue:
            node = queue.popleft()
            if node[0] == (None, None):
                actions = []
                while parent[node] is not None:
                    node, action = parent[node]
                    actions.append(action)
                return actions[::-1]
            for action in itertools.product(range(5), range(5)):
                new = self.step(*node, items, action)
                if new not in parent:
                    parent[new] = (node, action)
                    queue.append(new)
        return None


@pytest.mark.parametrize(("rows", "columns"), [(5, 7), (5, 11)])
def test_shortest_plans_escape(rows, columns):
    env = EscapeRoom(rows=rows, columns=columns)
    twin = Twin(env)
    for seed in (0, 1):
        state = env.initial_state(jax.random.key(seed))
        plan = twin.plan(state.cell.tolist(), state.item_cell.tolist())
        assert plan is not None and len(plan) < 40
        steps, _ = play(env, state, plan)
        assert steps.done[-1] and not steps.done[:-1].any()
        left = steps.terminated.argmax(0) + 1  # the step on which each agent left
        np.testing.assert_allclose(steps.reward.sum(0), 1 - 0.01 * left, atol=1e-6)


def test_random_play_equals_the_twin():
    env = EscapeRoom(rows=5, columns=7, max_steps=1000)
    twin, step, random = Twin(env), jax.jit(env.step), np.random.default_rng(0)
    state = env.initial_state(jax.random.key(3))
    items = state.item_cell.tolist()
    node, finished = (tuple(state.cell.tolist()), (None, None), frozenset()), 0
    for t in range(800):
        action = random.integers(0, 5, 2)
        timestep, state = step(jax.random.key(t), state, jnp.array(action))
        node = twin.step(*node, items, tuple(action))
        assert [None if cell >= 35 else cell for cell in state.cell.tolist()] == list(node[0])
        assert [None if holder < 0 else holder for holder in state.holder.tolist()] == list(node[1])
        assert {env._map.door[d] for d in np.flatnonzero(state.door_open)} == node[2]
        if timestep.done:
            finished += 1
            state = env.initial_state(jax.random.key(1000 + t))
            items = state.item_cell.tolist()
            node = (tuple(state.cell.tolist()), (None, None), frozenset())
    assert finished >= 1


@pytest.mark.parametrize(("rows", "columns"), [(5, 7), (7, 11), (11, 13)])
def test_nobody_escapes_alone(rows, columns):
    grid = np.array([list(line) for line in three_rooms(rows, columns).splitlines()])
    assert grid.shape == (rows, columns)
    for color, out_of_reach in ((0, "m"), (1, "k")):
        (alone,) = reachable(grid, (color,))
        assert not alone[grid == out_of_reach].any()


def test_full_observation():
    env = EscapeRoom(layout=CORRIDOR, num_agents=2, grid_observation=True)
    seen = np.asarray(env.observe(state_at(env, [(1, 3), (1, 4)], holder=(-1, 1), door_open=(False, True))))
    assert seen.shape == (2, 3, 7, 17) and env.observation_space.contains(seen)
    cells = [[tuple(place) for place in np.argwhere(seen[0, :, :, plane])] for plane in range(1, 9)]
    assert cells == [[(1, 2)], [], [(0, 3)], [(1, 1)], [], [(1, 3)], [], [(1, 4)]]
    assert seen[0, :, :, 0].sum() == 6 + 1 + 7
    np.testing.assert_allclose(seen[0, 2, 5, 9:], [1, 0, 0, 0, 0, 1, 0.5, 0.5])
    np.testing.assert_allclose(seen[1, 0, 0, 9:], [0, 1, 0, 1, 0, 1, 0.5, 4 / 6])
    flat = np.asarray(EscapeRoom(layout=CORRIDOR).observe(state_at(env, [(1, 3), (1, 4)])))
    assert flat.shape == (2, 9 * 21 + 8)
    np.testing.assert_array_equal(flat[:, :-8].reshape(2, 3, 7, 9)[..., 6:], seen[..., 6:9])


def test_partial_observation():
    env = EscapeRoom(layout=CORRIDOR, num_agents=2, sight=1, grid_observation=True)
    seen = np.asarray(env.observe(state_at(env, [(1, 3), (1, 6)], door_open=(True, False))))
    np.testing.assert_array_equal(seen[0, :, :, 0], [[1, 0, 1], [0, 0, 0], [1, 1, 1]])
    assert seen[0, 0, 1, 3] == 1 and seen[0, 1, 1, 6] == 1 and seen[0, ..., [1, 2, 4, 5, 7, 8]].sum() == 0
    np.testing.assert_array_equal(seen[1, :, :, 0], [[1, 1, 1], [0, 0, 1], [1, 1, 1]])
    assert seen[1, 1, 0, 2] == 1 and seen[1, 1, 1, 5] == 1 and seen[1, ..., 1].sum() == 0
    # An agent that has left is nowhere, least of all beyond the map.
    gone = np.asarray(env.observe(state_at(env, [(3, 0), (1, 6)], holder=(1, 1))))
    assert not gone[0].any() and not gone[1, ..., 7].any() and gone[1, 1, 1, 6] == 1


def test_starts():
    env = EscapeRoom(num_agents=5, rows=7, columns=13)
    state = jax.tree.map(np.asarray, jax.vmap(env.initial_state)(jax.random.split(jax.random.key(0), 300)))
    assert all(len(set(cells)) == 5 for cells in state.cell.tolist())
    for agent in range(5):
        assert set(state.cell[:, agent].tolist()) == set(env._map.start)
    assert set(state.item_cell[:, 0].tolist()) == set(env._map.key)
    assert set(state.item_cell[:, 1].tolist()) == set(env._map.map)


@pytest.mark.parametrize(
    "settings",
    [
        {"rows": 5, "columns": 7, "max_steps": 13},
        {"rows": 5, "columns": 7, "layout": "#e#\nsss\nrsb\nk#m", "sight": 2, "max_steps": 40},
        pytest.param(
            {
                "num_agents": 3,
                "rows": 5,
                "columns": 11,
                "grid_observation": True,
                "shared_reward": True,
                "max_steps": 11,
            },
            marks=pytest.mark.wide,
        ),
    ],
)
def test_contract(settings):
    env = EscapeRoom(**settings)
    check_env(env, num_steps=120)
    assert env.global_state_size == 5 * env.num_agents + 4 + 2


def test_one_environment_in_a_batch(key):
    batch = vectorize(auto_reset(EscapeRoom(rows=5, columns=7, max_steps=2)), 1)
    _, state = jax.jit(batch.reset)(key)
    step = jax.jit(batch.step)
    for t in range(5):
        timestep, state = step(jax.random.key(t), state, jnp.array([[UP, DOWN]]))
        assert timestep.truncated.tolist() == [t % 2 == 1]


def test_render():
    env = EscapeRoom(rows=5, columns=7)
    for state in (
        state_at(env, [(1, 3), (2, 3)]),
        state_at(env, [(35, 0), (2, 3)], holder=(0, 1), door_open=(True, False)),
    ):
        picture = env.render(state)
        assert picture.dtype == np.uint8 and picture.shape[1:] == (7 * 48, 3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_agents": 1}, "at least 2"),
        ({"rows": 4}, "at least 5 rows"),
        ({"columns": 6}, "7 columns"),
        ({"sight": 0}, "sight"),
        ({"step_cost": -0.1}, "negative"),
        ({"num_agents": 4, "rows": 5, "columns": 7}, "do not fit"),
        ({"layout": "#e#\nsskm?"}, r"'\?'"),
        ({"layout": "#e#\nsskm"}, "differ in length"),
        ({"layout": "#e##\nsssk"}, "no map"),
        ({"layout": "#e##\ns#km"}, "key at row 1, column 2"),
        ({"layout": "####\nskm#\nrs##\n####\n##e#"}, "exit at row 4"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(UserError, match=words) as error:
        EscapeRoom(**settings)
    assert "\n" not in str(error.value)
