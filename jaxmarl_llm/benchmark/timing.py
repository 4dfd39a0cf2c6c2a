"""Compiled programs and how long their runs take."""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled piece of work that can be timed again and again.

    Attributes:
      compile_s: seconds of tracing and compilation.
      steps: environment steps of one run.
      execute: `seed -> dict` of what came out, at least `checksum`; returns when the work is done.
    """

    compile_s: float
    steps: int
    execute: Callable[[int], dict[str, Any]]

    def run(self, seed: int) -> dict[str, Any]:
        """One timed run: what `execute` returned, and `seconds`."""
        start = time.perf_counter()
        found = self.execute(seed)
        # A run that times parts of itself says so; set-up is then left out.
        return {"seconds": time.perf_counter() - start, **found}


def compile_timed(function: Callable, *args: Any, **jit_options: Any) -> tuple[Any, float]:
    """Compiles a function ahead of time.

    Args:
      function: what `jax.jit` takes.
      *args: arguments, or their shapes.
      **jit_options: for `jax.jit`.

    Returns:
      `(compiled, seconds)`.
    """
    start = time.perf_counter()
    compiled = jax.jit(function, **jit_options).lower(*args).compile()
    return compiled, time.perf_counter() - start


def rate_statistics(steps: int, seconds: list[float]) -> dict[str, float]:
    """Median, least and greatest rate of runs of equal work.

    Args:
      steps: of each run.
      seconds: of each run.
    """
    rates = [steps / value for value in seconds]
    return {
        "steps_per_s": statistics.median(rates),
        "min": min(rates),
        "max": max(rates),
        "repeats": len(rates),
    }
