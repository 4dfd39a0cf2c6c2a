"""Small environments with known answers, for tests."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.envs import Box, Discrete, Environment, EnvState


@struct.dataclass
class ToyState(EnvState):
    value: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToyEnvironment(Environment):
    """Base: N agents that observe a vector of width 5."""

    team_size: int = 3
    choices: int = 4

    @property
    def num_agents(self):
        return self.team_size

    @property
    def observation_space(self):
        return Box(-1000.0, 1000.0, (5,))

    @property
    def action_space(self):
        return Discrete(self.choices)

    def initial_state(self, key):
        return ToyState(step=jnp.int32(0), value=jax.random.randint(key, (self.team_size,), 0, self.choices))

    def observe(self, state):
        return jax.nn.one_hot(state.value, 5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConstantReward(ToyEnvironment):
    """Reward 1 at every step; never terminates by itself."""

    terminates_at: int = 0

    def transition(self, key, state, action):
        del key, action
        return state, 1.0, state.step + 1 == self.terminates_at, {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumberedEpisodes(ToyEnvironment):
    """Reward at every step: how many episodes came before, which the state takes from one to the next."""

    def initial_state(self, key):
        del key
        return ToyState(step=jnp.int32(0), value=jnp.zeros((self.team_size,), jnp.int32))

    def next_episode(self, key, state):
        return self.initial_state(key).replace(value=state.value + 1)

    def transition(self, key, state, action):
        del key, action
        return state, state.value.astype(jnp.float32), False, {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatchTarget(ToyEnvironment):
    """Reward 1 to each agent that names the number it sees; a new number each step. Optimum: `max_steps`."""

    def transition(self, key, state, action):
        reward = (action == state.value).astype(jnp.float32)
        return state.replace(value=jax.random.randint(key, (self.team_size,), 0, self.choices)), reward, False, {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaidByOthers(ToyEnvironment):
    """Reward to each agent: the share of the others that name the number they see, or, without `acting`, that see 0."""

    acting: bool = True

    def transition(self, key, state, action):
        good = (state.value == (action if self.acting else 0)).astype(jnp.float32)
        state = state.replace(value=jax.random.randint(key, (self.team_size,), 0, self.choices))
        return state, (good.sum() - good) / (self.team_size - 1), False, {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllDifferent(ToyEnvironment):
    """All see the same; reward 1 to all where no two do the same. Equal policies without order have at best N!/N^N."""

    def transition(self, key, state, action):
        del key
        different = jnp.bincount(action, length=self.choices).max() == 1
        return state, jnp.where(different, 1.0, 0.0), False, {}

    def observe(self, state):
        return jnp.ones((self.team_size, 5))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RememberCue(ToyEnvironment):
    """Shows a number on the first step only; reward 1 for naming it on the last step. Only a memory solves it."""

    max_steps: int = 4

    def transition(self, key, state, action):
        del key
        last = state.step + 1 == self.max_steps
        return state, jnp.where(last & (action == state.value), 1.0, 0.0), last, {}

    def observe(self, state):
        return jnp.where(state.step == 0, jax.nn.one_hot(state.value, 5), 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DyingAgents(ToyEnvironment):
    """Agent i dies after step i + 1 (the last one lives on) and earns 1 a step while it lives.

    A dead agent sees a huge number and would earn a huge reward: neither may reach a loss or a statistic.
    """

    poison: float = 500.0

    def _dead(self, state):
        lifetime = jnp.arange(1, self.team_size + 1)
        return (state.step >= lifetime) & (lifetime < self.team_size)

    def transition(self, key, state, action):
        del key, action
        dead_before = self._dead(state)
        dead = self._dead(state.replace(step=state.step + 1))
        return state, jnp.where(dead_before, self.poison, 1.0), dead, {}

    def observe(self, state):
        return jnp.where(self._dead(state)[:, None], self.poison, jax.nn.one_hot(state.value, 5))

    def active(self, state):
        return ~self._dead(state)
