"""Trains the cells of a matrix one after the other, and keeps each as soon as it is done."""

import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxmarl_llm.training.files import lock_folder, unlock_folder
from jaxmarl_llm.workflows.ablation.matrix import Cell, Matrix, check_ablation, make_cells
from jaxmarl_llm.workflows.ablation.results import CellResult, check_folder, load_cell, save_cell, write_header

# Called with a phase of `forecast.PHASES` or `MODEL_PHASES`, the share of it that is done, and the last evaluation's
# mean accuracy.
OnProgress = Callable[[str, float, float], None]
RunCell = Callable[[Cell, OnProgress], CellResult]


class Watcher:
    """Receives the events of an ablation; this one shows nothing."""

    def start(self, cells: Sequence[Cell], missing: Sequence[Cell]) -> None:
        """Begins with all cells, of which some may have been done before."""

    def advance(self, cell: Cell, phase: str, share: float, accuracy: float) -> None:
        """A share of a phase of a cell is done; the accuracy is nan before the first evaluation."""

    def end(self, result: CellResult, seconds: float) -> None:
        """A cell is done and saved."""

    def stop(self) -> None:
        """The ablation has ended, one way or another."""


def ablation_cells(config: Matrix) -> list[Cell]:
    """The cells of an ablation; see `make_cells`."""
    from jaxmarl_llm.workflows import make_workflow

    roles = {name: make_workflow(name, **config.workflow_settings(name)).roles for name in config.workflows}
    return make_cells(config, roles)


def load_cells(config: Matrix, folder: Path) -> dict[Cell, CellResult]:
    """The cells that are done.

    Raises:
      UserError: one is damaged, or of another ablation.
    """
    found = {cell: load_cell(folder, cell, config) for cell in ablation_cells(config)}
    return {cell: result for cell, result in found.items() if result is not None}


def run_ablation(
    config: Matrix,
    folder: Path,
    make_runner: Callable[[Any, Sequence[Cell]], RunCell],
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
    record: Callable[[CellResult], None] = lambda result: None,
) -> list[CellResult]:
    """Trains what is missing of an ablation.

    Args:
      config: the ablation.
      folder: for the results; each cell is written as soon as it is done.
      make_runner: given the configuration and the cells that are missing, checks them and says how to train one.
      resume: whether the folder may hold a part of this ablation.
      watcher: sees what happens.
      record: called with each cell before it is saved; again where it was interrupted.

    Returns:
      All cells, in the order of `ablation_cells`.

    Raises:
      UserError: bad input, or a folder that holds something else; nothing was written.
      TrainingInterrupted: a signal stopped it; the cells that were done are saved.
    """
    from jaxmarl_llm.training.interruption import STOPPING, StopSignal
    from jaxmarl_llm.training.loop import TrainingInterrupted
    from jaxmarl_llm.training.runs import versions

    watcher = watcher or Watcher()
    check_ablation(config)
    check_folder(folder, config, resume)
    cells = ablation_cells(config)
    done = load_cells(config, folder)
    missing = [cell for cell in cells if cell not in done]
    run_cell = make_runner(config, missing)
    with contextlib.ExitStack() as stack:
        stack.callback(unlock_folder, folder, lock_folder(folder))
        stack.callback(watcher.stop)
        write_header(folder, config, versions())
        watcher.start(cells, missing)
        stop = stack.enter_context(StopSignal(STOPPING))

        def interrupted(number: int) -> TrainingInterrupted:
            return TrainingInterrupted(
                f"stopped by {signal.Signals(number).name} with {len(done)} of {len(cells)} cells done; "
                f"continue with: jaxmarl-llm ablate --resume --out {folder}",
                number,
            )

        def check_stop():
            if stop.number is not None:
                raise interrupted(stop.number)

        for cell in missing:
            check_stop()
            start = time.perf_counter()

            def on_progress(phase, share, accuracy, cell=cell):
                watcher.advance(cell, phase, share, accuracy)
                check_stop()

            try:
                result = run_cell(cell, on_progress)
            except TrainingInterrupted as error:
                # A run inside the cell has saved itself, and says how to continue it alone.
                raise interrupted(error.signal_number) from None
            record(result)
            save_cell(folder, result, config)
            done[cell] = result
            watcher.end(result, time.perf_counter() - start)
    return [done[cell] for cell in cells]
