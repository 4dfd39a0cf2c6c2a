"""The switch riddle: a golden game, a slow twin of the rules, the same rules as JaxMARL's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm import make
from jaxmarl_llm.envs.tabular.switch_riddle import SwitchRiddle, SwitchRiddleState
from jaxmarl_llm.errors import UserError

NOTHING, SWITCH, TELL = range(3)


def state_with(env, *, step=0, light=False, in_room=0, visited=()):
    bits = sum(1 << agent for agent in visited)
    return SwitchRiddleState(
        step=jnp.int32(step), light=jnp.asarray(light), in_room=jnp.int32(in_room), visited=jnp.uint32(bits)
    )


def test_golden_game():
    env = make("switch_riddle")
    assert env.max_steps == 6
    step = jax.jit(env.step)
    key = jax.random.key(0)

    timestep, state = step(key, state_with(env, in_room=1), jnp.array([TELL, SWITCH, SWITCH]))
    assert timestep.reward.tolist() == [0.0] * 3 and not timestep.done
    assert bool(state.light) and int(state.visited) == 0b010

    timestep, state = step(key, state.replace(in_room=jnp.int32(0)), jnp.array([NOTHING, TELL, TELL]))
    assert bool(state.light) and int(state.visited) == 0b011 and not timestep.done

    claim, after = step(key, state.replace(in_room=jnp.int32(2)), jnp.array([NOTHING, NOTHING, TELL]))
    assert claim.reward.tolist() == [1.0] * 3 and claim.terminated.all() and not claim.truncated
    assert int(after.visited) == 0b111

    early, _ = step(key, state.replace(in_room=jnp.int32(1)), jnp.array([NOTHING, TELL, NOTHING]))
    assert early.reward.tolist() == [-1.0] * 3 and early.terminated.all()


def test_only_the_visitor_sees_the_light_and_acts():
    env = make("switch_riddle", num_agents=4)
    state = state_with(env, light=True, in_room=2)
    assert env.observe(state).tolist() == [[0, 0], [0, 0], [1, 1], [0, 0]]
    assert env.observe(state.replace(light=jnp.asarray(False)))[2].tolist() == [1, 0]
    assert env.active(state).tolist() == [False, False, True, False]
    assert env.action_mask(state).all()
    assert env.global_state(state.replace(visited=jnp.uint32(0b1001))).tolist() == [0, 0, 1, 0, 1, 0, 0, 1, 1]


def test_the_last_day_ends_the_game_without_reward():
    env = make("switch_riddle")
    timestep, _ = env.step(jax.random.key(0), state_with(env, step=5), jnp.zeros(3, jnp.int32))
    assert timestep.terminated.all() and timestep.truncated and not timestep.reward.any()
    timestep, _ = env.step(jax.random.key(0), state_with(env, step=4), jnp.zeros(3, jnp.int32))
    assert not timestep.done


def test_visitors_are_uniform():
    env = make("switch_riddle", num_agents=5)
    keys = jax.random.split(jax.random.key(0), 20_000)
    state = state_with(env)
    first = jax.jit(jax.vmap(lambda key: env.reset(key)[1].in_room))(keys)
    later = jax.jit(jax.vmap(lambda key: env.step(key, state, jnp.zeros(5, jnp.int32))[1].in_room))(keys)
    for visitors in (first, later):
        counts = np.bincount(np.asarray(visitors), minlength=5)
        assert abs(counts / 20_000 - 0.2).max() < 0.015


@pytest.mark.parametrize("num_agents", [3, 32])
def test_equals_a_slow_twin(num_agents):
    env = SwitchRiddle(num_agents=num_agents, light_on=True, win_reward=2.0, lose_reward=-3.0, max_steps=150)
    step = jax.jit(env.step)
    rng = np.random.default_rng(num_agents)
    _, state = env.reset(jax.random.key(1))
    light, visited = True, set()
    wins = 0
    for t in range(300):
        if t % 150 == 0:
            _, state = env.reset(jax.random.key(t))
            light, visited = True, set()
        in_room = int(state.in_room)
        everyone = len(visited | {in_room}) == num_agents
        action = rng.integers(0, 2, num_agents)
        action[in_room] = TELL if everyone else action[in_room]
        timestep, state = step(jax.random.key(t), state, jnp.asarray(action, jnp.int32))
        visited.add(in_room)
        light ^= action[in_room] == SWITCH
        expected = 0.0 if action[in_room] != TELL else 2.0
        assert timestep.reward.tolist() == [expected] * num_agents
        assert bool(timestep.terminated.all()) == (action[in_room] == TELL or t % 150 == 149)
        assert bool(state.light) == light
        assert {i for i in range(num_agents) if int(state.visited) >> i & 1} == visited
        wins += expected > 0
    assert wins > 0


@pytest.mark.filterwarnings("ignore")
def test_same_rules_as_jaxmarl():
    peer = pytest.importorskip("jaxmarl.environments.switch_riddle.switch_riddle")
    num_agents = 4
    env, other = make("switch_riddle", num_agents=num_agents), peer.SwitchRiddle(num_agents=num_agents)
    assert env.max_steps == other.max_steps
    rng = np.random.default_rng(0)
    step, other_step = jax.jit(env.step), jax.jit(other.step_env)
    for t in range(300):
        flags = rng.integers(0, 2, num_agents)
        in_room, light, day = int(rng.integers(num_agents)), bool(rng.integers(2)), int(rng.integers(env.max_steps))
        action = rng.integers(0, 3, num_agents)
        state = state_with(env, step=day, light=light, in_room=in_room, visited=np.flatnonzero(flags))
        theirs = peer.State(
            bulb_state=jnp.asarray(light),
            agent_in_room=jnp.int32(in_room),
            has_been=jnp.asarray(flags),
            done=jnp.asarray(False),
            step=day,
        )
        observations = other.get_obs(theirs)
        np.testing.assert_array_equal(env.observe(state), np.stack([observations[a] for a in other.agents]))
        timestep, state = step(jax.random.key(t), state, jnp.asarray(action, jnp.int32))
        actions = {agent: jnp.int32(action[i]) for i, agent in enumerate(other.agents)}
        _, theirs, reward, done, _ = other_step(jax.random.key(t), theirs, actions)
        assert timestep.reward.tolist() == [float(reward[agent]) for agent in other.agents]
        assert bool(timestep.done) == bool(done["__all__"])
        assert bool(state.light) == bool(theirs.bulb_state)
        assert [int(state.visited) >> i & 1 for i in range(num_agents)] == theirs.has_been.tolist()


@pytest.mark.parametrize("num_agents", [1, 2, 33])
def test_bad_settings(num_agents):
    with pytest.raises(UserError, match="num_agents must be 3 to 32"):
        make("switch_riddle", num_agents=num_agents)


def test_picture_shows_light_and_visits():
    env = make("switch_riddle")
    dark = env.render(state_with(env))
    assert (env.render(state_with(env, light=True)) != dark).any()
    assert (env.render(state_with(env, visited=(1,))) != dark).any()
