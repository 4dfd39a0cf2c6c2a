"""The numbers of a phase diagram: where training rises, stays or falls."""

import csv
import dataclasses
import io
import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxmarl_llm.errors import plural
from jaxmarl_llm.workflows.ablation.phase import Phase
from jaxmarl_llm.workflows.collapse import find_cliffs

OUTCOMES = ("rises", "stays", "falls")
FEW_SEEDS = 3
"""Fewer seeds a point than this are said to be few."""


def summarize_phase(config: Phase, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The numbers of a phase diagram.

    A run falls where a cliff is found, or where its last window lies below the base accuracy by more than the margin;
    it rises where that lies above it by more; else it stays.

    Args:
      config: the diagram.
      parts: of `train_copies`, one for each number of copies.

    Returns:
      For JSON: `config`, `base` by number of copies, `difference_error` (the standard error of the difference of two
      accuracies near the base, by number of copies, taken as independent), `seconds`, and
      `points`: each with its place in the diagram, `gain` (mean of the last window less base), and how many seeds rise,
      stay and fall.
    """
    points, bases, errors = [], {}, {}
    for part in parts:
        base = float(np.mean([lane["accuracy"][0] for lane in part["lanes"]]))
        bases[str(part["copies"])] = round(base, 4)
        # Of problems drawn at random; all runs are judged on the same ones, which makes true differences more certain.
        errors[str(part["copies"])] = round(float(np.sqrt(2 * base * (1 - base) / config.eval_problems)), 4)
        for remedy, sharing, rate in itertools.product(config.remedies, config.sharing, config.learning_rates):
            runs = [
                lane
                for lane in part["lanes"]
                if (lane["remedy"], lane["sharing"], lane["learning_rate"]) == (remedy, sharing, rate)
            ]
            report = find_cliffs(
                np.asarray([run["accuracy"] for run in runs]).T, window=config.window, min_drop=config.margin
            )
            gain = report.final - base
            falls = report.cliff | (gain < -config.margin)
            rises = ~falls & (gain > config.margin)
            points.append(
                {"copies": part["copies"], "remedy": remedy, "sharing": sharing, "learning_rate": rate}
                | {"gain": round(float(gain.mean()), 4), "gain_by_seed": [round(float(one), 4) for one in gain]}
                | {"rises": int(rises.sum()), "stays": int((~falls & ~rises).sum()), "falls": int(falls.sum())}
                | {"returns": sum(run["returns"] for run in runs)}
            )
    return {
        "config": json.loads(json.dumps(dataclasses.asdict(config))),
        "base": bases,
        "difference_error": errors,
        "seconds": {str(part["copies"]): part["seconds"] for part in parts},
        "points": points,
    }


def cautions(summary: dict[str, Any]) -> list[str]:
    """What makes rises and falls uncertain, a sentence each.

    Args:
      summary: of `summarize_phase`.
    """
    config, found = summary["config"], []
    error = max(summary["difference_error"].values())
    if config["margin"] < 2 * error:
        found.append(
            f"--margin {config['margin']:g} is below two standard errors of a difference ({2 * error:.3f} with "
            f"{plural(config['eval_problems'], 'held-out problem')}), so a run may rise or fall by chance: "
            "raise --eval-problems or --margin."
        )
    if config["num_seeds"] < FEW_SEEDS:
        found.append(f"{plural(config['num_seeds'], 'seed')} a point are few: raise --num-seeds to tell chance apart.")
    return found


def phase_counts(summary: dict[str, Any]) -> list[tuple[str, int, int, int, int]]:
    """Remedy, number of copies, and how many of its runs rise, stay and fall."""
    rows = []
    for remedy, copies in itertools.product(summary["config"]["remedies"], summary["config"]["copies"]):
        own = [point for point in summary["points"] if (point["remedy"], point["copies"]) == (remedy, copies)]
        rises, stays, falls = (sum(point[outcome] for point in own) for outcome in OUTCOMES)
        rows.append((remedy, copies, rises, stays, falls))
    return rows


def phase_csv(summary: dict[str, Any]) -> str:
    """All points as CSV, a row each, without the gains of single seeds."""
    text = io.StringIO()
    names = [name for name in summary["points"][0] if name != "gain_by_seed"]
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(summary["points"])
    return text.getvalue()
