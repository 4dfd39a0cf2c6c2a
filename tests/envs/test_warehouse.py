import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.envs.checks import check_env
from jaxmarl_llm.envs.gridworld.warehouse import Warehouse, WarehouseState
from jaxmarl_llm.envs.gridworld.warehouse_map import aisle_map, read_map
from jaxmarl_llm.errors import UserError

STAY, FORWARD, LEFT, RIGHT, TOGGLE = range(5)
NORTH, EAST, SOUTH, WEST = range(4)
SMALL = """
.x.x.
.....
..g..
"""


def state_at(env, robots, shelf, step=0):
    """Robots as (row, column, heading, load); shelf as rows of digits 0, 1, 2."""
    rows = [line.strip() for line in shelf.strip().splitlines()]
    robots = np.array(robots, np.int32)
    return WarehouseState(
        step=jnp.int32(step),
        cell=jnp.array(robots[:, 0] * len(rows[0]) + robots[:, 1]),
        direction=jnp.array(robots[:, 2]),
        load=jnp.array(robots[:, 3]),
        delivered=jnp.zeros(len(robots), bool),
        shelf=jnp.array([int(digit) for row in rows for digit in row], jnp.uint8),
    )


def play(env, state, plan):
    rewards, shaped, step = [], [], jax.jit(env.step)
    for t, action in enumerate(plan):
        timestep, state = step(jax.random.key(t), state, jnp.array(action))
        rewards.append(timestep.reward)
        shaped.append(timestep.info["shaped_reward"])
    return timestep, state, np.array(rewards), np.array(shaped)


def test_aisle_map_is_the_one_of_the_paper():
    assert aisle_map(2, 3, 2).split() == [
        "..........",
        ".xx.xx.xx.",
        ".xx.xx.xx.",
        "..........",
        ".xx....xx.",
        ".xx....xx.",
        "..........",
        "....gg....",
    ]
    tiny = read_map(aisle_map(1, 3, 8))
    assert (tiny.rows, tiny.columns, sum(tiny.is_shelf), sum(tiny.is_goal)) == (11, 10, 32, 2)
    assert Warehouse().observation_space.shape == (71,)


def test_golden_delivery_and_return():
    env = Warehouse(layout=SMALL, num_agents=1, return_reward=0.25, collision_penalty=0.5)
    state = state_at(env, [(1, 1, NORTH, 0)], "02010 00000 00000".replace(" ", "\n"))
    fetch = [FORWARD, TOGGLE, LEFT, LEFT, FORWARD, LEFT, FORWARD, RIGHT, FORWARD]
    bring_back = [TOGGLE, LEFT, LEFT, FORWARD, LEFT, FORWARD, RIGHT, FORWARD, TOGGLE]
    timestep, at_goal, rewards, shaped = play(env, state, [(a,) for a in fetch])
    np.testing.assert_array_equal(rewards[:, 0], [0] * 8 + [1])
    np.testing.assert_array_equal(shaped[:, 0], [0, 0.5] + [0] * 7)
    assert timestep.info["deliveries"] == 1
    # The request moved to the only other shelf; the robot still carries its own, now a plain one.
    assert at_goal.cell.tolist() == [12] and at_goal.load.tolist() == [1] and at_goal.delivered.all()
    np.testing.assert_array_equal(at_goal.shelf, [0, 0, 0, 2, 0] + [0] * 10)
    timestep, end, rewards, shaped = play(env, at_goal, [(a,) for a in bring_back])
    np.testing.assert_array_equal(rewards[:, 0], [0] * 8 + [0.25])
    np.testing.assert_array_equal(shaped[:, 0], [0] * 8 + [0.5])
    np.testing.assert_array_equal(end.shelf, [0, 1, 0, 2, 0] + [0] * 10)
    assert end.load.tolist() == [0] and not end.delivered.any() and end.cell.tolist() == [1]


