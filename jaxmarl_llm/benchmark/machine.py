"""What a figure was measured on."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "jaxmarl")


def machine_report() -> dict[str, Any]:
    """Device, cores, versions and commit, for the head of a result file."""
    import jax

    from jaxmarl_llm import __version__

    return {
        "device": device_name(),
        "num_devices": jax.device_count(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "jaxmarl_llm": __version__,
        "commit": commit(),
        **{name: version for name in _PACKAGES if (version := _version(name))},
    }


def device_name() -> str:
    """The first device's kind; for CPUs the processor's name where the system tells it."""
    import jax

    device = jax.devices()[0]
    if device.platform != "cpu":
        return device.device_kind
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"cpu: {line.partition(':')[2].strip()}"
    except OSError:
        pass
    return f"cpu: {platform.processor() or platform.machine()}"


def commit() -> str | None:
    """The checkout's commit, with `+` when files differ from it; None where there is no checkout."""
    folder = Path(__file__).parent

    def git(*arguments):
        found = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20)
        return found.stdout.strip() if found.returncode == 0 else None

    try:
        name = git("rev-parse", "--short=12", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(folder.parent))
    except (OSError, subprocess.TimeoutExpired):
        return None
    return name and name + ("+" if changed else "")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
