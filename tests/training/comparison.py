"""What two runs must share to count as the same run."""

import json
from pathlib import Path

import jax
import numpy as np

from jaxmarl_llm.training import checkpoints
from jaxmarl_llm.training.devices import place

TIMES = ("seconds", "steps_per_s")


def metrics_without_times(folder):
    """The lines of `metrics.jsonl` without what differs from run to run."""
    lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def saved_state(folder, config, build, update):
    """The arrays of a checkpoint, keys as their data."""
    learner = build(config)
    placement = place(1, config.num_envs)
    state = jax.eval_shape(jax.vmap(learner.init), jax.random.split(jax.random.key(0), config.num_seeds))
    abstract = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        state,
        placement.state_shardings(state),
    )
    loaded = checkpoints.load(Path(folder) / "checkpoints" / str(update), abstract, config)
    return jax.tree.map(np.asarray, checkpoints.to_storage(loaded.state))


def assert_same_bits(one, other):
    """Equal structure, dtypes and bits."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()
