"""What this machine has. Imports no JAX."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

# Of control groups, version 2 and version 1: what a container may take.
_CONTAINER_LIMITS = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")


def machine_memory(limits: Sequence[Path] = _CONTAINER_LIMITS) -> int:
    """Bytes of memory of the machine, or less where a container has a limit.

    Args:
      limits: files that hold a number of bytes; those that are not there, or hold no number (`max`), limit nothing.
    """
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in limits:
        # Where there is no limit, version 1 has a number above all memory.
        with contextlib.suppress(OSError, ValueError):
            found.append(int(path.read_text()))
    return min(found)
