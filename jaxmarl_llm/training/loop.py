"""The training loop: a host loop around compiled updates.

The program of one update is the same whatever is recorded and wherever a run stops, which is what makes a resumed run
equal an uninterrupted one bit by bit. Axes: S seeds, E episodes, N agents.
"""

import contextlib
import dataclasses
import json
import math
import signal
import time
from collections import deque
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.training import checkpoints
from jaxmarl_llm.training.build import build_learner
from jaxmarl_llm.training.config import TrainConfig
from jaxmarl_llm.training.devices import any_process, barrier, is_main_process, place
from jaxmarl_llm.training.evaluation import EvaluationResult, describe, mean_with_interval
from jaxmarl_llm.training.files import lock_folder, unlock_folder, write_whole
from jaxmarl_llm.training.interruption import StopSignal
from jaxmarl_llm.training.program import Program, abstract_state, compile_program
from jaxmarl_llm.training.progress import Reporter
from jaxmarl_llm.training.records import NoRecords, Records, combine, plain
from jaxmarl_llm.training.runs import (
    SUMMARY_FILE,
    check_folder,
    check_start,
    find_checkpoint,
    find_start,
    finished_summary,
    lost_lines,
    seeds_of,
    versions,
    write_header,
)
from jaxmarl_llm.training.schedule import make_schedule

# Names the evaluation of the best checkpoint; other evaluations are named after their update.
_BEST_EVALUATION = 2**32 - 1


class TrainingDiverged(Exception):
    """The loss or the parameters became NaN or infinite; the message says at which update."""


class TrainingInterrupted(Exception):
    """A signal stopped the run after its state was saved.

    Attributes:
      signal_number: SIGINT or SIGTERM.
    """

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.signal_number = signal_number


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """How a run ended.

    Attributes:
      folder: the run's folder.
      summary: what `summary.json` holds.
      learner: the learner, with its environment.
      best_params: parameters of the best evaluation, every leaf with a leading axis S.
      was_finished: the run was finished before; nothing was done.
    """

    folder: Path
    summary: dict[str, Any]
    learner: Any
    best_params: Any
    was_finished: bool = False


@dataclasses.dataclass
class _Progress:
    """What the host knows about a run, stored with every checkpoint."""

    update: int = 0
    seconds: float = 0.0
    evaluation_seconds: float = 0.0
    best_return: float | None = None
    best_update: int | None = None
    final: dict[str, Any] = dataclasses.field(default_factory=dict)
    unwritten: list[dict[str, Any]] = dataclasses.field(default_factory=list)


def train(config: TrainConfig, *, resume: bool = False, reporter: Reporter | None = None) -> TrainResult:
    """Trains a run and writes its folder.

    Args:
      config: the run; `config.out` names its folder.
      resume: continues the run that the folder holds, from its newest sound checkpoint, bit by bit as if it had never
        stopped; begins it when the folder is empty, and leaves it alone when it is finished.
      reporter: sees the events of the run; nothing is shown without one.

    Returns:
      The folder and the summary.

    Raises:
      UserError: bad input; nothing was written.
      TrainingDiverged: NaN or infinity.
      TrainingInterrupted: SIGINT or SIGTERM; the state was saved.
      KeyboardInterrupt: SIGINT before the first update; nothing was written.
    """
    reporter = reporter or Reporter()
    if not config.out:
        raise UserError("a run needs a folder: set out")
    folder = Path(config.out)
    check_folder(folder, config, resume)
    start, damaged = find_start(folder, config)
    learner: Any = build_learner(config)
    check_start(folder, config, start, learner.steps_per_update)
    placement = place(config.num_devices, learner.env_groups, one_device=learner.one_device)
    summary = finished_summary(folder, config, start, learner.steps_per_update)
    if summary is not None and start is not None:
        state = abstract_state(learner, placement, seeds_of(config))
        best = find_checkpoint(folder, "best")
        found = checkpoints.load(start if checkpoints.problem(best) else best, state, config)
        return TrainResult(folder, summary, learner, found.state.params, was_finished=True)
    # All processes have looked at the folder before one of them writes to it.
    barrier("folder checked")
    with contextlib.ExitStack() as stack:
        if is_main_process():
            stack.callback(unlock_folder, folder, lock_folder(folder))
            checkpoints.remove_partial(folder / "checkpoints")
            checkpoints.remove_partial(folder / "best")
        try:
            with reporter.compiling():
                program = compile_program(
                    learner,
                    placement,
                    seeds_of(config),
                    num_episodes=config.eval_episodes,
                    greedy=config.eval_greedy,
                )
        except KeyboardInterrupt:
            again = "begin again with the same command" if start is None else "the run is as it was saved last"
            raise KeyboardInterrupt(f"stopped before the first update, nothing was trained: {again}") from None
        run = _Run(config, folder, learner, program, reporter)
        run.restore(start, damaged)
        stack.callback(run.records.close)
        stack.callback(reporter.stop)
        return run.run()


