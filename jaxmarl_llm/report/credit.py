"""Estimators of credit against the exact value: correlation, variance and cost, on one set of states.

Axes: R repeats, B decisions, N agents.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from jaxmarl_llm.errors import plural
from jaxmarl_llm.report.estimators import Decision, Estimator, credit_estimators
from jaxmarl_llm.report.plots import COLORS, INK, new_figure, style_axes
from jaxmarl_llm.training.statistics import mean_without_nan


@dataclasses.dataclass(frozen=True)
class CreditRow:
    """One estimator against the exact value, over agents that were asked to act.

    Attributes:
      name: of the estimator.
      pearson, spearman: linear and rank correlation with the exact value over decisions and agents, mean over repeats;
        nan where an estimator says the same everywhere.
      variance: of a repeat, mean over decisions and agents.
      env_steps: environment steps a decision.
      seconds: wall clock a decision, compiled, with all decisions in one program; median over repeats.
    """

    name: str
    pearson: float
    spearman: float
    variance: float
    env_steps: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class CreditComparison:
    """What `compare_credit` found.

    Attributes:
      rows: one an estimator.
      exact: `[B, N]` float64, the reference.
      acting: `[B, N]` bool, which agents were asked to act; the others are left out.
      estimates: name to `[R, B, N]` float64.
    """

    rows: tuple[CreditRow, ...]
    exact: np.ndarray
    acting: np.ndarray
    estimates: dict[str, np.ndarray]

    def table(self) -> str:
        """The rows as a Markdown table."""
        names = [field.name for field in dataclasses.fields(CreditRow)]
        lines = ["| " + " | ".join(name.replace("_", " ") for name in names) + " |", "|---" * len(names) + "|"]
        for row in self.rows:
            cells = (getattr(row, name) for name in names)
            lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
        return "\n".join(lines) + "\n"


def _cell(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return "-" if math.isnan(value) else f"{value:.3g}"


def compare_credit(
    env: Any,
    policy: Callable,
    decisions: Decision,
    estimators: Mapping[str, Estimator],
    key: jax.Array,
    *,
    horizon: int,
    discount: float = 0.99,
    reward: Callable | None = None,
    reference_replays: int = 256,
    num_repeats: int = 8,
    batch_size: int = 64,
) -> CreditComparison:
    """Compares estimators of credit with the exact counterfactual advantage, on one set of decisions.

    The exact value is the team's return with the action that was taken, less its mean over the agent's own actions
    under its policy, from `reference_replays` replays of each: exact where environment and policy are deterministic.

    Args:
      env: a raw environment.
      policy: `policy(timestep) -> logits [N, A]`, or with memory, `policy(timestep, memory) -> (logits, memory)`.
      decisions: with a leading axis B, for example from `visited_decisions`.
      estimators: name to estimator, for example from `credit_estimators`.
      key: consumed.
      horizon, discount, reward: of the exact value, as in `replay`.
      reference_replays: replays of the exact value.
      num_repeats: R, at least 2, estimates of each decision with keys of their own.
      batch_size: decisions worked on at once.

    Raises:
      ValueError: fewer than two repeats.
    """
    if num_repeats < 2:
        raise ValueError(f"num_repeats must be at least 2 for a variance, got {num_repeats}")
    num_decisions = decisions.action.shape[0]
    key_exact, key_repeats = jax.random.split(key)

    def run(estimator):
        @jax.jit
        def all_decisions(decisions, key):
            keys = jax.random.split(key, num_decisions)
            estimate = lambda inputs: estimator(*inputs)  # noqa: E731
            return jax.lax.map(estimate, (decisions, keys), batch_size=min(batch_size, num_decisions))

        return all_decisions

    reference = credit_estimators(
        env, policy, horizon=horizon, discount=discount, reward=reward, num_replays=reference_replays
    )["counterfactual"]
    exact = np.asarray(run(reference)(decisions, key_exact)[0], float)
    acting = np.asarray(decisions.timestep.active & ~decisions.timestep.terminated)
    rows, estimates = [], {}
    for name, estimator in estimators.items():
        program = run(estimator)
        keys = jax.random.split(key_repeats, num_repeats)
        jax.block_until_ready(program(decisions, keys[0]))
        results, times = [], []
        for key_repeat in keys:
            start = time.perf_counter()
            results.append(jax.block_until_ready(program(decisions, key_repeat)))
            times.append(time.perf_counter() - start)
        estimates[name] = np.stack([np.asarray(credit, float) for credit, _ in results])
        samples = estimates[name][:, acting]
        rows.append(
            CreditRow(
                name=name,
                pearson=_mean_correlation(samples, exact[acting]),
                spearman=_mean_correlation(samples, exact[acting], of_ranks=True),
                variance=float(samples.var(axis=0, ddof=1).mean()),
                env_steps=float(np.mean([np.asarray(steps) for _, steps in results])),
                seconds=float(np.median(times)) / num_decisions,
            )
        )
    return CreditComparison(rows=tuple(rows), exact=exact, acting=acting, estimates=estimates)


def _mean_correlation(samples: np.ndarray, exact: np.ndarray, *, of_ranks: bool = False) -> float:
    """Mean over the first axis of `[R, K]` of the correlation with `[K]`; nan where one of them is constant."""
    transform = _ranks if of_ranks else _without_rounding
    exact = transform(exact)
    correlations = []
    for sample in map(transform, samples):
        deviations = np.std(sample) * np.std(exact)
        covariance = np.mean((sample - sample.mean()) * (exact - exact.mean()))
        correlations.append(covariance / deviations if deviations > 0 else np.nan)
    return float(mean_without_nan(np.asarray(correlations), 0))


def _without_rounding(values: np.ndarray) -> np.ndarray:
    """Whole multiples of a millionth of the largest size, so that errors of float32 make no order among equals."""
    scale = np.max(np.abs(values), initial=0.0)
    return np.round(values / scale * 1e6) if scale > 0 else values


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, equal values at the mean of theirs."""
    _, place, count = np.unique(_without_rounding(values), return_inverse=True, return_counts=True)
    return (np.cumsum(count) - 0.5 * (count + 1))[place]


