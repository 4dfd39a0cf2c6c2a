"""The numbers of an ablation: what `results.json` and `results.csv` hold.

Axes: K evaluations, I iterations, S seeds, R roles.
"""

import csv
import dataclasses
import io
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxmarl_llm.training.statistics import bootstrap_interval, mean_without_nan
from jaxmarl_llm.workflows.ablation.matrix import Matrix, to_json
from jaxmarl_llm.workflows.ablation.model_matrix import ModelAblation
from jaxmarl_llm.workflows.ablation.results import CellResult
from jaxmarl_llm.workflows.collapse import Warnings, early_warning, fall_index, find_cliffs, warning_quality

# Fewer seeds than this cannot tell a difference from chance: even if all agree in its sign, that happens by chance more
# often than in one case of ten.
MIN_SEEDS = 5
# Levels above which a role's signal is an early warning, chosen by bench/early_warning.py on small teams of voters.
# What a run began with is no measure: one that falls makes steps that are too large from the start.
WARNING_LEVELS = {"clip_fraction": 0.2, "update_kl": 0.15}
MEASURES = ("base", "peak", "final", "drop", "gain")
_DIGITS = 6


def rounded(value: Any) -> float | None:
    """A number for JSON, which knows no nan."""
    value = float(value)
    return round(value, _DIGITS) if math.isfinite(value) else None


def describe(values: np.ndarray) -> dict[str, Any]:
    """Mean, 95 % bootstrap interval over seeds, and values of each seed of `[S]`; null where nothing is finite.

    One finite value has no interval: null too.
    """
    values = np.asarray(values, float)
    low, high = bootstrap_interval(values[None]) if np.isfinite(values).sum() > 1 else ([math.nan], [math.nan])
    numbers = {"mean": mean_without_nan(values, -1), "low": low[0], "high": high[0]}
    return {name: rounded(number) for name, number in numbers.items()} | {"by_seed": [rounded(v) for v in values]}


def summarize(config: Matrix, results: Sequence[CellResult], versions: Sequence[dict[str, str]]) -> dict[str, Any]:
    """Everything that a report says, but for its sentences.

    Args:
      config: the ablation.
      results: its cells.
      versions: of the packages that it was begun with, and of others that it was resumed with.

    Returns:
      For JSON: `config`, `versions`, `later_versions` (of resumptions with others), `evaluation` (with
      `standard_error`, the most that the accuracy of one evaluation has from its finite number of problems), `cells`,
      `comparisons` (of ways of sharing, such as IP less SP, and of each cell with the single agent of its task and
      size, paired by seed) and `warnings`, how good early ones were (none for a language model).
    """
    cells = [summarize_cell(config, result) for result in results]
    return {
        "config": to_json(config),
        "versions": versions[0],
        "later_versions": list(versions[1:]),
        "evaluation": {
            "problems": config.eval_problems,
            "standard_error": rounded(0.5 / config.eval_problems**0.5),
            "window": config.cliff_window,
        },
        "cells": cells,
        "comparisons": [*_compare_sharing(cells), *_compare_with_single(cells)],
        # The levels are those of small decoders.
        "warnings": {}
        if isinstance(config, ModelAblation)
        else {name: _judge(config, results, name, level) for name, level in WARNING_LEVELS.items()},
    }


def summarize_cell(config: Matrix, result: CellResult) -> dict[str, Any]:
    """The numbers of one cell.

    Returns:
      For JSON. `base` is the first evaluation; `peak`, the best mean over a window of evaluations, the first among
      them, and `final`, that of the last window, to which the first never belongs; `drop` is peak less final, `gain`
      final less base. `peak_iteration` is by seed, the end of the best window.
    """
    report = find_cliffs(result.accuracy, window=config.cliff_window, min_drop=config.cliff_drop)
    base = result.accuracy[0]
    measured = {
        "base": base,
        "peak": report.peak,
        "final": report.final,
        "drop": report.drop,
        "gain": report.final - base,
        "drop_rate": report.drop_rate,
    }
    finite = np.isfinite(result.diagnostics.get("total_loss", np.zeros((1, len(result.seeds)))))
    return dataclasses.asdict(result.cell) | {
        "name": result.cell.name,
        "multi_agent": len(result.roles) > 1,
        "seeds": list(result.seeds),
        **{name: describe(values) for name, values in measured.items()},
        "peak_iteration": [int(result.eval_iterations[index]) for index in report.peak_step],
        "cliff": [bool(flag) for flag in report.cliff],
        "cliffs": int(report.cliff.sum()),
        "diverged": int((~finite.all(0)).sum()),
        "outcomes": {
            "base": _outcomes(result, slice(0, 1)),
            "final": _outcomes(result, slice(-config.cliff_window, None)),
        },
        "roles": {role: _describe_role(result, index) for index, role in enumerate(result.roles)},
        "role_cosine": _cosines(result),
        "cost": _cost(result),
    }


def _outcomes(result: CellResult, points: slice) -> dict[str, Any]:
    """Shares of episodes over some evaluations: right; wrong though some solution was right; none was right."""
    return {
        name: describe(mean_without_nan(curve[points].astype(float), 0))
        for name, curve in outcome_curves(result).items()
    }


def outcome_curves(result: CellResult) -> dict[str, np.ndarray]:
    """Shares of held-out episodes `[K, S]` that are right, wrong though some solution was right, and without any.

    Accuracy counts what is right in part; these do not.
    """
    selection, generation = (result.evaluations[name] for name in ("selection_failure", "generation_failure"))
    return {
        "success": 1.0 - selection - generation,
        "selection_failure": selection,
        "generation_failure": generation,
    }


