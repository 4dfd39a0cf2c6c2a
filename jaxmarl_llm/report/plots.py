"""Pictures of a run: learning curve, per-agent returns, losses.

Figures are built as objects on the Agg canvas: no pyplot, no global state, no display.
Axes: K points, S seeds, E episodes, N agents.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from jaxmarl_llm.errors import plural
from jaxmarl_llm.training.metrics import RunMetrics, read_metrics
from jaxmarl_llm.training.statistics import bin_curve, bootstrap_interval, mean_without_nan

# Okabe and Ito's colours, which stay apart for colour-blind readers.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", ":", "-.")
_MAX_POINTS = 200
INK = "#333333"

_LOSSES = (
    ("policy_loss", "policy loss"),
    ("value_loss", "value loss"),
    ("entropy", "entropy (nats)"),
    ("approximate_kl", "approximate KL (nats)"),
    ("clip_fraction", "clip fraction"),
    ("explained_variance", "explained variance"),
)
_VALUE_LOSSES = (
    ("total_loss", "loss (squared TD error)"),
    ("td_error", "absolute TD error"),
    ("gradient_norm", "gradient norm"),
    ("value_mean", "mean value of what was done"),
    ("target_mean", "mean target"),
    ("epsilon", "epsilon"),
)


def write_plots(run_folder: str | Path) -> list[Path]:
    """Draws `plots/learning_curve.png`, `plots/agent_returns.png` and `plots/losses.png` of a run.

    Args:
      run_folder: the run's folder, with `metrics.jsonl` and `config.yaml`.

    Returns:
      The pictures that were written; a picture without a single value is left out.

    Raises:
      UserError: there is no such folder.
    """
    drawings = {"learning_curve": _learning_curve, "agent_returns": _agent_returns, "losses": _losses}
    return save_plots(run_folder, drawings)


def save_plots(run_folder: str | Path, drawings: Mapping[str, Callable[[RunMetrics], Figure | None]]) -> list[Path]:
    """Draws `plots/NAME.png` of a run for each name; those that give None are left out.

    Args:
      run_folder: of the run.
      drawings: what draws each picture from the metrics.

    Returns:
      The files.

    Raises:
      UserError: there is no such folder.
    """
    metrics = read_metrics(run_folder)
    written = []
    for name, draw in drawings.items():
        figure = draw(metrics)
        if figure is not None:
            path = Path(run_folder) / "plots" / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=144)
            written.append(path)
    return written


def shortened(text: str, most: int) -> str:
    """A text in one line of at most so many characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def plain(text: str, most: int = 60) -> str:
    """A text with names of users, for Matplotlib, which would take dollars for formulas; not longer than fits."""
    return shortened(text, most).replace("$", r"\$")


