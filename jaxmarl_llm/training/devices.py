"""Devices: one mesh over the environment axis, one process or many.

Axes: S seeds, B environments. Only arrays that hold the environments are split; parameters and the optimiser are on
every device.
"""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.machine import machine_memory
from jaxmarl_llm.mesh import ENV_AXIS

# More threads than this spend their time waiting for each other.
_MAX_CPU_DEVICES = 16


def check_memory(state: Any) -> None:
    """Refuses training whose state alone is larger than the memory of this machine, or of one of its devices.

    Args:
      state: a pytree of arrays, or of their shapes, with shardings.

    Raises:
      UserError: how much it needs, and how much there is.
    """
    leaves = jax.tree.leaves(state)
    needed = sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)
    devices = leaves[0].sharding.addressable_devices
    if all(device.platform == "cpu" for device in devices):
        needed *= len(devices)
        there = machine_memory()
    else:
        there = min((device.memory_stats() or {}).get("bytes_limit", math.inf) for device in devices)
    if needed > there:
        raise UserError(
            f"the state of training takes {needed / 1e9:,.0f} GB, and there are {there / 1e9:,.0f}: choose fewer seeds "
            "or environments, smaller networks, or a smaller replay"
        )


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
    def on_cpu(self) -> bool:
        """Whether the devices are CPUs."""
        return self.mesh.devices.flat[0].platform == "cpu"

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
        return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), self._specs(state))

    def spread(self, update: Callable, state: Any) -> Callable:
        """An update that each device runs on its share of the environments.

        Args:
          update: `state -> (state, metrics)`, every leaf with a leading axis S; sums over environments go through
            `jaxmarl_llm.mesh`.
          state: the state or its shapes.

        Returns:
          The update of the whole state.
        """
        specs = self._specs(state)
        return self.share(update, (specs,), (specs, PartitionSpec()))

    def share(self, function: Callable, in_specs: Any, out_specs: Any) -> Callable:
        """A function that each device runs on its part of the arguments; on one device, the function itself.

        Args:
          function: sums over what is split go through `jaxmarl_llm.mesh`.
          in_specs, out_specs: how arguments and results are split, as for `jax.shard_map`.
        """
        if self.num_devices == 1:
            return function
        # What is not split is the same on every device by construction, which the checker cannot always see.
        return jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)

    @property
    def compiler_options(self) -> dict[str, str | bool | int]:
        """Options for programs that `share` made."""
        if self.num_devices == 1 or not self.on_cpu:
            return {}
        return {
            # One device a core: each works alone, and the thread pool that they share would only get in their way.
            "xla_cpu_multi_thread_eigen": False,
            # A device that waits 40 s for another ends the process by default; a process may be paused for longer.
            "xla_cpu_collective_call_terminate_timeout_seconds": 3600,
            "xla_cpu_collective_call_warn_stuck_seconds": 3600,
        }

    def _specs(self, state: Any) -> Any:
        specs = jax.tree.map(lambda _: PartitionSpec(), state)
        return specs.replace(rollout=jax.tree.map(lambda _: PartitionSpec(None, ENV_AXIS), state.rollout))


def use_cpu_cores() -> None:
    """Makes every CPU core a device of its own, unless the user has set their number.

    Does nothing where JAX is in use already. Devices that each hold a share of the environments keep several cores
    busier than one device with several threads.
    """
    if os.environ.get("JAX_NUM_CPU_DEVICES") or "host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", min(cores, _MAX_CPU_DEVICES))


def place(num_devices: int, env_groups: int, *, one_device: str = "") -> Placement:
    """Chooses the devices of a run.

    Args:
      num_devices: how many; 0 for as many as can share the environments evenly. A run of several processes always
        uses all.
      env_groups: the learner's groups of environments; the number of devices must divide it.
      one_device: why no more than one device can update, for messages; empty where more environments would let more.

    Returns:
      A mesh over the first `num_devices` devices.

    Raises:
      UserError: there are not so many devices, or they cannot share the environments evenly.
    """
    available = jax.devices()
    if jax.process_count() > 1:
        num_devices = len(available)
    if num_devices == 0:
        num_devices = max(n for n in range(1, len(available) + 1) if env_groups % n == 0)
    if num_devices > len(available):
        raise UserError(
            f"num_devices is {num_devices}, but JAX sees {len(available)} ({available[0].platform}): "
            f"use --num-devices {len(available)} or fewer"
        )
    if env_groups % num_devices and one_device:
        raise UserError(f"{one_device}: use --num-devices 1")
    if env_groups % num_devices:
        possible = ", ".join(str(n) for n in range(1, env_groups + 1) if env_groups % n == 0)
        raise UserError(
            f"{num_devices} devices cannot share the environments and their minibatches evenly: use --num-devices "
            f"{possible}, or a multiple of {num_devices} for --num-envs"
        )
    return Placement(Mesh(np.asarray(available[:num_devices]), (ENV_AXIS,), axis_types=(AxisType.Auto,)))


def connect_processes(
    coordinator_address: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> bool:
    """Joins the processes of one run through `jax.distributed`; does nothing for a run of one process.

    Must be called before anything else uses JAX. What is not given is read from the environment variables
    `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`.

    Args:
      coordinator_address: `host:port` of process 0.
      num_processes: how many processes take part.
      process_id: which of them this one is, from 0.

    Returns:
      Whether the run has several processes.

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
        return False
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
    return True


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
