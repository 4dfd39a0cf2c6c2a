"""`jaxmarl-llm train`."""

import dataclasses
import datetime
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxmarl_llm.cli import DIVERGED
from jaxmarl_llm.cli.options import option_value, parse_options, split_preset
from jaxmarl_llm.errors import UserError, plural
from jaxmarl_llm.training.config import (
    FIELDS,
    TrainConfig,
    has_schedule,
    load_preset,
    load_yaml,
    preset_names,
)
from jaxmarl_llm.training.config_check import check_config


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """Options of `train`."""

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Continue the run in the folder --out from its last checkpoint. No preset is needed."""
    plots: bool = True
    """Draw curves and a GIF of an episode at the end."""
    coordinator_address: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT")] = None
    """Runs of several processes: address of process 0 (or set JAX_COORDINATOR_ADDRESS)."""
    num_processes: int | None = None
    """Runs of several processes: how many (or set JAX_NUM_PROCESSES)."""
    process_id: int | None = None
    """Runs of several processes: which one this is, from 0 (or set JAX_PROCESS_ID)."""


def _description() -> str:
    return (
        "Train a team on an environment. PRESET is a name that `jaxmarl-llm presets` lists, such as demo; or a YAML "
        "file of your own; or nothing, which leaves the defaults below. Options override the preset.\n\n"
        "Settings of an environment (--env-args): `jaxmarl-llm envs NAME`. Of an algorithm (--algorithm-args): "
        "`jaxmarl-llm presets NAME`. Ctrl-C saves the run and exits; --resume continues it."
    )


def _base_config(preset: str | None, arguments: Sequence[str]) -> TrainConfig:
    """What the options override: the preset, or the configuration of the run that is resumed, or the defaults."""
    if preset is not None:
        return load_preset(preset)
    out = option_value(arguments, "--out")
    if "--resume" in arguments:
        if out is None:
            raise UserError("--resume needs the folder of the run: add --out DIR")
        path = Path(out) / "config.yaml"
        if not path.is_file():
            raise UserError(f"no run to resume in {out}: check --out, or name a preset to begin one there")
        return _resumed_config(path)
    if option_value(arguments, "--env") is None and not {"-h", "--help"} & set(arguments):
        raise UserError(f"name a preset ({', '.join(preset_names())}) or an environment (--env NAME)")
    return TrainConfig()


def _resumed_config(path: Path) -> TrainConfig:
    try:
        return load_yaml(path)
    except UserError as error:
        copies = sorted(path.parent.glob("checkpoints/*/config.yaml"), key=lambda copy: copy.stat().st_mtime)
        if not copies:
            raise
        raise UserError(f"{error}; or restore it as the run saved it: cp {copies[-1]} {path.parent}") from None


# Of the options, those that some networks alone have.
_NETWORKS_WITH = {"gru_size": ("gru",), "activation": ("mlp", "cnn", "gru")}


def _merge_settings(config: TrainConfig, base: TrainConfig, arguments: Sequence[str]) -> TrainConfig:
    """Settings on the command line add to the preset's, unless another environment, algorithm or network was chosen.

    Raises:
      UserError: an option of another network than the one that was chosen.
    """
    given = {argument.partition("=")[0].replace("_", "-") for argument in arguments}
    for name, networks in _NETWORKS_WITH.items():
        option = f"--{name.replace('_', '-')}"
        if config.network not in networks and option in given:
            raise UserError(f"{option} is for --network {' or '.join(networks)}, the network is {config.network}: "
                            "leave it out")  # fmt: skip
        if config.network not in networks and config.network != base.network:
            config = dataclasses.replace(config, **{name: FIELDS[name].default})

    def merged(owner: str, name: str) -> dict[str, Any]:
        same = getattr(config, owner) == getattr(base, owner)
        settings: dict[str, Any] = dict(getattr(base, name)) if same else {}
        return settings | (getattr(config, name) if f"--{name.replace('_', '-')}" in given else {})

    return dataclasses.replace(
        config, env_args=merged("env", "env_args"), algorithm_args=merged("algorithm", "algorithm_args")
    )


def parse_train(arguments: Sequence[str]) -> tuple[TrainOptions, str]:
    """Options of a training run, with the preset, the defaults and the name of the folder filled in.

    Returns:
      `(options, name)`: the name of the preset or environment, for folders and titles.
    """
    preset, arguments = split_preset(TrainOptions, arguments, preset_names(), "train")
    base = _base_config(preset, arguments)
    program = f"jaxmarl-llm train {preset or '[PRESET]'}"
    options = parse_options(
        TrainOptions, arguments, program=program, default=TrainOptions(config=base), description=_description()
    )
    config = _merge_settings(options.config, base, arguments)
    check_config(config)
    name = Path(preset).stem if preset else config.env.rpartition(":")[2]
    if not config.out:
        if options.resume:
            raise UserError("--resume needs the folder of the run: add --out DIR")
        if options.num_processes or options.coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS"):
            raise UserError("a run of several processes needs one folder that all of them name: add --out DIR")
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        config = dataclasses.replace(config, out=str(Path("runs") / f"{name}-{stamp}"))
    return dataclasses.replace(options, config=config), name


def _is_finished(summary: dict[str, Any], config: TrainConfig) -> str:
    longer = f"jaxmarl-llm train --resume --out {config.out} --total-steps N"
    if has_schedule(config):
        longer = "its schedules end there, so begin another run, with a larger --total-steps and another --out"
    steps = plural(summary["env_steps"], "step")
    return f"the run in {config.out} is finished after {steps}, nothing was done. To train longer: {longer}"


def train_command(arguments: Sequence[str]) -> int:
    """Trains a run; returns the exit status."""
    options, name = parse_train(arguments)

    from rich.console import Console

    from jaxmarl_llm.cli.finish import finish_run
    from jaxmarl_llm.training.compilation_cache import use_compilation_cache
    from jaxmarl_llm.training.devices import connect_processes, is_main_process, use_cpu_cores
    from jaxmarl_llm.training.loop import TrainingDiverged, TrainingInterrupted, train
    from jaxmarl_llm.training.progress import Reporter, TerminalReporter

    use_compilation_cache()
    if not connect_processes(options.coordinator_address, options.num_processes, options.process_id):
        use_cpu_cores()
    console = Console()
    config = options.config
    reporter = Reporter()
    if is_main_process():
        size = plural(config.num_envs, "parallel environment")
        size += f", {plural(config.num_seeds, 'seed')}" if config.num_seeds > 1 else ""
        reporter = TerminalReporter(console, f"{name}: {config.algorithm} on {config.env}, {size} -> {config.out}")
    try:
        result = train(config, resume=options.resume, reporter=reporter)
    except TrainingInterrupted as stop:
        print(stop, file=sys.stderr)
        return 128 + stop.signal_number
    except TrainingDiverged as error:
        print(f"error: {error}", file=sys.stderr)
        return DIVERGED
    if is_main_process() and result.was_finished:
        print(_is_finished(result.summary, config))
    elif is_main_process():
        finish_run(result, config, console, plots=options.plots)
    return 0
