"""Trains one cell: base policy, compiled updates of all its seeds, evaluations. Axes: K evaluations, S seeds."""

import concurrent.futures
import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.llm import Decoder
from jaxmarl_llm.training.devices import place
from jaxmarl_llm.workflows import Pretraining, base_policy, make_pretraining, make_task, make_team, make_workflow
from jaxmarl_llm.workflows.ablation.background import in_background, wait_for
from jaxmarl_llm.workflows.ablation.loop import OnProgress
from jaxmarl_llm.workflows.ablation.matrix import LORA_RANK, STUDY, Ablation, Cell, check_settings
from jaxmarl_llm.workflows.ablation.program import CellProgram, compile_cells
from jaxmarl_llm.workflows.ablation.results import CellResult
from jaxmarl_llm.workflows.ablation.sizes import check_pretraining_size, check_sizes
from jaxmarl_llm.workflows.base_policies import print_notice
from jaxmarl_llm.workflows.learner import WorkflowLearner
from jaxmarl_llm.workflows.policies import sharing
from jaxmarl_llm.workflows.tasks.base import Problem, Task

# Fields of `Ablation` that are settings of the learner under the same name.
_SETTINGS = ("num_problems", "group_size", "learning_rate")
_ProgramKey = tuple[str, str, str, bool]


def make_runner(config: Ablation, cells: Sequence[Cell]) -> "CellRunner":
    """A runner, after a look at all cells that it is to train.

    Raises:
      UserError: a cell cannot be trained: a wrong setting, workflow, task and size that do not go together, more than
        the memory holds, or too few held-out problems.
    """
    runner = CellRunner(config, cells)
    for cell in cells:
        learner = runner.learner(cell)
        learner.check()
        check_pretraining_size(runner.pretraining(cell))
        check_sizes(
            learner, runs=config.num_seeds, eval_problems=config.eval_problems, num_devices=jax.local_device_count()
        )
        runner.held_out(learner.bound.task)
    return runner


