"""Overcooked: one soup by script, the packed state, observations, starts, time limit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.envs import auto_reset, make, vectorize
from jaxmarl_llm.envs.checks import check_env
from jaxmarl_llm.envs.gridworld.overcooked_layouts import CLASSIC_LAYOUTS
from jaxmarl_llm.envs.gridworld.overcooked_observation import counter_contents, factored_sizes
from jaxmarl_llm.errors import UserError

UP, DOWN, RIGHT, LEFT, STAY, INTERACT = range(6)
THREE_AGENTS = "WWWPWWW\nO A A O\nW  W  W\nW  A  W\nWBWXWPW"
TWO_WORDS = "WWWPWWWWWWW\nO A    A  W\nW  WWWWW  W\nW         W\nWWBWWXWWWWW"


def play(env, state, script, *, agent=0):
    """Plays one agent's script, the others stay. Returns the final state and the time steps."""
    step = jax.jit(env.step)
    timesteps = []
    for action in script:
        actions = jnp.full((env.num_agents,), STAY).at[agent].set(action)
        timestep, state = step(jax.random.key(0), state, actions)
        timesteps.append(timestep)
    return state, timesteps


def test_one_soup_by_script():
    """cramped_room, agent 0 alone: three onions, a plate while the soup cooks, too early, soup, serve."""
    env = make("overcooked", max_steps=60)
    onion = [LEFT, INTERACT, RIGHT, UP, INTERACT]
    script = [
        *onion * 3,
        LEFT,
        DOWN,
        INTERACT,
        UP,
        RIGHT,
        UP,
        *[STAY] * 12,
        INTERACT,
        INTERACT,
        DOWN,
        RIGHT,
        DOWN,
        INTERACT,
    ]
    state, timesteps = play(env, env.state_at(), script)
    shaped = {t: float(ts.info["shaped_reward"][0]) for t, ts in enumerate(timesteps) if ts.info["shaped_reward"][0]}
    assert shaped == {4: 3.0, 9: 3.0, 14: 3.0, 17: 3.0, 34: 5.0}
    rewards = {t: ts.reward.tolist() for t, ts in enumerate(timesteps) if ts.reward.any()}
    assert rewards == {38: [20.0, 20.0]}
    assert all(float(ts.info["shaped_reward"][1]) == 0.0 for ts in timesteps)
    events = {name: float(sum(ts.info[name].sum() for ts in timesteps)) for name in timesteps[0].info}
    assert events == {
        "shaped_reward": 17.0,
        "deliveries": 1.0,
        "onions_potted": 3.0,
        "plates_taken": 1.0,
        "soups_taken": 1.0,
        "items_dropped": 0.0,
    }
    # The pot counts down from the step of the third onion on, and waits when it is ready.
    cooking = [int(ts.observation[0, 0, 2, 20]) for ts in timesteps]
    assert cooking[13:35] == [0, *range(19, 0, -1), 0, 0]
    assert [int(ts.observation[0, 0, 2, 21]) for ts in timesteps][32:36] == [0, 1, 0, 0]
    assert [int(h) for h in state.held] == [0, 0]
    assert int(state.pot_status[0]) == 23


def test_rewards_are_settings():
    env = make("overcooked", delivery_reward=1.0, onion_reward=0.5, plate_reward=0.0, soup_reward=2.0)
    start = env.state_at(positions=[(2, 3), (1, 2)], directions=[DOWN, UP], held=[3, 1])
    timestep, _ = env.step(jax.random.key(0), start, jnp.array([INTERACT, INTERACT]))
    assert timestep.reward.tolist() == [1.0, 1.0]
    assert timestep.info["shaped_reward"].tolist() == [0.0, 0.5]
    start = env.state_at(positions=[(1, 2), (1, 3)], directions=[UP, UP], held=[2, 0], pot_status=[0])
    timestep, _ = env.step(jax.random.key(0), start, jnp.array([INTERACT, STAY]))
    assert timestep.info["shaped_reward"].tolist() == [2.0, 0.0]


