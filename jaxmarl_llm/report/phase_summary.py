"""The numbers of a phase diagram: where training rises, stays or falls."""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxmarl_llm.workflows.ablation.phase import Phase
from jaxmarl_llm.workflows.collapse import find_cliffs

OUTCOMES = ("rises", "stays", "falls")


def summarize_phase(config: Phase, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The numbers of a phase diagram.

    A run falls where a cliff is found, or where its last window lies below the base accuracy by more than the margin;
    it rises where that lies above it by more; else it stays.

    Args:
      config: the diagram.
      parts: of `train_copies`, one for each number of copies.

    Returns:
      For JSON: `config`, `base` by number of copies, and `points`: each with its place in the diagram, `gain` (mean of
      the last window less base), and how many seeds rise, stay and fall.
    """
    points, bases = [], {}
    for part in parts:
        base = float(np.mean([lane["accuracy"][0] for lane in part["lanes"]]))
        bases[str(part["copies"])] = round(base, 4)
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
        "seconds": {str(part["copies"]): part["seconds"] for part in parts},
        "points": points,
    }
