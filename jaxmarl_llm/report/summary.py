"""The table that a run ends with."""

from pathlib import Path

import numpy as np
from rich.table import Table

from jaxmarl_llm.report.metrics import RunMetrics, read_metrics, run_title
from jaxmarl_llm.report.statistics import bootstrap_interval, mean_without_nan


def summary_table(run_folder: str | Path) -> Table:
    """A run in a dozen rows: steps, time, speed, final and best return, each agent's return.

    Args:
      run_folder: the run's folder.

    Returns:
      A rich table, to be printed on a rich console.

    Raises:
      UserError: there is no such folder.
    """
    metrics = read_metrics(run_folder)
    table = Table(title=run_title(metrics), title_justify="left", show_header=False, pad_edge=False)
    table.add_column("quantity", style="bold")
    table.add_column("value")
    for row in _rows(metrics):
        table.add_row(*row)
    table.add_row("folder", str(run_folder))
    return table


def _rows(metrics: RunMetrics):
    lines = metrics.lines.get("train") or metrics.lines.get("evaluation")
    if not lines:
        yield "state", "no metrics yet"
        return
    last = lines[-1]
    per_seed = " per seed" if metrics.num_seeds > 1 else ""
    yield "environment steps", f"{int(last['env_steps']):,}{per_seed} in {int(last['update']):,} updates"
    if "seconds" in last:
        yield "time", f"{last['seconds']:.1f} s"
    rates = [line["steps_per_s"] for line in lines if line.get("steps_per_s")]
    if rates:
        yield "speed (median)", f"{np.median(rates):,.0f} environment steps/s"

    steps, returns = metrics.series("evaluation", "return")
    if len(returns):
        per_seed_return = mean_without_nan(returns, -1) if returns.ndim == 3 else returns  # [K, S]
        curve = mean_without_nan(per_seed_return, -1)  # [K]
        one_seed = metrics.num_seeds == 1 and returns.ndim == 3
        samples = returns[-1:, 0, :] if one_seed else per_seed_return[-1:]
        yield "final evaluation return", _interval(curve[-1], samples, "episodes" if one_seed else "seeds")
        if np.isfinite(curve).any():
            best = int(np.nanargmax(curve))
            yield "best evaluation return", f"{curve[best]:.2f} at {int(steps[best]):,} steps"
    _, train = metrics.series("train", "episode_return")
    finished = mean_without_nan(train, -1) if len(train) else np.zeros(0)
    if np.isfinite(finished).any():
        yield "last training return", f"{finished[np.isfinite(finished)][-1]:.2f}"
    for kind in ("evaluation", "train"):
        _, agents = metrics.series(kind, "agent_return")
        if agents.ndim == 3 and agents.shape[-1] > 1 and np.isfinite(agents[-1]).any():
            means = mean_without_nan(agents[-1], 0)
            label = "return per agent" + (" (training)" if kind == "train" else "")
            yield label, "  ".join(f"{value:.2f}" for value in means)
            break


def _interval(mean: float, samples: np.ndarray, unit: str) -> str:
    if samples.shape[-1] < 2 or not np.isfinite(mean):
        return f"{mean:.2f}"
    low, high = bootstrap_interval(samples)
    return f"{mean:.2f}  (95 % interval {low[0]:.2f} to {high[0]:.2f}, {samples.shape[-1]} {unit})"
