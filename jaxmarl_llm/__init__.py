"""Multi-agent reinforcement learning in JAX."""

from jaxmarl_llm.envs import Environment, EnvState, TimeStep, auto_reset, environment_names, make, register, vectorize

__version__ = "0.1.0"

__all__ = [
    "EnvState",
    "Environment",
    "TimeStep",
    "auto_reset",
    "environment_names",
    "make",
    "register",
    "vectorize",
]
