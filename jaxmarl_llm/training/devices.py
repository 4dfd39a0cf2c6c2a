"""Devices: one mesh over the environment axis, one process or many.

Axes: S seeds, B environments. Only arrays that hold the environments are split; parameters and the optimiser are on
every device.
"""

import dataclasses
import os
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxmarl_llm.algorithms.mesh import ENV_AXIS
from jaxmarl_llm.errors import UserError


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where the arrays of a run live.

    Attributes:
      mesh: a 1-D mesh with the axis `"env"`.
    """

    mesh: Mesh

    @property
    def num_devices(self) -> int:
        """Devices that share the environments."""
        return self.mesh.size

    @property
    def replicated(self) -> NamedSharding:
        """The sharding of an array that every device holds whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def split(self) -> NamedSharding:
        """The sharding of an array `[S, B, ...]` whose environments are spread over the devices."""
        return NamedSharding(self.mesh, PartitionSpec(None, ENV_AXIS))

    def state_shardings(self, state: Any) -> Any:
        """Shardings of a learner's state.

        Args:
          state: a learner's state with a leading axis S; its leaves may be shapes.

        Returns:
          The same structure: `split` for the leaves of `state.rollout`, `replicated` elsewhere.
        """
        shardings = jax.tree.map(lambda _: self.replicated, state)
        return shardings.replace(rollout=jax.tree.map(lambda _: self.split, state.rollout))


def place(num_devices: int, num_envs: int) -> Placement:
    """Chooses the devices of a run.

    Args:
      num_devices: how many; 0 for all. A run of several processes always uses all.
      num_envs: B, which must be a multiple of the number of devices.

    Returns:
      A mesh over the first `num_devices` devices.

    Raises:
      UserError: there are not so many devices, or they cannot share the environments evenly.
    """
    available = jax.devices()
    if num_devices == 0 or jax.process_count() > 1:
        num_devices = len(available)
    if num_devices > len(available):
        raise UserError(
            f"num_devices is {num_devices}, but JAX sees {len(available)} ({available[0].platform}): "
            f"use --num-devices {len(available)} or fewer"
        )
    if num_envs % num_devices:
        lower, upper = num_envs // num_devices * num_devices, -(-num_envs // num_devices) * num_devices
        nearest = f"{lower} or {upper}" if lower else str(upper)
        raise UserError(
            f"num_envs {num_envs} cannot be divided among {num_devices} devices: use --num-envs {nearest}, "
            f"or another --num-devices"
        )
    return Placement(Mesh(np.asarray(available[:num_devices]), (ENV_AXIS,), axis_types=(AxisType.Auto,)))


def connect_processes(
    coordinator_address: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> None:
    """Joins the processes of one run through `jax.distributed`; does nothing for a run of one process.

    Must be called before anything else uses JAX. What is not given is read from the environment variables
    `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`.

    Args:
      coordinator_address: `host:port` of process 0.
      num_processes: how many processes take part.
      process_id: which of them this one is, from 0.

    Raises:
      UserError: only some of the three are known, or the processes do not find each other.
    """

    def integer(value: int | None, variable: str) -> int | None:
        text = os.environ.get(variable)
        if value is not None or not text:
            return value
        if not text.isdigit():
            raise UserError(f"{variable} must be a whole number, got '{text}'")
        return int(text)

    address = coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS")
    num_processes = integer(num_processes, "JAX_NUM_PROCESSES")
    process_id = integer(process_id, "JAX_PROCESS_ID")
    given = {
        "--coordinator-address": address,
        "--num-processes": num_processes,
        "--process-id": process_id,
    }
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return
    if missing:
        raise UserError(f"a run of several processes also needs {' and '.join(missing)}")
    assert num_processes is not None and process_id is not None
    if not 0 <= process_id < num_processes:
        raise UserError(f"--process-id must lie between 0 and {num_processes - 1}, got {process_id}")
    # The CPU backend has no collectives of its own; other backends ignore this.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(address, num_processes, process_id)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"cannot join the other processes at {address}: {' '.join(str(error).split())}") from None


def is_main_process() -> bool:
    """Whether this process writes the files of the run."""
    return jax.process_index() == 0


def barrier(name: str) -> None:
    """Waits until all processes are here.

    Args:
      name: tells this barrier from others in error messages.
    """
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)


def any_process(flag: bool) -> bool:
    """Whether the flag is set in any process; all processes must ask at the same point."""
    if jax.process_count() == 1:
        return flag
    from jax.experimental import multihost_utils

    return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))
