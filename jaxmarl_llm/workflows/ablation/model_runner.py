"""Trains the cells of an ablation on a language model: a fine-tuning run for each seed, in a folder of its own."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.checkpoints import LanguageModel
from jaxmarl_llm.training.loop import TrainingInterrupted
from jaxmarl_llm.workflows.ablation.loop import OnProgress
from jaxmarl_llm.workflows.ablation.matrix import Cell
from jaxmarl_llm.workflows.ablation.model_matrix import ModelAblation
from jaxmarl_llm.workflows.ablation.model_results import cell_of_runs
from jaxmarl_llm.workflows.ablation.results import RUN_FOLDER, CellResult
from jaxmarl_llm.workflows.finetuning.loading import load_base, load_trainer
from jaxmarl_llm.workflows.finetuning.run import Watcher, finetune
from jaxmarl_llm.workflows.finetuning.state import init_state
from jaxmarl_llm.workflows.finetuning.trainer import Trainer
from jaxmarl_llm.workflows.text.evaluation import TextEvaluation


def make_model_runner(
    config: ModelAblation, cells: Sequence[Cell], *, folder: Path, note: Callable[[str], None] = lambda text: None
) -> "ModelRunner":
    """A runner, after a look at all cells that it is to train; the model is loaded once.

    Args:
      config: the ablation.
      cells: that are missing.
      folder: of the ablation; the runs are in `runs/<cell>/seed-<seed>`.
      note: called with what the user should know.

    Raises:
      UserError: a cell cannot be trained: no such model, workflow and task that do not go together, or too few held-out
        problems.
    """
    runner = ModelRunner(config, folder, note)
    for cell in cells:
        runner.check(cell)
    return runner


class ModelRunner:
    """Trains cells; the model is loaded once, and evaluated once for each workflow and task.

    Args:
      config: the ablation.
      folder: of the ablation.
      note: called with what the user should know.
    """

    def __init__(self, config: ModelAblation, folder: Path, note: Callable[[str], None]):
        self._config, self._folder, self._note = config, folder, note
        self._model: LanguageModel | None = None
        self._of_base: dict[tuple[str, str], TextEvaluation] = {}

    def trainer(self, cell: Cell, seed: int) -> Trainer:
        """The team of a cell and a seed.

        Raises:
          UserError: bad input.
        """
        config = self._config.finetune_config(cell, seed)
        if self._model is None:
            self._model = load_base(config)
        return load_trainer(config, self._model)

    def check(self, cell: Cell) -> None:
        """Raises `UserError` where a cell cannot be trained."""
        trainer, wanted = self.trainer(cell, self._config.seed), self._config.eval_problems
        held_out = len(trainer.bound.task.held_out)
        if held_out < wanted:
            raise UserError(
                f"{cell.task} has {held_out} held-out problems, not {wanted}: set --eval-problems to at most that"
            )

    def of_base(self, cell: Cell, on_progress: OnProgress) -> TextEvaluation:
        """How the model does in the workflow and on the task of a cell, before it is trained.

        It is played by the team of the same cell whichever needs it, so that a resumed ablation finds the same.
        """
        key = cell.workflow, cell.task
        if key not in self._of_base:
            on_progress("evaluating the model", 0.0, math.nan)
            first = dataclasses.replace(cell, sharing=self._config.sharing[0])
            trainer = self.trainer(first, self._config.seed)
            self._of_base[key] = trainer.evaluate(init_state(trainer.config, trainer.model))
        on_progress("evaluating the model", 1.0, self._of_base[key].accuracy)
        return self._of_base[key]

    def __call__(self, cell: Cell, on_progress: OnProgress) -> CellResult:
        """Trains a cell, seed by seed; a run that is there goes on from its last checkpoint.

        Args:
          cell: which.
          on_progress: called at every step of the way.
        """
        config = self._config
        folders = [self._folder / RUN_FOLDER / cell.name / f"seed-{seed}" for seed in config.seeds]
        of_base = self.of_base(cell, on_progress)
        seen = _Seen(len(folders), config.iterations, on_progress, self._note)
        trainer = None
        for seed, folder in zip(config.seeds, folders, strict=True):
            trainer = dataclasses.replace(self.trainer(cell, seed), of_base=of_base)
            finetune(trainer.config, folder, resume=True, trainer=trainer, watcher=seen)
        assert trainer is not None
        return cell_of_runs(cell, trainer.roles, trainer.policy_of_role, config.seeds, folders)


class _Seen(Watcher):
    """Makes one progress of the runs of a cell.

    Args:
      num_seeds: S.
      iterations: of each run.
      on_progress: of the cell.
      note: called with what the user should know.
    """

    def __init__(self, num_seeds: int, iterations: int, on_progress: OnProgress, note: Callable[[str], None]):
        self._num_seeds, self._iterations, self._on_progress, self._note = num_seeds, iterations, on_progress, note
        self._begun = 0
        self._accuracy = math.nan
        self._notes: set[str] = set()

    def start(self, config, iteration, held_out=0):
        self._begun += 1
        self._show(iteration)

    def advance(self, iteration, metrics):
        # A run that is told to stop saves itself before it does.
        with contextlib.suppress(TrainingInterrupted):
            self._show(iteration)

    def evaluated(self, iteration, evaluation):
        self._accuracy = evaluation.accuracy

    def note(self, text):
        if text not in self._notes:
            self._notes.add(text)
            self._note(text)

    def _show(self, iteration: int) -> None:
        share = (self._begun - 1 + iteration / self._iterations) / self._num_seeds
        self._on_progress("training", share, self._accuracy)
