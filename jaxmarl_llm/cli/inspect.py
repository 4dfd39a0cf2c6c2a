"""`jaxmarl-llm eval` and `jaxmarl-llm render`."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from jaxmarl_llm.cli.options import parse_options

# Keeps these episodes apart from those that were played during training.
_FIRST_NUMBER = 2**31
_LAST_SEED = 2**31 - 2


@dataclasses.dataclass(frozen=True)
class EvalOptions:
    """Play episodes with a trained team, without learning, and print its return.

    Every episode starts from its own reset and is played to its end.
    """

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    checkpoint: Annotated[str, tyro.conf.arg(metavar="NAME")] = "best"
    """Which parameters: best (by evaluation return), last, or an update's number."""
    episodes: int = 128
    """How many episodes, for each seed of the run."""
    greedy: bool | None = None
    """Take the likeliest action instead of sampling; without it, as the run was evaluated."""
    seed: int = 0
    """Which episodes: another seed plays others."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclasses.dataclass(frozen=True)
class RenderOptions:
    """Play one episode with a trained team and write it as a GIF."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    checkpoint: Annotated[str, tyro.conf.arg(metavar="NAME")] = "best"
    """Which parameters: best (by evaluation return), last, or an update's number."""
    index: int = 0
    """Which of the run's seeds plays, from 0."""
    greedy: bool | None = None
    """Take the likeliest action instead of sampling; without it, as the run was evaluated."""
    seed: int = 0
    """Which episode: another seed plays another one."""
    out: Path | None = None
    """The GIF; without it, episode.gif in the folder of the run."""


def eval_command(arguments: Sequence[str]) -> int:
    """Evaluates a run; returns the exit status."""
    options = parse_options(EvalOptions, arguments, program="jaxmarl-llm eval")
    from rich.console import Console

    from jaxmarl_llm.cli.finish import returns_table
    from jaxmarl_llm.cli.run_folder import refuse_finetuned
    from jaxmarl_llm.errors import UserError, plural
    from jaxmarl_llm.training.compilation_cache import use_compilation_cache
    from jaxmarl_llm.training.evaluation import describe
    from jaxmarl_llm.training.runs import load_run

    if options.episodes < 1:
        raise UserError(f"--episodes must be at least 1, got {options.episodes}")
    if not 0 <= options.seed <= _LAST_SEED:
        raise UserError(f"--seed must lie between 0 and {_LAST_SEED}, got {options.seed}")
    refuse_finetuned(options.run, "jaxmarl-llm evaluate")
    use_compilation_cache()
    run = load_run(options.run, options.checkpoint, num_episodes=options.episodes, greedy=options.greedy)
    result = run.program.evaluate(run.params, _FIRST_NUMBER + options.seed)
    described = describe(result)
    length = float(result.length.mean())
    if options.json:
        found = {"run": str(run.folder), "update": run.update, "episodes": options.episodes, "length": length}
        print(json.dumps(found | described))
        return 0
    console = Console()
    title = f"{plural(options.episodes, 'episode')}, update {run.update}"
    console.print(returns_table({title: described}, run.config.seed, run.learner.env.agents))
    console.print(f"\nmean length {length:.1f} steps", highlight=False)
    return 0


def render_command(arguments: Sequence[str]) -> int:
    """Writes a GIF of an episode; returns the exit status."""
    options = parse_options(RenderOptions, arguments, program="jaxmarl-llm render")
    from jaxmarl_llm.cli.finish import write_gif
    from jaxmarl_llm.cli.run_folder import refuse_finetuned
    from jaxmarl_llm.errors import UserError
    from jaxmarl_llm.training.compilation_cache import use_compilation_cache
    from jaxmarl_llm.training.runs import load_run

    if options.out is not None and (options.out.suffix.lower() != ".gif" or options.out.is_dir()):
        raise UserError(f"--out names the animation: give a file that ends in .gif, got {options.out}")
    refuse_finetuned(options.run, "jaxmarl-llm evaluate")
    use_compilation_cache()
    run = load_run(options.run, options.checkpoint, greedy=options.greedy)
    path = options.out or run.folder / "episode.gif"
    print(write_gif(path, run.learner, run.seed_params(options.index), seed=options.seed, greedy=run.greedy))
    return 0
