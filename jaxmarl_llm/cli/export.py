"""`jaxmarl-llm export`."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

from jaxmarl_llm.cli.options import parse_options, split_positional
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.user_files import user_path


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """Write what a fine-tuned run has learned, for serving elsewhere.

    peft: a folder for each policy, with its LoRA adapter in PEFT's format. hf: a whole Hugging Face model with the
    adapter of a role added into its weights.
    """

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    out: Path
    """The folder to write; it must not exist, or be empty."""
    format: Literal["peft", "hf"] = "peft"
    """Adapters alone (peft), or a whole model (hf)."""
    role: Annotated[str | None, tyro.conf.arg(metavar="ROLE")] = None
    """Whose policy: peft writes all without it; hf needs it where there are several."""
    checkpoint: Annotated[str, tyro.conf.arg(metavar="NAME")] = "best"
    """Which adapters: best (by held-out accuracy), last, or an iteration's number."""


def export_command(arguments: Sequence[str]) -> int:
    """Exports a run; returns the exit status."""
    runs, others = split_positional(ExportOptions, arguments, lambda text: True)
    if runs and not {"-h", "--help"} & set(arguments) and not any(one.partition("=")[0] == "--out" for one in others):
        raise UserError("export needs a folder to write: add --out PATH")
    options = parse_options(ExportOptions, arguments, program="jaxmarl-llm export")
    from jaxmarl_llm.cli.run_folder import finetuned_config, note_of_base

    config, out = finetuned_config(options.run), user_path(options.out, "--out")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{out} exists already and is not empty: choose another --out")

    from jaxmarl_llm.llm.checkpoints import save_model
    from jaxmarl_llm.workflows.finetuning.finished import load_finetuned_team

    team = load_finetuned_team(options.run, config, options.checkpoint)
    policies = list(team.learned)
    if options.role is not None:
        policies = [team.policy_of(options.role)]
    if options.format != "peft" and len(policies) > 1:
        raise UserError(f"a model has one policy, the run {len(policies)}: add --role {'|'.join(team.workflow.roles)}")
    if note := note_of_base(config, options.checkpoint, team.iteration):
        print(note, file=sys.stderr)
    if options.format == "peft":
        for path in team.save_adapters(out, policies):
            print(path)
        return 0
    save_model(team.merged(policies[0]), out)
    print(out)
    return 0
