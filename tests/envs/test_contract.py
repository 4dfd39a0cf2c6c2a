"""Every registered environment keeps the contract; so do wrappers, registry, spaces and random draws."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxmarl_llm.envs import (
    Box,
    Discrete,
    Environment,
    EnvState,
    LogEpisodes,
    MultiDiscrete,
    TimeStep,
    Wrapper,
    auto_reset,
    cond_if_any,
    environment_names,
    flat_size,
    make,
    register,
    registry,
    vectorize,
)
from jaxmarl_llm.envs.checks import check_env
from jaxmarl_llm.envs.random import random_index
from jaxmarl_llm.errors import UserError

resets = []


@struct.dataclass
class CounterState(EnvState):
    label: jax.Array
    total: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counter(Environment[CounterState]):
    """Two agents; the game ends when the sum of all actions reaches `goal`. The label tells episodes apart."""

    goal: int = 5
    max_steps: int = 4
    count_resets: bool = False

    @property
    def num_agents(self):
        return 2

    @property
    def observation_space(self):
        return Box(0.0, 2.0**20, (3,))

    @property
    def action_space(self):
        return Discrete(3)

    def initial_state(self, key):
        if self.count_resets:
            jax.debug.callback(lambda key: resets.append(1), jax.random.key_data(key))
        label = random_index(key, 2**16)
        return CounterState(step=jnp.zeros((), jnp.int32), label=label, total=jnp.zeros((), jnp.int32))

    def transition(self, key, state, action):
        del key
        total = state.total + action.sum()
        info = {"acted": (action > 0).astype(jnp.float32), "joint": action.sum()}
        return state.replace(total=total), action.astype(jnp.float32), total >= self.goal, info

    def observe(self, state):
        row = jnp.stack([state.label, state.total, state.step]).astype(jnp.float32)
        return jnp.broadcast_to(row[None], (2, 3))


@functools.partial(jax.jit, static_argnums=0)
def run(env, key, actions):
    key_reset, key_steps = jax.random.split(key)

    def one_step(state, inputs):
        timestep, state = env.step(inputs[0], state, inputs[1])
        return state, timestep

    first, state = env.reset(key_reset)
    state, timesteps = jax.lax.scan(one_step, state, (jax.random.split(key_steps, len(actions)), actions))
    return first, timesteps, state


def rollout(env, actions, seed=7):
    """The first time step, those of `actions` `[T, ...]`, stacked, and the last state."""
    return run(env, jax.random.key(seed), jnp.asarray(actions, jnp.int32))


# Every registered environment.


@pytest.mark.parametrize("name", environment_names())
def test_registered_environments_keep_the_contract(name):
    check_env(make(name))


@pytest.mark.parametrize("name", environment_names())
def test_registered_environments_are_values(name):
    assert make(name) == make(name) and hash(make(name)) == hash(make(name))
    assert make(name).max_steps >= 1
    assert make(name) in {make(name): 1}
    assert "source" in make(name).__doc__.lower()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("matrix_game", {"game": "stag_hunt", "observation": "last_action", "max_steps": 5}),
        ("matrix_game", {"payoff": np.ones((2, 3, 4)), "num_agents": 3, "max_steps": 3}),
        ("grid_race", {"size": 2, "max_steps": 7}),
        ("switch_riddle", {"num_agents": 32, "light_on": True}),
    ],
)
def test_other_settings_keep_the_contract(name, settings):
    check_env(make(name, **settings), num_steps=50)


def test_the_example_above_keeps_the_contract():
    check_env(Counter())


# Time steps.


def test_done_and_boundary():
    terminated = jnp.array([[True, True], [True, False], [False, False]])
    truncated = jnp.array([False, False, True])
    zero = jnp.zeros(())
    timestep = TimeStep(zero, zero, terminated, truncated, zero, zero, zero)
    assert timestep.done.tolist() == [True, False, True]
    assert timestep.boundary.tolist() == [[True, True], [True, False], [True, True]]


def test_reset_needs_no_step_and_action_may_be_any_integer_type():
    env = Counter()
    _, state = env.reset(jax.random.key(0))
    timesteps = [env.step(jax.random.key(0), state, action)[0] for action in (np.array([1, 2]), jnp.uint8([1, 2]))]
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all() and a.dtype == b.dtype, *timesteps))


# Automatic reset.


def test_auto_reset_keeps_the_last_observation_and_starts_anew():
    actions = [[1, 1], [1, 2], [0, 0], [0, 0], [0, 0], [0, 0], [2, 2]]
    _, timesteps, _ = rollout(auto_reset(Counter()), actions)
    assert timesteps.done.tolist() == [False, True, False, False, False, True, False]
    assert timesteps.truncated.tolist() == [False] * 5 + [True, False]
    label, total, step = np.moveaxis(np.asarray(timesteps.observation[:, 0]), -1, 0)
    final_label, final_total, final_step = np.moveaxis(np.asarray(timesteps.final_observation[:, 0]), -1, 0)
    assert total.tolist() == [2, 0, 0, 0, 0, 0, 4] and final_total.tolist() == [2, 5, 0, 0, 0, 0, 4]
    assert step.tolist() == [1, 0, 1, 2, 3, 0, 1] and final_step.tolist() == [1, 2, 1, 2, 3, 4, 1]
    assert timesteps.reward.tolist() == [[float(a) for a in action] for action in actions]
    # Three episodes, three labels; the final observation still carries the old one.
    assert len(set(label.tolist())) == 3
    assert final_label.tolist() == [label[0]] * 2 + [label[1]] * 4 + [label[6]]


def test_auto_reset_batch_equals_single_environments():
    env = auto_reset(Counter())
    actions = jax.random.randint(jax.random.key(1), (6, 12, 2), 0, 3)
    keys = jax.random.split(jax.random.key(2), 6)
    batched = jax.vmap(lambda key, action: run(env, key, action))(keys, actions)
    one_by_one = jax.lax.map(lambda inputs: run(env, *inputs), (keys, actions))
    jax.tree.map(np.testing.assert_array_equal, batched, one_by_one)
    assert np.asarray(batched[1].done).sum() > 6


def test_auto_reset_resets_only_when_an_environment_is_done():
    env = auto_reset(Counter(count_resets=True))
    batch = vectorize(env, 4)
    resets.clear()
    timestep, state = jax.jit(batch.reset)(jax.random.key(0))
    step = jax.jit(batch.step)
    counts = []
    for action in ([[1, 1]] * 4, [[1, 1]] * 3 + [[2, 2]], [[0, 0]] * 4):
        timestep, state = step(jax.random.key(1), state, jnp.array(action))
        jax.effects_barrier()
        counts.append(len(resets))
    assert timestep.done.tolist() == [False] * 4
    assert counts[0] == 4 and counts[1] > counts[0] and counts[2] == counts[1]


def test_auto_reset_pool_draws_from_prepared_states():
    env = auto_reset(Counter(max_steps=1), pool_size=3, pool_seed=5)
    _, timesteps, _ = rollout(env, np.zeros((60, 2), int))
    labels = set(np.asarray(timesteps.observation[:, 0, 0]).tolist())
    assert len(labels) == 3 and timesteps.done.all()
    again = auto_reset(Counter(max_steps=1), pool_size=3, pool_seed=5)
    other = auto_reset(Counter(max_steps=1), pool_size=3, pool_seed=6)
    for env, equal in ((again, True), (other, False)):
        _, timesteps, _ = rollout(env, np.zeros((60, 2), int), seed=8)
        assert (set(np.asarray(timesteps.observation[:, 0, 0]).tolist()) == labels) is equal


def test_auto_reset_pool_in_a_batch():
    env = vectorize(auto_reset(Counter(max_steps=2), pool_size=4), 32)
    _, timesteps, _ = rollout(env, np.zeros((4, 32, 2), int))
    assert timesteps.done[1].all() and timesteps.done[3].all() and not timesteps.done[::2].any()
    label = np.asarray(timesteps.observation[:, :, 0, 0])
    assert len(set(label[1].tolist())) == 4
    assert (label[1] == label[2]).all() and (label[2] != label[3]).any()


@pytest.mark.parametrize("pool_size", [-1, 2**16 + 1])
def test_auto_reset_bad_pool(pool_size):
    with pytest.raises(UserError, match="pool_size must be 0"):
        auto_reset(Counter(), pool_size=pool_size)


# Other wrappers.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Negated(Wrapper):
    def transition(self, key, state, action):
        state, reward, terminated, info = self.env.transition(key, state, action)
        return state, -reward, terminated, info


def test_wrapper_passes_everything_on():
    env = Negated(env=Counter(goal=9, max_steps=3))
    assert (env.num_agents, env.agents, env.max_steps) == (2, ("agent_0", "agent_1"), 3)
    assert (env.observation_space, env.action_space) == (env.env.observation_space, env.env.action_space)
    assert env.global_state_size == env.env.global_state_size == 6
    _, timesteps, _ = rollout(auto_reset(env), [[1, 2], [0, 1], [0, 0]])
    assert timesteps.reward.tolist() == [[-1, -2], [0, -1], [0, 0]]
    assert timesteps.truncated.tolist() == [False, False, True]
    with pytest.raises(NotImplementedError, match="Counter has no renderer"):
        env.render(env.reset(jax.random.key(0))[1])


def test_wrappers_refuse_an_order_that_would_lose_a_step():
    with pytest.raises(UserError, match="Negated would drop the step of AutoReset"):
        Negated(env=auto_reset(Counter()))
    for wrong in (auto_reset(Counter()), LogEpisodes(env=Counter())):
        with pytest.raises(UserError, match="auto_reset goes around the raw environment"):
            auto_reset(wrong)


def test_log_episodes_sums_each_episode():
    env = LogEpisodes(env=auto_reset(Counter()))
    assert env.global_state_size == 6
    actions = [[1, 1], [1, 2], [0, 0], [0, 1], [0, 1], [0, 1], [2, 2]]
    first, timesteps, state = rollout(env, actions)
    episode = timesteps.info["episode"]
    assert episode.finished.tolist() == [False, True, False, False, False, True, False]
    assert episode.episode_length.tolist() == [0, 2, 2, 2, 2, 4, 4]
    assert episode.episode_return.tolist() == [[0, 0]] + [[2, 3]] * 4 + [[0, 3]] * 2
    assert episode.episode_metrics["acted"].tolist() == [[0, 0]] + [[2, 2]] * 4 + [[0, 3]] * 2
    assert episode.episode_metrics["joint"].tolist() == [0] + [5] * 4 + [3] * 2
    assert timesteps.info["step"]["joint"].tolist() == [2, 3, 0, 1, 1, 1, 4]
    assert int(state.step) == 1
    assert jax.tree.structure(first) == jax.tree.structure(timesteps)
    assert env.observe(state).shape == (2, 3) and env.global_state(state).shape == (6,)
    assert env.active(state).all() and env.action_mask(state).all()


def test_vectorize_gives_every_copy_its_own_key():
    env = vectorize(auto_reset(Counter()), 64)
    timestep, state = env.reset(jax.random.key(0))
    assert len(set(np.asarray(state.label).tolist())) > 60
    timestep, state = env.step(jax.random.key(1), state, jnp.ones((64, 2), jnp.int32))
    assert timestep.reward.shape == (64, 2) and timestep.truncated.shape == (64,)
    with pytest.raises(UserError, match="num_envs must be at least 1"):
        vectorize(Counter(), 0)


# cond_if_any.


def count_calls(calls):
    def on_true(x, y):
        jax.debug.callback(lambda x: calls.append(1), x)
        return {"out": x * 10 + y}

    return on_true


def test_cond_if_any_selects_each_element_and_skips_when_none_asks():
    calls = []

    def function(predicate, x, y):
        return cond_if_any(predicate, count_calls(calls), lambda x, y: {"out": x - y}, x, y)

    x, y = jnp.arange(4.0), jnp.float32(1.0)
    batched = jax.jit(jax.vmap(function, in_axes=(0, 0, None)))
    assert batched(jnp.zeros(4, bool), x, y)["out"].tolist() == [-1, 0, 1, 2]
    jax.effects_barrier()
    assert not calls
    predicate = jnp.array([False, True, False, True])
    assert batched(predicate, x, y)["out"].tolist() == [-1, 11, 1, 31]
    jax.effects_barrier()
    assert calls
    # Not batched at all, and batched in the operands alone.
    assert jax.jit(function)(jnp.asarray(True), x[2], y)["out"] == 21.0
    by_operand = jax.vmap(function, in_axes=(None, 0, None))(jnp.asarray(False), x, y)
    assert by_operand["out"].tolist() == [-1, 0, 1, 2]
    # Batched in the predicate alone.
    by_predicate = jax.vmap(function, in_axes=(0, None, None))(predicate, x[3], y)
    assert by_predicate["out"].tolist() == [2, 31, 2, 31]


def test_cond_if_any_under_two_vmaps_and_a_scan():
    calls = []

    def function(predicate, x):
        return cond_if_any(predicate, count_calls(calls), lambda x, y: {"out": x - y}, x, jnp.float32(1.0))["out"]

    nested = jax.jit(jax.vmap(jax.vmap(function)))
    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(nested(jnp.zeros((2, 3), bool), x), x - 1)
    jax.effects_barrier()
    assert not calls
    predicate = jnp.array([[True, False, False], [False, False, True]])
    np.testing.assert_array_equal(nested(predicate, x), jnp.where(predicate, x * 10 + 1, x - 1))

    def body(x, predicate):
        x = jax.vmap(function)(predicate, x)
        return x, x

    scanned = jax.lax.scan(body, jnp.zeros(3), predicate)[1]
    assert scanned.tolist() == [[1, -1, -1], [0, -2, -9]]


def test_cond_if_any_selects_random_keys_too():
    keys = jax.random.split(jax.random.key(0), 3)
    predicate = jnp.array([True, False, True])
    out = jax.vmap(lambda p, k: cond_if_any(p, lambda k: jax.random.fold_in(k, 1), lambda k: k, k))(predicate, keys)
    expected = [jax.random.fold_in(keys[0], 1), keys[1], jax.random.fold_in(keys[2], 1)]
    assert jax.random.key_data(out).tolist() == [jax.random.key_data(key).tolist() for key in expected]


# random_index.


@pytest.mark.parametrize("size", [1, 2, 3, 1000, 2**16])
def test_random_index_is_the_scaled_bits(size):
    key = jax.random.key(3)
    bits = np.asarray(jax.random.bits(key, (5000,), jnp.uint32)).astype(object)
    index = random_index(key, size, (5000,))
    assert index.dtype == jnp.int32
    assert index.tolist() == [int(b) * size >> 32 for b in bits]


def test_random_index_is_uniform_and_takes_traced_sizes():
    index = random_index(jax.random.key(4), 7, (70_000,))
    assert abs(np.bincount(np.asarray(index), minlength=7) - 10_000).max() < 400
    sizes = jnp.array([1, 2, 3])
    drawn = jax.jit(jax.vmap(lambda key, size: random_index(key, size)))(jax.random.split(jax.random.key(5), 3), sizes)
    assert (drawn < sizes).all() and (drawn >= 0).all()


# Spaces.


@pytest.mark.parametrize(
    ("space", "outside"),
    [
        (Discrete(3), [3, -1, 0.5]),
        (MultiDiscrete((2, 5)), [[2, 0], [0, 5], [0, -1], [0.0, 1.0], [0, 0, 0], 0]),
        (Box(-1.0, 1.0, (2, 3)), [np.full((2, 3), 1.5), np.zeros((3, 2)), np.full((2, 3), np.nan), 0.0]),
        (Box(0, 255, (4,), "uint8"), [np.full(4, 256), np.full(3, 0)]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_spaces_contain_their_samples_alone(space, outside):
    for batch_shape in ((), (50,), (2, 30)):
        sample = space.sample(jax.random.key(0), batch_shape)
        assert sample.shape == (*batch_shape, *space.shape) and sample.dtype == jnp.dtype(space.dtype)
        assert space.contains(sample)
    for value in outside:
        assert not space.contains(np.asarray(value))
    assert hash(space) == hash(dataclasses.replace(space))


def test_unbounded_box_is_not_sampled():
    with pytest.raises(ValueError, match="cannot sample uniformly"):
        Box(0.0, float("inf"), (2,)).sample(jax.random.key(0))


def test_flat_size():
    assert flat_size(Box(0, 1, (2, 3))) == 6
    assert flat_size({"a": Discrete(4), "b": (MultiDiscrete((2, 2)), Box(0, 1, (5,)))}) == 8


# Registry.


@pytest.fixture
def clean_registry():
    registered = registry._ENVIRONMENTS._registered
    before = dict(registered)
    yield
    registered.clear()
    registered.update(before)


def test_register_and_make(clean_registry):
    register("counter", Counter)
    register("counter", Counter)
    assert "counter" in environment_names() and make("counter", goal=8) == Counter(goal=8)
    with pytest.raises(UserError, match="'counter' exists already"):
        register("counter", lambda: Counter())
    with pytest.raises(UserError, match="'grid_4x4' exists already"):
        register("grid_4x4", Counter)
    register("any_settings", lambda **settings: Counter(**settings))
    assert make("any_settings", max_steps=9).max_steps == 9


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("grid_4x4", {"max_steps": "abc"}, "setting max_steps of grid_4x4 must be a whole number, got 'abc'"),
        ("grid_4x4", {"max_steps": 2.5}, "max_steps .* whole number, got 2.5"),
        ("grid_4x4", {"size": True}, "size .* whole number, got True"),
        ("grid_4x4", {"size": None}, "size .* whole number, got None"),
        ("grid_4x4", {"goal_reward": (1, 2)}, "goal_reward .* a number"),
        ("overcooked", {"layout": 3}, "layout of overcooked must be text, got 3"),
        ("overcooked", {"layout": (1, 2)}, "layout of overcooked must be text"),
        ("foraging", {"sight": "far"}, "sight .* a whole number, got 'far'"),
        ("foraging", {"cooperative": 1}, "cooperative .* true or false, got 1"),
    ],
)
def test_settings_of_a_wrong_type_are_refused(name, settings, message):
    with pytest.raises(UserError, match=message):
        make(name, **settings)


def test_numbers_may_be_written_either_way():
    env = make("grid_4x4", max_steps=1e2, goal_reward=2)
    assert type(env.max_steps) is int and type(env.goal_reward) is float
    assert env == make("grid_4x4", max_steps=100, goal_reward=2.0)
    assert make("foraging", sight=None) == make("foraging")


def test_unknown_names_get_the_closest_ones(clean_registry):
    with pytest.raises(UserError, match="unknown environment 'grid_4x5': did you mean grid_4x4"):
        make("grid_4x5")
    with pytest.raises(UserError, match=r"unknown environment 'zzz': choose one of .*two_step"):
        make("zzz")
    with pytest.raises(UserError, match="unknown setting of grid_4x4 'max_step': did you mean max_steps"):
        make("grid_4x4", max_step=3)
