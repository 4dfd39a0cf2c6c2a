"""Options of `jaxmarl-llm ablate --model`."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import tyro

from jaxmarl_llm.cli.finetune import load_preset
from jaxmarl_llm.cli.options import option_names, option_value, parse_options
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.training.config import FINETUNE_FOLDER, preset_names
from jaxmarl_llm.workflows.ablation.matrix import PRESETS, Ablation
from jaxmarl_llm.workflows.ablation.model_matrix import DEFAULT_PRESET, ModelAblation, from_preset, merge


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """Options of `ablate --model`."""

    config: Annotated[ModelAblation, tyro.conf.arg(name="")]
    out: Path | None = None
    """The folder of the results and of the runs (default: runs/ablation-PRESET-<date and time>)."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Do what is missing of the ablation in the folder --out; a run in the middle goes on from its last checkpoint."""


_DESCRIPTION = (
    "Fine-tune teams of roles on a language model, with one adapter for all roles (shared) and one adapter a role "
    "(isolated), and report what differs. PRESET is one of finetune, which the settings of all runs are taken from: "
    f"{', '.join(preset_names(FINETUNE_FOLDER))} (by default {DEFAULT_PRESET}), or a YAML file of your own. Ctrl-C "
    "saves the run that is trained; --resume goes on with it."
)
_INSTEAD = {
    "--level": "use --task-args, such as digits=2",
    "--eval-greedy": "its evaluations always take the likeliest tokens",
    "--no-eval-greedy": "its evaluations always take the likeliest tokens",
    "--sizes": "the model has a size",
    "--pretraining-args": "the model is trained already",
}


def is_of_model(arguments: Sequence[str]) -> bool:
    """Whether `--model` is among what the user typed."""
    return any(argument.partition("=")[0] == "--model" for argument in arguments)


def refuse_foreign(arguments: Sequence[str], *, of_model: bool) -> None:
    """Raises `UserError` where an option is of the other kind of ablation."""
    names = {kind: set(option_names(kind)) for kind in (Ablation, ModelAblation)}
    own, other = (ModelAblation, Ablation) if of_model else (Ablation, ModelAblation)
    for argument in arguments:
        name = argument.partition("=")[0].replace("_", "-")
        if name in names[other] - names[own]:
            if of_model:
                raise UserError(f"{name} does not go with --model: {_INSTEAD[name]}")
            raise UserError(f"{name} is for ablations on a language model: add --model, or leave it out")


def parse_model_ablation(
    preset: str | None, arguments: Sequence[str], stored: ModelAblation | None
) -> tuple[ModelAblation, ModelOptions]:
    """The configuration and the options of an ablation on a language model, not yet checked.

    Args:
      preset: of `finetune`; None for the default one.
      arguments: all others that the user typed.
      stored: the configuration of the ablation that is resumed.

    Raises:
      UserError: bad input.
    """
    if preset in PRESETS:
        names = ", ".join(preset_names(FINETUNE_FOLDER))
        raise UserError(f"{preset} is an ablation of small decoders: with --model name a preset of finetune ({names})")
    refuse_foreign(arguments, of_model=True)
    if stored is not None and preset is None:
        base = stored
    else:
        base = from_preset(load_preset(preset or DEFAULT_PRESET), option_value(arguments, "--model") or "")
    program = f"jaxmarl-llm ablate {preset or '[PRESET]'} --model MODEL"
    options = parse_options(
        ModelOptions, arguments, program=program, default=ModelOptions(config=base), description=_DESCRIPTION
    )
    if "adapters" in options.config.sharing:
        raise UserError("--sharing adapters does not go with --model, whose policies all are: use shared, isolated")
    return merge(options.config, base), options


def model_runner(folder: Path, console) -> Callable:
    """What `run_ablation` needs to train on a language model.

    Args:
      folder: of the ablation.
      console: where to show that the model is loaded, and what the user should know.
    """

    def make_runner(config, cells):
        from jaxmarl_llm.workflows.ablation.model_runner import make_model_runner

        def note(text):
            console.print(text, highlight=False, soft_wrap=True)

        with console.status(f"loading {config.model}"):
            return make_model_runner(config, cells, folder=folder, note=note)

    return make_runner
