"""What kind of run a folder holds, so that a command says what to do with another's."""

from pathlib import Path

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.training.runs import CONFIG_FILE
from jaxmarl_llm.user_files import parse_yaml
from jaxmarl_llm.workflows.finetuning.config import FinetuneConfig, load_finetune_config


def is_finetuned(folder: Path) -> bool:
    """Whether a folder holds a run of `finetune`."""
    return {"model", "workflow"} <= _fields(folder)


def refuse_finetuned(folder: Path, advice: str) -> None:
    """Raises `UserError` where a folder holds a run of `finetune`; `advice` is the command for it."""
    if is_finetuned(folder):
        raise UserError(f"{folder} holds a fine-tuned run: use `{advice} {folder}`")


def finetuned_config(folder: Path) -> FinetuneConfig:
    """The configuration of the fine-tuned run in a folder.

    Raises:
      UserError: there is none, or it is damaged.
    """
    if "env" in _fields(folder):
        raise UserError(f"{folder} holds a team trained on an environment: use `jaxmarl-llm eval {folder}`")
    if (folder / "ablation.json").is_file():
        runs = sorted(path.parent for path in folder.glob(f"runs/*/*/{CONFIG_FILE}"))
        where = (
            f"name one of its runs, such as {runs[0]}"
            if runs
            else f"its teams are not kept, see {folder / 'report.html'}"
        )
        raise UserError(f"{folder} holds an ablation: {where}")
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"no fine-tuned run in {folder}: give the folder that `jaxmarl-llm finetune --out` wrote")
    return load_finetune_config(folder / CONFIG_FILE)


def note_of_base(config: FinetuneConfig, checkpoint: str, iteration: int) -> str:
    """One line for who uses the best adapters of a run in which the start was best; empty otherwise.

    Args:
      config: of the run.
      checkpoint: what was asked for.
      iteration: of the adapters that were found.
    """
    if checkpoint != "best" or iteration:
        return ""
    if config.warm_start:
        return (
            "no evaluation beat the warm start: the best adapters are as it left them; --checkpoint last has those "
            "that were trained on"
        )
    return (
        "no evaluation beat the base: the best adapters are the base's and change nothing; --checkpoint last has the "
        "trained ones"
    )


def _fields(folder: Path) -> set[str]:
    """The names in a run's configuration; none where it cannot be read."""
    try:
        found = parse_yaml((folder / CONFIG_FILE).read_bytes())
    except (OSError, ValueError):
        return set()
    return set(map(str, found)) if isinstance(found, dict) else set()