def role_curve(result: CellResult, name: str, index: int) -> np.ndarray | None:
    """`[I, S]`, a diagnostic of one role; None where it was not measured."""
    values = result.diagnostics.get(f"role_{name}")
    return None if values is None else values[..., index]


def _describe_role(result: CellResult, index: int) -> dict[str, Any]:
    """Means over all updates; the divergence from the base policy is that of the last one."""
    found = {}
    for name in ("gradient_norm", "gradient_share", "token_share", "slot_cosine", "entropy", "format_ok", "updates"):
        curve = role_curve(result, name, index)
        if curve is not None:
            found[name] = describe(mean_without_nan(np.asarray(curve, float), 0))
    curve = role_curve(result, "base_kl", index)
    return found if curve is None else found | {"base_kl": describe(curve[-1])}


def _cosines(result: CellResult) -> dict[str, Any]:
    """Mean cosine of the gradients of each pair of roles, over all updates."""
    cosine = result.diagnostics.get("role_gradient_cosine")
    if cosine is None:
        return {}
    pairs = itertools.combinations(range(len(result.roles)), 2)
    mean = mean_without_nan(np.asarray(cosine, float), 0)
    return {f"{result.roles[i]}-{result.roles[j]}": describe(mean[:, i, j]) for i, j in pairs}


def _cost(result: CellResult) -> dict[str, float | None]:
    times = result.times
    found = {f"{name}_seconds": rounded(times.get(name, math.nan)) for name in ("compile", "train")}
    # Fine-tuning has no compilation of its own, so that its iterations are its updates.
    seconds = times.get("updates", times["train"])
    return found | {
        f"{name}_per_s": rounded(times[name] / seconds if seconds > 0 else math.nan) for name in ("episodes", "tokens")
    }


def _difference(first: dict[str, Any], second: dict[str, Any], kind: str) -> dict[str, Any]:
    """`first` less `second`, paired by seed."""

    def by_seed(cell, measure):
        return np.asarray([np.nan if value is None else value for value in cell[measure]["by_seed"]])

    found = {measure: describe(by_seed(first, measure) - by_seed(second, measure)) for measure in ("peak", "final")}
    names = {name: first[name] for name in ("workflow", "sharing", "task", "size")}
    return {"kind": kind, **names, "less": second["name"], **found, "verdict": _verdict(found["final"])}


def _verdict(difference: dict[str, Any]) -> str:
    """`higher` or `lower` where the interval leaves out 0, `open` where it does not, `too few seeds`."""
    if len(difference["by_seed"]) < MIN_SEEDS:
        return "too few seeds"
    if difference["low"] is None or difference["low"] <= 0 <= difference["high"]:
        return "open"
    return "higher" if difference["low"] > 0 else "lower"


def _compare_sharing(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = {(cell["workflow"], cell["task"], cell["size"], cell["sharing"]): cell for cell in cells}
    return [
        _difference(cell, found[*place, less], f"{way} - {less}")
        for way, less in (("isolated", "shared"), ("adapters", "shared"), ("adapters", "isolated"))
        for (*place, of), cell in found.items()
        if of == way and (*place, less) in found
    ]


def _compare_with_single(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    control = {(cell["task"], cell["size"]): cell for cell in cells if cell["workflow"] == "single"}
    return [
        _difference(cell, control[cell["task"], cell["size"]], "team - single")
        for cell in cells
        if cell["multi_agent"] and (cell["task"], cell["size"]) in control
    ]


def _judge(config: Matrix, results: Sequence[CellResult], signal: str, level: float) -> dict[str, Any] | None:
    """The quality of early warnings over all seeds of all cells; None where the signal was not measured."""
    alarm, at, cliff, fall = [], [], [], []
    for result in results:
        values = result.diagnostics.get(f"role_{signal}")
        if values is None:
            return None
        warnings = early_warning(np.asarray(values, float).max(-1), factor=1.0, level=level)
        report = find_cliffs(result.accuracy, window=config.cliff_window, min_drop=config.cliff_drop)
        index = np.minimum(fall_index(result.accuracy, report), len(result.accuracy) - 1)
        alarm.append(warnings.alarm)
        at.append(warnings.iteration)
        cliff.append(report.cliff)
        fall.append(np.asarray(result.eval_iterations)[index])
    if not alarm:
        return None
    every = Warnings(np.concatenate(alarm), np.concatenate(at))
    quality = warning_quality(every, np.concatenate(cliff), np.concatenate(fall))
    return {"level": level} | {
        name: value if isinstance(value, int) else rounded(value) for name, value in dataclasses.asdict(quality).items()
    }


def to_csv(summary: dict[str, Any]) -> str:
    """One line a cell: its names, mean and interval of each measure, cliffs, outcomes at the end, cost."""
    rows = []
    for cell in summary["cells"]:
        row = {name: cell[name] for name in ("task", "size", "workflow", "sharing")} | {"seeds": len(cell["seeds"])}
        for measure in MEASURES:
            row |= {measure: cell[measure]["mean"]}
            row |= {f"{measure}_{end}": cell[measure][end] for end in ("low", "high")}
        row |= {name: cell[name] for name in ("cliffs", "diverged")}
        row |= {f"final_{name}": outcome["mean"] for name, outcome in cell["outcomes"]["final"].items()}
        rows.append(row | cell["cost"])
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0] if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
