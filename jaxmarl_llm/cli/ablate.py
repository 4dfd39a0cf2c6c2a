"""`jaxmarl-llm ablate`."""

import dataclasses
import datetime
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxmarl_llm.cli import DIVERGED
from jaxmarl_llm.cli.ablate_model import ModelOptions, is_of_model, model_runner, parse_model_ablation, refuse_foreign
from jaxmarl_llm.cli.help import options_of, written
from jaxmarl_llm.cli.options import option_value, parse_options, split_preset
from jaxmarl_llm.errors import UserError, plural, unknown_name
from jaxmarl_llm.training.config import FINETUNE_FOLDER, preset_names
from jaxmarl_llm.user_files import user_path
from jaxmarl_llm.workflows.ablation.matrix import PRESETS, Ablation, Matrix, check_ablation, short_name
from jaxmarl_llm.workflows.ablation.model_matrix import DEFAULT_PRESET, ModelAblation


@dataclasses.dataclass(frozen=True)
class AblateOptions:
    """Options of `ablate`."""

    config: Annotated[Ablation, tyro.conf.arg(name="")]
    out: Path | None = None
    """The folder of the results (default: runs/ablation-PRESET-<date and time>)."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Do what is missing of the ablation in the folder --out."""


SECONDS_BETWEEN_LINES = 30.0
# What goes on in a phase that shows no share of its own.
_DOING = {"preparing": "preparing: compiling the pretraining"}
_DESCRIPTION = (
    "Train teams of language-model roles, with one policy for all roles (shared) and one policy a role (isolated), and "
    f"report what differs. The teams are small decoders that are trained from scratch. PRESET is one of "
    f"{', '.join(PRESETS)}. Ctrl-C keeps the cells that are done; --resume does the others.\n\n"
    "Two other commands have a --help of their own: `ablate --model MODEL --help`, the same on a language model, and "
    "`ablate phase --help`, a phase diagram."
)
_HELP_PRESET = "quick"


def _other_defaults() -> str:
    """How the defaults of other presets differ from those that the help without a preset shows."""
    shown = {option.flag: option.default for option in options_of(Ablation, PRESETS[_HELP_PRESET])}
    parts = []
    for name in PRESETS:
        differing = [option for option in options_of(Ablation, PRESETS[name]) if option.default != shown[option.flag]]
        settings = [f"{option.flag} {written(option.default) or '(none)'}" for option in differing]
        if settings:
            parts.append(f"{name} has {', '.join(settings)}")
    return f"The defaults below are those of {_HELP_PRESET}; {'; '.join(parts)}."