def write_credit_report(comparison: CreditComparison, folder: str | Path) -> list[Path]:
    """Writes `credit.md`, the table, and `credit.png`: each estimator against the exact value, and its cost.

    Args:
      comparison: from `compare_credit`.
      folder: is made if it does not exist.

    Returns:
      The two paths.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    table, picture = folder / "credit.md", folder / "credit.png"
    table.write_text(comparison.table())
    _draw(comparison).savefig(picture, dpi=144)
    return [table, picture]


def _draw(comparison: CreditComparison):
    num_panels = len(comparison.rows) + 1
    columns = min(4, num_panels)
    lines = -(-num_panels // columns)
    decisions, agents = comparison.exact.shape
    title = f"credit of {plural(decisions, 'decision')} of {plural(agents, 'agent')}, one estimate each"
    figure = new_figure(2.7 * columns, 2.5 * lines + 0.4, title)
    panels = figure.subplots(lines, columns, squeeze=False).reshape(-1)
    exact = comparison.exact[comparison.acting]
    for axes, row in zip(panels, comparison.rows, strict=False):
        style_axes(axes, "exact credit", "estimate")
        axes.set_title(f"{row.name}, rank corr. {_cell(row.spearman)}", loc="left", fontsize=8, color=INK)
        one = comparison.estimates[row.name][0][comparison.acting]
        axes.plot(exact, one, ".", color=COLORS[0], markersize=3, alpha=0.5)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_major_locator(MaxNLocator(4))
    cost = panels[num_panels - 1]
    style_axes(cost, "environment steps a decision", "rank correlation")
    cost.set_xscale("symlog", linthresh=1)
    for index, row in enumerate(comparison.rows):
        if not math.isnan(row.spearman):
            marker = "os^D"[index // len(COLORS) % 4]
            cost.plot(row.env_steps, row.spearman, marker, color=COLORS[index % len(COLORS)], label=row.name)
    for axes in panels[num_panels:]:
        axes.set_axis_off()
    # A panel that is left over has room for the names.
    beside = panels[num_panels] if num_panels < len(panels) else cost
    beside.legend(*cost.get_legend_handles_labels(), loc="upper left", fontsize=7, frameon=False, labelcolor=INK)
    return figure
