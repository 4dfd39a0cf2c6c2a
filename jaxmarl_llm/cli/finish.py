"""The end of a training run: a table, curves, a GIF."""

import warnings
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from jaxmarl_llm import user_code
from jaxmarl_llm.errors import UserError, plural
from jaxmarl_llm.training.config import TrainConfig
from jaxmarl_llm.training.loop import TrainResult
from jaxmarl_llm.training.progress import format_count, format_duration


def with_interval(described: dict[str, Any]) -> str:
    """A return with its 95 % interval."""
    low, high = described["interval"]
    return f"{described['return']:.4g}  [{low:.4g}, {high:.4g}]"


def returns_table(columns: dict[str, dict[str, Any]], first_seed: int, agents: tuple[str, ...]) -> Table:
    """Returns of one or more evaluations side by side: over all, by seed where there are several, by agent.

    Args:
      columns: title to an evaluation as `summary.json` describes it.
      first_seed: the run's first seed.
      agents: the agents' names.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("return")
    for title in columns:
        table.add_column(title, justify="right")
    described = list(columns.values())
    num_seeds = len(described[0]["return_by_seed"])
    over = f"mean of {plural(num_seeds, 'seed')}" if num_seeds > 1 else "mean"
    table.add_row(f"{over} [95 % interval]", *map(with_interval, described), style="bold")
    if num_seeds > 1:
        for i in range(num_seeds):
            table.add_row(f"  seed {first_seed + i}", *(f"{column['return_by_seed'][i]:.4g}" for column in described))
    if len(agents) > 1:
        for i, agent in enumerate(agents):
            table.add_row(f"  {agent}", *(f"{column['return_by_agent'][i]:.4g}" for column in described))
    return table


def finish_run(result: TrainResult, config: TrainConfig, console: Console, *, plots: bool) -> None:
    """Prints how a run ended, draws its curves and an episode, and says where they are.

    Args:
      result: the run.
      config: its configuration.
      console: where to print.
      plots: whether to draw.
    """
    summary = result.summary
    columns = {"final": summary["final"]}
    if summary["best"]:
        columns["best"] = summary["best"]
    console.print()
    console.print(returns_table(columns, config.seed, result.learner.env.agents))
    console.print(f"\n{_caption(summary, config)}", highlight=False)
    seeds = f" for each of {plural(config.num_seeds, 'seed')}" if config.num_seeds > 1 else ""
    console.print(
        f"\n{format_count(summary['env_steps'])} steps{seeds}: compiled in {summary['compile_seconds']:.1f} s, trained "
        f"in {format_duration(summary['seconds'])} ({summary['steps_per_s']:,.0f} steps/s), evaluated in "
        f"{summary['evaluation_seconds']:.1f} s\n",
        highlight=False,
    )
    lines = {"run": result.folder}
    if plots:
        lines |= _draw(result, config, console)
    for name, path in lines.items():
        console.print(f"{name:9}{path}", highlight=False, soft_wrap=True)


def _caption(summary: dict[str, Any], config: TrainConfig) -> str:
    """What the columns of the table are."""
    episodes = plural(config.eval_episodes, "episode") + (" a seed" if config.num_seeds > 1 else "")
    caption = f"final: the parameters of the last update ({summary['updates']}), {episodes}"
    if summary["best"]:
        caption += (
            f"\nbest: the parameters of update {summary['best']['update']}, which did best in the evaluations on the "
            "way; played again, on as many fresh episodes"
        )
    return caption


def _draw(result: TrainResult, config: TrainConfig, console: Console) -> dict[str, Path]:
    from jaxmarl_llm import report

    drawn = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in report.write_plots(result.folder):
            drawn[{"learning_curve": "curve", "agent_returns": "agents"}.get(path.stem, path.stem)] = path
        try:
            drawn["episode"] = write_gif(
                result.folder / "episode.gif",
                result.learner,
                jax.tree.map(lambda leaf: leaf[0], result.best_params),
                seed=config.seed,
                greedy=config.eval_greedy,
            )
        except Exception as error:
            # A trained run is worth more than its picture.
            is_users = user_code.place(error) is not None
            if not (is_users or isinstance(error, UserError)):
                raise
            reason = user_code.describe(error) if is_users else str(error)
            console.print(f"no animation: {reason}", highlight=False, soft_wrap=True)
    return drawn


def write_gif(path: Path, learner: Any, params: Any, *, seed: int, greedy: bool) -> Path:
    """Plays one episode and writes it as a GIF.

    Args:
      path: where to write.
      learner: the learner, with its environment.
      params: of one seed.
      seed: of the episode.
      greedy: whether the team takes its likeliest actions.

    Raises:
      UserError: the environment has no renderer.
    """
    from jaxmarl_llm import report

    def act(timestep, memory, key):
        return learner.act(params, timestep, memory, key, greedy=greedy)

    episode = report.record_episode(learner.env, act, jax.random.key(seed), memory=learner.initial_memory())
    return report.write_episode_gif(path, learner.env, episode)