def test_lifting_and_putting_down_earns_nothing_by_itself():
    env = Warehouse(layout=SMALL, num_agents=1)
    state = state_at(env, [(0, 1, NORTH, 0)], "02010\n00000\n00000")
    _, end, rewards, shaped = play(env, state, [(TOGGLE,), (TOGGLE,), (TOGGLE,), (STAY,)])
    np.testing.assert_array_equal(shaped[:, 0], [0.5, -0.5, 0.5, 0])
    assert rewards.sum() == 0 and end.load.tolist() == [2]


def test_moves():
    env = Warehouse(layout=SMALL, num_agents=3, request_queue_size=1, collision_penalty=0.5)
    standing = "01010\n00000\n00000"
    go = (FORWARD,) * 3
    cases = [
        # Rim; an empty robot drives under a shelf; a loaded one does not, and that is no collision.
        ([(0, 0, WEST, 0), (1, 1, NORTH, 0), (1, 3, NORTH, 1)], go, [(0, 0), (0, 1), (1, 3)], [0, 0, 0]),
        # Two want (1, 2); the third follows the one that stays.
        ([(1, 1, EAST, 0), (1, 3, WEST, 0), (1, 0, EAST, 0)], go, [(1, 1), (1, 3), (1, 0)], [1, 1, 1]),
        # A swap, and a robot that turns in front of another.
        ([(2, 0, EAST, 0), (2, 1, WEST, 0), (2, 2, WEST, 0)], go, [(2, 0), (2, 1), (2, 2)], [1, 1, 1]),
        (
            [(2, 0, EAST, 0), (2, 1, NORTH, 0), (2, 3, NORTH, 0)],
            (FORWARD, RIGHT, FORWARD),
            [(2, 0), (2, 1), (1, 3)],
            [1, 0, 0],
        ),
        # A train: all move.
        ([(2, 0, EAST, 0), (2, 1, EAST, 1), (2, 2, EAST, 0)], go, [(2, 1), (2, 2), (2, 3)], [0, 0, 0]),
    ]
    step = jax.jit(env.step)
    for robots, action, after, collided in cases:
        timestep, new = step(jax.random.key(0), state_at(env, robots, standing), jnp.array(action))
        assert [divmod(cell, 5) for cell in new.cell.tolist()] == after
        np.testing.assert_array_equal(timestep.info["collisions"], collided)
        np.testing.assert_array_equal(timestep.reward, -0.5 * np.array(collided))
    # Turns: right is clockwise.
    _, new = step(jax.random.key(0), state_at(env, robots, standing), jnp.array([RIGHT, LEFT, LEFT]))
    assert new.direction.tolist() == [SOUTH, NORTH, NORTH]
    _, new = step(jax.random.key(0), state_at(env, [(2, 0, WEST, 0), *robots[1:]], standing), jnp.array([RIGHT, 0, 0]))
    assert new.direction.tolist() == [NORTH, EAST, EAST]


def test_two_deliveries_at_once_are_replaced_and_shared():
    layout = "xxxxx\n.....\n.....\ng...g"
    env = Warehouse(layout=layout, num_agents=2, request_queue_size=3, shared_reward=True)
    state = state_at(env, [(2, 0, SOUTH, 2), (2, 4, SOUTH, 2)], "00211\n00000\n00000\n00000")
    keys = jax.random.split(jax.random.key(0), 100)
    step = jax.jit(jax.vmap(env.step, (0, None, None)))
    timestep, new = step(keys, state, jnp.array([FORWARD, FORWARD]))
    np.testing.assert_array_equal(timestep.reward, np.full((100, 2), 2.0))
    # Candidates are the two plain standing shelves; those just delivered are not requested again.
    np.testing.assert_array_equal(new.shelf[:, :5], np.tile([0, 0, 2, 2, 2], (100, 1)))
    np.testing.assert_array_equal(new.load, np.ones((100, 2)))
    # One delivery: the candidates are the standing plain shelves and the plain shelf on the other robot, evenly.
    state = state_at(env, [(2, 0, SOUTH, 2), (2, 4, SOUTH, 1)], "00221\n00000\n00000\n00000")
    _, new = step(keys, state, jnp.array([FORWARD, STAY]))
    carried, standing = np.asarray(new.load[:, 1] == 2), np.asarray(new.shelf[:, 4] == 2)
    assert (carried ^ standing).all() and 35 < carried.sum() < 65 and (new.load[:, 0] == 1).all()


