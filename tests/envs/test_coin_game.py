import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.envs import auto_reset, make, vectorize
from jaxmarl_llm.envs.gridworld.coin_game import CoinGame, CoinGameState
from jaxmarl_llm.errors import UserError

RIGHT, LEFT, DOWN, UP, STAY = range(5)


def cells(*places):
    return jnp.array([3 * row + column for row, column in places], jnp.int32)


def state_at(*places, step=0):
    return CoinGameState(step=jnp.int32(step), cell=cells(*places))


def test_golden_step_rewards(key):
    env = CoinGame()
    # Agent 0 wraps from column 2 to column 0 and takes its own coin; agent 1 stays: nothing else happens.
    state = state_at((1, 2), (2, 2), (1, 0), (0, 1))
    timestep, new = env.step(key, state, jnp.array([RIGHT, STAY]))
    np.testing.assert_array_equal(timestep.reward, [1, 0])
    np.testing.assert_array_equal(new.cell[jnp.array([0, 1, 3])], cells((1, 0), (2, 2), (0, 1)))
    np.testing.assert_array_equal(timestep.info["own_coin"], [1, 0])
    # Agent 1 wraps up from row 0 to row 2 and takes coin 0: +1 for it, -2 for agent 0.
    timestep, _ = env.step(key, state_at((0, 0), (0, 1), (2, 1), (1, 2)), jnp.array([STAY, UP]))
    np.testing.assert_array_equal(timestep.reward, [-2, 1])
    np.testing.assert_array_equal(timestep.info["other_coin"], [0, 1])
    # Each takes the other's coin: 1 - 2 for both.
    timestep, _ = env.step(key, state_at((0, 0), (0, 1), (1, 1), (1, 0)), jnp.array([DOWN, DOWN]))
    np.testing.assert_array_equal(timestep.reward, [-1, -1])
    # Both take coin 0: 1 - 2 for its owner, 1 for the other.
    timestep, _ = env.step(key, state_at((1, 0), (1, 2), (1, 1), (0, 0)), jnp.array([RIGHT, LEFT]))
    np.testing.assert_array_equal(timestep.reward, [-1, 1])
    # Both coins on one cell: agent 0 takes both, 1 + 1; agent 1 loses its own.
    timestep, _ = env.step(key, state_at((1, 0), (2, 2), (1, 1), (1, 1)), jnp.array([RIGHT, STAY]))
    np.testing.assert_array_equal(timestep.reward, [2, -2])


def test_asymmetric_payoff_and_welfare(key):
    payoff = [[3, 5, -7], [11, 13, -17]]
    state, action = state_at((0, 0), (0, 1), (1, 0), (1, 1)), jnp.array([DOWN, DOWN])
    timestep, _ = CoinGame(payoff=payoff).step(key, state, action)
    np.testing.assert_array_equal(timestep.reward, [3, 13])
    timestep, _ = CoinGame(payoff=payoff, shared_reward=True).step(key, state, action)
    np.testing.assert_array_equal(timestep.reward, [16, 16])
    swapped = state_at((0, 0), (0, 1), (1, 1), (1, 0))
    timestep, _ = CoinGame(payoff=payoff).step(key, swapped, action)
    np.testing.assert_array_equal(timestep.reward, [5 - 7, 11 - 17])


def test_observation_puts_the_agent_first():
    env = CoinGame(grid_observation=True)
    seen = np.asarray(env.observe(state_at((0, 1), (1, 2), (2, 0), (2, 2))))
    assert seen.shape == (2, 3, 3, 4)
    assert [tuple(np.argwhere(seen[0, :, :, c])[0]) for c in range(4)] == [(0, 1), (1, 2), (2, 0), (2, 2)]
    assert [tuple(np.argwhere(seen[1, :, :, c])[0]) for c in range(4)] == [(1, 2), (0, 1), (2, 2), (2, 0)]
    ego = np.asarray(CoinGame(grid_observation=True, egocentric=True).observe(state_at((0, 1), (1, 2), (2, 0), (2, 2))))
    assert [tuple(np.argwhere(ego[0, :, :, c])[0]) for c in range(4)] == [(1, 1), (2, 2), (0, 0), (0, 2)]
    assert [tuple(np.argwhere(ego[1, :, :, c])[0]) for c in range(4)] == [(1, 1), (0, 0), (2, 1), (2, 2)]
    flat = CoinGame().observe(state_at((0, 1), (1, 2), (2, 0), (2, 2)))
    np.testing.assert_array_equal(flat, seen.reshape(2, 36))