@pytest.mark.parametrize(
    "held, pot_status, counters, expected",
    [
        ([0, 0], [23], {}, 0.0),  # No pot in use.
        ([0, 0], [22], {}, 3.0),
        ([0, 2], [22], {}, 0.0),  # A plate for that pot is on its way.
        ([0, 0], [0], {(0, 1): 2}, 0.0),  # A plate lies ready on a counter.
        ([0, 0], [0], {(0, 1): 3, (0, 3): 1}, 3.0),
        ([1, 0], [0], {}, 0.0),  # Hands full: nothing is taken.
    ],
)
def test_plate_reward_only_for_a_plate_that_is_needed(held, pot_status, counters, expected):
    env = make("overcooked")
    state = env.state_at(
        positions=[(2, 1), (1, 3)], directions=[DOWN, UP], held=held, pot_status=pot_status, counters=counters
    )
    timestep, _ = env.step(jax.random.key(0), state, jnp.array([INTERACT, STAY]))
    assert timestep.info["shaped_reward"].tolist() == [expected, 0.0]
    assert float(timestep.info["plates_taken"][0]) == float(held[0] == 0)


def test_hand_over_on_one_step():
    """Agents interact in order: agent 1 takes what agent 0 has just put down."""
    env = make("overcooked", layout="WPWWW\nOAWAO\nW   W\nWBWXW")
    state = env.state_at(positions=[(1, 1), (1, 3)], directions=[RIGHT, LEFT], held=[1, 0])
    _, after = env.step(jax.random.key(0), state, jnp.array([INTERACT, INTERACT]))
    assert [int(h) for h in after.held] == [0, 1]
    assert [int(word) for word in after.counters] == [0]


@pytest.mark.parametrize(
    "before, actions, after",
    [
        ([(1, 2), (1, 4), (3, 3)], [RIGHT, LEFT, STAY], [(1, 2), (1, 4), (3, 3)]),  # Two want one cell.
        ([(1, 2), (1, 3), (3, 3)], [RIGHT, LEFT, STAY], [(1, 2), (1, 3), (3, 3)]),  # Swap.
        ([(1, 2), (1, 3), (3, 3)], [RIGHT, RIGHT, STAY], [(1, 3), (1, 4), (3, 3)]),  # One follows the other.
        ([(1, 3), (1, 4), (1, 5)], [RIGHT, RIGHT, RIGHT], [(1, 3), (1, 4), (1, 5)]),  # A pile in front of a queue.
        ([(1, 1), (1, 2), (1, 3)], [RIGHT, RIGHT, LEFT], [(1, 1), (1, 2), (1, 3)]),  # A swap holds up the one behind.
        ([(1, 1), (2, 1), (2, 2)], [RIGHT, UP, LEFT], [(1, 2), (1, 1), (2, 1)]),  # All leave their cells.
    ],
)
def test_three_agents_in_each_others_way(before, actions, after):
    env = make("overcooked", layout=THREE_AGENTS)
    _, state = env.step(jax.random.key(0), env.state_at(positions=before), jnp.array(actions))
    assert [env.kitchen.floor[int(p)] for p in state.place] == after
    assert [int(d) for d, a in zip(state.direction, actions, strict=True) if a != STAY] == [
        a for a in actions if a != STAY
    ]


def decode(env, factored):
    """Dense planes `[height, width, 26]` from one agent's factored observation."""
    kitchen = env.kitchen
    values = [int(v) for v in factored]
    planes = np.zeros((kitchen.height, kitchen.width, 26), np.uint8)
    for channel, symbol in ((10, "P"), (11, "W"), (12, "O"), (14, "B"), (15, "X")):
        for cell in kitchen.cells(symbol):
            planes[(*cell, channel)] = 1

    def put(cell, item):
        if item == 3:
            planes[(*cell, 18)], planes[(*cell, 21)] = 3, 1
        elif item:
            planes[(*cell, {1: 23, 2: 22}[item])] = 1

    for k in range(env.num_agents):
        place, direction, held = values[3 * k : 3 * k + 3]
        cell = kitchen.floor[place]
        planes[(*cell, min(k, 1))] = 1
        planes[(*cell, 2 + 4 * min(k, 1) + direction)] = 1
        put(cell, held)
    rest = values[3 * env.num_agents :]
    for cell, status in zip(kitchen.pots, rest, strict=False):
        if status >= 20:
            planes[(*cell, 16)] = 23 - status
        else:
            planes[(*cell, 18)], planes[(*cell, 20)], planes[(*cell, 21)] = 3, status, status == 0
    for cell, item in zip(kitchen.counters, rest[len(kitchen.pots) :], strict=False):
        planes[(*cell, 11)] = item == 0
        put(cell, item)
    planes[:, :, 25] = rest[-1]
    return planes


