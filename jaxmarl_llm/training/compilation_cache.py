"""Compiled programs kept between runs, so that the second start is quick."""

import hashlib
import os
import platform
from pathlib import Path


def _machine() -> str:
    """Tells processors apart: programs compiled for one may not run on another that shares the home folder."""
    text = platform.machine() + platform.node()
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.is_file():
        lines = cpu_info.read_text(errors="replace").splitlines()
        text = next((line for line in lines if line.startswith(("flags", "Features"))), text)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def use_compilation_cache() -> None:
    """Lets JAX keep compiled programs in the user's cache folder, unless the user has chosen another or none.

    A folder that cannot be written to is left alone.
    `JAX_COMPILATION_CACHE_DIR` names another folder; `JAX_ENABLE_COMPILATION_CACHE=0` keeps none.
    """
    import jax

    if getattr(jax.config, "jax_compilation_cache_dir", None) is not None:
        return
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "jaxmarl-llm" / f"xla-{_machine()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if not os.access(folder, os.W_OK):
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
