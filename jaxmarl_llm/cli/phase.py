"""`jaxmarl-llm ablate phase`."""

import dataclasses
import datetime
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from jaxmarl_llm.cli import DIVERGED
from jaxmarl_llm.cli.options import option_value, parse_options
from jaxmarl_llm.errors import UserError, plural
from jaxmarl_llm.workflows.ablation.phase import Phase, check_phase

_DESCRIPTION = (
    "Sweep learning rate x number of generators x sharing x remedy on the voting workflow, and draw where training "
    "rises, stays or falls. Ctrl-C keeps the numbers of generators that are done; --resume does the others."
)


@dataclasses.dataclass(frozen=True)
class PhaseOptions:
    """Options of `ablate phase`."""

    config: Annotated[Phase, tyro.conf.arg(name="")]
    out: Path | None = None
    """The folder of the results (default: runs/phase-<date and time>)."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Do what is missing of the diagram in the folder --out."""


def parse_phase(arguments: Sequence[str]) -> tuple[PhaseOptions, Path]:
    """Options of a phase diagram, checked, and its folder.

    Raises:
      UserError: bad input.
    """
    base, out = Phase(), option_value(list(arguments), "--out")
    if "--resume" in arguments:
        if out is None:
            raise UserError("--resume needs the folder of the diagram: add --out DIR")
        from jaxmarl_llm.workflows.ablation.phase_run import read_phase

        base = read_phase(Path(out))
    default = PhaseOptions(config=base)
    options = parse_options(
        PhaseOptions, arguments, program="jaxmarl-llm ablate phase", default=default, description=_DESCRIPTION
    )
    check_phase(options.config)
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return options, options.out or Path("runs") / f"phase-{stamp}"


def phase_command(arguments: Sequence[str]) -> int:
    """Makes a phase diagram; returns the exit status."""
    options, folder = parse_phase(arguments)

    from rich.console import Console
    from rich.table import Table

    from jaxmarl_llm.training.compilation_cache import use_compilation_cache
    from jaxmarl_llm.training.devices import use_cpu_cores
    from jaxmarl_llm.training.loop import TrainingInterrupted

    use_compilation_cache()
    use_cpu_cores()

    from jaxmarl_llm.report.phase_plots import write_phase_report
    from jaxmarl_llm.report.phase_summary import OUTCOMES, cautions, phase_counts, summarize_phase
    from jaxmarl_llm.training.progress import format_duration
    from jaxmarl_llm.workflows.ablation.phase_run import run_phase

    console, config, start = Console(), options.config, time.monotonic()
    points = len(config.remedies) * len(config.sharing) * len(config.learning_rates)
    *few, last = config.copies
    numbers = ", ".join([*map(str, few), plural(last, "generator")])
    heading = f"voting with {numbers}: {plural(points * config.num_seeds, 'run')} each -> {folder}"
    next_line, earlier = 0.0, None

    def on_progress(copies, share, accuracy):
        nonlocal next_line, earlier
        now = time.monotonic() - start
        stage = (copies, math.isnan(accuracy))
        # A change of stage is shown at once, so that no short run stays at its first line.
        if now >= next_line or share == 1 or stage != earlier:
            next_line, earlier = now + 30, stage
            doing = "preparing" if math.isnan(accuracy) else f"training, mean accuracy of these runs {accuracy:.3f}"
            part = f"part {config.copies.index(copies) + 1} of {len(config.copies)}, N = {copies}"
            console.print(f"{format_duration(now)}  {part}: {100 * share:.0f} %, {doing}", highlight=False)

    try:
        parts = run_phase(
            config,
            folder,
            resume=options.resume,
            on_start=lambda: console.print(heading, highlight=False, soft_wrap=True),
            on_progress=on_progress,
        )
    except TrainingInterrupted as stop:
        print(stop, file=sys.stderr)
        return 128 + stop.signal_number
    except FloatingPointError as error:
        print(f"error: {error} (--pretraining-args)", file=sys.stderr)
        return DIVERGED
    summary = summarize_phase(config, parts)
    table = Table("remedy", "generators", *OUTCOMES)
    for row in phase_counts(summary):
        table.add_row(*map(str, row))
    console.print(table)
    for caution in cautions(summary):
        console.print(caution, highlight=False, soft_wrap=True)
    for path in write_phase_report(folder, config, parts):
        console.print(path, highlight=False, soft_wrap=True)
    console.print(format_duration(time.monotonic() - start), highlight=False)
    return 0
