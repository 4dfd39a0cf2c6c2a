"""Hints to the compiler about a mesh of devices; they do nothing where no mesh with the axis `"env"` is set.

A program that is compiled under `jax.set_mesh(mesh)` sees the mesh; see `training.devices`.
"""

from typing import Any

import jax
from jax.sharding import PartitionSpec

ENV_AXIS = "env"


def _mesh_size() -> int:
    return dict(jax.sharding.get_abstract_mesh().shape).get(ENV_AXIS, 1)


def replicate(tree: Any) -> Any:
    """Every device gets the whole of each array: one gather now instead of one at every later use."""
    if _mesh_size() == 1:
        return tree
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, PartitionSpec()), tree)


def split(tree: Any, *, axis: int) -> Any:
    """Each device gets its share of each array along `axis`; arrays that cannot be shared evenly are left alone."""
    size = _mesh_size()

    def split_leaf(leaf):
        if leaf.shape[axis] % size:
            return leaf
        return jax.lax.with_sharding_constraint(leaf, PartitionSpec(*(None,) * axis, ENV_AXIS))

    return tree if size == 1 else jax.tree.map(split_leaf, tree)
