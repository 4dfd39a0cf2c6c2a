"""The environment contract: `TimeStep`, `EnvState` and `Environment`.

An environment is a frozen, hashable dataclass of settings. Its dynamics are pure functions of arrays, so they
run under `jit`, `vmap`, `scan` and on any mesh.
Axes: N agents (always the leading axis of per-agent values), A actions.
"""

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.envs import spaces
from jaxmarl_llm.errors import UserError

PyTree = Any


@struct.dataclass
class TimeStep:
    """What the agents get from `reset` and from `step`: same structure, shapes and dtypes from both.

    Attributes:
      observation: pytree of `[N, ...]`, what each agent sees.
      reward: `[N]` float32, zeros after a reset.
      terminated: `[N]` bool, this agent's values end here. It stays true for an agent that died earlier in the episode.
      truncated: `[]` bool, the time limit: bootstrap from this observation.
      action_mask: `[N, A]` bool, legal actions, at least one an agent.
      active: `[N]` bool, alive and asked to act on this observation.
      info: pytree of arrays with a fixed structure: shaped rewards, events, metrics.
    """

    observation: PyTree
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    action_mask: jax.Array
    active: jax.Array
    info: PyTree

    if TYPE_CHECKING:  # flax adds it; type checkers cannot see that.

        def replace(self, **changes: Any) -> Self: ...

    @property
    def done(self) -> jax.Array:
        """`[]` bool, the episode is over: all agents terminated, or the time limit."""
        return jnp.all(self.terminated, axis=-1) | self.truncated

    @property
    def boundary(self) -> jax.Array:
        """`[N]` bool, no later reward belongs to this agent's episode: it terminated, or the episode is over."""
        return self.terminated | self.done[..., None]


@struct.dataclass
class EnvState:
    """Base of every environment's state.

    Attributes:
      step: `[]` int32, steps taken in this episode. The base class counts; environments only read it.
    """

    step: jax.Array

    if TYPE_CHECKING:  # flax adds it; type checkers cannot see that.

        def replace(self, **changes: Any) -> Self: ...


StateT = TypeVar("StateT", bound=EnvState)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Environment(abc.ABC, Generic[StateT]):
    """Base class of environments.

    A subclass is a frozen dataclass with `num_agents`, `observation_space` and `action_space` and the hooks
    `initial_state`, `transition`, `observe`; it may override `action_mask`, `active`, `global_state` and `render`.
    The base class owns the step count, the time limit, dtypes and the assembly of `TimeStep`.

    Attributes:
      max_steps: the time limit; an episode that is not ended before gives exactly `max_steps` rewards.
    """

    max_steps: int = 100

    def __post_init__(self):
        if self.max_steps < 1:
            raise UserError(f"max_steps must be at least 1, got {self.max_steps}")

    # What a subclass defines.

    @property
    @abc.abstractmethod
    def num_agents(self) -> int:
        """N, the number of agents."""

    @property
    @abc.abstractmethod
    def observation_space(self) -> PyTree:
        """Space (or pytree of spaces) of one agent's observation, without the agent axis."""

    @property
    @abc.abstractmethod
    def action_space(self) -> spaces.Discrete:
        """Space of one agent's action; `n` is A, the widest agent's number of actions."""

    @abc.abstractmethod
    def initial_state(self, key: jax.Array) -> StateT:
        """The first state of an episode, with `step` 0. The key is consumed."""

    @abc.abstractmethod
    def transition(self, key: jax.Array, state: StateT, action: jax.Array) -> tuple[StateT, Any, Any, PyTree]:
        """One move of the game, without time limit and without reset.

        Args:
          key: consumed.
          state: the state before the move.
          action: `[N]` int32.

        Returns:
          `(state, reward, terminated, info)`: reward `[N]` or `[]` (shared), terminated `[N]` or `[]` bool,
          info a pytree of arrays with a fixed structure. `state.step` is left as it was.
        """

    @abc.abstractmethod
    def observe(self, state: StateT) -> PyTree:
        """Pytree of `[N, ...]`: what each agent sees in a state."""

    # What a subclass may override.

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents' names, in the one order that is used everywhere."""
        return tuple(f"agent_{i}" for i in range(self.num_agents))

    def next_episode(self, key: jax.Array, state: StateT) -> StateT:
        """The first state of the episode after the one that ended in `state`, for what outlasts an episode.

        `initial_state(key)` unless overridden. The key is consumed.
        """
        del state
        return self.initial_state(key)

    def action_mask(self, state: StateT) -> jax.Array:
        """`[N, A]` bool, the legal actions in a state; all of them unless overridden."""
        return jnp.ones((self.num_agents, self.action_space.n), bool)

    def active(self, state: StateT) -> jax.Array:
        """`[N]` bool, which agents are alive and asked to act; all of them unless overridden."""
        return jnp.ones((self.num_agents,), bool)

    def global_state(self, state: StateT) -> jax.Array:
        """`[G]` float32 for central critics; the agents' observations, concatenated, unless overridden."""
        leaves = jax.tree.leaves(self.observe(state))
        return jnp.concatenate([leaf.reshape(-1).astype(jnp.float32) for leaf in leaves])

    def render(self, state: StateT) -> np.ndarray:
        """`[height, width, 3]` uint8, a picture of one (unbatched) state. Runs on the host."""
        raise NotImplementedError(f"{type(self).__name__} has no renderer: define render(state)")

    # What the base class owns.

    @property
    def num_actions(self) -> int:
        """A, the widest agent's number of actions."""
        return self.action_space.n

    @property
    def global_state_size(self) -> int:
        """G, the length of `global_state`."""
        state = jax.eval_shape(self.reset, jax.eval_shape(lambda: jax.random.key(0)))[1]
        return jax.eval_shape(self.global_state, state).shape[0]

    def reset(self, key: jax.Array) -> tuple[TimeStep, StateT]:
        """Starts an episode. The key is consumed."""
        state = self.initial_state(key)
        return self.first_timestep(state), state

    def step(self, key: jax.Array, state: StateT, action: jax.Array) -> tuple[TimeStep, StateT]:
        """One step. Never resets by itself: see `auto_reset`.

        Args:
          key: consumed.
          state: a state of a running episode.
          action: `[N]` int32, legal by `action_mask`; the action of an inactive agent is ignored.

        Returns:
          The time step after the move and the new state.
        """
        new_state, reward, terminated, info = self.transition(key, state, jnp.asarray(action, jnp.int32))
        new_state = new_state.replace(step=state.step + 1)
        timestep = self._timestep(new_state, reward, terminated, new_state.step >= self.max_steps, info)
        return timestep, new_state

    def first_timestep(self, state: StateT) -> TimeStep:
        """The `TimeStep` that `reset` returns for an initial state: no reward, no flag, `info` all zeros."""
        key = jax.eval_shape(lambda: jax.random.key(0))
        action = jax.ShapeDtypeStruct((self.num_agents,), jnp.int32)
        info = jax.eval_shape(self.transition, key, state, action)[3]
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), info)
        return self._timestep(state, 0.0, False, False, zeros)

    def _timestep(self, state, reward, terminated, truncated, info) -> TimeStep:
        per_agent = (self.num_agents,)
        return TimeStep(
            observation=self.observe(state),
            reward=jnp.broadcast_to(jnp.asarray(reward, jnp.float32), per_agent),
            terminated=jnp.broadcast_to(jnp.asarray(terminated, bool), per_agent),
            truncated=jnp.asarray(truncated, bool),
            action_mask=self.action_mask(state),
            active=self.active(state),
            info=jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), info),
        )
