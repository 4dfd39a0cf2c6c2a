"""Work in a thread, while this one answers signals: compilation leaves Python's lock, but not the thread it is in."""

import concurrent.futures
from collections.abc import Callable
from typing import Any


def wait_for(job: concurrent.futures.Future, on_wait: Callable[[], None]) -> Any:
    """The result of a job.

    Args:
      job: runs in another thread.
      on_wait: called about every second; what it raises ends the wait, but not the job.
    """
    while not job.done():
        concurrent.futures.wait([job], timeout=1.0)
        on_wait()
    return job.result()


def in_background(function: Callable[[], Any], on_wait: Callable[[], None]) -> Any:
    """The result of a function that runs in a thread of its own; see `wait_for`."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    job = pool.submit(function)
    pool.shutdown(wait=False)
    return wait_for(job, on_wait)
