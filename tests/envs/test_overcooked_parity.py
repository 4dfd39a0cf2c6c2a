"""The same game as JaxMARL 0.2.0: observations, rewards, shaped rewards and dones of random play, exactly."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("jaxmarl", reason="needs the package jaxmarl (the extra 'jaxmarl')")
    from jaxmarl.environments.overcooked import Overcooked as PeerOvercooked
    from jaxmarl.environments.overcooked import overcooked_layouts as peer_layouts

from jaxmarl_llm.envs import auto_reset, make
from jaxmarl_llm.envs.gridworld.overcooked_layouts import CLASSIC_LAYOUTS

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    # The peer relies on rank promotion.
    pytest.mark.usefixtures("rank_promotion_allowed"),
]

NUM_ENVS, NUM_STEPS = 8, 2000
_ITEM = {1: 0, 3: 1, 5: 2, 9: 3}


@pytest.fixture
def rank_promotion_allowed():
    with jax.numpy_rank_promotion("allow"):
        yield


def translate(env, peer_state):
    """JaxMARL's state (one environment) as ours."""
    height, width = env.kitchen.height, env.kitchen.width
    padded = np.asarray(peer_state.maze_map)
    border = (padded.shape[0] - height) // 2
    cells = padded[border : border + height, border : border + width]
    return env.state_at(
        positions=[(int(y), int(x)) for x, y in np.asarray(peer_state.agent_pos)],
        directions=[int(d) for d in peer_state.agent_dir_idx],
        held=[_ITEM[int(item)] for item in peer_state.agent_inv],
        pot_status=[int(cells[cell][2]) for cell in env.kitchen.pots],
        counters={cell: _ITEM[int(cells[cell][0])] for cell in env.kitchen.counters if int(cells[cell][0]) in _ITEM},
        step=int(peer_state.step),
    )


def translate_batch(env, peer_states, num_envs):
    states = [translate(env, jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], peer_states)) for i in range(num_envs)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def busy_actions(key, shape):
    """Random play that interacts half of the time: more pots are filled than in uniform play."""
    key_move, key_interact = jax.random.split(key)
    move = jax.random.randint(key_move, shape, 0, 6)
    return jnp.where(jax.random.bernoulli(key_interact, 0.3, shape), 5, move)


@pytest.mark.slow
@pytest.mark.parametrize("random_start", [False, True])
@pytest.mark.parametrize("layout", list(CLASSIC_LAYOUTS))
def test_random_play_equals_jaxmarl(layout, random_start):
    max_steps = 250
    env = make("overcooked", layout=layout, random_start=random_start, max_steps=max_steps)
    peer = PeerOvercooked(layout=peer_layouts[layout], random_reset=random_start, max_steps=max_steps)
    key_start, key_next, key_action = jax.random.split(jax.random.key(1), 3)

    def starts(key):
        return jax.jit(jax.vmap(peer.reset))(jax.random.split(key, NUM_ENVS))

    @jax.jit
    def rollout(peer_state, state, key):
        def step(carry, key):
            peer_state, state = carry
            action = busy_actions(key, (NUM_ENVS, 2))
            keys = jax.random.split(key, NUM_ENVS)
            actions = {"agent_0": action[:, 0], "agent_1": action[:, 1]}
            peer_obs, peer_state, peer_reward, peer_done, peer_info = jax.vmap(peer.step_env)(keys, peer_state, actions)
            timestep, state = jax.vmap(env.step)(keys, state, action)

            def both(values):
                return jnp.stack([values["agent_0"], values["agent_1"]], axis=1)

            equal = {
                "observation": jnp.all(both(peer_obs) == timestep.observation),
                "reward": jnp.all(both(peer_reward) == timestep.reward),
                "shaped": jnp.all(both(peer_info["shaped_reward"]) == timestep.info["shaped_reward"]),
                "done": jnp.all(peer_done["__all__"] == timestep.done),
            }
            totals = {
                "reward": timestep.reward.sum(),
                "shaped": timestep.info["shaped_reward"].sum(axis=(0, 1)),
                "done": timestep.done.sum(),
            }
            return (peer_state, state), (equal, totals)

        return jax.lax.scan(step, (peer_state, state), jax.random.split(key, max_steps))

    # Episodes of max_steps from fresh starts of the peer, NUM_STEPS steps in all, each in NUM_ENVS kitchens.
    done, reward, shaped = 0, 0.0, 0.0
    for episode in range(-(-NUM_STEPS // max_steps)):
        peer_obs, peer_state = starts(jax.random.fold_in(key_next if episode else key_start, episode))
        state = translate_batch(env, peer_state, NUM_ENVS)
        first = jax.jit(jax.vmap(env.observe))(state)
        assert first.dtype == peer_obs["agent_0"].dtype
        np.testing.assert_array_equal(first[:, 0], peer_obs["agent_0"])
        np.testing.assert_array_equal(first[:, 1], peer_obs["agent_1"])
        _, (equal, totals) = rollout(peer_state, state, jax.random.fold_in(key_action, episode))
        for name, flags in equal.items():
            assert bool(flags.all()), f"{name} differs at step {int(jnp.argmin(flags))} of episode {episode}"
        done += totals["done"].sum()
        reward += totals["reward"].sum()
        shaped += totals["shaped"].sum()
    assert done == NUM_ENVS * -(-NUM_STEPS // max_steps)
    assert shaped > 0
    # Soups are served by chance at least from random starts, where hands and pots are full already.
    assert reward > 0 or not random_start


@pytest.mark.parametrize("layout", list(CLASSIC_LAYOUTS))
def test_auto_reset_ends_episodes_like_jaxmarl(layout):
    """Across episode ends: same dones, and the observation after an end is that of a start the peer can make."""
    max_steps, num_steps = 7, 30
    env = auto_reset(make("overcooked", layout=layout, max_steps=max_steps))
    peer = PeerOvercooked(layout=peer_layouts[layout], max_steps=max_steps)
    _, peer_state = peer.reset(jax.random.key(0))
    _, state = env.reset(jax.random.key(0))
    state = translate(env.env, jax.tree.map(np.asarray, peer_state))
    peer_step, our_step = jax.jit(peer.step), jax.jit(env.step)
    for t in range(num_steps):
        key = jax.random.fold_in(jax.random.key(5), t)
        action = busy_actions(key, (2,))
        peer_obs, peer_state, peer_reward, peer_done, _ = peer_step(
            key, peer_state, {"agent_0": action[0], "agent_1": action[1]}
        )
        timestep, state = our_step(key, state, action)
        assert bool(timestep.done) == bool(peer_done["__all__"]) == ((t + 1) % max_steps == 0)
        assert float(timestep.reward[0]) == float(peer_reward["agent_0"])
        if timestep.done:  # Directions are drawn anew: carry on from the peer's start.
            state = translate(env.env, jax.tree.map(np.asarray, peer_state))
            observation = env.observe(state)
        else:
            observation = timestep.observation
        np.testing.assert_array_equal(observation[0], peer_obs["agent_0"])
        np.testing.assert_array_equal(observation[1], peer_obs["agent_1"])
