"""Two workers that take turns on the same work, and what their pairs of runs say."""

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from jaxmarl_llm.benchmark.machine import machine_report
from jaxmarl_llm.benchmark.serve import Worker

RESULTS = Path(__file__).parent / "results"
PEERS = Path(__file__).parent / "peers"
console = Console(stderr=True)


def start_ours() -> Worker:
    """Our worker, in this interpreter's version."""
    return start_worker([sys.executable, "-m", "jaxmarl_llm.benchmark.worker"], "ours")


def start_worker(command: list[str], name: str) -> Worker:
    """The worker that a command starts, with a log of that name."""
    return Worker(command, _log(name))


def start_peer(python: str, script: str, *arguments: str) -> Worker:
    """A peer's worker, in its own interpreter."""
    return start_worker([python, str(PEERS / script), *arguments], script)


def _log(name: str) -> str:
    return os.path.join(tempfile.mkdtemp(prefix="bench-"), f"{name}.log")


def alternate(
    ours: Worker, theirs: Worker | None, repeats: int, label: str, *, warm_up: bool = True
) -> tuple[list[dict], list[dict]]:
    """Runs A B A B …, each once uncounted before unless told otherwise; prints every pair's ratio of speeds.

    Returns:
      The runs of both sides, `repeats` each; those of `theirs` are empty without a peer.
    """
    ours_runs, theirs_runs = [], []
    for i in range(0 if warm_up else 1, repeats + 1):
        a = ours.ask(run=i)
        b = theirs.ask(run=i) if theirs else None
        if i == 0:
            continue
        ours_runs.append(a)
        line = f"  {label} run {i}: {a['seconds']:.3f} s"
        if b:
            theirs_runs.append(b)
            line += f", theirs {b['seconds']:.3f} s, {b['seconds'] / a['seconds']:.2f}x"
        console.print(line)
    return ours_runs, theirs_runs


def ratio_statistics(ours: list[dict], theirs: list[dict], ours_steps: int, theirs_steps: int) -> dict:
    """Ratio of speeds, pair by pair: median, least, greatest, all."""
    if not theirs:
        return {}
    ratios = [(ours_steps / a["seconds"]) / (theirs_steps / b["seconds"]) for a, b in zip(ours, theirs, strict=True)]
    return {"ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios), "pairs": ratios}


def compact(results: list[dict]) -> list[dict]:
    """Rows that fit a terminal: ours beside theirs in one cell, the ratio with its range; no checksums and curves."""
    rows = []
    for result in results:
        row = {}
        for name, value in result.items():
            if name.startswith(("theirs", "checksum", "ratio", "curve")) or name in ("min", "max"):
                continue
            theirs = result.get(f"theirs_{name}")
            row[name] = f"{_cell(value)} / {_cell(theirs)}" if f"theirs_{name}" in result else value
        if "ratio" in result:
            row["theirs"] = result["theirs"]
            row["ratio"] = f"{result['ratio']:.2f} ({result['ratio_min']:.2f} to {result['ratio_max']:.2f})"
        rows.append(row)
    return rows


def _cell(value) -> str:
    if value is None:
        return "never"
    return value if isinstance(value, str) else f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}"


def write(name: str, results: list[dict], **head) -> Path:
    """Writes `results/NAME.json`: what it ran on, then one result a line."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    lines = ",\n".join("  " + json.dumps(result) for result in results)
    head = json.dumps({"machine": machine_report(), **head}, indent=1)[:-2]
    path.write_text(f'{head},\n "results": [\n{lines}\n ]\n}}\n')
    return path
