"""Multi-agent reinforcement learning, and reinforcement learning over teams of language models, in JAX.

Names are loaded on first use, so that the command line can print its help without importing JAX.
"""

from typing import TYPE_CHECKING

from jaxmarl_llm.lazy import lazy_names

if TYPE_CHECKING:
    from jaxmarl_llm import algorithms as algorithms
    from jaxmarl_llm import envs as envs
    from jaxmarl_llm import llm as llm
    from jaxmarl_llm import networks as networks
    from jaxmarl_llm import report as report
    from jaxmarl_llm import training as training
    from jaxmarl_llm import workflows as workflows
    from jaxmarl_llm.envs import Environment as Environment
    from jaxmarl_llm.envs import EnvState as EnvState
    from jaxmarl_llm.envs import LogEpisodes as LogEpisodes
    from jaxmarl_llm.envs import TimeStep as TimeStep
    from jaxmarl_llm.envs import auto_reset as auto_reset
    from jaxmarl_llm.envs import environment_names as environment_names
    from jaxmarl_llm.envs import make as make
    from jaxmarl_llm.envs import register as register
    from jaxmarl_llm.envs import vectorize as vectorize
    from jaxmarl_llm.envs.adapters import from_jaxmarl as from_jaxmarl
    from jaxmarl_llm.envs.adapters import to_jaxmarl as to_jaxmarl
    from jaxmarl_llm.envs.checks import check_env as check_env

__version__ = "0.1.0"

_HOMES = {
    "Environment": "jaxmarl_llm.envs",
    "EnvState": "jaxmarl_llm.envs",
    "LogEpisodes": "jaxmarl_llm.envs",
    "TimeStep": "jaxmarl_llm.envs",
    "auto_reset": "jaxmarl_llm.envs",
    "check_env": "jaxmarl_llm.envs.checks",
    "environment_names": "jaxmarl_llm.envs",
    "from_jaxmarl": "jaxmarl_llm.envs.adapters",
    "make": "jaxmarl_llm.envs",
    "register": "jaxmarl_llm.envs",
    "to_jaxmarl": "jaxmarl_llm.envs.adapters",
    "vectorize": "jaxmarl_llm.envs",
    **{
        name: f"jaxmarl_llm.{name}"
        for name in ("algorithms", "envs", "llm", "networks", "report", "training", "workflows")
    },
}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
