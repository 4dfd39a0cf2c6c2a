"""Settings for the whole suite: two virtual devices, no rank promotion, quick compilation and a cache of it."""

import gc
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile much and run little: without optimisation they compile four times as fast. An XLA_FLAGS of one's own,
# an empty one too, keeps the compiler as users have it.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false",
)

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", os.path.join(os.path.dirname(__file__), "..", ".jax_cache"))
# To write a program that compiles faster than this takes longer than to compile it again.
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@pytest.fixture(scope="module", autouse=True)
def _forget():
    """Drops what JAX keeps of a module's programs: the collector would go through all of it, each time for longer."""
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture
def key():
    """A fixed key; split it."""
    return jax.random.key(0)
