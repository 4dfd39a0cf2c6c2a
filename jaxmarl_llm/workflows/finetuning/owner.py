"""Which run a folder and its checkpoints belong to: by configuration, base model, problems and formats."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.training import checkpoints
from jaxmarl_llm.training.config import differences, dump_yaml
from jaxmarl_llm.training.files import holds_earlier
from jaxmarl_llm.training.runs import CONFIG_FILE, check_beginning, check_contents
from jaxmarl_llm.workflows.finetuning.config import FinetuneConfig, finetune_config, load_finetune_config
from jaxmarl_llm.workflows.text.bound import TextWorkflow

# A run may be continued with other values of these.
_RECORDING = ("evaluate_every", "evaluation_problems", "checkpoint_every", "keep_checkpoints", "num_devices")


def check_folder(folder: Path, config: FinetuneConfig, resume: bool) -> None:
    """Refuses a folder that the run must not write into. Writes nothing.

    Args:
      folder: need not exist.
      config: of the run.
      resume: whether a run in the folder may be continued.

    Raises:
      UserError: says what the folder holds.
    """
    if not holds_earlier(folder, CONFIG_FILE, "a run's"):
        return
    check_contents(folder)
    old = load_finetune_config(folder / CONFIG_FILE)
    changed = differences(old, _as_read(config), ignore=_RECORDING)
    if [one.partition(":")[0] for one in changed] == ["iterations"]:
        if old.has_schedule:
            raise UserError(
                f"the run in {folder} has a schedule over its iterations ({changed[0]}): resume it as it was, or "
                "choose another folder"
            )
    elif changed:
        raise UserError(f"folder {folder} holds another run ({'; '.join(changed)}): choose another folder")
    if not resume:
        raise UserError(f"folder {folder} holds this run already: resume it, or choose another folder")


def find_start(folder: Path, config: FinetuneConfig) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The checkpoint that a run starts from, and damaged ones, as `checkpoints.find_newest`. Writes nothing.

    Raises:
      UserError: every checkpoint is damaged or gone, they belong to another configuration, or the run is past its end.
    """
    start, damaged = checkpoints.find_newest(folder / "checkpoints")
    if start is None:
        # The base model is saved too.
        check_beginning(folder, 0)
        return None, damaged
    check_owner(start, config)
    if int(start.name) > config.iterations:
        raise UserError(f"the run in {folder} has done {start.name} iterations already: raise iterations")
    return start, damaged


def check_owner(path: Path, config: FinetuneConfig) -> None:
    """Raises `UserError` where a checkpoint whose files are sound belongs to another configuration."""
    may_change = [*_RECORDING] if config.has_schedule else [*_RECORDING, "iterations"]
    saved, old = _progress(path), load_finetune_config(path / "config.yaml")
    # What is compared itself, see `check_inputs`, may lie elsewhere now.
    if saved.get("fingerprint") is not None:
        may_change.append("model")
    for name in ("task", "formats"):
        before, now = getattr(old, name), getattr(config, name)
        if saved.get(name) is not None and Path(before).name == Path(now).name:
            may_change.append(name)
    checkpoints.check_owner(path, _as_read(config), read=load_finetune_config, may_change=may_change)


def inputs_of(fingerprint: str | None, bound: TextWorkflow) -> dict[str, str | None]:
    """What a checkpoint remembers of what the run was given beside its configuration.

    Args:
      fingerprint: of the base model; None where it is not known.
      bound: the workflow at work on its task.
    """
    task = bound.task
    problems = [[[one.name, one.prompt, one.target] for one in of] for of in (task.train, task.held_out)]
    return {
        "fingerprint": fingerprint,
        "task": _digest([problems, task.instructions]),
        "formats": _digest({name: vars(one) for name, one in bound.formats.items()}),
    }


def check_inputs(path: Path, found: Mapping[str, str | None], config: FinetuneConfig) -> None:
    """Refuses a base model, problems or formats that are not those that adapters were trained with.

    What is not known is not judged.

    Args:
      path: of the checkpoint.
      found: of `inputs_of`, or a part of it.
      config: of the run.

    Raises:
      UserError: they differ.
    """
    expected = _progress(path)
    changed = [name for name, now in found.items() if None not in (now, expected.get(name)) and expected[name] != now]
    run = path.parent.parent
    if "fingerprint" in changed:
        raise UserError(f"{config.model} is another model than the run was trained on: put that one back in its place")
    if "task" in changed:
        raise UserError(
            f"the problems of {config.task} are others than those of the run in {run}: put those back in their place, "
            "or start a new run with another --out"
        )
    if "formats" in changed:
        what = config.formats or "the prompts that ship"
        raise UserError(
            f"{what}: others than those of the run in {run}: put those back in their place, or start a new run with "
            "another --out"
        )


def _as_read(config: FinetuneConfig) -> FinetuneConfig:
    """A configuration as it is read back: a tuple within settings is a list then."""
    return finetune_config(yaml.safe_load(dump_yaml(config)), "the configuration")


def _progress(path: Path) -> dict[str, Any]:
    return json.loads((path / "progress.json").read_text())


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, default=_plain, skipkeys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """What JSON cannot hold, as something that is the same in every process."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if callable(value) or type(value).__repr__ is object.__repr__:
        # Their text has an address.
        return getattr(value, "__qualname__", type(value).__qualname__)
    return repr(value)
