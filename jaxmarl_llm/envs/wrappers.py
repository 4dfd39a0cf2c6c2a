"""Wrappers: automatic reset, batches, episode statistics."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.envs.base import Environment, EnvState, TimeStep
from jaxmarl_llm.envs.batching import cond_if_any
from jaxmarl_llm.envs.random import random_index
from jaxmarl_llm.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wrapper(Environment):
    """Passes everything on to `env`; subclasses override what they change.

    `reset` and `step` are assembled from the hooks below. Around an environment with a `step` of its own, such as an
    `auto_reset` one, override `reset` and `step` as well.

    Raises:
      UserError: the `step` of `env` would be lost.
    """

    env: Environment

    def __post_init__(self):
        if type(self).step is Environment.step and type(self.env).step is not Environment.step:
            raise UserError(
                f"{type(self).__name__} would drop the step of {type(self.env).__name__}: wrap the raw environment "
                f"first, or override reset and step in {type(self).__name__}"
            )
        object.__setattr__(self, "max_steps", self.env.max_steps)

    @property
    def num_agents(self):
        return self.env.num_agents

    @property
    def agents(self):
        return self.env.agents

    @property
    def observation_space(self):
        return self.env.observation_space

    @property
    def action_space(self):
        return self.env.action_space

    def initial_state(self, key):
        return self.env.initial_state(key)

    def next_episode(self, key, state):
        # A wrapper with its own first state means it for every episode.
        if type(self).initial_state is not Wrapper.initial_state:
            return self.initial_state(key)
        return self.env.next_episode(key, state)

    def transition(self, key, state, action):
        return self.env.transition(key, state, action)

    def observe(self, state):
        return self.env.observe(state)

    def action_mask(self, state):
        return self.env.action_mask(state)

    def active(self, state):
        return self.env.active(state)

    def global_state(self, state):
        return self.env.global_state(state)

    def render(self, state):
        return self.env.render(state)


# Folded into a step's key for the reset after it; beyond the numbers that a step's own draws count with.
_RESET_STREAM = 0x52455345


@struct.dataclass
class AutoResetTimeStep(TimeStep):
    """A `TimeStep` whose `observation`, `action_mask` and `active` already belong to the next episode when `done`.

    Attributes:
      final_observation: pytree of `[N, ...]`, the observation after the move and before any reset: the one that
        ended the episode where `done`, equal to `observation` elsewhere.
    """

    final_observation: Any


def reset_where_done(
    env: Environment,
    key: jax.Array,
    timestep: TimeStep,
    state: EnvState,
    *,
    pool: EnvState | None = None,
    index: jax.Array | int = 0,
) -> tuple[TimeStep, EnvState]:
    """Begins a new episode where the time step ended one; everything else passes through.

    Under `vmap` the reset is computed only on steps where at least one environment is done.

    Args:
      env: the raw environment.
      key: consumed.
      timestep, state: what `env.step` returned.
      pool: optional states with a leading axis K; a reset then draws one of them instead of calling
        `env.next_episode`.
      index: number of the environment in a batch that shares one key; folded into the key only where a reset happens.

    Returns:
      `(timestep, state)`: state, observation, mask and active of the new episode where done; reward, flags and info
      of the step as they were.
    """

    def new_episode(key, index, state):
        key = jax.random.fold_in(key, index)
        if pool is None:
            return env.next_episode(key, state)
        drawn = random_index(key, jax.tree.leaves(pool)[0].shape[0])
        return jax.tree.map(lambda leaf: leaf[drawn], pool)

    def same_episode(key, index, state):
        del key, index
        return state

    state = cond_if_any(timestep.done, new_episode, same_episode, key, jnp.asarray(index), state)
    timestep = timestep.replace(
        observation=env.observe(state), action_mask=env.action_mask(state), active=env.active(state)
    )
    return timestep, state


@functools.lru_cache(maxsize=32)
def _state_pool(env: Environment, size: int, seed: int) -> EnvState:
    with jax.ensure_compile_time_eval():
        return jax.jit(jax.vmap(env.initial_state))(jax.random.split(jax.random.key(seed), size))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AutoReset(Wrapper):
    """See `auto_reset`."""

    pool_size: int = 0
    pool_seed: int = 0

    def reset(self, key):
        timestep, state = self.env.reset(key)
        return self._with_final(timestep, timestep.observation), state

    def step(self, key, state, action):
        raw, state = self.env.step(key, state, action)
        pool = _state_pool(self.env, self.pool_size, self.pool_seed) if self.pool_size else None
        # The step has the key that the raw environment would have; a second one for resets is made only where one
        # happens, since in a large batch a key costs as much as a step of a small game.
        timestep, state = reset_where_done(self.env, key, raw, state, pool=pool, index=_RESET_STREAM)
        return self._with_final(timestep, raw.observation), state

    @staticmethod
    def _with_final(timestep: TimeStep, final_observation) -> AutoResetTimeStep:
        fields = {field.name: getattr(timestep, field.name) for field in dataclasses.fields(TimeStep)}
        return AutoResetTimeStep(**fields, final_observation=final_observation)


def auto_reset(env: Environment, *, pool_size: int = 0, pool_seed: int = 0) -> AutoReset:
    """Makes `step` begin a new episode on the step that ends one; the ended observation stays in `final_observation`.

    Exact by default: every reset calls `env.initial_state` with a fresh key, at the cost of one reset of the whole
    batch on each step where any environment ends. With a pool, resets draw from `pool_size` states that were made once;
    that is faster where episodes end at different times and a reset is costly, and limits the variety of starts.

    Args:
      env: a raw environment.
      pool_size: K, number of prepared initial states, at most 2**16; 0 for exact resets.
      pool_seed: seed of the pool.

    Returns:
      An environment whose time steps are `AutoResetTimeStep`.

    Raises:
      UserError: `pool_size` is out of range, or `env` is an `auto_reset` or `LogEpisodes` environment already.
    """
    if not 0 <= pool_size <= 2**16:
        raise UserError(f"pool_size must be 0 (exact resets) to {2**16}, got {pool_size}")
    if isinstance(env, AutoReset | LogEpisodes):
        raise UserError(f"auto_reset goes around the raw environment, not around {type(env).__name__}")
    return AutoReset(env=env, pool_size=pool_size, pool_seed=pool_seed)


@dataclasses.dataclass(frozen=True)
class VectorEnvironment:
    """B copies of an environment with one leading axis B on every array; see `vectorize`."""

    env: Environment
    num_envs: int

    def reset(self, key: jax.Array) -> tuple[TimeStep, EnvState]:
        """Resets all copies, each with its own key."""
        return jax.vmap(self.env.reset)(jax.random.split(key, self.num_envs))

    def step(self, key: jax.Array, state: EnvState, action: jax.Array) -> tuple[TimeStep, EnvState]:
        """Steps all copies with `action` `[B, N]`."""
        return jax.vmap(self.env.step)(jax.random.split(key, self.num_envs), state, action)


def vectorize(env: Environment, num_envs: int) -> VectorEnvironment:
    """B copies of `env` behind one `reset(key)` and `step(key, state, action)`.

    Args:
      env: an environment, usually with `auto_reset`.
      num_envs: B, at least 1.
    """
    if num_envs < 1:
        raise UserError(f"num_envs must be at least 1, got {num_envs}")
    return VectorEnvironment(env, num_envs)


@struct.dataclass
class EpisodeStatistics:
    """Running and last finished episode of one environment.

    Attributes:
      episode_return: `[N]` float32, sum of rewards; in `info` it is that of the last finished episode.
      episode_length: `[]` int32, number of steps, likewise.
      episode_metrics: pytree like `info`, sums over the episode, likewise.
      finished: `[]` bool, an episode ended on this step.
    """

    episode_return: jax.Array
    episode_length: jax.Array
    episode_metrics: Any
    finished: jax.Array


@struct.dataclass
class LogState:
    """State of `LogEpisodes`."""

    env_state: EnvState
    running: EpisodeStatistics
    last: EpisodeStatistics

    @property
    def step(self) -> jax.Array:
        return self.env_state.step


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogEpisodes(Wrapper):
    """Accumulates returns, lengths and `info` over episodes: `timestep.info["episode"]` is an `EpisodeStatistics`.

    Wrap an `auto_reset` environment: `LogEpisodes(env=auto_reset(env))`. The wrapped info is under `info["step"]`.
    """

    def reset(self, key):
        timestep, env_state = self.env.reset(key)
        empty = EpisodeStatistics(
            episode_return=jnp.zeros_like(timestep.reward),
            episode_length=jnp.zeros((), jnp.int32),
            episode_metrics=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), timestep.info),
            finished=jnp.zeros((), bool),
        )
        return self._log(timestep, empty), LogState(env_state=env_state, running=empty, last=empty)

    def step(self, key, state, action):
        timestep, env_state = self.env.step(key, state.env_state, action)
        done = timestep.done
        total = EpisodeStatistics(
            episode_return=state.running.episode_return + timestep.reward,
            episode_length=state.running.episode_length + 1,
            episode_metrics=jax.tree.map(jnp.add, state.running.episode_metrics, timestep.info),
            finished=done,
        )
        last = jax.tree.map(lambda new, old: jnp.where(done, new, old), total, state.last).replace(finished=done)
        running = jax.tree.map(lambda leaf: jnp.where(done, jnp.zeros_like(leaf), leaf), total)
        return self._log(timestep, last), LogState(env_state=env_state, running=running, last=last)

    @staticmethod
    def _log(timestep: TimeStep, episode: EpisodeStatistics) -> TimeStep:
        return timestep.replace(info={"step": timestep.info, "episode": episode})

    def observe(self, state):
        return self.env.observe(state.env_state)

    def action_mask(self, state):
        return self.env.action_mask(state.env_state)

    def active(self, state):
        return self.env.active(state.env_state)

    def global_state(self, state):
        return self.env.global_state(state.env_state)

    def render(self, state):
        return self.env.render(state.env_state)
