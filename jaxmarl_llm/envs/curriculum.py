"""Levels of an environment family: promotion by success rate, or levels that are chosen from outside."""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.envs.base import Environment, EnvState
from jaxmarl_llm.envs.wrappers import Wrapper
from jaxmarl_llm.errors import UserError

_KEY = jax.eval_shape(lambda: jax.random.key(0))


@struct.dataclass
class LevelState(EnvState):
    """State of an environment with levels.

    Attributes:
      env_state: the state of the environment itself.
      level: `[]` int32, the level of this episode.
      episode_return: `[]` float32, mean over agents of their returns so far.
    """

    env_state: Any
    level: jax.Array
    episode_return: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Levels(Wrapper):
    """Keeps a level beside the state of `env`; a level decides where an episode starts.

    Info: that of `env`, a dict, and `level` `[]` float32.
    """

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(jax.eval_shape(self.env.reset, _KEY)[0].info, dict):
            raise UserError(f"{type(self).__name__} adds the level to info: {type(self.env).__name__} must give a dict")

    @abc.abstractmethod
    def level_state(self, key: jax.Array, level: jax.Array) -> EnvState:
        """The first state of `env` for an episode of a level. The key is consumed."""

    def initial_fields(self, key: jax.Array, level: jax.Array) -> dict[str, Any]:
        """The fields of `LevelState` at the start of an episode. The key is consumed."""
        start = {"step": jnp.int32(0), "episode_return": jnp.float32(0.0), "level": level}
        return {**start, "env_state": self.level_state(key, level)}

    def transition(self, key, state, action):
        env_state, reward, terminated, info = self.env.transition(key, state.env_state, action)
        env_state = env_state.replace(step=state.step + 1)
        state = state.replace(env_state=env_state, episode_return=state.episode_return + jnp.mean(reward))
        return state, reward, terminated, {**info, "level": state.level.astype(jnp.float32)}

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


@struct.dataclass
class PromotionState(LevelState):
    """State of `PromotionCurriculum`.

    Attributes:
      episodes: `[]` int32, finished episodes since the last decision about the level.
      successes: `[]` int32, those of them that succeeded.
    """

    episodes: jax.Array
    successes: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromotionCurriculum(_Levels):
    """Begins with the first of several levels and moves on once it succeeds.

    Each copy of the environment keeps its own level and count of successes in its state, so that everything happens
    inside the jitted program and copies on several devices need not talk. Every `window` episodes a copy decides: up
    one level if the share of successes is at least `promote_at`, down one if it is below `demote_at`.

    Only the start of an episode depends on the level; the rules are those of `env` throughout. A level is therefore an
    environment that differs from `env` in settings that act on its initial state alone, with the same shapes: for
    example `foraging` with food that one agent can load, before food that needs all.

    Attributes:
      env: the environment with the rules.
      levels: environments whose initial states are the levels, easiest first.
      success_return: an episode succeeds with at least this return (mean over agents).
      window: episodes between decisions.
      promote_at: share of successes that moves a copy up.
      demote_at: share of successes below which it moves down; 0 for never.
      start_level: the level at the start, for example the last one to evaluate on.
    """

    levels: tuple[Environment, ...]
    success_return: float
    window: int = 16
    promote_at: float = 0.8
    demote_at: float = 0.0
    start_level: int = 0

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.start_level < len(self.levels):
            raise UserError(f"start_level must be 0 to {len(self.levels) - 1}, got {self.start_level}")
        if self.window < 1 or not 0 <= self.demote_at <= self.promote_at <= 1 or self.promote_at == 0:
            raise UserError(
                "window must be at least 1, and 0 <= demote_at <= promote_at <= 1 with promote_at above 0, got "
                f"{self.window}, {self.demote_at} and {self.promote_at}"
            )
        own, *others = (jax.eval_shape(env.initial_state, _KEY) for env in (self.env, *self.levels))
        for index, other in enumerate(others):
            if jax.tree.structure(own) != jax.tree.structure(other) or jax.tree.leaves(own) != jax.tree.leaves(other):
                raise UserError(f"level {index} has states of other shapes than env: pad the smaller ones")

    def level_state(self, key, level):
        return jax.lax.switch(level, [env.initial_state for env in self.levels], key)

    def initial_state(self, key):
        zero = jnp.int32(0)
        return PromotionState(**self.initial_fields(key, jnp.int32(self.start_level)), episodes=zero, successes=zero)

    def next_episode(self, key, state):
        episodes = state.episodes + 1
        successes = state.successes + (state.episode_return >= self.success_return)
        decide, rate = episodes == self.window, successes / self.window
        change = (rate >= self.promote_at).astype(jnp.int32) - (rate < self.demote_at)
        level = jnp.clip(state.level + jnp.where(decide, change, 0), 0, len(self.levels) - 1)
        return PromotionState(
            **self.initial_fields(key, level),
            episodes=jnp.where(decide, 0, episodes),
            successes=jnp.where(decide, 0, successes),
        )


@struct.dataclass
class ChosenLevelState(LevelState):
    """State of `ChosenLevels`.

    Attributes:
      next_level: `[]` int32, the level of the next episode: the caller writes here, between steps or updates.
      last_level: `[]` int32, the level of the last finished episode; -1 before there is one.
      last_return: `[]` float32, its return (mean over agents).
    """

    next_level: jax.Array
    last_level: jax.Array
    last_return: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChosenLevels(_Levels):
    """Numbered levels, each a fixed start of `env`; the caller chooses which comes next, as level replay does.

    Level k starts in `env.initial_state(jax.random.key(k))`. An environment starts with a random level and repeats it
    until the caller replaces `next_level` in its state (`envs.sample_levels` chooses).

    Attributes:
      env: the environment.
      num_levels: K.
    """

    num_levels: int

    def __post_init__(self):
        super().__post_init__()
        if self.num_levels < 1:
            raise UserError(f"num_levels must be at least 1, got {self.num_levels}")

    def level_state(self, key, level):
        del key
        return self.env.initial_state(jax.random.key(level))

    def initial_state(self, key):
        level = jax.random.randint(key, (), 0, self.num_levels)
        fields = self.initial_fields(key, level)
        return ChosenLevelState(**fields, next_level=level, last_level=jnp.int32(-1), last_return=jnp.float32(0.0))

    def next_episode(self, key, state):
        return ChosenLevelState(
            **self.initial_fields(key, state.next_level),
            next_level=state.next_level,
            last_level=state.level,
            last_return=state.episode_return,
        )
