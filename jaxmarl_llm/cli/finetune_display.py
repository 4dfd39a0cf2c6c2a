"""What the user sees of fine-tuning: progress while it runs, tables and paths at the end."""

import math
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from jaxmarl_llm.cli.evaluate import with_interval
from jaxmarl_llm.cli.run_folder import note_of_base
from jaxmarl_llm.errors import plural
from jaxmarl_llm.training.progress import format_duration
from jaxmarl_llm.workflows.finetuning.config import FinetuneConfig
from jaxmarl_llm.workflows.finetuning.run import FinetuneResult, Watcher
from jaxmarl_llm.workflows.text.evaluation import TextEvaluation

SECONDS_BETWEEN_LINES = 30.0
# What the summary tells the seconds of, which is no part of an iteration.
_ASIDE = {"loading_seconds": "loading", "evaluation_seconds": "evaluations", "warm_start_seconds": "warm start"}
_EVALUATIONS = ("base", "imitated", "best", "final")
# Episodes whose messages are kept to be read.
_TRANSCRIPTS = 16


def _largest(metrics: Mapping[str, float], name: str) -> float:
    """The largest of what policies or roles have under a name; nan where none has."""
    values = [value for key, value in metrics.items() if key.startswith(f"{name}/")]
    return max(values, default=math.nan)


def progress_text(config: FinetuneConfig, iteration: int, metrics: Mapping[str, float]) -> str:
    """What an iteration came to, in one line."""
    rewards = [f"{name.partition('/')[2]} {value:.2f}" for name, value in metrics.items() if name.startswith("reward/")]
    parts = [f"iteration {iteration} of {config.iterations}", f"reward {', '.join(rewards)}"]
    if config.is_sequential and "accepted" not in metrics:
        parts.append("no step: nothing to learn")
    elif config.is_sequential:
        divergence = max(_largest(metrics, name) for name in ("policy_divergence", "policy_divergence_k3"))
        parts.append(f"divergence {divergence:.4f} of {config.radius:g}")
        parts.append(f"{100 * metrics['accepted']:.0f} % accepted")
    elif "message_kl" in {name.partition("/")[0] for name in metrics}:
        parts.append(f"divergence {_largest(metrics, 'message_kl'):.4f}")
    parts.append(f"accuracy {metrics['accuracy']:.3f}")
    parts.append(f"{metrics['tokens_per_s']:,.0f} tokens/s")
    return "  ".join(parts)


def _pace(config: FinetuneConfig) -> str:
    """When so many episodes are played."""
    if not config.is_sequential or config.sharing == "shared" or config.resample in ("never", "importance"):
        return "an iteration"
    if config.resample == "every":
        return "a play, anew after each accepted update"
    return f"a play, anew after {plural(config.resample_every, 'accepted update')}"


