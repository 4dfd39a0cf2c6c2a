#!/usr/bin/env python
"""Runs the ablations of docs/findings.md, prints its tables, draws its pictures, writes bench/results/findings.json.

usage: python bench/findings.py [--runs DIR]

A run that lies in DIR already, in a folder of its name, is read and not trained again.
Axes: S seeds, K evaluations, I updates, R roles.
"""

import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.stats import t as student

from jaxmarl_llm.report.ablation_findings import SHARING_NAMES
from jaxmarl_llm.report.ablation_plots import accuracy_figure
from jaxmarl_llm.report.phase_plots import phase_figure
from jaxmarl_llm.workflows.ablation.matrix import Cell
from jaxmarl_llm.workflows.ablation.results import CellResult, load_cell
from jaxmarl_llm.workflows.collapse import find_cliffs

ROOT = Path(__file__).parents[1]
VOTING = "quick --workflows voting --num-seeds 5 --num-problems 16"
RUNS = {
    "quick": "quick --num-seeds 5",
    "n1": f"{VOTING} --copies 1",
    "n3_one": f"{VOTING} --copies 3",
    "n3_each": f"{VOTING} --copies 3 --learner-args normalize_by_copies=false",
    "n6_one": f"{VOTING} --copies 6",
    "n6_each": f"{VOTING} --copies 6 --learner-args normalize_by_copies=false",
    "equal_mass": (
        "quick --sharing shared --workflows voting eval_opt orch_workers --num-seeds 5 "
        "--learner-args role_weighting=equal_mass"
    ),
    "phase": "phase",
}
WAYS = ("shared", "isolated")
TEAMS = ("voting", "eval_opt", "orch_workers")
WINDOW = 5


def interval(values) -> dict[str, float]:
    """Mean of `[S]` and half the width of its 95 % Student interval."""
    values = np.asarray(values, float)
    half = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return {"mean": round(float(values.mean()), 4), "half": round(float(half), 4)}


def cell(runs: Path, name: str, workflow: str, sharing: str) -> CellResult:
    """One cell of a run."""
    found = load_cell(runs / name, Cell(workflow, sharing, "arithmetic", "tiny"))
    assert found is not None, f"run {name} has no cell {workflow} {sharing}"
    return found


def ends(result: CellResult) -> dict[str, np.ndarray]:
    """`[S]` of base, peak, final, gain and drop; see `find_cliffs`."""
    report, base = find_cliffs(result.accuracy, window=WINDOW), result.accuracy[0]
    return {name: getattr(report, name) for name in ("peak", "final", "drop")} | {
        "base": base,
        "gain": report.final - base,
    }


def role_mean(result: CellResult, name: str, role: str, points=slice(None)) -> np.ndarray:
    """`[S]`, the mean over updates of a diagnostic of one role."""
    return result.diagnostics[f"role_{name}"][points, :, result.roles.index(role)].mean(0)


def compare_sharing(runs: Path):
    """Accuracy of all cells of `quick`; IP less SP and team less single agent, paired by seed."""
    cells = {(name, way): ends(cell(runs, "quick", name, way)) for name in TEAMS for way in WAYS}
    single = ends(cell(runs, "quick", "single", "shared"))
    summary = json.loads((runs / "quick" / "results.json").read_text())
    cliffs = {(one["workflow"], one["sharing"]): one["cliffs"] for one in summary["cells"]}
    cells["single", "shared"] = single
    for (name, way), values in cells.items():
        row: dict = {"workflow": name, "sharing": SHARING_NAMES[way]}
        row |= {measure: interval(values[measure]) for measure in ("base", "peak", "final", "drop")}
        if name in TEAMS:
            row |= {f"{measure} - single": interval(values[measure] - single[measure]) for measure in ("final", "gain")}
        yield row | {"cliffs": cliffs[name, way]}


def sharing_differences(runs: Path):
    """IP less SP, paired by seed, of `quick` and of voting at half its batch."""
    for run, name in [*itertools.product(["quick"], TEAMS), ("n3_one", "voting"), ("n3_each", "voting")]:
        shared, isolated = (ends(cell(runs, run, name, way)) for way in WAYS)
        differences = {measure: isolated[measure] - shared[measure] for measure in ("peak", "final", "drop")}
        yield {"run": run, "workflow": name} | {key: interval(value) for key, value in differences.items()}


def amplification(runs: Path):
    """Voting by number of generators, a step for each or one for all: divergence of an update, mass, gain."""
    for run, way in itertools.product(("n1", "n3_one", "n6_one", "n3_each", "n6_each"), WAYS):
        result = cell(runs, run, "voting", way)
        yield {
            "run": run,
            "sharing": SHARING_NAMES[way],
            "steps": float(role_mean(result, "updates", "generator").mean()),
            "update_kl x 1000": interval(1000 * role_mean(result, "update_kl", "generator")),
            "base_kl, end": interval(role_mean(result, "base_kl", "generator", slice(-WINDOW, None))),
            "mass": interval(role_mean(result, "gradient_share", "generator")),
            "slot cosine": interval(role_mean(result, "slot_cosine", "generator")),
            "gain": interval(ends(result)["gain"]),
        }