def test_coins_come_back_uniformly():
    env = CoinGame()
    state = state_at((0, 0), (2, 2), (0, 1), (1, 0))
    keys = jax.random.split(jax.random.key(7), 4_000)
    new = jax.vmap(lambda key: env.step(key, state, jnp.array([RIGHT, STAY]))[1].cell)(keys)
    counts = np.bincount(np.asarray(new[:, 2]), minlength=9)
    assert counts.size == 9 and abs(counts / 4_000 - 1 / 9).max() < 0.02
    assert (np.asarray(new[:, 3]) == 3).all()  # the coin that nobody took stays
    starts = jax.vmap(lambda key: env.reset(key)[1].cell)(keys)
    for entity in range(4):
        assert abs(np.bincount(np.asarray(starts[:, entity]), minlength=9) / 4_000 - 1 / 9).max() < 0.02
    assert abs(np.corrcoef(np.asarray(starts).T) - np.eye(4)).max() < 0.06


def test_inner_episodes_restart_without_ending_the_episode():
    env = CoinGame(max_steps=7, num_inner_steps=3)
    # Stepping on coins on the third step pays nothing, and places all four anew.
    state = state_at((1, 0), (2, 2), (1, 1), (0, 0), step=2)
    places = []
    for seed in range(20):
        timestep, new = env.step(jax.random.key(seed), state, jnp.array([RIGHT, STAY]))
        np.testing.assert_array_equal(timestep.reward, [0, 0])
        assert timestep.info["inner_episode_end"] == 1 and not timestep.done
        places.append(tuple(new.cell.tolist()))
    assert len(set(places)) > 15
    timestep, state = env.reset(jax.random.key(0))
    ends = []
    for t in range(7):
        assert not timestep.done
        timestep, state = env.step(jax.random.key(t), state, jnp.array([STAY, STAY]))
        ends.append(int(timestep.info["inner_episode_end"]))
    assert ends == [0, 0, 1, 0, 0, 1, 0] and timestep.truncated and not timestep.terminated.any()


def test_batched_run_stays_in_its_spaces():
    env = CoinGame(max_steps=5, egocentric=True)
    batch = vectorize(auto_reset(env), 3)
    timestep, state = batch.reset(jax.random.key(1))
    step = jax.jit(batch.step)
    for t in range(11):
        action = jax.random.randint(jax.random.key(t), (3, 2), 0, 5)
        new_timestep, state = step(jax.random.key(100 + t), state, action)
        chex.assert_trees_all_equal_shapes_and_dtypes(timestep, new_timestep)
        timestep = new_timestep
        assert env.observation_space.contains(timestep.observation)
        assert (np.asarray(timestep.observation).sum(-1) == 4).all()
        assert timestep.truncated.all() == (t % 5 == 4)
    assert env.global_state(jax.tree.map(lambda leaf: leaf[0], state)).shape == (36,) == (env.global_state_size,)


def test_render():
    env = make("coin_game")
    for places in [((0, 0), (0, 0), (1, 1), (1, 1)), ((0, 0), (0, 1), (0, 0), (2, 2))]:
        picture = env.render(state_at(*places))
        assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3


@pytest.mark.parametrize("settings", [{"payoff": [[1, 2], [3, 4]]}, {"num_inner_steps": 0}, {"max_steps": 0}])
def test_bad_settings(settings):
    with pytest.raises(UserError) as error:
        CoinGame(**settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("egocentric", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_parity_with_jaxmarl(egocentric):
    jaxmarl = pytest.importorskip("jaxmarl")
    with jax.numpy_rank_promotion("allow"):
        theirs = jaxmarl.make("coin_game", num_inner_steps=10, num_outer_steps=20, egocentric=egocentric)
        ours = CoinGame(max_steps=200, num_inner_steps=10, egocentric=egocentric)
        peer_step, our_step = jax.jit(theirs.step_env), jax.jit(ours.step)
        _, peer = theirs.reset(jax.random.key(0))
        for t in range(200):
            key = jax.random.key(t)
            places = (peer.red_pos, peer.blue_pos, peer.red_coin_pos, peer.blue_coin_pos)
            state = state_at(*(tuple(p.tolist()) for p in places), step=t)
            action = jax.random.randint(key, (2,), 0, 5)
            peer_obs, peer, peer_reward, peer_done, _ = peer_step(key, peer, {"0": action[0], "1": action[1]})
            timestep, new = our_step(key, state, action)
            np.testing.assert_array_equal(timestep.reward, [peer_reward["0"], peer_reward["1"]])
            assert bool(timestep.done) == bool(peer_done["__all__"])
            places = (peer.red_pos, peer.blue_pos, peer.red_coin_pos, peer.blue_coin_pos)
            same = state_at(*(tuple(p.tolist()) for p in places))
            if (t + 1) % 10:
                np.testing.assert_array_equal(new.cell[:2], same.cell[:2])
            np.testing.assert_array_equal(ours.observe(same), [peer_obs["0"], peer_obs["1"]])
