"""Strict settings for the whole suite: two virtual devices, no rank promotion, a compilation cache."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", os.path.join(os.path.dirname(__file__), "..", ".jax_cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@pytest.fixture
def key():
    """A fixed key; split it."""
    return jax.random.key(0)
