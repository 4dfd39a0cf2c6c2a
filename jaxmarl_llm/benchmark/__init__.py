"""Measurements: environment steps, training steps, time to a return, compilation, memory, startup.

Importable, for the command line and for scripts:

    results = run_environment_benchmark(["overcooked"], [128, 1024], num_steps=200, repeats=5, modes=["observe"])
    print_table(results)

Every result is a flat dict that `json.dumps` takes. Names are loaded on first use.
"""

from typing import TYPE_CHECKING

from jaxmarl_llm.lazy import lazy_names

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

_HOMES = {
    "MODES": "jaxmarl_llm.benchmark.environments",
    "machine_report": "jaxmarl_llm.benchmark.machine",
    "markdown_table": "jaxmarl_llm.benchmark.table",
    "prepare_environment": "jaxmarl_llm.benchmark.environments",
    "prepare_training": "jaxmarl_llm.benchmark.training",
    "print_table": "jaxmarl_llm.benchmark.table",
    "run_environment_benchmark": "jaxmarl_llm.benchmark.environments",
    "run_startup_benchmark": "jaxmarl_llm.benchmark.startup",
    "run_training_benchmark": "jaxmarl_llm.benchmark.training",
}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
