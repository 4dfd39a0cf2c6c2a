"""A phase diagram of voting teams as a picture and as a page. Axes: N numbers of copies, L learning rates."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from jaxmarl_llm.errors import plural
from jaxmarl_llm.report.ablation_findings import SHARING_NAMES
from jaxmarl_llm.report.phase_summary import OUTCOMES, cautions, phase_csv, summarize_phase
from jaxmarl_llm.report.plots import INK, new_figure
from jaxmarl_llm.training.files import write_whole
from jaxmarl_llm.workflows.ablation.phase import Phase

_SIGNS = {"rises": "↑", "stays": "→", "falls": "↓"}
_LARGEST_GAIN = 0.5


def write_phase_report(folder: Path, config: Phase, parts: Sequence[dict[str, Any]]) -> list[Path]:
    """Writes `phase.png`, `report.md`, `phase.csv` and `results.json`.

    Args:
      folder: of the diagram.
      config: the diagram.
      parts: of `run_phase`.

    Returns:
      The files.
    """
    summary = summarize_phase(config, parts)
    names = ("phase.png", "report.md", "phase.csv", "results.json")
    picture, page, table, numbers = (folder / name for name in names)
    image = io.BytesIO()
    phase_figure(summary).savefig(image, format="png", dpi=144)
    write_whole(picture, image.getvalue())
    write_whole(page, phase_page(summary))
    write_whole(table, phase_csv(summary))
    write_whole(numbers, json.dumps(summary, indent=1) + "\n")
    return [picture, page, table, numbers]


def grid_of(summary: dict[str, Any], remedy: str, sharing: str, name: str) -> np.ndarray:
    """`[N, L]`, a number of every point of one remedy and way of sharing; nan where a point is missing."""
    config = summary["config"]
    grid = np.full((len(config["copies"]), len(config["learning_rates"])), np.nan)
    for point in summary["points"]:
        if (point["remedy"], point["sharing"]) == (remedy, sharing):
            row = config["copies"].index(point["copies"])
            grid[row, config["learning_rates"].index(point["learning_rate"])] = point[name]
    return grid


def phase_figure(summary: dict[str, Any]) -> Figure:
    """One panel for each remedy and way of sharing: colour is the gain, signs say what each seed did.

    Args:
      summary: of `summarize_phase`.
    """
    config = summary["config"]
    remedies, sharing = config["remedies"], config["sharing"]
    size = 1.0 + 0.32 * len(config["copies"])
    title = "voting: change of held-out accuracy; one arrow a seed (rises, stays, falls)"
    figure = new_figure(1.2 + (0.9 + 0.75 * len(config["learning_rates"])) * len(sharing), size * len(remedies), title)
    panels = figure.subplots(len(remedies), len(sharing), squeeze=False, sharex=True, sharey=True)
    image = None
    for remedy, row in zip(remedies, panels, strict=True):
        for way, axes in zip(sharing, row, strict=True):
            gain = grid_of(summary, remedy, way, "gain")
            image = axes.imshow(
                gain, cmap="RdBu", vmin=-_LARGEST_GAIN, vmax=_LARGEST_GAIN, origin="lower", aspect="auto"
            )
            counts = {outcome: grid_of(summary, remedy, way, outcome) for outcome in OUTCOMES}
            for i, j in np.argwhere(np.isfinite(gain)):
                text = "".join(_SIGNS[outcome] * int(counts[outcome][i, j]) for outcome in OUTCOMES)
                axes.text(j, i, text, ha="center", va="center", fontsize=8, color=INK)
            axes.set_title(f"{remedy}, {SHARING_NAMES[way]}", loc="left", fontsize=9, color=INK)
            axes.set_xticks(range(len(config["learning_rates"])), [f"{rate:g}" for rate in config["learning_rates"]])
            axes.set_yticks(range(len(config["copies"])), [str(copies) for copies in config["copies"]])
            axes.tick_params(labelsize=8, colors=INK, length=0)
    figure.supxlabel("learning rate", fontsize=9, color=INK)
    figure.supylabel("generators", fontsize=9, color=INK)
    if image is not None:
        figure.colorbar(image, ax=panels, shrink=0.6, label="gain")
    return figure


def phase_page(summary: dict[str, Any]) -> str:
    """A short page in Markdown: how many runs rise, stay and fall, and how each remedy compares with none.

    Args:
      summary: of `summarize_phase`.
    """
    config, points = summary["config"], summary["points"]
    base = ", ".join(
        f"{value:.3f} (N = {copies}; a difference from it has a standard error of up to about "
        f"{summary['difference_error'][copies]:.3f})"
        for copies, value in summary["base"].items()
    )
    runs = len(points) * config["num_seeds"]
    lines = [
        "# Phase diagram",
        "",
        f"`voting`, {config['task']} at level {config['level']}, size {config['size']}: {plural(runs, 'run')} of "
        f"{plural(config['iterations'], 'update')} of {config['num_problems'] * config['group_size']} episodes, "
        f"{plural(config['num_seeds'], 'seed')} a point. Base accuracy: {base}. "
        f"A run falls where its curve has a cliff, or ends more than {config['margin']:g} below the base; "
        "it rises where it ends more than that above it.",
        "",
        *(line for caution in cautions(summary) for line in (caution, "")),
        "![phase diagram](phase.png)",
        "",
        "| remedy | sharing | rise | stay | fall | mean gain | best gain of a point |",
        "|---|---|---|---|---|---|---|",
    ]
    for remedy in config["remedies"]:
        for way in config["sharing"]:
            own = [point for point in points if (point["remedy"], point["sharing"]) == (remedy, way)]
            counts = " | ".join(str(sum(point[outcome] for point in own)) for outcome in OUTCOMES)
            gains = [point["gain"] for point in own]
            row = f"{np.mean(gains):+.3f} | {max(gains):+.3f}"
            lines.append(f"| {remedy} | {SHARING_NAMES[way]} | {counts} | {row} |")
    return "\n".join([*lines, "", f"Largest learning rate at which no seed falls: {_edges(summary)}.", ""])


def _edges(summary: dict[str, Any]) -> str:
    """For the first remedy, by sharing and number of copies: counted from the smallest learning rate upwards."""
    config = summary["config"]
    remedy, rates = config["remedies"][0], config["learning_rates"]
    found = []
    for way in config["sharing"]:
        falls = grid_of(summary, remedy, way, "falls")[:, np.argsort(rates)]
        for copies, row in zip(config["copies"], falls, strict=True):
            safe = int(np.argmax(row > 0)) if (row > 0).any() else len(row)
            edge = f"{sorted(rates)[safe - 1]:g}" if safe else "none"
            found.append(f"{SHARING_NAMES[way]}, N = {copies}: {edge}")
    return f"({remedy}) " + "; ".join(found)
