"""Runs a phase diagram part by part, and keeps each part as soon as it is done."""

import contextlib
import dataclasses
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.training.files import holds_earlier, lock_folder, unlock_folder
from jaxmarl_llm.workflows.ablation import sealed
from jaxmarl_llm.workflows.ablation.phase import Phase, check_phase

_HEADER = "phase.json"
_KIND = "phase diagram"
_DIGEST = "config_sha256"


def read_phase(folder: Path) -> Phase:
    """The configuration of the diagram in a folder.

    Raises:
      UserError: there is none.
    """
    try:
        header = sealed.read_sealed(folder / _HEADER)
        if header["kind"] != _KIND:
            raise ValueError
        config: dict[str, Any] = header["config"]
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in config.items()
        }
        return Phase(**values)
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"no phase diagram of this version in {folder}, so nothing to resume: give the folder that "
            "`jaxmarl-llm ablate phase --out` wrote"
        ) from None


def check_phase_folder(folder: Path, config: Phase, resume: bool) -> None:
    """Refuses a folder that a diagram must not write into. Writes nothing.

    Raises:
      UserError: says what the folder holds.
    """
    if not holds_earlier(folder, _HEADER, "a phase diagram's"):
        return
    if read_phase(folder) != config:
        raise UserError(f"folder {folder} holds another phase diagram: choose another --out")
    if not resume:
        raise UserError(f"folder {folder} holds this phase diagram already: add --resume to do what is missing of it")
    sealed.check_subfolders(folder, "parts")


def run_phase(
    config: Phase,
    folder: Path,
    *,
    resume: bool = False,
    on_start: Callable[[], None] = lambda: None,
    on_progress: Callable[[int, float, float], None] = lambda copies, share, accuracy: None,
    train: Callable[..., dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Trains what is missing of a diagram.

    Args:
      config: the diagram.
      folder: for `parts/<N>.json`, each written when it is done.
      resume: whether the folder may hold a part of this diagram.
      on_start: called once nothing has been refused.
      on_progress: called with N, the share of its part that is done, and the mean accuracy of the lanes in training;
        that is nan while something is prepared.
      train: trains one part; `train_copies` by default.

    Returns:
      Of `train_copies`, for each number of copies.

    Raises:
      UserError: bad input, or a folder that holds something else; nothing was written.
      TrainingInterrupted: a signal stopped it; the parts that were done are saved.
    """
    from jaxmarl_llm.training.interruption import STOPPING, StopSignal
    from jaxmarl_llm.training.loop import TrainingInterrupted
    from jaxmarl_llm.training.runs import versions

    check_phase(config)
    if train is None:
        from jaxmarl_llm.workflows.ablation.phase_training import make_learner, train_copies

        train = train_copies
        for copies in config.copies:
            learner, _ = make_learner(config, copies)
        learner.bound.task.held_out(config.eval_problems)
    check_phase_folder(folder, config, resume)
    parts: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        stack.callback(unlock_folder, folder, lock_folder(folder))
        sealed.write_header(folder / _HEADER, {"kind": _KIND, "config": dataclasses.asdict(config)}, versions())
        (folder / "parts").mkdir(exist_ok=True)
        on_start()
        stop = stack.enter_context(StopSignal(STOPPING))
        paths = {copies: folder / "parts" / f"{copies}.json" for copies in config.copies}
        # All are judged before any is trained.
        kept = {copies: _read_part(path, config) for copies, path in paths.items() if path.exists()}
        for copies, path in paths.items():
            if copies in kept:
                parts.append(kept[copies])
                continue

            def on_evaluation(share, accuracy, copies=copies):
                on_progress(copies, share, accuracy)
                # A part that is done is kept.
                if stop.number is not None and share < 1:
                    raise TrainingInterrupted(
                        f"stopped by {signal.Signals(stop.number).name} with "
                        f"{len(parts)} of {len(config.copies)} parts done; "
                        f"continue with: jaxmarl-llm ablate phase --resume --out {folder}",
                        stop.number,
                    )

            parts.append(train(config, copies, on_evaluation))
            sealed.write_sealed(path, parts[-1] | {_DIGEST: sealed.digest(dataclasses.asdict(config))})
    return parts


def _read_part(path: Path, config: Phase) -> dict[str, Any]:
    try:
        part = sealed.read_sealed(path)
        digest = part.pop(_DIGEST, None)
        if str(part["copies"]) != path.stem or not part["lanes"]:
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{path} is damaged, or of another version: delete it to train it again with --resume"
        ) from None
    if digest != sealed.digest(dataclasses.asdict(config)):
        found = "does not say of which phase diagram it is" if digest is None else "is of another phase diagram"
        raise UserError(f"{path} {found}: move it away to train it again with --resume")
    return part
