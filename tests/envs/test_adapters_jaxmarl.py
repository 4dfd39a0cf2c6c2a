"""Both adapters against JaxMARL itself; skipped where it is not installed (`pip install -e .[jaxmarl]`)."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm import check_env, from_jaxmarl, make, to_jaxmarl

# JaxMARL warns on import and relies on rank promotion.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    jaxmarl = pytest.importorskip("jaxmarl")
    from jaxmarl.environments.multi_agent_env import MultiAgentEnv
    from jaxmarl.environments.smax import map_name_to_scenario
    from jaxmarl.wrappers.baselines import CTRolloutManager, LogWrapper


@pytest.fixture(autouse=True)
def rank_promotion():
    with jax.numpy_rank_promotion("allow"):
        yield


def build(name):
    if name.endswith("SMAX"):
        return jaxmarl.make(name, scenario=map_name_to_scenario("2s3z"))
    return jaxmarl.make(name)


@pytest.mark.parametrize(
    ("name", "num_agents", "num_actions", "max_steps"),
    [
        ("MPE_simple_spread_v3", 3, 5, 25),
        ("MPE_simple_tag_v3", 4, 5, 25),
        ("HeuristicEnemySMAX", 5, 10, 100),
        ("hanabi", 2, 21, 1000),
        ("overcooked_v2", 2, 6, 400),
    ],
)
def test_conformance(name, num_agents, num_actions, max_steps):
    env = from_jaxmarl(build(name))
    assert (env.num_agents, env.num_actions, env.max_steps) == (num_agents, num_actions, max_steps)
    check_env(env, num_steps=30)


def test_steps_are_theirs(key):
    theirs = build("HeuristicEnemySMAX")
    ours = from_jaxmarl(theirs)
    observation, their_state = theirs.reset(key)
    timestep, our_state = ours.reset(key)
    step = jax.jit(ours.step)
    for t in range(20):
        key_t = jax.random.fold_in(key, t)
        action = jax.random.categorical(key_t, jnp.where(timestep.action_mask, 0.0, -jnp.inf))
        actions = {agent: action[i] for i, agent in enumerate(ours.agents)}
        observation, their_state, reward, done, _ = theirs.step_env(key_t, their_state, actions)
        timestep, our_state = step(key_t, our_state, action)
        for i, agent in enumerate(ours.agents):
            np.testing.assert_allclose(timestep.observation[i], observation[agent], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(timestep.reward[i], reward[agent], rtol=1e-5, atol=1e-6)
            assert bool(timestep.terminated[i]) == bool(done[agent] | done["__all__"])
        np.testing.assert_allclose(ours.global_state(our_state), observation["world_state"], rtol=1e-5, atol=1e-6)
        if done["__all__"]:
            break


@pytest.mark.parametrize("name", ["overcooked", "coin_game", "switch_riddle"])
def test_ours_run_under_their_log_wrapper(name, key):
    inner = to_jaxmarl(make(name, max_steps=10))
    assert isinstance(inner, MultiAgentEnv)
    env = LogWrapper(inner)

    def rollout(key):
        observation, state = env.reset(key)

        def step(carry, key):
            observation, state = carry
            keys = jax.random.split(key, env.num_agents + 1)
            actions = {agent: env.action_space(agent).sample(keys[i]) for i, agent in enumerate(env.agents)}
            observation, state, reward, done, info = env.step(keys[-1], state, actions)
            return (observation, state), (reward[env.agents[0]], done["__all__"], info["returned_episode_returns"])

        return jax.lax.scan(step, (observation, state), jax.random.split(key, 25))[1]

    reward, done, returned = jax.jit(jax.vmap(rollout))(jax.random.split(key, 4))
    assert done.any(), "an episode of at most ten steps ends within 25"
    for b in range(4):
        end = int(np.argmax(done[b]))
        np.testing.assert_allclose(returned[b, end, 0], reward[b, : end + 1].sum(), rtol=1e-5)


def test_ours_run_under_their_q_learning_wrapper(key):
    env = CTRolloutManager(to_jaxmarl(make("switch_riddle")), batch_size=3)
    observation, state = env.batch_reset(key)
    actions = {agent: env.batch_sample(key, agent) for agent in env.agents}
    observation, state, reward, *_ = env.batch_step(key, state, actions)
    assert observation["__all__"].shape[0] == 3 and reward["__all__"].shape == (3,)
