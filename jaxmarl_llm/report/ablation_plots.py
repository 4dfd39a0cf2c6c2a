"""Pictures of an ablation, one row of panels for one task and size. Axes: K evaluations, I iterations, S seeds."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from jaxmarl_llm.report.ablation_findings import SHARING_NAMES
from jaxmarl_llm.report.ablation_summary import outcome_curves, role_curve
from jaxmarl_llm.report.plots import COLORS, INK, draw_curve, draw_legend, new_figure, plain, shortened, style_axes
from jaxmarl_llm.training.statistics import mean_without_nan
from jaxmarl_llm.workflows.ablation.results import CellResult

_SHARING_COLORS = {"shared": COLORS[0], "isolated": COLORS[1], "adapters": COLORS[2]}
_OUTCOMES = (
    ("success", "right", COLORS[2]),
    ("selection_failure", "a right solution was there, the answer is wrong", COLORS[4]),
    ("generation_failure", "no right solution", "#bbbbbb"),
)
_WIDTH = 11.0
# Characters of a role's name: two fit below a panel.
_ROLE = 24
# Shared and isolated policies of one workflow beside each other.
_COLUMNS = 2


def _panels(number: int, title: str, columns: int, height: float = 2.9) -> tuple[Figure, list[Axes]]:
    # A lone panel of full width would be as tall as the screen.
    columns = min(max(number, 2), columns)
    rows = -(-number // columns)
    figure = new_figure(_WIDTH * columns / max(columns, 3), height * rows, title)
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    for unused in axes[number:]:
        unused.set_visible(False)
    return figure, axes[:number]


def _style_updates(panel: Axes, y_label: str) -> None:
    """A panel over updates, which are whole."""
    style_axes(panel, "updates", y_label)
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _legend_below(figure: Figure, handles: list) -> None:
    figure.legend(
        handles=handles, loc="outside lower left", ncols=len(handles), fontsize=8, frameon=False, labelcolor=INK
    )


def accuracy_figure(results: Sequence[CellResult], title: str) -> Figure:
    """Held-out accuracy over updates, one panel for each workflow, SP and IP in it.

    Args:
      results: of one task and size.
      title: of the picture.
    """
    workflows = list(dict.fromkeys(result.cell.workflow for result in results))
    figure, axes = _panels(len(workflows), title, max(len(workflows), 1))
    for workflow, panel in zip(workflows, axes, strict=True):
        _style_updates(panel, "held-out accuracy" if panel is axes[0] else "")
        panel.set_title(plain(workflow, 36), loc="left", fontsize=9, color=INK)
        for result in results:
            if result.cell.workflow != workflow:
                continue
            alone = len(result.roles) == 1
            color = "#777777" if alone else _SHARING_COLORS[result.cell.sharing]
            draw_curve(panel, result.eval_iterations, result.accuracy, color, linewidth=1.8)
            for seed in range(len(result.seeds) if len(result.seeds) > 1 else 0):
                panel.plot(result.eval_iterations, result.accuracy[:, seed], color=color, linewidth=0.6, alpha=0.5)
            base = float(np.mean(result.accuracy[0]))
            panel.axhline(base, color="#999999", linewidth=0.9, linestyle=":")
        panel.set_ylim(0, 1.02)
    shown = {result.cell.sharing for result in results if len(result.roles) > 1}
    handles = [
        Line2D([], [], color=color, linewidth=1.8, label=SHARING_NAMES[sharing])
        for sharing, color in _SHARING_COLORS.items()
        if sharing in shown
    ]
    handles.append(Line2D([], [], color="#999999", linewidth=0.9, linestyle=":", label="base"))
    # Curves may lie anywhere in a panel.
    _legend_below(figure, handles)
    return figure


def outcome_figure(results: Sequence[CellResult], window: int, title: str) -> Figure:
    """How episodes end, of the base policy and after training, as stacked bars.

    Args:
      results: of one task and size.
      window: evaluations that are averaged for the end.
      title: of the picture.
    """
    figure = new_figure(8.4, 0.5 * len(results) + 1.3, title)
    axes = figure.subplots()
    style_axes(axes, "share of held-out episodes", "")
    axes.xaxis.set_major_formatter("{x:.1f}")
    ticks, labels = [], []
    for index, result in enumerate(results):
        sharing = SHARING_NAMES[result.cell.sharing] if len(result.roles) > 1 else ""
        name = f"{plain(result.cell.workflow, 30)} {sharing}".strip()
        for offset, points, when in ((-0.2, slice(0, 1), "base"), (0.2, slice(-window, None), "end")):
            left, curves = 0.0, outcome_curves(result)
            for source, _, color in _OUTCOMES:
                width = float(mean_without_nan(curves[source][points].astype(float).ravel(), 0))
                axes.barh(index + offset, width, 0.34, left=left, color=color, edgecolor="white", linewidth=0.5)
                left += width
            ticks.append(index + offset)
            labels.append(f"{name} {when}" if when == "base" else when)
    axes.set_yticks(ticks, labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.grid(False, axis="y")
    handles = [Patch(color=color, label=text) for _, text, color in _OUTCOMES]
    _legend_below(figure, handles)
    return figure


def _by_cell(
    results: Sequence[CellResult],
    title: str,
    y_label: str,
    lines: Callable[[CellResult], list[tuple[str, np.ndarray, dict]]],
    limits: tuple[float, float],
) -> Figure | None:
    """One panel for each cell of several roles, with curves `[I, S]` of every update; None without any."""
    every = [(result, lines(result)) for result in results if len(result.roles) > 1]
    drawn = [(result, [line for line in curves if np.isfinite(line[1]).any()]) for result, curves in every]
    drawn = [(result, curves) for result, curves in drawn if curves]
    if not drawn:
        return None
    figure, axes = _panels(len(drawn), title, _COLUMNS, 2.6 + 0.2 * max(len(curves) for _, curves in drawn))
    figure.supylabel(y_label, fontsize=9, color=INK)
    for (result, curves), panel in zip(drawn, axes, strict=True):
        _style_updates(panel, "")
        panel.set_title(
            f"{plain(result.cell.workflow)} {SHARING_NAMES[result.cell.sharing]}", loc="left", fontsize=9, color=INK
        )
        for index, (text, curve, style) in enumerate(curves):
            draw_curve(
                panel, range(1, len(curve) + 1), curve, COLORS[index % len(COLORS)], text, linewidth=1.5, **style
            )
        panel.set_ylim(*limits)
        draw_legend(panel, loc="upper center", bbox_to_anchor=(0.5, -0.22))
    return figure


def _roles(result: CellResult) -> list[str]:
    return [shortened(role, _ROLE) for role in result.roles]


def mass_figure(results: Sequence[CellResult], title: str) -> Figure | None:
    """Each role's share of the gradient mass over updates, one panel for each cell."""

    def lines(result):
        curves = [role_curve(result, "gradient_share", index) for index in range(len(result.roles))]
        return [(role, curve, {}) for role, curve in zip(_roles(result), curves, strict=True) if curve is not None]

    return _by_cell(results, title, "share of gradient mass", lines, (0, 1.02))


def cosine_figure(results: Sequence[CellResult], title: str) -> Figure | None:
    """Cosines between the gradients of two roles, and between copies of one role, over updates."""

    def lines(result):
        roles, found, cosine = _roles(result), [], result.diagnostics.get("role_gradient_cosine")
        if cosine is not None:
            pairs = itertools.combinations(range(len(roles)), 2)
            found = [(f"{roles[i]}, {roles[j]}", cosine[:, :, i, j], {}) for i, j in pairs]
        for index, role in enumerate(roles):
            copies = role_curve(result, "slot_cosine", index)
            if copies is not None and np.any(copies):
                found.append((f"copies of {role}", copies, {"linestyle": "--"}))
        return found

    figure = _by_cell(results, title, "cosine of gradients", lines, (-1.05, 1.05))
    if figure is not None:
        for panel in figure.axes:
            panel.axhline(0, color="#999999", linewidth=0.8)
    return figure