def capture(runs: Path):
    """Each role under SP: mass, share of tokens, cosine with the first role; own score and format, SP less IP."""
    end = slice(-WINDOW, None)
    for name in TEAMS:
        shared, isolated = (cell(runs, "quick", name, way) for way in WAYS)
        equal = cell(runs, "equal_mass", name, "shared")
        cosine = shared.diagnostics["role_gradient_cosine"].mean(0)
        for index, role in enumerate(shared.roles):
            row: dict = {"workflow": name, "role": role}
            row["mass"] = interval(role_mean(shared, "gradient_share", role))
            row["mass, equal_mass"] = interval(role_mean(equal, "gradient_share", role))
            row["tokens"] = interval(role_mean(shared, "token_share", role))
            row["cosine with first"] = interval(cosine[:, 0, index])
            for measure in ("own_score", "format_ok"):
                row[f"{measure}, begin"] = interval(role_mean(shared, measure, role, slice(0, 1)))
                row[f"{measure}, end"] = interval(role_mean(shared, measure, role, end))
                row[f"{measure}, SP - IP"] = interval(
                    role_mean(shared, measure, role, end) - role_mean(isolated, measure, role, end)
                )
            yield row


def equal_mass(runs: Path):
    """Shared policies with roles of equal mass less those with the mean over completions, paired by seed."""
    for name in TEAMS:
        equal, usual = (ends(cell(runs, run, name, "shared")) for run in ("equal_mass", "quick"))
        yield {"workflow": name} | {key: interval(equal[key] - usual[key]) for key in ("peak", "final")}


def failures(runs: Path):
    """How episodes end; `selects` is the share of right answers where some solution was right."""
    for name, way in itertools.product(TEAMS, WAYS):
        result = cell(runs, "quick", name, way)
        row: dict = {"workflow": name, "sharing": SHARING_NAMES[way]}
        for when, points in (("base", slice(0, 1)), ("end", slice(-WINDOW, None))):
            right, selection, generation = (
                result.evaluations[key][points].astype(float).mean(0)
                for key in ("accuracy", "selection_failure", "generation_failure")
            )
            row[f"selection, {when}"] = interval(selection)
            row[f"generation, {when}"] = interval(generation)
            row[f"selects, {when}"] = interval(right / (right + selection))
        yield row


def remedies(runs: Path):
    """Each remedy in the phase diagram: how many runs rise, stay and fall; final accuracy less that without it."""
    summary = json.loads((runs / "phase" / "results.json").read_text())
    gains = {
        (one["remedy"], one["sharing"], one["learning_rate"], one["copies"]): np.asarray(one["gain_by_seed"])
        for one in summary["points"]
    }
    config = summary["config"]
    for remedy, way, rate in itertools.product(config["remedies"], config["sharing"], config["learning_rates"]):
        own = [one for one in summary["points"] if (one["remedy"], one["sharing"]) == (remedy, way)]
        own = [one for one in own if one["learning_rate"] == rate]
        row: dict = {"remedy": remedy, "sharing": SHARING_NAMES[way], "learning rate": rate}
        row |= {outcome: sum(one[outcome] for one in own) for outcome in ("rises", "stays", "falls")}
        pairs = [(gains[remedy, way, rate, n], gains["none", way, rate, n]) for n in config["copies"]]
        row["gain"] = interval(np.concatenate([own for own, _ in pairs]))
        yield row | {"less none": interval(np.concatenate([own - without for own, without in pairs]))}


TABLES = (compare_sharing, sharing_differences, amplification, capture, equal_mass, failures, remedies)


def shown(value) -> str:
    """A cell of a table."""
    if not isinstance(value, dict):
        return f"{value:g}" if isinstance(value, float) else str(value)
    digits = 3 if abs(value["mean"]) < 10 else 1
    return f"{value['mean']:.{digits}f} ± {value['half']:.{digits}f}"


def draw_sharing(runs: Path):
    """Held-out accuracy of `quick`, SP and IP."""
    results = [cell(runs, "quick", name, way) for name in TEAMS for way in WAYS]
    results.append(cell(runs, "quick", "single", "shared"))
    return accuracy_figure(results, "held-out accuracy: mean of five seeds, 95 % bootstrap band, and each seed")


def save(figure, name: str):
    """Writes a picture of 256 colours, which is half the size."""
    path = ROOT / "docs" / "images" / f"{name}.png"
    figure.savefig(path, dpi=110)
    Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)


def main():
    """Runs what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/findings"))
    runs = parser.parse_args().runs
    for name, options in RUNS.items():
        command = [sys.executable, "-m", "jaxmarl_llm.cli", "ablate", *options.split(), "--out", str(runs / name)]
        # What is there already is kept, if it is of the same settings.
        subprocess.run([*command, *(["--resume"] if (runs / name).exists() else [])], check=True)
    tables = {table.__name__: list(table(runs)) for table in TABLES}
    for table in TABLES:
        rows = tables[table.__name__]
        print(f"\n{table.__doc__}\n\n| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}")
        for row in rows:
            print(f"| {' | '.join(shown(row.get(name, '')) for name in rows[0])} |")
    commands = {name: f"jaxmarl-llm ablate {options}" for name, options in RUNS.items()}
    stored = {"commands": commands, "tables": tables}
    (ROOT / "bench" / "results" / "findings.json").write_text(json.dumps(stored, indent=1) + "\n")
    save(draw_sharing(runs), "findings_sharing")
    save(phase_figure(json.loads((runs / "phase" / "results.json").read_text())), "findings_phase")


if __name__ == "__main__":
    main()
