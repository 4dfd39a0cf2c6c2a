"""Devices that share the parameters of a decoder, in one process or several."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxmarl_llm.arguments import check_whole
from jaxmarl_llm.errors import UserError

_AXIS = "model"


def model_mesh(num_devices: int = 0) -> Mesh | None:
    """A mesh for `load_model`.

    Args:
      num_devices: how many share the parameters; 0 for all that there are, of all processes.

    Returns:
      A mesh with the axis `"model"`; None for one device, which needs none.

    Raises:
      UserError: there are not so many devices.
    """
    check_whole("num_devices", num_devices, at_least=0)
    devices = jax.devices()
    if num_devices > len(devices):
        raise UserError(
            f"num_devices is {num_devices}, but JAX sees {len(devices)} ({devices[0].platform}): set it to "
            f"{len(devices)} or fewer"
        )
    chosen = devices[: num_devices or len(devices)]
    return None if len(chosen) == 1 else Mesh(np.asarray(chosen), (_AXIS,), axis_types=(AxisType.Auto,))


def replicated_like(params: Any) -> NamedSharding | None:
    """The sharding of what every device that shares parameters holds whole; None where one device has them."""
    for leaf in jax.tree.leaves(params):
        if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
            sharding = leaf.sharding
            if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1:
                return NamedSharding(sharding.mesh, PartitionSpec())
    return None


def replicate(tree: Any, params: Any) -> Any:
    """A pytree of arrays as every device that shares the parameters holds it; itself where one device has them."""
    sharding = replicated_like(params)
    return tree if sharding is None else _spread(sharding)(tree)


@functools.lru_cache
def _spread(sharding: NamedSharding) -> Callable:
    # One program for all calls: a jit of a function made anew would be compiled anew.
    return jax.jit(lambda tree: tree, out_shardings=sharding)


def num_shards(params: Any) -> float:
    """By how much less of the parameters a device holds than there is; 1 for those that are on no device."""
    leaves = [leaf for leaf in jax.tree.leaves(params) if isinstance(leaf, jax.Array)]
    held = sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)
    return sum(leaf.nbytes for leaf in leaves) / held if held else 1.0


def jit_replicated(function: Callable, *, params: int, **settings: Any) -> Callable:
    """`jax.jit` of a function whose results the host reads: each device, and so each process, has them whole.

    Args:
      function: of parameters and more.
      params: which positional argument are the parameters.
      **settings: of `jax.jit`.
    """

    @functools.lru_cache
    def compiled(sharding):
        return jax.jit(function, out_shardings=sharding, **settings)

    @functools.wraps(function)
    def call(*args, **kwargs):
        return compiled(replicated_like(args[params]))(*args, **kwargs)

    return call
