"""Levels: promotion by success rate, chosen levels, and learning with both."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import jaxmarl_llm
from jaxmarl_llm.algorithms import ippo
from jaxmarl_llm.envs import (
    Box,
    ChosenLevels,
    Discrete,
    Environment,
    EnvState,
    PromotionCurriculum,
    Wrapper,
    auto_reset,
    init_level_scores,
    sample_levels,
    update_level_scores,
)
from jaxmarl_llm.errors import UserError


@struct.dataclass
class CorridorState(EnvState):
    distance: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corridor(Environment):
    """Two agents that must push together to come one cell nearer to the exit; reward 1 there, else nothing."""

    max_steps: int = 12
    nearest: int = 10
    farthest: int = 10

    @property
    def num_agents(self):
        return 2

    @property
    def observation_space(self):
        return Box(0.0, 1.0, (11,))

    @property
    def action_space(self):
        return Discrete(3)

    def initial_state(self, key):
        distance = jax.random.randint(key, (), self.nearest, self.farthest + 1)
        return CorridorState(step=jnp.int32(0), distance=distance)

    def transition(self, key, state, action):
        state = state.replace(distance=state.distance - jnp.all(action == state.distance % 3))
        return state, jnp.where(state.distance == 0, 1.0, 0.0), state.distance == 0, {}

    def observe(self, state):
        return jnp.broadcast_to(jax.nn.one_hot(state.distance, 11), (2, 11))


LEVELS = tuple(Corridor(nearest=1, farthest=far) for far in (2, 4, 6, 8, 10))


def promotion(**settings):
    return PromotionCurriculum(env=Corridor(), levels=LEVELS, success_return=1.0, **settings)


def right_action(state):
    return jnp.broadcast_to(state.env_state.distance % 3, (2,))


@pytest.mark.parametrize(
    "env",
    [promotion(), pytest.param(ChosenLevels(env=jaxmarl_llm.make("foraging"), num_levels=7), marks=pytest.mark.wide)],
)
def test_conforms(env):
    jaxmarl_llm.check_env(env)


def test_promotion_counts_like_a_loop(key):
    """Random success, against a loop in Python, for one copy of the environment."""
    env = promotion(window=3, promote_at=0.6, demote_at=0.3)
    wrapped = auto_reset(env)
    succeed = np.random.default_rng(0).random(60) < np.repeat([0.9, 0.1, 0.6], 20)

    @jax.jit
    def play(state, key, succeed):
        def step(carry):
            state, key, _ = carry
            key, key_step = jax.random.split(key)
            action = jnp.where(succeed, right_action(state), right_action(state) + 1)
            timestep, state = wrapped.step(key_step, state, action)
            return state, key, timestep.done

        return jax.lax.while_loop(lambda carry: ~carry[2], step, (state, key, jnp.zeros((), bool)))[:2]

    state, levels = env.initial_state(key), []
    level = episodes = successes = 0
    expected = []
    for outcome in succeed:
        state, key = play(state, key, outcome)
        levels.append(int(state.level))
        assert 1 <= int(state.env_state.distance) <= LEVELS[int(state.level)].farthest
        episodes, successes = episodes + 1, successes + outcome
        if episodes == 3:
            rate = successes / 3
            level = min(max(level + int(rate >= 0.6) - int(rate < 0.3), 0), len(LEVELS) - 1)
            episodes = successes = 0
        expected.append(level)
    assert levels == expected
    assert max(expected) == len(LEVELS) - 1 and min(np.diff(expected)) == -1


def train(env, updates):
    learner = ippo(
        env,
        num_envs=16,
        rollout_length=32,
        num_minibatches=2,
        learning_rate=5e-3,
        hidden_sizes=(16, 16),
        total_steps=1e5,
    )
    state = jax.jit(learner.init)(jax.random.key(1))

    @jax.jit
    def run(state):
        return jax.lax.scan(lambda state, _: learner.update(state), state, length=updates)

    return run(state)


@pytest.mark.slow
def test_curriculum_solves_what_plain_training_cannot():
    updates = 80
    _, plain = train(Corridor(), updates)
    assert not np.nan_to_num(plain["episode_return"]).any(), "no episode ever succeeds without a curriculum"
    state, metrics = train(promotion(), updates)
    assert np.all(state.rollout.env_state.level == len(LEVELS) - 1)
    assert float(metrics["episode_return"][-5:].mean()) > 0.9


def test_wrong_levels():
    foraging = jaxmarl_llm.make("foraging")
    other = jaxmarl_llm.make("foraging", num_foods=1)
    with pytest.raises(UserError, match="level 1 has states of other shapes"):
        PromotionCurriculum(env=foraging, levels=(foraging, other), success_return=1.0)
    for settings in ({"window": 0}, {"promote_at": 0.0}, {"promote_at": 0.5, "demote_at": 0.6}):
        with pytest.raises(UserError, match="window must be at least 1"):
            promotion(**settings)
    with pytest.raises(UserError, match="start_level must be 0 to 4, got 5"):
        promotion(start_level=5)
    with pytest.raises(UserError, match="num_levels must be at least 1"):
        ChosenLevels(env=foraging, num_levels=0)


def test_next_episode_goes_through_wrappers(key):
    env = Wrapper(env=promotion(window=1))
    state = env.initial_state(key)
    timestep = env.first_timestep(state)
    timestep = timestep.replace(terminated=jnp.ones((2,), bool))
    state = state.replace(episode_return=jnp.float32(1.0))
    _, state = jaxmarl_llm.envs.reset_where_done(env, key, timestep, state)
    assert int(state.level) == 1


def test_replay_spends_episodes_on_unsolved_levels():
    """A policy table over 12 fixed levels, three of them hard: replay by regret finds them, uniform choice does not."""
    env = ChosenLevels(env=Corridor(nearest=1, farthest=1), num_levels=12)
    wrapped = auto_reset(env)
    num_envs, rate = 4, jnp.where(jnp.arange(12) % 4 == 1, 0.02, 0.5)

    def run(key, use_replay):
        """The skill of a level is the chance to act well there; it grows when the level is played."""

        def step(carry, key):
            state, skill, scores, played = carry
            key_act, key_step, key_level = jax.random.split(key, 3)
            good = jax.random.uniform(key_act, (num_envs,)) < skill[state.level]
            action = jax.vmap(right_action)(state) + jnp.where(good, 0, 1)[:, None]
            keys = jax.random.split(key_step, num_envs)
            timestep, after = jax.vmap(wrapped.step)(keys, state, action)
            share = jax.nn.one_hot(state.level, 12).sum(0)
            skill = skill + (1 - skill) * (1 - (1 - rate) ** share)
            scores = update_level_scores(scores, state.level, 1 - skill[state.level], timestep.done)
            if use_replay:
                chosen = sample_levels(key_level, scores, num_envs)
            else:
                chosen = jax.random.randint(key_level, (num_envs,), 0, 12)
            return (after.replace(next_level=chosen), skill, scores, played + share), None

        key_start, key_steps = jax.random.split(key)
        state = jax.vmap(env.initial_state)(jax.random.split(key_start, num_envs))
        start = (state, jnp.full((12,), 0.3), init_level_scores(12), jnp.zeros(12))
        (_, skill, scores, played), _ = jax.lax.scan(step, start, jax.random.split(key_steps, 150))
        return skill, scores, played

    runs = [
        jax.jit(jax.vmap(lambda key, r=r: run(key, r)))(jax.random.split(jax.random.key(0), 8)) for r in (True, False)
    ]
    (skill, scores, played), (uniform_skill, _, uniform_played) = runs
    hard = np.arange(12) % 4 == 1
    assert np.all(scores.last_played >= 0) and np.all(played.sum(1) == 600)
    assert float(played[:, hard].sum() / played.sum()) > 2 * float(uniform_played[:, hard].sum() / uniform_played.sum())
    assert float(skill.min(axis=1).mean()) > float(uniform_skill.min(axis=1).mean()) + 0.1
