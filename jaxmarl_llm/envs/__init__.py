"""Environments as pure functions, their wrappers, registry and conformance test."""

from jaxmarl_llm.envs.base import Environment, EnvState, TimeStep
from jaxmarl_llm.envs.batching import cond_if_any
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
    "Discrete",
    "EnvState",
    "Environment",
    "EpisodeStatistics",
    "LogEpisodes",
    "MultiDiscrete",
    "TimeStep",
    "VectorEnvironment",
    "Wrapper",
    "auto_reset",
    "cond_if_any",
    "environment_names",
    "flat_size",
    "make",
    "register",
    "reset_where_done",
    "vectorize",
]
