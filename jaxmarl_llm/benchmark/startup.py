"""How long a fresh process takes until it is of use."""

import os
import statistics
import subprocess
import sys
import time
from typing import Any

_COMMANDS = {
    "nothing": ["-c", "pass"],
    "import jaxmarl_llm": ["-c", "import jaxmarl_llm"],
    "import jax": ["-c", "import jax"],
    "jaxmarl-llm --help": ["-m", "jaxmarl_llm.cli", "--help"],
    "jaxmarl-llm train --help": ["-m", "jaxmarl_llm.cli", "train", "--help"],
}


def run_startup_benchmark(repeats: int = 5) -> list[dict[str, Any]]:
    """Times fresh interpreters, with an empty one and `import jax` for comparison.

    Args:
      repeats: timed runs, after one that is not counted.

    Returns:
      One dict a command: `command`, `seconds` (median), `min`, `max`.
    """
    environment = {**os.environ, "COLUMNS": "120"}
    results = []
    for name, arguments in _COMMANDS.items():
        seconds = []
        for _ in range(repeats + 1):
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
            seconds.append(time.perf_counter() - start)
        seconds = seconds[1:]
        results.append(
            {
                "kind": "startup",
                "command": name,
                "seconds": statistics.median(seconds),
                "min": min(seconds),
                "max": max(seconds),
            }
        )
    return results
