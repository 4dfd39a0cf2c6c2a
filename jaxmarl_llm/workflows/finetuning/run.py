"""A fine-tuning run: a host loop around iterations, its folder, checkpoints and metrics.

What is saved and when does not change what is learned: a resumed run equals an uninterrupted one bit by bit.
"""

import contextlib
import dataclasses
import json
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.training import checkpoints
from jaxmarl_llm.training.config import dump_yaml
from jaxmarl_llm.training.files import lock_folder, unlock_folder, write_whole
from jaxmarl_llm.training.interruption import STOPPING, StopSignal
from jaxmarl_llm.training.loop import TrainingDiverged, TrainingInterrupted
from jaxmarl_llm.training.records import Records, plain
from jaxmarl_llm.training.runs import CONFIG_FILE, SUMMARY_FILE, lost_lines, sound_checkpoint, versions
from jaxmarl_llm.workflows.finetuning.config import FinetuneConfig, load_finetune_config
from jaxmarl_llm.workflows.finetuning.imitation import imitate, transcript_examples
from jaxmarl_llm.workflows.finetuning.loading import load_trainer
from jaxmarl_llm.workflows.finetuning.monitors import named
from jaxmarl_llm.workflows.finetuning.owner import check_folder, check_inputs, check_owner, find_start, inputs_of
from jaxmarl_llm.workflows.finetuning.replay import Example
from jaxmarl_llm.workflows.finetuning.state import FinetuneState, init_state
from jaxmarl_llm.workflows.finetuning.steps import Iteration, update_all
from jaxmarl_llm.workflows.finetuning.team_tr import update_stage
from jaxmarl_llm.workflows.finetuning.trainer import Trainer
from jaxmarl_llm.workflows.text.evaluation import TextEvaluation
from jaxmarl_llm.workflows.text.sandbox import sandbox_name
from jaxmarl_llm.workflows.text.transcripts import read_transcripts

# Of an evaluation, shares of episodes that are recorded.
_RATES = ("any_correct", "selection_failure", "generation_failure")


