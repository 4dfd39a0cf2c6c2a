"""Both adapters against a small stand-in for a JaxMARL environment, so that they are tested without JaxMARL."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxmarl_llm import auto_reset, check_env, from_jaxmarl, make, to_jaxmarl, vectorize
from jaxmarl_llm.envs.adapters import jaxmarl_export
from jaxmarl_llm.errors import UserError


class TheirDiscrete:
    def __init__(self, n):
        self.n, self.shape = np.int64(n), ()


@struct.dataclass
class TheirState:
    done: jax.Array
    step: jax.Array
    position: jax.Array  # [2]


@struct.dataclass
class OuterState:
    state: TheirState


class Climb:
    """A ladder with a tall and a short agent, in JaxMARL's dialect: `step` starts as a Python number.

    Action 1 climbs; the short agent has two more actions, 3 kills it. The game is won when the tall agent is on rung 4.
    """

    name = "Climb"
    agents = ("tall", "short")
    num_agents = 2
    late = 0  # 1: the clock gives one step more, as MPE's does

    def __init__(self, max_steps=4):
        self.max_steps = max_steps

    def action_space(self, agent):
        return TheirDiscrete({"tall": 2, "short": 4}[agent])

    def reset(self, key):
        state = TheirState(done=False, step=0, position=jnp.zeros(2))
        return self.get_obs(state), OuterState(state)

    def get_obs(self, state):
        return {
            "tall": jnp.stack([state.position[0], jnp.float32(state.step)]),
            "short": state.position[1][None],
            "world_state": state.position,
        }

    def get_avail_actions(self, outer):
        return {"tall": jnp.ones(2, jnp.uint8), "short": jnp.array([1, 1, 0, 1], jnp.uint8)}

    def step_env(self, key, outer, actions):
        state = outer.state
        up = jnp.stack([actions["tall"] == 1, actions["short"] == 1])
        position = state.position + up
        died = (actions["short"] == 3) | (state.position[1] < 0)
        position = position.at[1].set(jnp.where(died, -1.0, position[1]))
        won = position[0] >= 4
        step = state.step + 1
        done = won | (step - self.late >= self.max_steps)
        state = TheirState(done=done, step=step, position=position)
        dones = {"tall": won, "short": died, "__all__": done}
        rewards = {"tall": up[0] * 1.0, "short": up[1] * 0.5, "__all__": jnp.float32(9)}
        info = {
            "shaped_reward": {"tall": up[0], "short": up[1]},
            "height": position.sum(),
            "text": "not a number",
            "map": jnp.zeros((3, 3)),
        }
        return self.get_obs(state), OuterState(state), rewards, dones, info


class LateClimb(Climb):
    late = 1


class PlainClimb(Climb):
    """Without a mask, a world state and numbers in info."""

    get_avail_actions = None

    def reset(self, key):
        observation, state = super().reset(key)
        del observation["world_state"]
        return observation, state

    def step_env(self, key, outer, actions):
        observation, state, rewards, dones, _ = super().step_env(key, outer, actions)
        del observation["world_state"]
        return observation, state, rewards, dones, {}


def play(env, key, actions):
    timestep, state = env.reset(key)
    steps = [timestep]
    for action in actions:
        timestep, state = jax.jit(env.step)(key, state, jnp.asarray(action))
        steps.append(timestep)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *steps)


@pytest.mark.parametrize(
    "kind", [Climb, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (LateClimb, PlainClimb))]
)
def test_conformance(kind):
    check_env(from_jaxmarl(kind()), num_steps=60)


def test_unequal_agents_are_padded_with_masks(key):
    env = from_jaxmarl(Climb())
    assert env.agents == ("tall", "short") and env.num_agents == 2
    assert env.observation_space.shape == (2,) and env.num_actions == 4
    timestep, state = env.reset(key)
    np.testing.assert_array_equal(timestep.observation, np.zeros((2, 2)))
    np.testing.assert_array_equal(timestep.action_mask, [[1, 1, 0, 0], [1, 1, 0, 1]])
    timestep, state = env.step(key, state, jnp.array([0, 1]))
    np.testing.assert_array_equal(timestep.observation, [[0, 1], [1, 0]])
    np.testing.assert_array_equal(env.global_state(state), [0, 1])
    assert env.global_state_size == 2


def test_without_mask_every_own_action_is_legal(key):
    env = from_jaxmarl(PlainClimb())
    np.testing.assert_array_equal(env.reset(key)[0].action_mask, [[1, 1, 0, 0], [1, 1, 1, 1]])
    assert env.global_state_size == 4 and env.reset(key)[0].info == {}


def test_reward_and_info_by_agent(key):
    steps = play(from_jaxmarl(Climb()), key, [(1, 0), (1, 1)])
    np.testing.assert_array_equal(steps.reward, [[0, 0], [1, 0], [1, 0.5]])
    np.testing.assert_array_equal(steps.info["shaped_reward"], [[0, 0], [1, 0], [1, 1]])
    np.testing.assert_array_equal(steps.info["height"], [0, 1, 3])
    assert set(steps.info) == {"shaped_reward", "height"}


@pytest.mark.parametrize("kind", [Climb, LateClimb])
def test_running_out_of_time_is_truncation(key, kind):
    steps = play(from_jaxmarl(kind(max_steps=4)), key, [(0, 0)] * 4)
    np.testing.assert_array_equal(steps.truncated, [0, 0, 0, 0, 1])
    assert not steps.terminated.any()
    assert steps.done[-1]


@pytest.mark.parametrize("kind", [Climb, LateClimb])
def test_a_win_on_the_last_step_is_termination(key, kind):
    steps = play(from_jaxmarl(kind(max_steps=4)), key, [(1, 0)] * 4)
    assert steps.terminated[-1].all() and steps.truncated[-1]
    assert not steps.terminated[:-1].any()


def test_a_win_before_the_limit_is_termination_for_all(key):
    steps = play(from_jaxmarl(Climb(max_steps=9)), key, [(1, 0)] * 4)
    assert steps.terminated[-1].all() and not steps.truncated.any()


def test_a_dead_agent_stays_terminated_and_its_actions_do_nothing(key):
    steps = play(from_jaxmarl(Climb(max_steps=9)), key, [(0, 3), (0, 1), (1, 1)])
    np.testing.assert_array_equal(steps.terminated[:, 1], [0, 1, 1, 1])
    np.testing.assert_array_equal(steps.active[:, 1], [1, 0, 0, 0])
    np.testing.assert_array_equal(steps.reward[:, 1], [0, 0, 0, 0])
    assert not steps.terminated[:, 0].any()


def test_many_copies_step_and_reset_alone(key):
    env = vectorize(auto_reset(from_jaxmarl(Climb(max_steps=4))), 3)
    timestep, state = env.reset(key)
    state = state.replace(step=jnp.array([0, 2, 3], jnp.int32))
    timestep, state = jax.jit(env.step)(key, state, jnp.array([[1, 1]] * 3))
    np.testing.assert_array_equal(timestep.done, [0, 0, 1])
    np.testing.assert_array_equal(state.step, [1, 3, 0])
    np.testing.assert_array_equal(state.inner.state.position, [[1, 1], [1, 1], [0, 0]])


def test_adapters_are_values():
    inner = Climb()
    one, two = from_jaxmarl(inner), from_jaxmarl(inner)
    assert one == two and hash(one) == hash(two)
    assert one != from_jaxmarl(Climb()) and one != from_jaxmarl(inner, max_steps=2)


def test_limits():
    assert from_jaxmarl(Climb(max_steps=7)).max_steps == 7
    assert from_jaxmarl(Climb(max_steps=7), max_steps=3).max_steps == 3
    meta = Climb()
    del meta.max_steps
    assert from_jaxmarl(meta).max_steps == 1000
    meta.num_inner_steps, meta.num_outer_steps = 5, 6
    assert from_jaxmarl(meta).max_steps == 30


def test_bad_input_is_one_clear_line():
    with pytest.raises(UserError, match="above the environment's own limit 4"):
        from_jaxmarl(Climb(), max_steps=5)
    with pytest.raises(UserError, match="not a JaxMARL environment"):
        from_jaxmarl(object())

    class Continuous(Climb):
        def action_space(self, agent):
            return dataclasses.make_dataclass("Box", ["shape"])((2,))

    with pytest.raises(UserError, match="not discrete"):
        from_jaxmarl(Continuous())

    class Several(Climb):
        def reset(self, key):
            observation, state = super().reset(key)
            return {**observation, "tall": {"a": jnp.zeros(2), "b": jnp.zeros(2)}}, state

    with pytest.raises(UserError, match="several arrays"):
        from_jaxmarl(Several())


# to_jaxmarl


@pytest.fixture
def without_jaxmarl(monkeypatch):
    monkeypatch.setattr(jaxmarl_export, "_jaxmarl", lambda: None)
    jaxmarl_export._class.cache_clear()
    yield
    jaxmarl_export._class.cache_clear()


def test_there_and_back_is_the_same_game(key, without_jaxmarl):
    env = make("coin_game", max_steps=6)
    back = from_jaxmarl(to_jaxmarl(env))
    assert back.agents == env.agents and back.max_steps == 6
    timestep, state = env.reset(key)
    there, there_state = back.reset(key)
    for t in range(6):
        keys = jax.random.split(jax.random.fold_in(key, t))
        action = jax.random.randint(keys[0], (2,), 0, env.num_actions)
        timestep, state = env.step(keys[1], state, action)
        there, there_state = back.step(keys[1], there_state, action)
        np.testing.assert_array_equal(timestep.observation, there.observation)
        np.testing.assert_array_equal(timestep.reward, there.reward)
        np.testing.assert_array_equal(timestep.terminated, there.terminated)
        assert timestep.truncated == there.truncated


def test_their_step_resets_and_tells_once(key, without_jaxmarl):
    env = to_jaxmarl(from_jaxmarl(Climb(max_steps=2)))
    assert env.agents == ["tall", "short"] and env.name == "FromJaxMARL"
    observation, state = env.reset(key)
    assert set(observation) == set(env.agents)
    actions = {"tall": jnp.int32(1), "short": jnp.int32(3)}
    observation, state, rewards, dones, infos = env.step(key, state, actions)
    assert {name: bool(flag) for name, flag in dones.items()} == {"tall": False, "short": True, "__all__": False}
    assert rewards["tall"] == 1 and infos["shaped_reward"]["tall"] == 1
    assert infos["height"].shape == (2,)
    observation, state, rewards, dones, infos = env.step(key, state, actions)
    assert all(bool(flag) for flag in dones.values())
    assert state.step == 0
    np.testing.assert_array_equal(observation["tall"], [0, 0])


def test_their_reset_state_is_used_only_at_an_end(key, without_jaxmarl):
    env = to_jaxmarl(make("coin_game", max_steps=2))
    _, start = env.reset(jax.random.key(7))
    _, state = env.reset(key)
    actions = {agent: jnp.int32(0) for agent in env.agents}
    _, state, *_ = env.step(key, state, actions, start)
    assert state.step == 1
    observation, state, *_ = env.step(key, state, actions, start)
    jax.tree.map(np.testing.assert_array_equal, state, start)
    jax.tree.map(np.testing.assert_array_equal, observation, env.get_obs(start))


def test_their_spaces_and_masks(key, without_jaxmarl):
    env = to_jaxmarl(from_jaxmarl(Climb()))
    assert env.action_space("short").n == 4 and env.observation_space().shape == (2,)
    action = env.action_space("tall").sample(key)
    assert action.shape == ()
    np.testing.assert_array_equal(env.get_avail_actions(env.reset(key)[1])["short"], [1, 1, 0, 1])