class TerminalWatcher(Watcher):
    """A bar on a terminal; elsewhere a line at every evaluation, and one every half minute.

    Args:
      console: where to show it.
      folder: of the run, for the heading.
      model: the name of the model, which is loaded first.
    """

    def __init__(self, console: Console, folder: Path, model: str):
        self._console, self._folder = console, folder
        self._status = console.status(f"loading {model}")
        self._status.start()
        self._bar = Progress(
            BarColumn(bar_width=24), TextColumn("{task.fields[text]}"), console=console, disable=not console.is_terminal
        )
        self._task = self._bar.add_task("", text="")
        self._config = FinetuneConfig()
        self._first = self._iteration = 0
        self._begin = self._line_time = 0.0
        self._text = ""
        self.evaluations: list[tuple[int, TextEvaluation]] = []

    def start(self, config, iteration, held_out=0):
        """Says what is trained."""
        self._status.stop()
        self._config, self._first, self._iteration = config, iteration, iteration
        roles = config.sharing if isinstance(config.sharing, str) else "grouped"
        evaluated = f", {plural(held_out, 'held-out problem')}" if held_out else ""
        self._console.print(
            f"{config.workflow} on {config.task} with {config.model}: {roles} policies, {config.trust_region}, "
            f"{plural(config.num_problems, 'problem')} x {config.group_size} {_pace(config)}"
            f"{evaluated} -> {self._folder}",
            highlight=False,
            soft_wrap=True,
        )
        if iteration:
            self.note(f"goes on after iteration {iteration} of {config.iterations}")
        self._begin = self._line_time = time.monotonic()
        self._bar.start()
        self._show("held-out problems are played by the base model" if not iteration else "first episodes")

    def advance(self, iteration, metrics):
        """Moves the bar on."""
        self._iteration = iteration
        self._text = progress_text(self._config, iteration, metrics)
        self._show(f"{self._text}  {format_duration(self._left)} left")
        if not self._console.is_terminal and time.monotonic() - self._line_time > SECONDS_BETWEEN_LINES:
            self._line_time = time.monotonic()
            self.note(f"{self._text}  {format_duration(self._left)} left")

    def evaluated(self, iteration, evaluation):
        """Prints the accuracy."""
        which = f"iteration {iteration}"
        if not iteration and self._config.warm_start:
            which += ", after the warm start" if self.evaluations else ", the base"
            self._show("first episodes" if self.evaluations else "transcripts are imitated")
        self.evaluations.append((iteration, evaluation))
        self.note(f"{which}: held-out accuracy {with_interval(evaluation.accuracy, evaluation.interval)}")

    def note(self, text):
        """Prints a line above the bar."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def stop(self):
        """Leaves the bar as it is."""
        self._status.stop()
        self._bar.stop()

    @property
    def _left(self) -> float:
        done = self._iteration - self._first
        if not done:
            return math.nan
        return (time.monotonic() - self._begin) / done * (self._config.iterations - self._iteration)

    def _show(self, text: str) -> None:
        self._bar.update(self._task, total=self._config.iterations, completed=self._iteration, text=text)


def finish(result: FinetuneResult, watcher: TerminalWatcher, console: Console, *, plots: bool) -> None:
    """Prints how a run ended, writes its adapters, a sample of what was said and curves, and says where they are.

    Args:
      result: the run.
      watcher: that saw it.
      console: where to print.
      plots: whether to draw.
    """
    from jaxmarl_llm.report.finetuning import write_finetune_plots
    from jaxmarl_llm.training.metrics import read_metrics

    folder, summary = result.folder, result.summary
    console.print()
    console.print(_accuracies(summary))
    if "format_rate" in summary["final"]:
        console.print()
        console.print(_formats(summary))
    note = note_of_base(result.trainer.config, "best", summary["best"]["iteration"])
    if note:
        console.print(f"\n{note}", highlight=False, soft_wrap=True)
    train = read_metrics(folder).lines.get("train", [])
    aside = {title: summary[name] for name, title in _ASIDE.items() if summary[name]}
    parts = aside | {name: sum(line.get(f"{name}_seconds", 0.0) for line in train) for name in _parts(train)}
    total = summary["seconds"] + summary["loading_seconds"] + summary["evaluation_seconds"]
    shares = ", ".join(f"{name} {format_duration(value)}" for name, value in parts.items())
    console.print(
        f"\n{summary['episodes']:,} episodes in {format_duration(total)}: {shares}\n", highlight=False, soft_wrap=True
    )
    written = {"run": folder, "metrics": folder / "metrics.jsonl"}
    written |= {f"adapter of {path.name}": path for path in write_adapters(result)}
    written["transcripts"] = _write_sample(result, watcher.evaluations[-1][1] if watcher.evaluations else None)
    if plots:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            written |= {path.stem.replace("_", " "): path for path in write_finetune_plots(folder)}
    width = max(map(len, written))
    for name, path in written.items():
        console.print(f"{name:{width}}  {path}", highlight=False, soft_wrap=True)
    console.print(f"\nnext: jaxmarl-llm evaluate {folder}, jaxmarl-llm chat {folder}", highlight=False, soft_wrap=True)


def _parts(lines: list[dict[str, Any]]) -> list[str]:
    """The parts of an iteration whose seconds were recorded."""
    names = dict.fromkeys(name for line in lines for name in line if name.endswith("_seconds"))
    return [name.removesuffix("_seconds") for name in names if name != "iteration_seconds"]


def _shown(summary: dict[str, Any]) -> list[str]:
    """The evaluations of a summary: without the team that has imitated, or the base, where there is none."""
    return [name for name in _EVALUATIONS if name in summary]


def _accuracies(summary: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("held out")
    shown = _shown(summary)
    for name in ("iteration", "problems", "accuracy [95 % interval]", f"points over {shown[0]}"):
        table.add_column(name, justify="right")
    for name in shown:
        found = summary[name]
        gain = 100 * (found["accuracy"] - summary[shown[0]]["accuracy"])
        accuracy = with_interval(found["accuracy"], found["interval"])
        table.add_row(
            name,
            str(found["iteration"]),
            str(found.get("problems", "")),
            accuracy,
            "" if name == shown[0] else f"{gain:+.1f}",
        )
    return table


def _formats(summary: dict[str, Any]) -> Table:
    """How many messages of each call were in their format; nothing where an earlier version has not kept it."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("in their format")
    for name in _shown(summary):
        table.add_column(name, justify="right")
    for call in summary["final"]["format_rate"]:
        rates = [summary[name].get("format_rate", {}).get(call) for name in _shown(summary)]
        table.add_row(call, *("" if rate is None else f"{rate:.3f}" for rate in rates))
    return table


def write_adapters(result: FinetuneResult) -> list[Path]:
    """Writes the best adapters of a run in PEFT's format, into `adapters/`.

    Returns:
      The folders; none where the team was not loaded from a model.
    """
    from jaxmarl_llm.workflows.finetuning.finished import best_team

    team = best_team(result)
    return [] if team is None else team.save_adapters(result.folder / "adapters")


def _write_sample(result: FinetuneResult, evaluation: TextEvaluation | None) -> Path:
    """Writes what was said about the first problems of the last evaluation, unless an earlier call has done so."""
    from jaxmarl_llm.workflows.text.transcripts import episode_records, write_transcripts

    path = result.folder / "transcripts.jsonl"
    if evaluation is None and path.is_file():
        return path
    if evaluation is None:
        # The call that evaluated was ended before it wrote them.
        evaluation = result.trainer.evaluate(result.state)
    write_transcripts(path, episode_records(result.trainer.bound, evaluation.episodes)[:_TRANSCRIPTS])
    return path