class Watcher:
    """Receives the events of a run; this one shows nothing."""

    def start(self, config: FinetuneConfig, iteration: int, held_out: int = 0) -> None:
        """Begins, or goes on after that many iterations; each evaluation plays so many held-out problems."""

    def advance(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """An iteration is done."""

    def evaluated(self, iteration: int, evaluation: TextEvaluation) -> None:
        """Held-out problems have been played."""

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def stop(self) -> None:
        """The run has ended, one way or another."""


@dataclasses.dataclass(frozen=True, eq=False)
class FinetuneResult:
    """How a run ended.

    Attributes:
      folder: of the run.
      trainer: the team.
      state: after the last iteration.
      evaluations: `(iteration, accuracy, (low, high))` in order; with a warm start two of iteration 0, before it and
        after it.
      summary: what `summary.json` holds: evaluations of the base, of the team that has imitated a warm start, the best
        and the last one; earlier versions did not play the base before a warm start.
    """

    folder: Path
    trainer: Trainer
    state: FinetuneState
    evaluations: list[tuple[int, float, tuple[float, float]]]
    summary: dict[str, Any]


def draw_problems(config: FinetuneConfig, problems: Sequence[Any], iteration: int) -> list[Any]:
    """The problems of an iteration, different ones as far as there are enough."""
    random = np.random.default_rng([config.seed, iteration])
    chosen = random.choice(len(problems), config.num_problems, replace=config.num_problems > len(problems))
    return [problems[index] for index in chosen]


def iterate(trainer: Trainer, state: FinetuneState, memory: Sequence[Example] = ()) -> Iteration:
    """One iteration: a stage of TeamTR, or an update of all policies at once."""
    problems = draw_problems(trainer.config, trainer.bound.task.train, int(state.iteration))
    if trainer.config.is_sequential:
        return update_stage(trainer, state, problems)
    return update_all(trainer, state, problems, memory)


def finetune(
    config: FinetuneConfig,
    folder: str | Path,
    *,
    resume: bool = False,
    trainer: Trainer | None = None,
    watcher: Watcher | None = None,
) -> FinetuneResult:
    """Fine-tunes a team and writes the run's folder.

    Args:
      config: the run.
      folder: of the run: `config.yaml`, `metrics.jsonl`, `tensorboard/`, `checkpoints/`, `best/` and `summary.json`.
      resume: goes on with the run that the folder holds, from its newest sound checkpoint, bit by bit as if it had
        never stopped; begins it where the folder is empty. Without a schedule, `iterations` may be others than before.
      trainer: of this configuration; loaded if not given.
      watcher: sees what happens.

    Raises:
      UserError: bad input; nothing was written.
      TrainingDiverged: an adapter is no number any more.
      TrainingInterrupted: SIGINT or SIGTERM; the state was saved.
    """
    folder, watcher = Path(folder), watcher or Watcher()
    config.check()
    if jax.process_count() > 1:
        raise UserError(
            "a fine-tuning run is one process, whose devices can share the model: set num_devices; what several "
            "processes can share is in docs/checkpoints.md"
        )
    check_folder(folder, config, resume)
    with contextlib.ExitStack() as stack:
        # Where there is a run, nobody else changes it while it is looked at; where there is none, nothing is written
        # before all that can be refused is known.
        is_there = (folder / CONFIG_FILE).is_file()
        if is_there:
            stack.callback(unlock_folder, folder, lock_folder(folder))
            check_folder(folder, config, resume)
        start, damaged = find_start(folder, config)
        begin = time.perf_counter()
        trainer = trainer or load_trainer(config)
        loading = time.perf_counter() - begin
        if not is_there:
            stack.callback(unlock_folder, folder, lock_folder(folder))
            # Another process may have trained here since.
            check_folder(folder, config, resume=False)
        stack.callback(watcher.stop)
        for name in ("checkpoints", "best"):
            checkpoints.remove_partial(folder / name)
        for path, wrong in damaged:
            watcher.note(f"checkpoint {path} is damaged ({wrong}): set aside as {path.name}.damaged")
            checkpoints.set_aside(path)
        run = _Run(config, folder, trainer, watcher)
        # Before the base model is evaluated, which takes a while too.
        stop = stack.enter_context(StopSignal(STOPPING))
        run.restore(start, loading)
        stack.callback(run.records.close)
        return run.run(stop)


def load_finetuned(
    folder: str | Path, checkpoint: str = "best", trainer: Trainer | None = None
) -> tuple[Trainer, FinetuneState]:
    """A run's team and its state.

    Args:
      folder: of the run.
      checkpoint: `"best"`, `"last"` or the number of an iteration.
      trainer: of the run; loaded if not given.

    Raises:
      UserError: there is none, or it is damaged.
    """
    folder = Path(folder)
    config = load_finetune_config(folder / CONFIG_FILE) if trainer is None else trainer.config
    path = sound_checkpoint(folder, checkpoint, command="finetune")
    check_owner(path, config)
    trainer = trainer or load_trainer(config)
    return trainer, checkpoints.load(path, init_state(trainer.config, trainer.model), None).state


class _Run:
    """One call of `finetune`."""

    def __init__(self, config: FinetuneConfig, folder: Path, trainer: Trainer, watcher: Watcher):
        self.config, self.folder, self.trainer, self.watcher = config, folder, trainer, watcher
        self.state = init_state(config, trainer.model)
        self.memory: list[Example] = []
        self.evaluations: list[tuple[int, float, tuple[float, float]]] = []
        # What else is known of each evaluation.
        self.details: list[dict[str, Any]] = []
        self.seconds = 0.0
        # Of what is no part of an iteration.
        self.times = {"loading": 0.0, "evaluation": 0.0, "warm_start": 0.0}
        self.saved: int | None = None
        self.inputs = inputs_of(None if trainer.base is None else trainer.base.fingerprint, trainer.bound)

    @property
    def iteration(self) -> int:
        """Iterations done."""
        return int(self.state.iteration)

    def restore(self, start: Path | None, loading: float) -> None:
        """Starts from a checkpoint, or from the base model, which took so many seconds to load."""
        last = None
        if start is not None:
            check_inputs(start, self.inputs, self.config)
            found = checkpoints.load(start, self.state, None)
            self.state, last, self.saved = found.state, found.update, found.update
            self.memory = [Example.from_json(one) for one in found.progress["memory"]]
            self.evaluations = [(one, accuracy, tuple(between)) for one, accuracy, between in found.progress["curve"]]
            # Earlier versions did not keep these.
            self.details = found.progress.get("details", [{} for _ in self.evaluations])
            self.times |= found.progress.get("times", {})
            self.seconds = found.progress["seconds"]
            lost = lost_lines(self.folder, last)
            if lost is not None:
                self.watcher.note(lost)
        # What may be refused comes before anything is written.
        examples = []
        if start is None and self.config.warm_start:
            examples = transcript_examples(self.trainer, read_transcripts(self.config.warm_start))
        task = self.trainer.bound.task
        sandbox = sandbox_name(task.sandbox) if hasattr(task, "sandbox") else ""
        write_whole(self.folder / CONFIG_FILE, dump_yaml(self.config))
        write_whole(self.folder / "versions.json", json.dumps(versions(), indent=2) + "\n")
        self.records = Records(self.folder, last, int(self.state.episodes))
        if self.iteration < self.config.iterations:
            # A run that has ended stays as it is.
            self.times["loading"] += loading
        held_out, wanted = len(self.trainer.held_out), self.config.evaluation_problems
        self.watcher.start(self.config, self.iteration, held_out)
        if held_out < wanted:
            self.watcher.note(f"held-out problems: the task has {held_out}, fewer than evaluation_problems={wanted}")
        if sandbox:
            self.watcher.note(f"code runs in the sandbox '{sandbox}'")
        if start is None:
            self._evaluate()
            if examples:
                self._warm_start(examples)
                self._evaluate()
            self._save()

    def run(self, stop: StopSignal) -> FinetuneResult:
        """Goes on to the end, or until it is told to stop."""
        config = self.config
        while self.iteration < config.iterations:
            if stop.number is not None:
                self._save()
                raise TrainingInterrupted(
                    f"stopped by {signal.Signals(stop.number).name} and saved at iteration {self.iteration} of "
                    f"{config.iterations}; continue with: jaxmarl-llm finetune --resume --out {self.folder}",
                    stop.number,
                )
            begin = time.perf_counter()
            done = iterate(self.trainer, self.state, self.memory)
            self.state, self.memory = done.state, done.memory
            self._check_finite()
            spent = time.perf_counter() - begin
            self.seconds += spent
            self._record(done, spent)
            last = self.iteration == config.iterations
            if last or self.iteration % config.evaluate_every == 0:
                self._evaluate()
            if last or self.iteration % config.checkpoint_every == 0:
                self._save()
        last = len(self.evaluations) - 1
        start = self._start
        best = max(range(start, last + 1), key=lambda number: self.evaluations[number][1])
        shown = {"imitated": start} if config.warm_start else {}
        if start or not config.warm_start:
            # Earlier versions did not play the base of a warm start.
            shown = {"base": 0} | shown
        summary = {
            "iterations": self.iteration,
            "episodes": int(self.state.episodes),
            "seconds": round(self.seconds, 1),
            **{f"{name}_seconds": round(value, 1) for name, value in self.times.items()},
            **{name: self._described(one) for name, one in (shown | {"best": best, "final": last}).items()},
        }
        write_whole(self.folder / SUMMARY_FILE, json.dumps(plain(summary), indent=2) + "\n")
        return FinetuneResult(self.folder, self.trainer, self.state, self.evaluations, summary)

    @property
    def _start(self) -> int:
        """The number of the evaluation that the best is looked for from: the last one before the first iteration."""
        return sum(iteration == 0 for iteration, _, _ in self.evaluations) - 1

    def _described(self, number: int) -> dict[str, Any]:
        """An evaluation, as the summary tells of it."""
        names = ("iteration", "accuracy", "interval")
        return dict(zip(names, self.evaluations[number], strict=True)) | self.details[number]

    def _warm_start(self, examples: Sequence[Example]) -> None:
        messages = self.config.replay_messages
        begin = time.perf_counter()
        self.state, losses = imitate(
            self.trainer, self.state, examples, self.config.warm_start_updates, messages=messages
        )
        self.times["warm_start"] = time.perf_counter() - begin
        self.seconds += self.times["warm_start"]
        self.watcher.note(
            f"imitated {len(examples)} messages: loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} updates"
        )

    def _check_finite(self) -> None:
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(self.state.adapters))):
            raise TrainingDiverged(
                f"an adapter is no number after iteration {self.iteration}: the last good checkpoint is "
                f"{self.folder / 'checkpoints' / str(self.saved)}; try a lower learning_rate"
            )

    def _record(self, done: Iteration, spent: float) -> None:
        numbers = named(done.metrics, self.trainer.roles)
        times = {"seconds": self.seconds, "iteration_seconds": spent}
        times |= {f"{name}_seconds": value for name, value in done.seconds.items()}
        times |= {"tokens_per_s": done.tokens / max(spent, 1e-9)}
        values = {name: np.asarray([value], np.float32) for name, value in numbers.items()}
        values["tokens"] = np.asarray([done.tokens], np.float32)
        self.records.write("train", self.iteration, int(self.state.episodes), times, values)
        self.watcher.advance(self.iteration, numbers | times)

    def _evaluate(self) -> None:
        begin = time.perf_counter()
        found = self.trainer.evaluate(self.state)
        spent = time.perf_counter() - begin
        self.times["evaluation"] += spent
        self.evaluations.append((self.iteration, found.accuracy, found.interval))
        is_best = all(found.accuracy > accuracy for _, accuracy, _ in self.evaluations[self._start : -1])
        formats = plain({call: of_call["format_ok"] for call, of_call in found.report["calls"].items()})
        self.details.append({"problems": found.episodes.num_problems, "format_rate": formats})
        values = {
            "accuracy": np.asarray([found.accuracy], np.float32),
            "interval": np.asarray([found.interval], np.float32),
        }
        values |= {name: np.asarray([found.report[name]], np.float32) for name in _RATES}
        times = {"seconds": self.seconds, "evaluation_seconds": spent}
        self.records.write("evaluation", self.iteration, int(self.state.episodes), times, values)
        self.watcher.evaluated(self.iteration, found)
        if is_best:
            self._write("best", 1)

    def _save(self) -> None:
        if self.saved != self.iteration:
            self._write("checkpoints", self.config.keep_checkpoints)
            self.saved = self.iteration

    def _write(self, name: str, keep: int) -> None:
        progress = {
            "memory": [example.to_json() for example in self.memory],
            "curve": self.evaluations,
            "details": self.details,
            "seconds": self.seconds,
            "times": self.times,
            **self.inputs,
        }
        self.records.flush()
        checkpoints.save(self.folder / name, self.iteration, self.state, progress, self.config, versions(), keep)
