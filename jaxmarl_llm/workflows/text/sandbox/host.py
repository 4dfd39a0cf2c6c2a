"""Runs programs, each in a fresh interpreter: `run` one, `run_many` several at once."""

import concurrent.futures
import os
from collections.abc import Sequence

from jaxmarl_llm.arguments import check_whole
from jaxmarl_llm.workflows.text.sandbox.probe import sandbox_name
from jaxmarl_llm.workflows.text.sandbox.process import run_in
from jaxmarl_llm.workflows.text.sandbox.program import Limits, Program, Result


def run(program: Program, limits: Limits | None = None, *, sandbox: str = "auto") -> Result:
    """Runs one program and judges it by its tests.

    Args:
      program: code and tests.
      limits: what it may use.
      sandbox: as for `sandbox_name`.

    Raises:
      UserError: no sandbox here, or it cannot be set up any more.
    """
    return run_many([program], workers=1, limits=limits, sandbox=sandbox)[0]


def run_many(
    programs: Sequence[Program], *, workers: int | None = None, limits: Limits | None = None, sandbox: str = "auto"
) -> list[Result]:
    """Runs programs, several at once, and judges each by its tests.

    Args:
      programs: code and tests.
      workers: how many at once; as many as the machine has processors if not told.
      limits: what each may use.
      sandbox: as for `sandbox_name`.

    Returns:
      A result for each, in the same order.

    Raises:
      UserError: as for `run`.
    """
    workers = workers or os.cpu_count() or 1
    check_whole("workers", workers, at_least=1)
    name, limits = sandbox_name(sandbox), limits or Limits()
    with concurrent.futures.ThreadPoolExecutor(min(workers, max(len(programs), 1))) as pool:
        try:
            return list(pool.map(lambda program: run_in(name, program, limits), programs))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