class _Run:
    """One call of `train`: the state on the devices, the progress on the host, and where both are written."""

    def __init__(self, config: TrainConfig, folder: Path, learner: Any, program: Program, reporter: Reporter):
        self.config, self.folder, self.program, self.reporter = config, folder, program, reporter
        self.learner = learner
        self.steps_per_update = learner.steps_per_update
        self.schedule = make_schedule(config, learner.steps_per_update)
        self.versions = versions()
        self.progress = _Progress()
        self.records: Records | NoRecords = NoRecords()
        self.saved: int | None = None
        self.last_seconds = 0.0
        self.in_flight: deque[tuple[int, jax.Array]] = deque()
        self.state: Any = None

    @property
    def env_steps(self) -> int:
        """Environment steps so far, of each seed."""
        return self.progress.update * self.steps_per_update

    def restore(self, start: Path | None, damaged: list[tuple[Path, str]]) -> None:
        """Starts from a checkpoint, or from the beginning.

        Args:
          start, damaged: of `find_start`.
        """
        for path, wrong in damaged:
            self.reporter.note(f"checkpoint {path} is damaged ({wrong}): set aside as {path.name}.damaged")
        last = None
        if start is None:
            self.state = self.program.init()
        else:
            found = checkpoints.load(start, self.program.abstract_state, self.config)
            last, self.saved, self.state = found.update, found.update, found.state
            stored = dict(found.progress)
            stored["unwritten"] = [
                {name: np.asarray(value, np.float32) for name, value in record.items()}
                for record in stored["unwritten"]
            ]
            if not math.isfinite(stored["best_return"] or 0.0):
                stored |= {"best_return": None, "best_update": None}
            self.progress = _Progress(**stored)
            self.last_seconds = self.progress.seconds
            changed = [
                f"{name} {old} -> {self.versions.get(name)}"
                for name, old in found.versions.items()
                if self.versions.get(name) != old
            ]
            if changed:
                self.reporter.note(f"resuming with other software ({', '.join(changed)}): numbers may differ slightly")
            lost = lost_lines(self.folder, found.update - len(stored["unwritten"]))
            if lost is not None:
                self.reporter.note(lost)
            self.reporter.note(f"resuming from update {found.update} of {self.schedule.total}")
        barrier("checkpoint read")
        if is_main_process():
            write_header(self.folder, self.config)
            for path, _ in damaged:
                checkpoints.set_aside(path)
            self.records = Records(self.folder, last, self.env_steps)

    def run(self) -> TrainResult:
        """Trains to the end."""
        total_steps = self.schedule.total * self.steps_per_update
        self.reporter.start(self.env_steps, total_steps, self.program.compile_seconds)
        with StopSignal() as stop:
            if self.progress.update == 0:
                self._evaluate()
            mark = time.perf_counter()
            while self.progress.update < self.schedule.total:
                self.state, packed = self.program.update(self.state)
                self.progress.update += 1
                self.in_flight.append((self.progress.update, packed))
                event = self.schedule.any_due(self.progress.update)
                # Metrics are read one update late, so that the device never waits for the host.
                self._drain(0 if event or stop.number else 1)
                now = time.perf_counter()
                self.progress.seconds += now - mark
                self._show(now - mark)
                if event:
                    self._record()
                stopping = any_process(stop.number is not None) if event or jax.process_count() == 1 else False
                if stopping and self.progress.update < self.schedule.total:
                    self._drain(0)
                    self._save()
                    raise self._interrupted(stop.number or signal.SIGINT)
                mark = time.perf_counter()
            return self._finish()

    def _drain(self, leave: int) -> None:
        """Reads the metrics of finished updates, all but the newest `leave`."""
        while len(self.in_flight) > leave:
            update, packed = self.in_flight.popleft()
            metrics, finite = self.program.unpack(packed)
            if not finite.all():
                raise self._diverged(update, finite)
            self.progress.unwritten.append(metrics)

    def _show(self, seconds: float) -> None:
        last = self.progress.unwritten[-1]["episode_return"] if self.progress.unwritten else np.full(1, np.nan)
        known = last[np.isfinite(last)]
        steps = self.steps_per_update * len(self.program.seeds)
        self.reporter.advance(self.env_steps, steps, seconds, float(known.mean()) if known.size else math.nan)

    def _record(self) -> None:
        update = self.progress.update
        if self.schedule.due(self.schedule.log, update):
            self._write_train()
        if self.schedule.due(self.schedule.evaluation, update):
            self._evaluate()
        if self.schedule.due(self.schedule.checkpoint, update):
            self._save()

    def _write_train(self) -> None:
        records, self.progress.unwritten = self.progress.unwritten, []
        seconds = self.progress.seconds
        steps = len(records) * self.steps_per_update * len(self.program.seeds)
        elapsed = max(seconds - self.last_seconds, 1e-9)
        self.last_seconds = seconds
        self.records.write(
            "train",
            self.progress.update,
            self.env_steps,
            {"seconds": seconds, "steps_per_s": steps / elapsed},
            combine(records),
        )

    def _play(self, params: Any, number: int) -> EvaluationResult:
        start = time.perf_counter()
        result = self.program.evaluate(params, number)
        self.progress.evaluation_seconds += time.perf_counter() - start
        return result

    def _evaluate(self) -> None:
        result = self._play(self.state.params, self.progress.update)
        mean, low, high = mean_with_interval(np.asarray(result.episode_return))
        self.records.write(
            "evaluation",
            self.progress.update,
            self.env_steps,
            {"seconds": self.progress.seconds},
            {
                "return": result.episode_return,
                "agent_return": result.agent_return.mean(1),
                "length": result.length.astype(np.float32).mean(1),
            },
        )
        self.reporter.evaluated(self.env_steps, mean, low, high)
        self.progress.final = describe(result)
        best = self.progress.best_return
        if self.progress.update > 0 and math.isfinite(mean) and (best is None or mean > best):
            self.progress.best_return, self.progress.best_update = mean, self.progress.update
            self._write_checkpoint("best", keep=1)

    def _save(self) -> None:
        if self.saved != self.progress.update:
            self._write_checkpoint("checkpoints", self.config.keep_checkpoints)
            self.saved = self.progress.update

    def _write_checkpoint(self, name: str, keep: int) -> None:
        progress = dataclasses.asdict(self.progress)
        progress["unwritten"] = [
            {name: value.tolist() for name, value in record.items()} for record in self.progress.unwritten
        ]
        self.records.flush()
        checkpoints.save(
            self.folder / name, self.progress.update, self.state, progress, self.config, self.versions, keep
        )

    def _diverged(self, update: int, finite: np.ndarray) -> TrainingDiverged:
        seeds = ", ".join(str(seed) for seed in self.program.seeds[~finite])
        kept = checkpoints.updates(self.folder / "checkpoints")
        last = (
            f"the last good checkpoint is {self.folder / 'checkpoints' / str(kept[-1])}"
            if kept
            else "no checkpoint was saved before"
        )
        advice = "try a lower learning_rate or max_grad_norm"
        if update == 1:
            advice = (
                "check first that the environment's rewards and observations are finite (jaxmarl_llm.check_env), then "
                + advice
            )
        return TrainingDiverged(
            f"loss or parameters became NaN or infinite at update {update} (environment step "
            f"{update * self.steps_per_update}, seed {seeds}): {last}; {advice}"
        )

    def _interrupted(self, number: int) -> TrainingInterrupted:
        return TrainingInterrupted(
            f"stopped by {signal.Signals(number).name} and saved at update {self.progress.update} of "
            f"{self.schedule.total}; continue with: jaxmarl-llm train --resume --out {self.folder}",
            number,
        )

    def _finish(self) -> TrainResult:
        """Evaluates the best checkpoint on fresh episodes and writes `summary.json`."""
        progress = self.progress
        best: dict[str, Any] = {}
        params = self.state.params
        if progress.best_update is not None:
            path = self.folder / "best" / str(progress.best_update)
            wrong = checkpoints.problem(path)
            if wrong is not None:
                self.reporter.note(f"checkpoint {path} is damaged ({wrong}): evaluating the last parameters instead")
            elif progress.best_update != progress.update:
                params = checkpoints.load(path, self.program.abstract_state, self.config).state.params
            result = self._play(params, _BEST_EVALUATION)
            best = {"update": progress.best_update, **describe(result)}
        steps = self.env_steps * len(self.program.seeds)
        summary = {
            "updates": progress.update,
            "env_steps": self.env_steps,
            "num_seeds": len(self.program.seeds),
            "seconds": round(progress.seconds, 3),
            "compile_seconds": round(self.program.compile_seconds, 3),
            "evaluation_seconds": round(progress.evaluation_seconds, 3),
            "steps_per_s": round(steps / max(progress.seconds, 1e-9), 1),
            "final": progress.final,
            "best": best,
        }
        if is_main_process():
            write_whole(self.folder / SUMMARY_FILE, json.dumps(plain(summary), indent=2) + "\n")
        return TrainResult(self.folder, summary, self.learner, params)
