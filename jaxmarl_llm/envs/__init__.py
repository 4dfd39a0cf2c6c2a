"""Environments as pure functions, their wrappers, registry and conformance test."""

from jaxmarl_llm.envs.base import Environment, EnvState, TimeStep
from jaxmarl_llm.envs.batching import cond_if_any
from jaxmarl_llm.envs.curriculum import ChosenLevels, PromotionCurriculum
from jaxmarl_llm.envs.level_replay import (
    LevelScores,
    init_level_scores,
    level_score,
    replay_probabilities,
    sample_levels,
    update_level_scores,
)
from jaxmarl_llm.envs.registry import environment_names, make, register
from jaxmarl_llm.envs.spaces import Box, Discrete, MultiDiscrete, flat_size
from jaxmarl_llm.envs.wrappers import (
    AutoResetTimeStep,
    EpisodeStatistics,
    LogEpisodes,
    VectorEnvironment,
    Wrapper,
    auto_reset,
    reset_where_done,
    vectorize,
)

__all__ = [
    "AutoResetTimeStep",
    "Box",
    "ChosenLevels",
    "Discrete",
    "EnvState",
    "Environment",
    "EpisodeStatistics",
    "LevelScores",
    "LogEpisodes",
    "MultiDiscrete",
    "PromotionCurriculum",
    "TimeStep",
    "VectorEnvironment",
    "Wrapper",
    "auto_reset",
    "cond_if_any",
    "environment_names",
    "flat_size",
    "init_level_scores",
    "level_score",
    "make",
    "register",
    "replay_probabilities",
    "reset_where_done",
    "sample_levels",
    "update_level_scores",
    "vectorize",
]
