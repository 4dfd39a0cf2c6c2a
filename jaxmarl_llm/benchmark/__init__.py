"""Measurements: environment steps, training steps, time to a return, compilation, memory, startup.

Importable, for the command line and for scripts:

    results = run_environment_benchmark(["overcooked"], [128, 1024], num_steps=200, repeats=5, modes=["observe"])
    print_table(results)

Every result is a flat dict that `json.dumps` takes. Names are loaded on first use.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxmarl_llm.benchmark.environments import MODES as MODES
    from jaxmarl_llm.benchmark.environments import prepare_environment as prepare_environment
    from jaxmarl_llm.benchmark.environments import run_environment_benchmark as run_environment_benchmark
    from jaxmarl_llm.benchmark.machine import machine_report as machine_report
    from jaxmarl_llm.benchmark.startup import run_startup_benchmark as run_startup_benchmark
    from jaxmarl_llm.benchmark.table import markdown_table as markdown_table
    from jaxmarl_llm.benchmark.table import print_table as print_table
    from jaxmarl_llm.benchmark.training import prepare_training as prepare_training
    from jaxmarl_llm.benchmark.training import run_training_benchmark as run_training_benchmark

_HOME = {
    "MODES": "environments",
    "machine_report": "machine",
    "markdown_table": "table",
    "prepare_environment": "environments",
    "prepare_training": "training",
    "print_table": "table",
    "run_environment_benchmark": "environments",
    "run_startup_benchmark": "startup",
    "run_training_benchmark": "training",
}

__all__ = [*_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    if name in _HOME:
        return getattr(importlib.import_module(f"jaxmarl_llm.benchmark.{_HOME[name]}"), name)
    raise AttributeError(f"module 'jaxmarl_llm.benchmark' has no attribute '{name}'")


def __dir__():
    return sorted({*globals(), *__all__})