def fit_window(config: Matrix, arguments: Sequence[str]) -> tuple[Matrix, str]:
    """Averages fewer evaluations where there are not as many, unless the user has said how many.

    Args:
      config: the ablation, not yet checked.
      arguments: what the user typed.

    Returns:
      The configuration, and what the user should know of it; empty where nothing was changed.
    """
    given = any(argument.partition("=")[0].replace("_", "-") == "--cliff-window" for argument in arguments)
    if given or config.iterations < 1 or config.eval_every < 1:
        return config, ""
    evaluations = -(-config.iterations // config.eval_every)
    if config.cliff_window <= evaluations:
        return config, ""
    notice = f"--cliff-window is {evaluations}, not {config.cliff_window}: as many evaluations follow the first"
    return dataclasses.replace(config, cliff_window=evaluations), notice


def parse_ablate(arguments: Sequence[str]) -> tuple[AblateOptions | ModelOptions, Path, str]:
    """Options of an ablation, checked, its folder, and what the user should know, if anything.

    They are those of one on a language model with `--model`.

    Raises:
      UserError: bad input.
    """
    kind = ModelOptions if is_of_model(arguments) else AblateOptions
    names = (*PRESETS, *preset_names(FINETUNE_FOLDER))
    preset, arguments = split_preset(kind, arguments, names, "ablate")
    out = option_value(arguments, "--out")
    stored = None
    if "--resume" in arguments:
        if out is None:
            raise UserError("--resume needs the folder of the ablation: add --out DIR")
        from jaxmarl_llm.workflows.ablation.results import read_header

        stored = read_header(user_path(out, "--out"))[0]
    if is_of_model(arguments) or isinstance(stored, ModelAblation):
        of_model = stored if isinstance(stored, ModelAblation) else None
        config, options = parse_model_ablation(preset, arguments, of_model)
        preset = Path(preset or DEFAULT_PRESET).stem
    else:
        config, options = _parse_small(preset, arguments, stored)
    config, notice = fit_window(config, arguments)
    check_ablation(config)
    if isinstance(config, ModelAblation):
        # What an ablation has stored stays as it is.
        kept = {} if stored is None else vars(stored)
        absolute = vars(config.with_absolute_paths())
        changes = {name: value for name, value in absolute.items() if getattr(config, name) != kept.get(name)}
        config = dataclasses.replace(config, **changes)
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = Path("runs") / f"ablation-{preset}-{stamp}" if out is None else user_path(out, "--out")
    return dataclasses.replace(options, config=config), folder, notice


def _parse_small(
    preset: str | None, arguments: Sequence[str], stored: Ablation | None
) -> tuple[Ablation, AblateOptions]:
    """The same as `parse_model_ablation`, of small decoders."""
    refuse_foreign(arguments, of_model=False)
    helps, description = bool({"-h", "--help"} & set(arguments)), _DESCRIPTION
    if preset is not None:
        if preset in preset_names(FINETUNE_FOLDER) or preset.endswith((".yaml", ".yml")):
            raise UserError(
                f"{preset} is a preset of finetune: add --model, or name an ablation: {' or '.join(PRESETS)}"
            )
        if preset not in PRESETS:
            raise unknown_name("ablation", preset, (*PRESETS, "phase"))
        base = PRESETS[preset]
    elif stored is not None:
        base = stored
    elif helps:
        base, description = PRESETS[_HELP_PRESET], f"{_DESCRIPTION}\n\n{_other_defaults()}"
    else:
        raise UserError(
            f"name an ablation: {' or '.join(PRESETS)}, or phase for a phase diagram, or add --model for one on a "
            "language model"
        )
    # A preset is left out only where an ablation is resumed.
    program = f"jaxmarl-llm ablate {preset or 'PRESET' * helps}".rstrip()
    options = parse_options(
        AblateOptions, arguments, program=program, default=AblateOptions(config=base), description=description
    )
    settings = {
        name: getattr(base, name) | getattr(options.config, name) for name in ("learner_args", "pretraining_args")
    }
    return dataclasses.replace(options.config, **settings), options


def ablate_command(arguments: Sequence[str]) -> int:
    """Runs an ablation; returns the exit status."""
    if arguments[:1] == ["phase"]:
        from jaxmarl_llm.cli.phase import phase_command

        return phase_command(arguments[1:])
    options, folder, notice = parse_ablate(arguments)

    from rich.console import Console

    from jaxmarl_llm.training.compilation_cache import use_compilation_cache
    from jaxmarl_llm.training.devices import use_cpu_cores
    from jaxmarl_llm.training.loop import TrainingDiverged, TrainingInterrupted

    use_compilation_cache()
    of_model = isinstance(options.config, ModelAblation)
    if not of_model:
        use_cpu_cores()

    from jaxmarl_llm.report.ablation import write_report
    from jaxmarl_llm.report.ablation_board import write_board
    from jaxmarl_llm.workflows.ablation.forecast import phases_of
    from jaxmarl_llm.workflows.ablation.loop import run_ablation
    from jaxmarl_llm.workflows.ablation.results import read_header

    console, config = Console(), options.config
    if of_model:
        make_runner = model_runner(folder, console)
    else:
        from jaxmarl_llm.workflows.ablation.runner import make_runner
    places = ", ".join(map(short_name, (*config.tasks, *config.sizes)))
    matrix = f"{', '.join(config.workflows)} x {', '.join(config.sharing)} x {places}"
    heading = f"{matrix}, {plural(config.num_seeds, 'seed')} -> {folder}"
    start = time.monotonic()
    try:
        results = run_ablation(
            config,
            folder,
            make_runner,
            resume=options.resume,
            watcher=make_watcher(console, heading, phases_of(config), notice),
            record=lambda result: write_board(folder / "tensorboard" / result.cell.name, result),
        )
    except TrainingInterrupted as stop:
        print(stop, file=sys.stderr)
        return 128 + stop.signal_number
    except FloatingPointError as error:
        print(f"error: {error} (--pretraining-args)", file=sys.stderr)
        return DIVERGED
    except TrainingDiverged as error:
        print(f"error: {error}", file=sys.stderr)
        return DIVERGED
    summary = write_report(folder, config, results, read_header(folder)[1])
    print_summary(summary, folder, console, time.monotonic() - start)
    return 0


def print_summary(summary: dict[str, Any], folder: Path, console: Any, seconds: float) -> None:
    """Prints the table of cells, and where the report is.

    Args:
      summary: of `write_report`.
      folder: of the ablation.
      console: where to print.
      seconds: that this call took.
    """
    from rich.table import Table

    from jaxmarl_llm.report.ablation import MEASURES, cell_row, sharing_name
    from jaxmarl_llm.training.progress import format_duration

    many = len({(cell["task"], cell["size"]) for cell in summary["cells"]}) > 1
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    size = "model" if "model" in summary["config"] else "size"
    for name in (*(("task", size) if many else ()), "workflow", "sharing"):
        table.add_column(name, no_wrap=True)
    for name in (*MEASURES, "cliffs"):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in summary["cells"]:
        names = [cell["workflow"], sharing_name(cell)]
        table.add_row(*([cell["task"], cell["size"]] if many else []), *names, *(mean for mean, _ in cell_row(cell)))
    console.print()
    console.print(table)
    console.print(f"\n{format_duration(seconds)}", highlight=False)
    runs = ("runs",) if "model" in summary["config"] else ()
    for name in ("report.html", "results.json", "results.csv", "tensorboard", *runs):
        console.print(f"{name:14}{folder / name}", highlight=False, soft_wrap=True)


def make_watcher(console: Any, heading: str, phases: Mapping[str, float], notice: str = "") -> Any:
    """Shows the progress of an ablation: a bar on a terminal, elsewhere a line a phase, and one every half minute.

    Args:
      console: where to show it.
      heading: the first line, once nothing has been refused.
      phases: of a cell, for `Forecast`.
      notice: what the user should know, for stderr; like the heading.
    """
    from rich.progress import BarColumn, Progress, TextColumn

    from jaxmarl_llm.training.progress import format_duration
    from jaxmarl_llm.workflows.ablation.forecast import Forecast
    from jaxmarl_llm.workflows.ablation.loop import Watcher

    class TerminalWatcher(Watcher):
        def __init__(self):
            self.bar = Progress(
                BarColumn(bar_width=16),
                TextColumn("{task.fields[text]}"),
                console=console,
                disable=not console.is_terminal,
            )
            self.task = self.bar.add_task("", total=1.0, text="")
            self.num_cells = self.num_done = 0
            self.forecast = Forecast((), phases=phases)
            self.last: tuple[Any, str] | None = None
            self.line_time = self.phase_time = 0.0

        def start(self, cells, missing):
            self.num_cells, self.num_done = len(cells), len(cells) - len(missing)
            self.forecast = Forecast(missing, phases=phases)
            if notice:
                print(notice, file=sys.stderr)
            console.print(heading, highlight=False, soft_wrap=True)
            if self.num_done:
                console.print(f"{self.num_done} of {self.num_cells} cells are done already", highlight=False)
            self.bar.start()

        def advance(self, cell, phase, share, accuracy):
            self.forecast.advance(cell, phase, share)
            now, is_new = time.monotonic(), (cell, phase) != self.last
            if is_new:
                self.last, self.phase_time = (cell, phase), now
            text = phase if share in (0.0, 1.0) else f"{phase} {100 * share:.0f} %"
            if share == 0.0:
                # A sign of life where no share is known.
                text = _DOING.get(phase, phase)
                text += f" ({format_duration(now - self.phase_time)})" if now - self.phase_time > 1 else ""
            if math.isfinite(accuracy):
                text += f"  accuracy {accuracy:.3f}"
            number, left = (
                f"cell {self.num_done + 1} of {self.num_cells}",
                f"{format_duration(self.forecast.left)} left",
            )
            # A narrow terminal cuts the end off.
            self.bar.update(self.task, completed=self.forecast.done, text="  ".join([number, left, text, cell.name]))
            if (is_new or now - self.line_time > SECONDS_BETWEEN_LINES) and not console.is_terminal:
                console.print("  ".join([number, cell.name, text, left]), highlight=False, soft_wrap=True)
                self.line_time = now

        def end(self, result, seconds):
            self.num_done += 1
            first, last = (result.accuracy[index].mean() for index in (0, -1))
            console.print(
                f"{self.num_done} of {self.num_cells}  {result.cell.name}: accuracy {first:.3f} -> {last:.3f} in "
                f"{format_duration(seconds)}, {format_duration(self.forecast.left)} left",
                highlight=False,
                soft_wrap=True,
            )

        def stop(self):
            self.bar.stop()

    return TerminalWatcher()
