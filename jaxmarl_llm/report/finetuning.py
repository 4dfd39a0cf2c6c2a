"""Pictures of a fine-tuning run: accuracy, divergence against the radius, gradient shares of the roles."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.report.plots import COLORS, draw_curve, draw_legend, new_figure, plain, save_plots, style_axes
from jaxmarl_llm.training.metrics import RunMetrics
from jaxmarl_llm.workflows import make_workflow
from jaxmarl_llm.workflows.policies import policy_names, sharing


def write_finetune_plots(run_folder: str | Path) -> list[Path]:
    """Draws `plots/accuracy.png`, `plots/divergence.png` and `plots/gradient_shares.png` of a run.

    Args:
      run_folder: what `finetune` wrote.

    Returns:
      The pictures that were written; one without a single value is left out.

    Raises:
      UserError: there is no such folder.
    """
    drawings = {"accuracy": _accuracy, "divergence": divergence_figure, "gradient_shares": gradient_shares_figure}
    return save_plots(run_folder, drawings)


def _title(metrics: RunMetrics) -> str:
    config = metrics.config
    sharing = config.get("sharing", "")
    names = [config.get("workflow", ""), config.get("task", ""), sharing if isinstance(sharing, str) else "grouped"]
    return " · ".join(map(str, [*names, config.get("trust_region", ""), Path(str(config.get("model", ""))).name]))


def _by_name(metrics: RunMetrics, prefix: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The curves of all roles or policies."""
    names = dict.fromkeys(
        name for line in metrics.lines.get("train", ()) for name in line if name.startswith(f"{prefix}/")
    )
    return {name.partition("/")[2]: metrics.series("train", name, "update") for name in names}


def _panel(metrics: RunMetrics, y_label: str) -> tuple[Figure, Axes]:
    figure = new_figure(6.4, 4.0, _title(metrics))
    axes = figure.subplots()
    style_axes(axes, "iteration", y_label)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return figure, axes


def _accuracy(metrics: RunMetrics) -> Figure | None:
    figure, axes = _panel(metrics, "accuracy")
    iterations, played = metrics.series("train", "accuracy", "update")
    drawn = draw_curve(axes, iterations, played, COLORS[1], "training, sampled", linewidth=1.1, alpha=0.8)
    iterations, accuracy = metrics.series("evaluation", "accuracy", "update")
    if draw_curve(axes, iterations, accuracy, COLORS[0], "held out, greedy, 95 % interval", linewidth=2.0):
        _, interval = metrics.series("evaluation", "interval", "update")
        low, high = np.reshape(interval, (len(interval), 2)).T
        axes.fill_between(iterations, low, high, color=COLORS[0], alpha=0.18, linewidth=0)
        # Earlier versions did not play the base before a warm start.
        is_base = not metrics.config.get("warm_start") or np.sum(iterations == 0) > 1
        label = "base" if is_base else "after the warm start"
        axes.axhline(float(accuracy[0, 0]), color="#999999", linewidth=0.9, linestyle=":", label=label)
        drawn = True
    if not drawn:
        return None
    axes.set_ylim(0, 1.02)
    draw_legend(axes, loc="best")
    return figure


def divergence_figure(metrics: RunMetrics) -> Figure | None:
    """How far each policy's updates went, and the radius that TeamTR keeps them in; None where nothing is known."""
    curves = _by_name(metrics, "policy_divergence")
    for name, (iterations, positive) in _by_name(metrics, "policy_divergence_k3").items():
        # Of the two estimates the gate goes by the larger one.
        curves[name] = iterations, np.maximum(curves[name][1], positive)
    names = _policy_names(metrics)
    if not curves:
        curves, names = _by_name(metrics, "message_kl"), {}
    if not curves:
        return None
    figure, axes = _panel(metrics, "divergence of an update (nats a message)")
    for place, (name, (iterations, values)) in enumerate(curves.items()):
        # That of the role in the other picture, where each has its own policy.
        color = COLORS[(int(name) if name in names else place) % len(COLORS)]
        draw_curve(axes, iterations, values, color, names.get(name, name), linewidth=1.5)
    axes.set_ylim(bottom=0)
    if metrics.config.get("trust_region") == "teamtr":
        radius = float(metrics.config["radius"])
        axes.axhline(radius, color="#999999", linewidth=1.2, linestyle="--", label="radius")
        axes.set_ylim(top=1.15 * radius)
    draw_legend(axes, loc="best")
    return figure


def _policy_names(metrics: RunMetrics) -> dict[str, str]:
    """Number to name of the policies, that of their adapter's folder; none where the workflow is not known here."""
    config = metrics.config
    try:
        workflow = make_workflow(config["workflow"], **(config.get("workflow_args") or {}))
        names = policy_names(workflow.roles, sharing(workflow, config["sharing"]))
    except (UserError, KeyError, TypeError):
        return {}
    return {str(number): name for number, name in enumerate(names)}


def gradient_shares_figure(metrics: RunMetrics) -> Figure | None:
    """The roles' shares of the gradient norms, with a gap where no role has a gradient; None where none ever has."""
    names = list(_by_name(metrics, "gradient_norm"))
    lines = [line for line in metrics.lines.get("train", ()) if any(f"gradient_norm/{name}" in line for name in names)]
    norms = np.asarray([[(line.get(f"gradient_norm/{name}") or [None])[0] for line in lines] for name in names], float)
    norms = np.nan_to_num(norms)
    known = norms.sum(0) > 0 if len(names) > 1 else np.zeros(0, bool)
    if not known.any():
        return None
    iterations = np.asarray([line["update"] for line in lines], float)
    shares = np.where(known, norms, np.nan) / np.where(known, norms.sum(0), 1.0)
    # An iteration is as wide as the time that it took: an area of one point would be invisible.
    edges = np.stack([iterations - 1, iterations], axis=1).ravel()
    figure, axes = _panel(metrics, "share of the roles' gradient norms")
    areas = np.repeat(shares, 2, axis=1)
    axes.stackplot(
        edges, areas, labels=[plain(name, 30) for name in names], colors=_colors(len(names)), alpha=0.85, linewidth=0
    )
    # With the gaps at the ends.
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, 1)
    draw_legend(axes, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _colors(count: int) -> list[str]:
    return [COLORS[index % len(COLORS)] for index in range(count)]