class CellRunner:
    """Trains cells; what several cells need is made once: base policies, and programs for shared and isolated policies.

    Programs are compiled in the background: the first while its base policy is made, others while cells are trained.

    Args:
      config: the ablation.
      cells: in the order in which they will be trained.
    """

    def __init__(self, config: Ablation, cells: Sequence[Cell]):
        self._config = config
        self._first: dict[_ProgramKey, Cell] = {}
        for cell in cells:
            self._first.setdefault(_program_key(cell), cell)
        self._compiler = concurrent.futures.ThreadPoolExecutor(1)
        self._taught = tuple(dict.fromkeys((*STUDY, *config.workflows)))
        self._held_out: dict[Task, Problem] = {}
        self._bases: dict[tuple[str, str], Any] = {}
        self._programs: dict[_ProgramKey, concurrent.futures.Future[CellProgram]] = {}

    def pretraining(self, cell: Cell) -> Pretraining:
        """How the base policy of a cell is made.

        It is taught all roles of the study, whichever of its workflows the ablation has, so that a cell does not depend
        on its neighbours.
        """
        config = self._config
        owned = {"task": "--tasks", "workflows": "--workflows", "decoder": "--sizes"}
        check_settings("--pretraining-args", config.pretraining_args, Pretraining, owned)
        workflows = [make_workflow(name, **config.workflow_settings(name)) for name in self._taught]
        task = make_task(cell.task, level=config.level)
        return make_pretraining(task, *workflows, decoder=cell.size, **config.pretraining_args)

    def learner(self, cell: Cell) -> WorkflowLearner:
        """The learner of a cell, with a policy for each role, which is not yet told what the cell shares.

        Raises:
          UserError: an unknown setting.
        """
        config, pretraining = self._config, self.pretraining(cell)
        bound = pretraining.bounds[self._taught.index(cell.workflow)]
        owned = {name: f"--{name.replace('_', '-')}" for name in _SETTINGS}
        check_settings(
            "--learner-args", config.learner_args, WorkflowLearner, owned | dict.fromkeys(("bound", "team", "tied"))
        )
        settings = {name: getattr(config, name) for name in _SETTINGS} | config.learner_args
        settings.setdefault("total_updates", float(config.iterations))
        if _has_adapters(cell):
            settings["body"] = "joint"
        decoder = pretraining.decoder
        if settings.get("body", "own") != "own":
            decoder = dataclasses.replace(decoder, lora_rank=LORA_RANK)
        team = make_team(bound.workflow, Decoder(decoder), "isolated")
        return WorkflowLearner(bound=bound, team=team, **settings)

    def base_params(self, cell: Cell, on_progress: OnProgress) -> Any:
        """The base policy's parameters, without an axis P; from disk where they have been made before."""
        key = cell.task, cell.size
        if key not in self._bases:
            pretraining = self.pretraining(cell)

            steps: list[float] = []

            def on_wait():
                phase, share = ("pretraining", steps[-1] / pretraining.num_steps) if steps else ("preparing", 0.0)
                on_progress(phase, share, math.nan)

            on_progress("preparing", 0.0, math.nan)
            self._bases[key] = in_background(
                lambda: base_policy(
                    pretraining, on_metrics=lambda metrics: steps.append(metrics["step"]), notify=print_notice
                ),
                on_wait,
            )
            on_progress("pretraining", 1.0, math.nan)
        return self._bases[key]

    def held_out(self, task: Task) -> Problem:
        """The problems of all evaluations on a task.

        Raises:
          UserError: there are not that many.
        """
        if task not in self._held_out:
            self._held_out[task] = task.held_out(self._config.eval_problems)
        return self._held_out[task]

    def compile(self, cell: Cell) -> CellProgram:
        """The functions of a cell, which are those of its neighbours with other sharing."""
        config, learner = self._config, self.learner(cell)
        return compile_cells(
            learner,
            place(0, math.gcd(learner.env_groups, config.eval_problems)),
            np.asarray(config.seeds, np.uint32),
            self.held_out(learner.bound.task),
            greedy=config.eval_greedy,
        )

    def _start_compiling(self, number: int) -> None:
        """Starts on the program of that number, if there is one."""
        for key in list(self._first)[number : number + 1]:
            if key not in self._programs:
                self._programs[key] = self._compiler.submit(self.compile, self._first[key])

    def _is_compiling(self) -> bool:
        return not all(program.done() for program in self._programs.values())

    def __call__(self, cell: Cell, on_progress: OnProgress) -> CellResult:
        """Trains a cell with all its seeds.

        Args:
          cell: which.
          on_progress: called at every step of the way.
        """
        config, learner, key = self._config, self.learner(cell), _program_key(cell)
        number = list(self._first).index(key)
        self._start_compiling(number)
        base_params = self.base_params(cell, on_progress)
        compiling = self._programs[key]
        on_progress("compiling", float(compiling.done()), math.nan)
        program = wait_for(compiling, lambda: on_progress("compiling", float(compiling.done()), math.nan))
        self._start_compiling(number + 1)
        for earlier in list(self._first)[:number]:
            self._programs.pop(earlier, None)
        tied = sharing(learner.bound.workflow, "isolated" if _has_adapters(cell) else cell.sharing)
        start = time.perf_counter()
        state = program.init(base_params)
        evaluations = [_to_host(program.evaluate(state.params, 0))]
        on_progress("training", 0.0, float(evaluations[-1]["accuracy"].mean()))
        diagnostics, quiet = [], {}
        due = set(config.eval_iterations)
        for iteration in range(1, config.iterations + 1):
            alone, update_start = not self._is_compiling(), time.perf_counter()
            state, metrics = program.update(state, tied)
            diagnostics.append(_to_host(metrics))
            # The first update has what a program does once; others may have shared the cores with the compiler.
            if iteration > 1 and alone and not self._is_compiling():
                quiet[iteration - 1] = time.perf_counter() - update_start
            if iteration in due:
                evaluations.append(_to_host(program.evaluate(state.params, iteration)))
            on_progress("training", iteration / config.iterations, float(evaluations[-1]["accuracy"].mean()))
        curves = _stack(diagnostics)
        episodes = learner.num_problems * learner.group_size
        tokens = curves["role_length"] * curves["role_asked"] * episodes  # [I, S, R]
        return CellResult(
            cell=cell,
            roles=learner.team.roles,
            seeds=config.seeds,
            eval_iterations=config.eval_iterations,
            evaluations=_stack(evaluations),
            diagnostics=curves,
            times={
                "compile": program.compile_seconds if cell == self._first[key] else 0.0,
                "train": time.perf_counter() - start,
                "updates": sum(quiet.values()),
                "episodes": float(episodes * len(quiet) * config.num_seeds),
                "tokens": float(tokens[list(quiet)].sum()),
            },
        )


def _program_key(cell: Cell) -> _ProgramKey:
    """What cells of one program have in common: all but who shares."""
    return cell.task, cell.size, cell.workflow, _has_adapters(cell)


def _has_adapters(cell: Cell) -> bool:
    return cell.sharing == "adapters"


def _to_host(metrics: dict[str, jax.Array]) -> dict[str, np.ndarray]:
    """Waits: with several updates in flight, sums over CPU devices could wait for each other for ever."""
    return {name: np.asarray(value, np.float32) for name, value in jax.device_get(metrics).items()}


def _stack(records: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """`[S, ...]` of each record to `[K, S, ...]`."""
    return {name: np.stack([record[name] for record in records]) for name in records[0]}
