"""What the training of a cell leaves behind, in memory and on disk. Axes: K evaluations, I iterations, S seeds."""

import dataclasses
import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.training.files import holds_earlier, write_whole
from jaxmarl_llm.workflows.ablation import sealed
from jaxmarl_llm.workflows.ablation.definitions import ablation_digest, definitions
from jaxmarl_llm.workflows.ablation.matrix import Ablation, Cell, Matrix, differences, to_json
from jaxmarl_llm.workflows.ablation.model_matrix import ModelAblation

HEADER_FILE = "ablation.json"
CELL_FOLDER = "cells"
# Of ablations on a language model.
RUN_FOLDER = "runs"
_KIND = "jaxmarl-llm ablation"


@dataclasses.dataclass(frozen=True)
class CellResult:
    """How the training of a cell went, with all its seeds.

    Attributes:
      cell: which.
      roles: R names.
      seeds: S numbers.
      eval_iterations: K numbers of updates, the first is 0.
      evaluations: name to `[K, S, ...]` float32, at least `accuracy`, `selection_failure` and `generation_failure`.
      diagnostics: name to `[I, S, ...]` float32 of every update; `role_*` has an axis R, or two.
      times: seconds of `compile`, where that is known, `train`, and `updates`, those in which nothing else ran, where
        that is known; `episodes` and `tokens` that were played in `updates`, or else in `train`, over all seeds.
    """

    cell: Cell
    roles: tuple[str, ...]
    seeds: tuple[int, ...]
    eval_iterations: tuple[int, ...]
    evaluations: dict[str, np.ndarray]
    diagnostics: dict[str, np.ndarray]
    times: dict[str, float]

    @property
    def accuracy(self) -> np.ndarray:
        """`[K, S]`."""
        return self.evaluations["accuracy"]


def save_cell(folder: Path, result: CellResult, config: Matrix) -> None:
    """Writes `cells/<name>.npz` with the curves, and then `cells/<name>.json`, without which a cell is not done.

    Args:
      folder: of the ablation.
      result: of the cell.
      config: the ablation.
    """
    arrays = {f"evaluation/{name}": value for name, value in result.evaluations.items()}
    arrays |= {f"diagnostic/{name}": value for name, value in result.diagnostics.items()}
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # pyright: ignore[reportArgumentType]
    target = folder / CELL_FOLDER
    target.mkdir(parents=True, exist_ok=True)
    write_whole(target / f"{result.cell.name}.npz", content.getvalue())
    stored = {name: getattr(result, name) for name in ("roles", "seeds", "eval_iterations", "times")}
    stored |= {"cell": dataclasses.asdict(result.cell), "curves": hashlib.sha256(content.getvalue()).hexdigest()}
    stored["ablation"] = ablation_digest(config)
    sealed.write_sealed(target / f"{result.cell.name}.json", stored)


def load_cell(folder: Path, cell: Cell, config: Matrix) -> CellResult | None:
    """Reads a cell; None where it is not done. Arguments as for `save_cell`.

    Raises:
      UserError: its files are damaged, or of another ablation.
    """
    path = folder / CELL_FOLDER / f"{cell.name}.json"
    if not path.exists():
        return None
    try:
        stored: dict[str, Any] = sealed.read_sealed(path)
        content = path.with_suffix(".npz").read_bytes()
        if stored["cell"] != dataclasses.asdict(cell) or stored["curves"] != hashlib.sha256(content).hexdigest():
            raise ValueError
        with np.load(io.BytesIO(content)) as file:
            arrays = {name: file[name] for name in file.files}
        owner = stored["ablation"]
        result = CellResult(
            cell,
            **{name: tuple(stored[name]) for name in ("roles", "seeds", "eval_iterations")},
            evaluations=_named("evaluation/", arrays),
            diagnostics=_named("diagnostic/", arrays),
            times={name: float(stored["times"][name]) for name in stored["times"]},
        )
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"cell {path.with_suffix('')} is damaged, or of another version: delete its .json to train it again with "
            "--resume, or choose another --out"
        ) from None
    if owner != ablation_digest(config):
        raise UserError(f"cell {cell.name} in {folder} is of another ablation: delete its .json to train it again")
    return result


def _named(prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def write_header(folder: Path, config: Matrix, versions: dict[str, str]) -> None:
    """Writes `ablation.json`, which makes a folder that of an ablation; see `sealed.write_header`."""
    folder.mkdir(parents=True, exist_ok=True)
    sealed.write_header(
        folder / HEADER_FILE, {"kind": _KIND, "config": to_json(config), "definitions": definitions(config)}, versions
    )


def read_header(folder: Path) -> tuple[Any, list[dict[str, str]]]:
    """The configuration of the ablation in a folder, and the versions of the packages that it was begun with.

    Behind these are those of other packages that it was resumed with.

    Raises:
      UserError: there is none, or its file is damaged.
    """
    header = _read_header(folder)
    try:
        return from_json(header["config"]), [header["versions"], *header["later_versions"]]
    except (ValueError, KeyError, TypeError):
        raise _damaged(folder) from None


def from_json(stored: dict[str, Any]) -> Any:
    """The configuration of `to_json`.

    Raises:
      ValueError, TypeError: it is none.
    """
    kind = ModelAblation if "model" in stored else Ablation
    fields = {field.name for field in dataclasses.fields(kind)}
    if set(stored) != fields:
        raise ValueError(f"other fields: {', '.join(sorted(set(stored) ^ fields))}")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()
    }
    return kind(**values)


def _read_header(folder: Path) -> dict[str, Any]:
    path = folder / HEADER_FILE
    if not path.is_file():
        raise UserError(
            f"no ablation in {folder}, so nothing to resume: give the folder that `jaxmarl-llm ablate --out` wrote"
        )
    try:
        header = sealed.read_sealed(path)
        if header["kind"] != _KIND:
            raise ValueError
        return header
    except (ValueError, KeyError):
        raise _damaged(folder) from None


def _damaged(folder: Path) -> UserError:
    return UserError(f"{folder / HEADER_FILE} is damaged, or of another version: choose another --out")


def check_folder(folder: Path, config: Matrix, resume: bool) -> None:
    """Refuses a folder that an ablation must not write into. Writes nothing.

    Raises:
      UserError: says what the folder holds, and what to do; or the ablation has a task or workflow that is none.
    """
    now = definitions(config)
    if not holds_earlier(folder, HEADER_FILE, "an ablation's"):
        return
    changed = differences(read_header(folder)[0], config)
    if changed:
        raise UserError(
            f"folder {folder} holds another ablation ({'; '.join(changed)}): choose another --out, or go on with its "
            f"own settings: jaxmarl-llm ablate --resume --out {folder}"
        )
    stored = _read_header(folder).get("definitions", {})
    if stored != now:
        other = [name for name in now if not isinstance(stored, dict) or stored.get(name) != now[name]]
        raise UserError(
            f"folder {folder} holds an ablation of another {' and another '.join(other)}, whose code has changed "
            "since: choose another --out, or undo the change"
        )
    if not resume:
        raise UserError(f"folder {folder} holds this ablation already: add --resume to do what is missing of it")
    sealed.check_subfolders(folder, CELL_FOLDER, RUN_FOLDER, "tensorboard")
