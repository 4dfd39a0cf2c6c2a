"""`jaxmarl-llm evaluate`."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxmarl_llm.cli.options import parse_options
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.training.config import Settings


@dataclasses.dataclass(frozen=True)
class EvaluateOptions:
    """Play problems with a fine-tuned team, without learning, and print how it did.

    Without options: the held-out problems of the run. Other problems, or a team of another size, show what the team
    has learned that goes beyond them: --problems, --task-args, --workflow-args, --replace.
    """

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    problems: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Play the problems of a JSONL file instead, all of them."""
    num_problems: int | None = None
    """How many problems; without it, as many as in the run's evaluations, or all of --problems."""
    task: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Play the held-out problems of another task."""
    task_args: Settings = dataclasses.field(default_factory=dict)
    """Settings of the task, such as digits=3, added to those of the run."""
    workflow_args: Settings = dataclasses.field(default_factory=dict)
    """Settings of the workflow, such as n=4, added to those of the run."""
    replace: Annotated[tuple[str, ...], tyro.conf.arg(metavar="ROLE ...")] = ()
    """Roles that the base model plays instead."""
    base: bool = True
    """Play the same with the base model in all roles, to compare."""
    checkpoint: Annotated[str, tyro.conf.arg(metavar="NAME")] = "best"
    """Which adapters: best (by held-out accuracy), last, or an iteration's number."""
    max_new_tokens: int | None = None
    """The longest completion, in tokens; without it, as in the run."""
    max_length: int | None = None
    """The longest prompt with its completion, in tokens; without it, as in the run."""
    transcripts: Path | None = None
    """Write what was said to a new JSONL file, one episode a line, in a folder that exists."""
    json: bool = False
    """Print JSON instead of a table."""


def evaluate_command(arguments: Sequence[str]) -> int:
    """Evaluates a run; returns the exit status."""
    options = parse_options(EvaluateOptions, arguments, program="jaxmarl-llm evaluate")
    from jaxmarl_llm.cli.run_folder import finetuned_config, note_of_base

    for name in ("num_problems", "max_new_tokens", "max_length"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if options.problems is not None and options.task is not None:
        raise UserError("--problems and --task both say what is played: leave one out")
    config = finetuned_config(options.run)
    if options.transcripts is not None:
        _check_new_file(options.transcripts)

    from rich.console import Console

    from jaxmarl_llm.training.compilation_cache import use_compilation_cache

    use_compilation_cache()

    from jaxmarl_llm.workflows.finetuning.finished import load_finetuned_team
    from jaxmarl_llm.workflows.text import evaluate_text, write_transcripts
    from jaxmarl_llm.workflows.text.transcripts import episode_records

    workflow, task, problems = _what_to_play(options, config)
    team = load_finetuned_team(options.run, config, options.checkpoint, max_length=options.max_length)
    bound = _bind(options, config, workflow, task, team.model.tokenizer)
    samplers = {"team": team.sampler(workflow, options.replace)}
    if options.base:
        samplers["base model"] = team.sampler(workflow, workflow.roles)
    if note := note_of_base(config, options.checkpoint, team.iteration):
        print(note, file=sys.stderr)
    if options.num_problems is not None and len(problems) < options.num_problems:
        print(f"there are {len(problems)} problems, fewer than --num-problems {options.num_problems}", file=sys.stderr)
    found = {name: evaluate_text(sampler, bound, problems) for name, sampler in samplers.items()}
    console = Console()
    if options.json:
        facts: dict[str, Any] = {"run": str(options.run), "iteration": team.iteration, "problems": len(problems)}
        facts |= {
            name: {"accuracy": one.accuracy, "interval": one.interval, **one.report} for name, one in found.items()
        }
        print(json.dumps(facts))
    else:
        title = f"{workflow.name} on {options.problems or options.task or config.task}, iteration {team.iteration}"
        console.print(f"{title}, {len(problems)} problems, greedy\n", highlight=False)
        console.print(report_table(found))
    if options.transcripts is None:
        return 0
    # What was found is told before anything can go wrong with the file.
    write_transcripts(options.transcripts, episode_records(bound, found["team"].episodes))
    if not options.json:
        console.print(f"\ntranscripts  {options.transcripts}", highlight=False, soft_wrap=True)
    return 0


def _check_new_file(path: Path) -> None:
    """Raises `UserError` where a file cannot be written, before what takes long; leaves nothing."""
    try:
        path.open("x").close()
        path.unlink()
    except FileExistsError:
        raise UserError(f"{path} exists already: choose another file with --transcripts") from None
    except OSError as error:
        raise UserError(
            f"cannot write {path} ({error.strerror}): choose a file in a folder that exists with --transcripts"
        ) from None


def _what_to_play(options: EvaluateOptions, config: Any) -> tuple[Any, Any, Sequence[Any]]:
    """The workflow, the task and the problems."""
    from jaxmarl_llm.workflows import make_workflow
    from jaxmarl_llm.workflows.text import make_text_task

    workflow = make_workflow(config.workflow, **config.workflow_args | options.workflow_args)
    name = options.problems or options.task or config.task
    same = name == config.task
    task = make_text_task(name, **(config.task_args if same else {}) | options.task_args)
    problems = task.held_out
    count = options.num_problems
    if options.problems is not None:
        problems = (*task.train, *task.held_out)
    elif count is None:
        count = config.evaluation_problems
    if not problems:
        raise UserError(f"{name} has no problems to play")
    return workflow, task, problems[:count]


def _bind(options: EvaluateOptions, config: Any, workflow: Any, task: Any, tokenizer: Any) -> Any:
    from jaxmarl_llm.workflows.text import bind_text

    return bind_text(
        workflow,
        task,
        tokenizer,
        config.formats or None,
        max_new_tokens=options.max_new_tokens or config.max_new_tokens,
        max_length=options.max_length or config.max_length,
        require_end=config.require_end,
    )


_SHARES = {
    "any_correct": "a right solution was there",
    "selection_failure": "  but the answer is wrong",
    "generation_failure": "no right solution",
}
_OF_CALL = {
    "asked": "replies an episode",
    "format_ok": "in their format",
    "own_score": "right by themselves",
    "cut_off": "cut off",
    "tokens": "tokens",
}


def with_interval(accuracy: float, interval: Sequence[float]) -> str:
    """An accuracy with its 95 % interval."""
    return f"{accuracy:.3f}  [{interval[0]:.3f}, {interval[1]:.3f}]"


def report_table(found: dict[str, Any]) -> Any:
    """Evaluations side by side: accuracy, how episodes failed, and what each call did.

    Args:
      found: title to `TextEvaluation`.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("share of problems")
    for title in found:
        table.add_column(title, justify="right")
    every = list(found.values())
    table.add_row(
        "accuracy [95 % interval]", *(with_interval(one.accuracy, one.interval) for one in every), style="bold"
    )
    for name, text in _SHARES.items():
        table.add_row(text, *(f"{one.report[name]:.3f}" for one in every))
    for call in every[0].report["calls"]:
        table.add_row(call)
        for name, text in _OF_CALL.items():
            values = [one.report["calls"][call][name] for one in every]
            if all(value is not None for value in values):
                table.add_row(f"  {text}", *(f"{value:.{1 if name == 'tokens' else 3}f}" for value in values))
    return table