def test_observation():
    env = Warehouse(layout=SMALL, num_agents=2, request_queue_size=1, sensor_range=1)
    seen = np.asarray(env.observe(state_at(env, [(0, 0, EAST, 0), (1, 1, SOUTH, 2)], "02010\n00000\n00000")))
    np.testing.assert_array_equal(seen[0, :8], [0, 0, 0, 0, 1, 0, 0, 1])
    np.testing.assert_array_equal(seen[1, :8], [0.5, 0.25, 1, 0, 0, 1, 0, 1])
    window = seen[0, 8:].reshape(3, 3, 7)
    expected = np.zeros((3, 3, 7))
    expected[1, 1, [0, 2]] = 1  # itself, heading east
    expected[1, 2, [5, 6]] = 1  # a requested shelf at (0, 1)
    expected[2, 2, [0, 3, 5, 6]] = 1  # the other robot, heading south, with a requested shelf
    np.testing.assert_array_equal(window, expected)


def test_random_play_keeps_shelves_and_requests():
    env = Warehouse(layout="x.xgx\n.....\nxx.xx", num_agents=3, request_queue_size=2, max_steps=1000)
    shelves = 7

    def one(state, key):
        key_action, key_step = jax.random.split(key)
        action = jax.random.choice(key_action, 5, (3,), p=jnp.array([0.02, 0.5, 0.16, 0.16, 0.16]))
        action = jnp.where((action == TOGGLE) & (state.load == 2), FORWARD, action)
        timestep, state = env.step(key_step, state, action)
        return state, (state, timestep.info["deliveries"])

    starts = jax.vmap(env.initial_state)(jax.random.split(jax.random.key(1), 5))
    run = jax.jit(jax.vmap(lambda state, key: jax.lax.scan(one, state, jax.random.split(key, 700))[1]))
    state, deliveries = jax.tree.map(np.asarray, run(starts, jax.random.split(jax.random.key(2), 5)))
    assert deliveries.sum() > 10
    assert ((state.shelf > 0).sum(-1) + (state.load > 0).sum(-1) == shelves).all()
    assert ((state.shelf == 2).sum(-1) + (state.load == 2).sum(-1) == 2).all()
    cell = np.sort(state.cell, axis=-1)
    assert (np.diff(cell) > 0).all()
    standing = np.take_along_axis(state.shelf, state.cell, axis=-1)
    assert not ((standing > 0) & (state.load > 0)).any()
    assert not state.shelf[..., ~np.array(env._map.is_shelf)].any()


