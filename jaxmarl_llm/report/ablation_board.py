"""The curves of a cell for TensorBoard. Axes: K points, S seeds, R roles."""

import shutil
from pathlib import Path

import numpy as np

from jaxmarl_llm.training.statistics import mean_without_nan
from jaxmarl_llm.workflows.ablation.results import CellResult


def write_board(folder: Path, result: CellResult) -> None:
    """Writes the events of a cell, over its iterations: means over seeds, and the accuracy of each seed.

    Args:
      folder: of this cell alone; what a former attempt wrote there is deleted.
      result: the cell.
    """
    from tensorboardX import SummaryWriter

    shutil.rmtree(folder, ignore_errors=True)
    with SummaryWriter(str(folder)) as board:

        def write(tag: str, iterations, values: np.ndarray) -> None:
            for iteration, value in zip(iterations, values, strict=True):
                if np.isfinite(value):
                    board.add_scalar(tag, float(value), iteration)

        for name, values in result.evaluations.items():
            for tag, curve in _curves(f"evaluation/{name}", values, result.roles):
                write(tag, result.eval_iterations, curve)
        for index, seed in enumerate(result.seeds):
            write(f"accuracy_by_seed/{seed}", result.eval_iterations, result.accuracy[:, index])
        for name, values in result.diagnostics.items():
            for tag, curve in _curves(f"train/{name}", values, result.roles):
                write(tag, range(1, len(curve) + 1), curve)


def _curves(tag: str, values: np.ndarray, roles: tuple[str, ...]) -> list[tuple[str, np.ndarray]]:
    """Curves `[K]` of scalars, one for each role of `[K, S, R]`, one for each pair of `[K, S, R, R]`."""
    mean = mean_without_nan(np.asarray(values, float), 1)
    if mean.ndim == 1:
        return [(tag, mean)]
    if not tag.partition("/")[2].startswith("role_"):
        flat = mean.reshape(len(mean), -1)
        return [(f"{tag}/{index}", flat[:, index]) for index in range(flat.shape[1])]
    if mean.ndim == 2:
        return [(f"{tag}/{role}", mean[:, index]) for index, role in enumerate(roles)]
    pairs = [(i, j) for i in range(len(roles)) for j in range(i + 1, len(roles))]
    return [(f"{tag}/{roles[i]}-{roles[j]}", mean[:, i, j]) for i, j in pairs]
