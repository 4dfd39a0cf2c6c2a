"""Trains one cell: base policy, compiled updates of all its seeds, evaluations. Axes: K evaluations, S seeds."""

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.llm import Decoder
from jaxmarl_llm.training.devices import place
from jaxmarl_llm.workflows import Pretraining, base_policy, make_pretraining, make_task, make_team, make_workflow
from jaxmarl_llm.workflows.ablation.loop import OnIteration
from jaxmarl_llm.workflows.ablation.matrix import STUDY, Ablation, Cell
from jaxmarl_llm.workflows.ablation.program import compile_cell
from jaxmarl_llm.workflows.ablation.results import CellResult
from jaxmarl_llm.workflows.learner import WorkflowLearner

# Fields of `Ablation` that are settings of the learner under the same name.
_SETTINGS = ("num_problems", "group_size", "learning_rate")


def make_runner(config: Ablation, cells: Sequence[Cell]) -> "CellRunner":
    """A runner, after a look at all cells that it is to train.

    Raises:
      UserError: a cell cannot be trained: a wrong setting, or workflow, task and size that do not go together.
    """
    runner = CellRunner(config)
    for cell in cells:
        runner.learner(cell).check()
    return runner


class CellRunner:
    """Trains cells; base policies are made once for each task and size, and shared by all cells that begin with them.

    Args:
      config: the ablation.
    """

    def __init__(self, config: Ablation):
        self._config = config
        self._taught = tuple(dict.fromkeys((*STUDY, *config.workflows)))
        self._bases: dict[tuple[str, str], Any] = {}

    def pretraining(self, cell: Cell) -> Pretraining:
        """How the base policy of a cell is made.

        It is taught all roles of the study, whichever of its workflows the ablation has, so that a cell does not depend
        on its neighbours.
        """
        config = self._config
        workflows = [make_workflow(name, **config.workflow_settings(name)) for name in self._taught]
        task = make_task(cell.task, level=config.level)
        return make_pretraining(task, *workflows, decoder=cell.size, **config.pretraining_args)

    def learner(self, cell: Cell) -> WorkflowLearner:
        """The learner of a cell.

        Raises:
          UserError: an unknown setting.
        """
        config, pretraining = self._config, self.pretraining(cell)
        bound = pretraining.bounds[self._taught.index(cell.workflow)]
        known = {field.name for field in dataclasses.fields(WorkflowLearner)} - {"bound", "team"}
        for name in config.learner_args:
            if name in _SETTINGS:
                raise UserError(
                    f"--learner-args has {name}, which has an option of its own: --{name.replace('_', '-')}"
                )
            if name not in known:
                raise unknown_name("setting of the learner", name, known)
        settings = {name: getattr(config, name) for name in _SETTINGS} | config.learner_args
        settings.setdefault("total_updates", float(config.iterations))
        team = make_team(bound.workflow, Decoder(pretraining.decoder), cell.sharing)
        return WorkflowLearner(bound=bound, team=team, **settings)

    def base_params(self, cell: Cell) -> Any:
        """The base policy's parameters, without an axis P; from disk where they have been made before."""
        key = cell.task, cell.size
        if key not in self._bases:
            self._bases[key] = base_policy(self.pretraining(cell))
        return self._bases[key]

    def __call__(self, cell: Cell, on_iteration: OnIteration) -> CellResult:
        """Trains a cell with all its seeds.

        Args:
          cell: which.
          on_iteration: called after every update.
        """
        config, learner = self._config, self.learner(cell)
        program = compile_cell(
            learner,
            place(0, math.gcd(learner.env_groups, config.eval_problems)),
            np.asarray(config.seeds, np.uint32),
            self.base_params(cell),
            learner.bound.task.held_out(config.eval_problems),
            greedy=config.eval_greedy,
        )
        start = time.perf_counter()
        state = program.init()
        evaluations = [_to_host(program.evaluate(state.params, 0))]
        on_iteration(0, float(evaluations[-1]["accuracy"].mean()))
        diagnostics = []
        due = set(config.eval_iterations)
        for iteration in range(1, config.iterations + 1):
            state, metrics = program.update(state)
            diagnostics.append(_to_host(metrics))
            if iteration in due:
                evaluations.append(_to_host(program.evaluate(state.params, iteration)))
            on_iteration(iteration, float(evaluations[-1]["accuracy"].mean()))
        curves = _stack(diagnostics)
        episodes = learner.num_problems * learner.group_size
        tokens = float((curves["role_length"] * curves["role_asked"]).sum()) * episodes
        return CellResult(
            cell=cell,
            roles=learner.team.roles,
            seeds=config.seeds,
            eval_iterations=config.eval_iterations,
            evaluations=_stack(evaluations),
            diagnostics=curves,
            times={
                "compile": program.compile_seconds,
                "train": time.perf_counter() - start,
                "episodes": float(episodes * config.iterations * config.num_seeds),
                "tokens": tokens,
            },
        )


def _to_host(metrics: dict[str, jax.Array]) -> dict[str, np.ndarray]:
    """Waits: with several updates in flight, sums over CPU devices could wait for each other for ever."""
    return {name: np.asarray(value, np.float32) for name, value in jax.device_get(metrics).items()}


def _stack(records: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """`[S, ...]` of each record to `[K, S, ...]`."""
    return {name: np.stack([record[name] for record in records]) for name in records[0]}