def test_starts():
    env = Warehouse(num_agents=5, request_queue_size=7, column_height=2, shelf_rows=2)
    state = jax.tree.map(np.asarray, jax.vmap(env.initial_state)(jax.random.split(jax.random.key(1), 500)))
    assert ((state.shelf == 2).sum(1) == 7).all() and ((state.shelf > 0).sum(1) == 20).all()
    assert all(len(set(row)) == 5 for row in state.cell.tolist())
    assert set(state.direction.ravel().tolist()) == {0, 1, 2, 3}
    often = (state.shelf == 2).mean(0)[np.array(env._map.is_shelf)]
    assert abs(often - 7 / 20).max() < 0.1
    assert np.bincount(state.cell[:, 4], minlength=80).max() < 22  # mean 6.25


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"num_agents": 1, "layout": SMALL, "max_steps": 7}, marks=pytest.mark.wide),
        {
            "num_agents": 3,
            "shelf_columns": 3,
            "column_height": 2,
            "sensor_range": 2,
            "collision_penalty": 0.1,
            "max_steps": 11,
        },
    ],
)
@pytest.mark.wide
def test_contract(settings):
    env = Warehouse(**settings)
    check_env(env, num_steps=60)
    assert env.global_state_size == 8 * env.num_agents + 2 * sum(env._map.is_shelf)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_agents": 0}, "num_agents"),
        ({"sensor_range": 0}, "sensor_range"),
        ({"shelf_columns": 2}, "odd"),
        ({"column_height": 0}, "column_height"),
        ({"shelf_columns": 1}, "left out"),
        ({"request_queue_size": 31}, "at most 30"),
        ({"request_queue_size": 0}, "at least 1"),
        ({"collision_penalty": -1.0}, "negative"),
        ({"layout": "x.g\n.."}, "differ in length"),
        ({"layout": "x.q"}, "'q'"),
        ({"layout": "..g"}, "no shelf"),
        ({"layout": "x.."}, "no goal"),
        ({"layout": "xx.g"}, "row 0, column 0"),
        ({"layout": "x.g\nx..", "num_agents": 7}, "do not fit"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(UserError, match=words) as error:
        Warehouse(**settings)
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore")
def test_parity_with_rware():
    """One robot's moves, loads, rewards and window, on random play of the original."""
    original = pytest.importorskip("rware.warehouse")
    theirs = original.Warehouse(3, 2, 2, 1, 0, 1, 5, None, None, original.RewardType.TWO_STAGE)
    ours = Warehouse(
        shelf_rows=2, shelf_columns=3, column_height=2, num_agents=1, request_queue_size=5, delivery_reward=0.5,
        return_reward=0.5,
    )  # fmt: skip
    heading = {"UP": NORTH, "RIGHT": EAST, "DOWN": SOUTH, "LEFT": WEST}
    step, observe = jax.jit(ours.step), jax.jit(ours.observe)
    random = np.random.default_rng(0)

    def convert():
        robot = theirs.agents[0]
        shelf = np.zeros(theirs.grid_size, int)
        for s in theirs.shelfs:
            if s is not robot.carrying_shelf:
                shelf[s.y, s.x] = 1 + (s in theirs.request_queue)
        load = 0 if robot.carrying_shelf is None else 1 + (robot.carrying_shelf in theirs.request_queue)
        text = "\n".join("".join(map(str, row)) for row in shelf)
        state = state_at(ours, [(robot.y, robot.x, heading[robot.dir.name], load)], text)
        return state.replace(delivered=jnp.array([robot.has_delivered]))

    theirs.reset(seed=0)
    total = 0.0
    for t in range(2000):
        before = convert()
        action = int(random.choice(5, p=[0.02, 0.58, 0.15, 0.15, 0.1]))
        if (before.load[0] == 0 and before.shelf[before.cell[0]] == 2) or before.delivered[0]:
            action = TOGGLE if random.random() < 0.5 else action
        elif action == TOGGLE and random.random() < 0.95:
            action = FORWARD  # carry on: random play alone delivers next to nothing
        _, reward, _, _, _ = theirs.step([original.Action(action)])
        timestep, new = step(jax.random.key(t), before, jnp.array([action]))
        after = convert()
        np.testing.assert_array_equal(timestep.reward, reward)
        for name in ("cell", "direction", "delivered"):
            np.testing.assert_array_equal(getattr(new, name), getattr(after, name))
        np.testing.assert_array_equal(new.load > 0, after.load > 0)
        np.testing.assert_array_equal(new.shelf > 0, after.shelf > 0)
        window = np.asarray(observe(after))[0, 8:].reshape(9, 7)
        peer = theirs._make_obs(theirs.agents[0])[8:].reshape(9, 7)
        np.testing.assert_array_equal(window[:, [0, 5, 6]], peer[:, [0, 5, 6]])
        total += sum(reward)
    assert total >= 3
