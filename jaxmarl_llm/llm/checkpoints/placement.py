"""Parameters from a checkpoint to the devices, one after the other."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxmarl_llm.errors import UserError, plural
from jaxmarl_llm.llm.checkpoints.model import combined, leaf_digest
from jaxmarl_llm.llm.checkpoints.names import Kind, Leaf, abstract_params, decoder_leaves, leaves, put
from jaxmarl_llm.llm.config import LAYERS, DecoderConfig

# Bytes, in float32, that are read at a time.
_BLOCK = 4 * 2**20


class Tensors(Protocol):
    """What is read from, a file or several."""

    names: set[str]

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor, rows first."""
        ...

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Some rows of a tensor."""
        ...


def parameter_shardings(config: DecoderConfig, mesh: Mesh) -> dict[str, Any]:
    """How the parameters of a decoder are shared among devices.

    Each device holds an equal part of each matrix, along the longest axis that the number of devices divides; matrices
    without such an axis, vectors and numbers are on every device. The axis of stacked layers is never cut: a scan takes
    one layer at a time.

    Args:
      config: of the decoder.
      mesh: all its axes together.

    Returns:
      A tree like the parameters, of `NamedSharding`.
    """
    found: dict[str, Any] = {}
    for path, leaf in leaves(abstract_params(config)):
        first = int(config.scan_layers and path[0] == LAYERS)
        axes = [axis for axis in range(first, leaf.ndim) if leaf.shape[axis] % mesh.size == 0]
        spec: list[Any] = [None] * leaf.ndim
        if axes and leaf.ndim - first > 1:
            spec[max(axes, key=lambda axis: leaf.shape[axis])] = mesh.axis_names
        put(found, path, NamedSharding(mesh, PartitionSpec(*spec)))
    return found


def place(
    where: str, tensors: Tensors, kind: Kind, config: DecoderConfig, ignored: set[str], mesh: Mesh | None, paired: bool
) -> tuple[dict[str, Any], str]:
    """Reads a decoder's parameters and puts them on the devices.

    Args:
      where: names the checkpoint.
      tensors: its tensors.
      kind: whose names they have.
      config: stacked layers, no adapters.
      ignored: names of tensors that are not needed.
      mesh: of the devices that share the parameters; None for the default device.
      paired: rows of queries and keys are in the order in which neighbours turn together.

    Returns:
      `(params, fingerprint)`.

    Raises:
      UserError: tensors that are missing, too many, or of another shape.
    """
    # Before the name of each of them is written out: a damaged configuration can ask for any number.
    if config.num_layers > len(tensors.names):
        raise UserError(
            f"{where}: its configuration has {plural(config.num_layers, 'layer')}, its weights only "
            f"{plural(len(tensors.names), 'tensor')}: they do not belong together"
        )
    wanted = decoder_leaves(config)
    _check(where, tensors, kind, wanted, ignored)
    shardings = None if mesh is None else dict(leaves(parameter_shardings(config, mesh)))
    params: dict[str, Any] = {}
    digests = []
    # The host holds one parameter beside those that are placed: the largest one while there are few of these.
    for leaf in sorted(wanted, key=lambda leaf: -np.prod(leaf.shape)):
        array = _read(where, tensors, kind, leaf, config.head_dim if paired else 0)
        digests.append(leaf_digest(leaf.path, array))
        if shardings is None:
            # Not `jnp.array`, which copies twice.
            placed = jax.device_put(array, may_alias=False)
        else:
            placed = jax.make_array_from_callback(leaf.shape, shardings[leaf.path], array.__getitem__)
        put(params, leaf.path, jax.block_until_ready(placed))
        del array, placed
    return params, combined(config, digests)


def _check(where: str, tensors: Tensors, kind: Kind, wanted: list[Leaf], ignored: set[str]) -> None:
    names = {name: leaf for leaf in wanted for name in leaf.tensors(kind)}
    missing = [name for name in names if name not in tensors.names]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(f"{where}: tensor {missing[0]}{more} is missing")
    unknown = sorted(tensors.names - set(names) - ignored)
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise UserError(f"{where}: tensor {unknown[0]}{more} has no place in the decoder: not supported")
    for name, leaf in names.items():
        if tensors.shape(name) != leaf.tensor_shape:
            raise UserError(
                f"{where}: tensor {name} has shape {list(tensors.shape(name))}, its configuration says "
                f"{list(leaf.tensor_shape)}"
            )


def _read(where: str, tensors: Tensors, kind: Kind, leaf: Leaf, pairs_of: int) -> np.ndarray:
    array = np.empty(leaf.shape, jnp.dtype(leaf.dtype))
    targets = array if leaf.is_stacked else array[None]
    step = max(1, _BLOCK // (4 * int(np.prod(leaf.tensor_shape[1:]))))
    for name, target in zip(leaf.tensors(kind), targets, strict=True):
        target = target.T if leaf.is_kernel else target
        if pairs_of and leaf.part in ("query_projection", "key_projection"):
            # Row 2 i + s of a head belongs at row i + s D / 2.
            rows = np.arange(len(target)).reshape(-1, 2, pairs_of // 2).swapaxes(1, 2).reshape(-1)
            target[rows] = _rows(where, tensors, name, 0, len(target))
            continue
        for start in range(0, len(target), step):
            stop = min(start + step, len(target))
            target[start:stop] = _rows(where, tensors, name, start, stop)
    return array


def _rows(where: str, tensors: Tensors, name: str, start: int, stop: int) -> np.ndarray:
    found = tensors.rows(name, start, stop)
    if not np.isfinite(found).all():
        raise UserError(f"{where}: tensor {name} holds NaN or infinite numbers: download it again, or train it anew")
    return found