@pytest.mark.parametrize(
    "layout",
    ["cramped_room", "counter_circuit", TWO_WORDS, THREE_AGENTS],
    ids=["one_word", "full_word", "two_words", "three"],
)
def test_factored_holds_all_of_dense_and_the_packed_state_is_clean(layout):
    num_envs, num_steps = 4, 80
    dense = auto_reset(make("overcooked", layout=layout, random_start=True, max_steps=60))
    factored = make("overcooked", layout=layout, random_start=True, max_steps=60, observation="factored")
    kitchen, num_agents = factored.kitchen, factored.num_agents
    batch = vectorize(dense, num_envs)

    @jax.jit
    def run(key):
        key_reset, key_run = jax.random.split(key)
        _, state = batch.reset(key_reset)

        def step(state, key):
            key_action, key_step = jax.random.split(key)
            action = jax.random.randint(key_action, (num_envs, num_agents), 0, 9).clip(max=INTERACT)
            timestep, state = batch.step(key_step, state, action)
            return state, (timestep.observation, jax.vmap(factored.observe)(state), state)

        return jax.lax.scan(step, state, jax.random.split(key_run, num_steps))[1]

    planes, integers, states = jax.tree.map(np.asarray, run(jax.random.key(7)))
    assert factored.observation_space.contains(integers)
    assert dense.observation_space.contains(planes)
    for t in range(0, num_steps, 3):
        for b in range(num_envs):
            for i in range(num_agents):
                np.testing.assert_array_equal(decode(factored, integers[t, b, i]), planes[t, b, i])
    place = np.stack(states.place)
    assert (place >= 0).all() and (place < len(kitchen.floor)).all()
    for i in range(num_agents):
        for j in range(i):
            assert (place[i] != place[j]).all()
    assert len(states.counters) == -(-len(kitchen.counters) // 16)
    unused = 2 * (16 * len(states.counters) - len(kitchen.counters))
    last = states.counters[-1].astype(np.uint64)
    assert (last >> np.uint64(32 - unused) == 0).all()
    contents = np.stack(counter_contents(kitchen, states))
    assert (contents[:16] > 0).any() and (len(contents) <= 16 or (contents[16:] > 0).any())


def test_global_state_is_one_hot_and_the_same_for_all():
    env = make("overcooked", layout="coord_ring")
    sizes = factored_sizes(env.kitchen, 2)
    _, state = env.reset(jax.random.key(2))
    vector = env.global_state(state)
    assert vector.shape == (sum(sizes),) == (env.global_state_size,)
    assert vector.dtype == jnp.float32
    blocks = np.split(np.asarray(vector), np.cumsum(sizes)[:-1])
    factored = make("overcooked", layout="coord_ring", observation="factored").observe(state)[0]
    assert [int(block.argmax()) for block in blocks] == factored.tolist()
    assert all(block.sum() == 1 for block in blocks)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"positions": [(1, 1), (1, 1)]}, "2 different positions"),
        ({"positions": [(0, 0), (1, 1)]}, "cannot stand at"),
        ({"held": [0]}, "held takes 2 numbers from 0 to 3"),
        ({"pot_status": [24]}, "pot_status takes 1 numbers from 0 to 23"),
        ({"counters": {(0, 0): 1}}, "no counter in reach"),
    ],
)
def test_state_at_refuses_impossible_states(change, words):
    with pytest.raises(UserError, match=words):
        make("overcooked").state_at(**change)


