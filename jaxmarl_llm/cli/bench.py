"""`jaxmarl-llm bench`."""

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from jaxmarl_llm.cli.options import parse_options
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.training.config import Count, Settings, learner_settings, load_preset


@dataclasses.dataclass(frozen=True)
class BenchOptions:
    """Measure environment steps per second with random actions; with --preset, training steps per second."""

    env: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ("overcooked",)
    """Environments, as `jaxmarl-llm envs` lists them, or import paths such as mypackage.mymodule:MyEnv."""
    env_args: Settings = dataclasses.field(default_factory=dict)
    """Settings of all of them, such as layout=coord_ring; `jaxmarl-llm envs NAME` lists those of one."""
    num_envs: tuple[int, ...] = (1, 128, 1024)
    """Batch sizes: parallel environments."""
    modes: tuple[str, ...] = ("step", "auto_reset", "observe")
    """What is measured: step (no reset), auto_reset, observe (resets, and observations consumed)."""
    num_steps: int = 200
    """Steps of a timed run, of each environment; more for small batches."""
    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Measure the training of a preset instead."""
    total_steps: Count = 200_000
    """Environment steps of a timed training run."""
    repeats: int = 5
    """Timed runs; the median counts."""
    json: Path | None = None
    """File that the results are written to, as JSON."""


def bench_command(arguments: Sequence[str]) -> int:
    """Measures and prints a table; returns the exit status."""
    options = parse_options(BenchOptions, arguments, program="jaxmarl-llm bench")
    for name in ("num_steps", "total_steps", "repeats"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(options, name)}")
    if options.json is not None:
        _check_writable(options.json)
    config = None if options.preset is None else load_preset(options.preset)

    from rich.console import Console

    from jaxmarl_llm import benchmark
    from jaxmarl_llm.training.devices import use_cpu_cores

    if config is not None:
        use_cpu_cores()
    console = Console()
    machine = benchmark.machine_report()
    with console.status("measuring"):
        if config is None:
            results = benchmark.run_environment_benchmark(
                options.env,
                options.num_envs,
                options.num_steps,
                options.repeats,
                options.modes,
                env_args=options.env_args,
            )
        else:
            hyper = {name: value for name, value in learner_settings(config).items() if name != "total_steps"}
            results = benchmark.run_training_benchmark(
                config.env,
                total_steps=options.total_steps,
                repeats=options.repeats,
                algorithm=config.algorithm,
                env_args=config.env_args | options.env_args,
                hyper=hyper | config.algorithm_args,
            )
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()) + "\n", highlight=False)
    benchmark.print_table(results, console=console)
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")
        console.print(f"wrote {options.json}", highlight=False, soft_wrap=True)
    return 0


def _check_writable(path: Path) -> None:
    """Raises `UserError` where a file could not be written, which is better known before minutes of measuring."""
    target = path if path.exists() else path.parent
    if path.is_dir() or not (path.exists() or path.parent.is_dir()) or not os.access(target, os.W_OK):
        raise UserError(f"--json cannot be written to {path}: name a file in a folder that exists and can be written")