def new_figure(width: float, height: float, title: str) -> Figure:
    """An empty white figure, size in inches."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(plain(title, 120), x=0.01, ha="left", fontsize=10, color=INK)
    return figure


def style_axes(axes: Axes, x_label: str, y_label: str) -> None:
    """Labels, a light grid and no frame above and on the right."""
    axes.set_xlabel(x_label, fontsize=9, color=INK)
    axes.set_ylabel(y_label, fontsize=9, color=INK)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.tick_params(labelsize=8, colors=INK, length=3)
    axes.grid(True, color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#999999")


def draw_curve(axes: Axes, x, samples, color: str, label: str = "", *, band: bool = True, **line) -> bool:
    """Draws the mean over the sample axis of `[K, S]` with its bootstrap band; False when no point is finite."""
    x, samples = bin_curve(np.asarray(x), np.asarray(samples), _MAX_POINTS)
    mean = mean_without_nan(samples, -1) if len(x) else np.zeros(0)
    known = np.isfinite(mean)
    if not known.any():
        return False
    x, mean, samples = x[known], mean[known], samples[known]
    # A lone point would leave a line invisible.
    label_there = plain(label) or None
    axes.plot(x, mean, color=color, label=label_there, marker="o" if len(x) == 1 else None, markersize=4, **line)
    if band and samples.shape[-1] > 1:
        low, high = bootstrap_interval(samples)
        axes.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
    axes.set_xlim(left=0)
    return True


def draw_legend(axes: Axes, **options) -> None:
    """A legend without a frame."""
    axes.legend(fontsize=8, frameon=False, labelcolor=INK, **options)


def _run_title(metrics: RunMetrics) -> str:
    """A short name of a run: environment, layout where it has one, algorithm, number of seeds."""
    config = metrics.config
    parts = [str(config["env"])] if config.get("env") else []
    settings = config.get("env_args")
    if isinstance(settings, dict) and settings.get("layout"):
        # A layout may be a whole map: only names are short enough.
        parts.append(str(settings["layout"]).splitlines()[0][:24])
    if config.get("algorithm"):
        parts.append(str(config["algorithm"]).upper())
    parts.append(plural(metrics.num_seeds, "seed"))
    return " · ".join(parts)


def _steps_label(metrics: RunMetrics) -> str:
    return "environment steps per seed" if metrics.num_seeds > 1 else "environment steps"


def _learning_curve(metrics: RunMetrics) -> Figure | None:
    figure = new_figure(6.4, 4.0, _run_title(metrics))
    axes = figure.subplots()
    style_axes(axes, _steps_label(metrics), "team return per episode")
    seeds = metrics.num_seeds
    over = "95 % band over seeds" if seeds > 1 else "95 % band over episodes"

    steps, train = metrics.series("train", "episode_return")
    drawn = draw_curve(axes, steps, train, COLORS[1], "training, sampled actions", linewidth=1.1, alpha=0.9)
    steps, evaluation = metrics.series("evaluation", "return")
    if evaluation.ndim == 3:
        evaluation = mean_without_nan(evaluation, -1) if seeds > 1 else evaluation[:, 0, :]
    samples = evaluation.shape[-1]
    label = f"evaluation, {over} (n = {samples})" if samples > 1 else "evaluation"
    drawn |= draw_curve(axes, steps, evaluation, COLORS[0], label, linewidth=2.0)
    if not drawn:
        return None
    axes.margins(y=0.08)
    draw_legend(axes, loc="best")
    return figure


def _agent_returns(metrics: RunMetrics) -> Figure | None:
    kind = "evaluation" if len(metrics.series("evaluation", "agent_return")[0]) > 1 else "train"
    panels = []
    for series_kind, name, label in (
        (kind, "agent_return", "return per episode" + (", evaluation" if kind == "evaluation" else ", training")),
        ("train", "agent_shaped_reward", "shaped reward per step, training"),
    ):
        steps, values = metrics.series(series_kind, name)
        # A panel that is zero throughout says nothing.
        if values.ndim == 3 and np.isfinite(values).any() and (name == "agent_return" or np.nan_to_num(values).any()):
            panels.append((label, steps, values))
    if not panels:
        return None
    figure = new_figure(4.7 * len(panels) + 0.9, 3.9, _run_title(metrics))
    num_agents = max(values.shape[-1] for _, _, values in panels)
    for axes, (label, steps, values) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        style_axes(axes, _steps_label(metrics), label)
        per_agent = np.moveaxis(values, -1, 0)  # [N, K, S]
        shared = len(per_agent) > 1 and np.allclose(per_agent, per_agent[:1], equal_nan=True)
        for agent, curve in enumerate(per_agent):
            draw_curve(
                axes,
                steps,
                curve,
                COLORS[agent % len(COLORS)],
                linestyle=_agent_dash(agent) if not shared else (4 * agent, (4, 4 * (len(per_agent) - 1))),
                linewidth=1.6,
                band=not shared or agent == 0,
            )
        if shared:
            axes.set_title("all agents get the same reward: curves coincide", fontsize=8, color="#777777")
    if num_agents > 1:
        figure.legend(
            handles=[_agent_line(agent) for agent in range(num_agents)],
            loc="outside right upper",
            fontsize=8,
            frameon=False,
            labelcolor=INK,
            ncols=1 + (num_agents - 1) // 16,
        )
    return figure


def _agent_dash(agent: int) -> Any:
    return _DASHES[agent // len(COLORS) % len(_DASHES)]


def _agent_line(agent: int) -> Line2D:
    color = COLORS[agent % len(COLORS)]
    return Line2D([], [], color=color, linestyle=_agent_dash(agent), linewidth=1.6, label=f"agent {agent}")


def _losses(metrics: RunMetrics) -> Figure | None:
    names = _VALUE_LOSSES if len(metrics.series("train", "td_error")[0]) else _LOSSES
    panels = [(name, label, *metrics.series("train", name)) for name, label in names]
    panels = [panel for panel in panels if np.isfinite(panel[3]).any()]
    if not panels:
        return None
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    title = _run_title(metrics) + (" (mean, 95 % band over seeds)" if metrics.num_seeds > 1 else "")
    figure = new_figure(3.4 * columns, 2.3 * rows + 0.4, title)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True).reshape(-1)
    for index, axes in enumerate(grid):
        if index >= len(panels):
            axes.set_visible(False)
            continue
        name, label, steps, values = panels[index]
        last_in_column = index + columns >= len(panels)
        style_axes(axes, _steps_label(metrics) if last_in_column else "", "")
        axes.tick_params(labelbottom=last_in_column)
        axes.set_title(label, loc="left", fontsize=9, color=INK)
        draw_curve(axes, steps, values, COLORS[0], linewidth=1.3)
        if name == "explained_variance":
            # One bad early update would flatten the part that matters.
            axes.set_ylim(max(-1.05, axes.get_ylim()[0]), 1.05)
            axes.axhline(0, color="#999999", linewidth=0.8)
        if name == "epsilon":
            axes.set_ylim(-0.05, 1.05)
    return figure
