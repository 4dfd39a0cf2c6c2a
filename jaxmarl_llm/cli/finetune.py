"""`jaxmarl-llm finetune`."""

import dataclasses
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from jaxmarl_llm.cli import DIVERGED
from jaxmarl_llm.cli.options import option_value, parse_options, split_preset
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.training.config import FINETUNE_FOLDER, preset_names
from jaxmarl_llm.workflows.finetuning.config import FinetuneConfig, load_finetune_config


@dataclasses.dataclass(frozen=True)
class FinetuneOptions:
    """Options of `finetune`."""

    config: Annotated[FinetuneConfig, tyro.conf.arg(name="")]
    out: Path | None = None
    """The folder of the run (default: runs/finetune-PRESET-<date and time>)."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Continue the run in the folder --out from its last checkpoint. No preset is needed."""
    plots: bool = True
    """Draw curves at the end."""


def _description() -> str:
    return (
        "Fine-tune a team of language-model roles: each role, or all together, learns a LoRA adapter on a frozen "
        f"model. PRESET is one of {', '.join(preset_names(FINETUNE_FOLDER))}; or a YAML file of your own; or nothing, "
        "which leaves the defaults below. Options override the preset.\n\n"
        "Ctrl-C waits for the iteration or the evaluation under way, saves the run and exits; --resume continues it. "
        "Afterwards: `jaxmarl-llm evaluate RUN`, `chat RUN`, `export RUN`."
    )


def load_preset(name: str) -> FinetuneConfig:
    """Reads a preset of `finetune` by name, or any YAML file by path.

    Raises:
      UserError: no such preset.
    """
    if name.endswith((".yaml", ".yml")):
        return load_finetune_config(name)
    names = preset_names(FINETUNE_FOLDER)
    if name in preset_names() and name not in names:
        raise UserError(f"'{name}' is a preset of train: choose one of {', '.join(names)}, or run train {name}")
    if name not in names:
        raise unknown_name("preset", name, names)
    return load_finetune_config(FINETUNE_FOLDER / f"{name}.yaml")


def _base_config(preset: str | None, arguments: Sequence[str]) -> FinetuneConfig:
    """What the options override: the preset, or the configuration of the run that is resumed, or the defaults."""
    out = option_value(arguments, "--out")
    if "--resume" in arguments and out is None:
        raise UserError("--resume needs the folder of the run: add --out DIR")
    if preset is not None:
        return load_preset(preset)
    if "--resume" in arguments:
        from jaxmarl_llm.cli.run_folder import finetuned_config

        return finetuned_config(Path(str(out)))
    return FinetuneConfig()


def _given(arguments: Sequence[str]) -> set[str]:
    """Names of options, as they are written."""
    return {argument.partition("=")[0].replace("_", "-") for argument in arguments}


def _merged(config: FinetuneConfig, base: FinetuneConfig, arguments: Sequence[str]) -> FinetuneConfig:
    """Settings on the command line add to the preset's, unless another workflow, task or trust region was chosen."""
    given = _given(arguments)
    changes = {}
    for owner, name in (("workflow", "workflow_args"), ("task", "task_args")):
        same = getattr(config, owner) == getattr(base, owner)
        own = getattr(config, name) if f"--{name.replace('_', '-')}" in given else {}
        changes[name] = (getattr(base, name) if same else {}) | own
    if config.trust_region != base.trust_region and "--credit" not in given:
        # That of the other one.
        changes["credit"] = ""
    return dataclasses.replace(config, **changes)


def parse_finetune(arguments: Sequence[str]) -> tuple[FinetuneOptions, Path]:
    """Options of a fine-tuning run, checked, and its folder.

    Raises:
      UserError: bad input.
    """
    preset, arguments = split_preset(FinetuneOptions, arguments, preset_names(FINETUNE_FOLDER), "finetune")
    if not ({"-h", "--help", "--resume"} & set(arguments)) and preset is None and not arguments:
        raise UserError(f"name a preset ({', '.join(preset_names(FINETUNE_FOLDER))}), or options: see finetune --help")
    base = _base_config(preset, arguments)
    options = parse_options(
        FinetuneOptions,
        arguments,
        program=f"jaxmarl-llm finetune {preset or '[PRESET]'}",
        default=FinetuneOptions(config=base),
        description=_description(),
    )
    options = dataclasses.replace(options, config=_merged(options.config, base, arguments))
    options.config.check()
    config = options.config.with_absolute_paths()
    if options.resume and preset is None:
        # What the run has stored stays as it is.
        same = {name: value for name, value in vars(base).items() if getattr(options.config, name) == value}
        config = dataclasses.replace(config, **same)
    options = dataclasses.replace(options, config=config)
    name = Path(preset).stem if preset else options.config.workflow
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return options, options.out or Path("runs") / f"finetune-{name}-{stamp}"


def finetune_command(arguments: Sequence[str]) -> int:
    """Fine-tunes a team; returns the exit status."""
    options, folder = parse_finetune(arguments)
    given = _given(arguments)
    for name, use in options.config.idle_settings.items():
        if f"--{name.replace('_', '-')}" in given:
            print(f"note: {name} changes nothing here: it is for {use}", file=sys.stderr)

    from rich.console import Console

    from jaxmarl_llm.training.compilation_cache import use_compilation_cache

    use_compilation_cache()

    from jaxmarl_llm.cli.finetune_display import TerminalWatcher, finish
    from jaxmarl_llm.training.loop import TrainingDiverged, TrainingInterrupted
    from jaxmarl_llm.workflows.finetuning.run import finetune

    console = Console()
    watcher = TerminalWatcher(console, folder, options.config.model)
    try:
        result = finetune(options.config, folder, resume=options.resume, watcher=watcher)
    except TrainingInterrupted as stop:
        print(stop, file=sys.stderr)
        return 128 + stop.signal_number
    except TrainingDiverged as error:
        print(f"error: {error}", file=sys.stderr)
        return DIVERGED
    except KeyboardInterrupt:
        advice = "nothing was trained: begin again with the same command"
        if (folder / "config.yaml").is_file():
            advice = f"continue with: jaxmarl-llm finetune --resume --out {folder}"
        raise KeyboardInterrupt(f"interrupted; {advice}") from None
    finally:
        watcher.stop()
    finish(result, watcher, console, plots=options.plots)
    return 0