@pytest.mark.parametrize("layout", list(CLASSIC_LAYOUTS))
def test_random_starts_are_legal_and_varied(layout):
    env = make("overcooked", layout=layout, random_start=True)
    state = jax.jit(jax.vmap(env.initial_state))(jax.random.split(jax.random.key(4), 2000))
    places = np.stack(state.place)
    assert (places[0] != places[1]).all()
    for values, count in [
        *[(p, len(env.kitchen.floor)) for p in places],
        *[(d, 4) for d in state.direction],
        *[(h, 4) for h in state.held],
        *[(s, 24) for s in state.pot_status],
    ]:
        frequency = np.bincount(np.asarray(values), minlength=count) / 2000
        assert len(frequency) == count
        np.testing.assert_allclose(frequency, 1 / count, atol=0.05)
    assert all((word == 0).all() for word in state.counters)


def test_plain_start_is_the_layout_with_random_directions():
    env = make("overcooked", layout="forced_coord")
    state = jax.vmap(env.initial_state)(jax.random.split(jax.random.key(4), 500))
    assert [env.kitchen.floor[int(p[0])] for p in state.place] == [(2, 1), (1, 3)]
    assert all((p == p[0]).all() for p in state.place)
    assert all((h == 0).all() for h in state.held) and all((s == 23).all() for s in state.pot_status)
    for direction in state.direction:
        np.testing.assert_allclose(np.bincount(np.asarray(direction)) / 500, 0.25, atol=0.08)


def test_time_limit_gives_exactly_k_rewards_and_urgency():
    env = make("overcooked", max_steps=45)
    state, timesteps = play(env, env.state_at(), [STAY] * 45)
    assert [bool(ts.truncated) for ts in timesteps] == [False] * 44 + [True]
    assert not any(ts.terminated.any() for ts in timesteps)
    # Fewer than 40 steps are left from the sixth step on.
    assert [int(ts.observation[0, 0, 0, 25]) for ts in timesteps[:7]] == [0, 0, 0, 0, 0, 1, 1]
    assert int(state.step) == 45


def test_observation_is_the_same_alone_batched_nested_and_sharded():
    env = make("overcooked", random_start=True)
    keys = jax.random.split(jax.random.key(8), 6)
    state = jax.vmap(env.initial_state)(keys)
    batched = jax.jit(jax.vmap(env.observe))(state)
    alone = jnp.stack([env.observe(jax.tree.map(lambda leaf, b=b: leaf[b], state)) for b in range(6)])
    np.testing.assert_array_equal(alone, batched)
    nested_state = jax.tree.map(lambda leaf: leaf.reshape(2, 3), state)
    nested = jax.jit(jax.vmap(jax.vmap(env.observe)))(nested_state)
    np.testing.assert_array_equal(nested.reshape(batched.shape), batched)
    mesh = jax.make_mesh((2,), ("env",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("env"))
    sharded = jax.jit(jax.vmap(env.observe), out_shardings=sharding)(jax.device_put(state, sharding))
    np.testing.assert_array_equal(sharded, batched)


@pytest.mark.parametrize(
    "settings",
    [
        {"layout": "WWPW\nOA W\nWBXW", "max_steps": 7},
        {"layout": THREE_AGENTS, "observation": "factored"},
    ],
    ids=["alone_dense", "three_factored"],
)
def test_conformance(settings):
    check_env(make("overcooked", **settings))


def test_render_shows_pots_items_and_agents():
    env = make("overcooked", layout="counter_circuit")
    plain = env.state_at()
    picture = env.render(plain)
    assert picture.dtype == np.uint8 and picture.shape[1] == 8 * 56
    for change in (
        {"held": [3, 0]},
        {"pot_status": [23, 7]},
        {"counters": {(2, 3): 2}},
        {"directions": [1, 0]},
        {"step": 3},
    ):
        assert (env.render(env.state_at(**change)) != picture).any()
