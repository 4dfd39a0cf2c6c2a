#!/usr/bin/env python
"""Do signals of training rise before accuracy falls: precision and recall of `early_warning` over many short runs.

usage: python bench/early_warning.py [--num-seeds 6] [--iterations 40]

Voting teams with a step for each copy, shared and isolated, at learning rates of which some are too high; all runs are
one compiled program. A signal is compared with several times the level of a run's own first updates, and with a level
that is chosen on the first half of the seeds and judged on the others. Axes: W runs, I updates, K evaluations, R roles.
"""

import argparse
import dataclasses
import itertools

import numpy as np
from pairs import console, write

from jaxmarl_llm import workflows
from jaxmarl_llm.benchmark.table import markdown_table, print_table
from jaxmarl_llm.llm import Decoder
from jaxmarl_llm.training.compilation_cache import use_compilation_cache
from jaxmarl_llm.training.devices import use_cpu_cores
from jaxmarl_llm.workflows.ablation.lanes import run_lanes
from jaxmarl_llm.workflows.collapse import choose_level, early_warning, fall_index, find_cliffs, warning_quality

NUMBERS = (1, 2, 3, 6)
SIGNALS = ("update_kl", "base_kl", "gradient_norm", "clip_fraction", "prompt_shift")
FACTORS = (2.0, 3.0, 5.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-seeds", type=int, default=6)
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[5e-4, 1e-3, 1.5e-3, 2e-3, 3e-3])
    parser.add_argument("--copies", type=int, choices=NUMBERS, default=3)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--num-problems", type=int, default=8, help="problems of an update, eight episodes of each")
    parser.add_argument("--eval-problems", type=int, default=128)
    parser.add_argument("--reference", type=int, default=5, help="updates that give a signal's level")
    parser.add_argument("--name", default="early_warning", help="name of the result file")
    args = parser.parse_args()

    use_compilation_cache()
    use_cpu_cores()
    task = workflows.make_task("arithmetic", level=2)
    # A base policy that knows voting alone, of several sizes, and has accuracy to lose.
    teams = [workflows.make_workflow("voting", n=n) for n in NUMBERS]
    pretraining = workflows.make_pretraining(task, *teams, decoder="tiny")
    bound = pretraining.bounds[NUMBERS.index(args.copies)]
    learner = workflows.WorkflowLearner(
        bound=bound,
        team=workflows.make_team(bound.workflow, Decoder(pretraining.decoder), "isolated"),
        num_problems=args.num_problems,
        group_size=8,
        normalize_by_copies=False,
        diagnostic_episodes=8,
    )
    points = list(itertools.product(("shared", "isolated"), args.learning_rates))
    runs = [(sharing, rate, seed) for sharing, rate in points for seed in range(args.num_seeds)]
    curves = run_lanes(
        workflows.RollBack(learner=learner),
        workflows.base_policy(pretraining),
        [seed for _, _, seed in runs],
        {
            "learning_rate": np.asarray([rate for _, rate, _ in runs]),
            "tied": np.asarray([workflows.sharing(bound.workflow, sharing) for sharing, _, _ in runs]),
            "most": np.zeros(len(runs)),
        },
        task.held_out(args.eval_problems),
        num_evaluations=args.iterations // 2,
        eval_every=2,
        keep=[f"role_{signal}" for signal in SIGNALS],
        on_evaluation=lambda number, accuracy: console.print(f"evaluation {number}: {accuracy:.3f}", highlight=False),
    )
    cliffs = find_cliffs(curves.accuracy)
    fall = 2 * fall_index(curves.accuracy, cliffs)
    cliff = np.asarray(cliffs.cliff)
    seeds = np.asarray([seed for _, _, seed in runs])
    rows = []
    for signal in SIGNALS:
        values = curves.metrics[f"role_{signal}"].max(-1)
        chosen, others = seeds < args.num_seeds // 2, seeds >= args.num_seeds // 2
        for factor in FACTORS:
            warnings = early_warning(values, reference=args.reference, factor=factor)
            rows.append(
                {"signal": signal, "level": f"{factor:g} x its own"} | judge(warnings, cliff, fall, args.reference)
            )
        level = choose_level(values[:, chosen], cliff[chosen], fall[chosen])
        warnings = early_warning(values[:, others], factor=1.0, level=level)
        rows.append({"signal": signal, "level": f"{level:.3g}"} | judge(warnings, cliff[others], fall[others], 2))
    by_rate = [
        {
            "sharing": sharing,
            "learning rate": f"{rate:g}",
            "runs": args.num_seeds,
            "base": float(curves.accuracy[0, chosen].mean()),
            "peak": float(cliffs.peak[chosen].mean()),
            "final": float(cliffs.final[chosen].mean()),
            "cliffs": int(cliff[chosen].sum()),
            "fell half at (mean update)": float(fall[chosen & cliff].mean()) if cliff[chosen].any() else None,
        }
        for sharing, rate in points
        for chosen in [np.asarray([(one, at) == (sharing, rate) for one, at, _ in runs])]
    ]
    shown = [{name: _text(value) for name, value in row.items()} for row in rows]
    shown_rates = [{name: _text(value) for name, value in row.items()} for row in by_rate]
    print_table(shown_rates, title="Runs")
    print_table(shown, title="Early warnings")
    seconds = {"compile": round(curves.compile_seconds, 1), "train": round(curves.train_seconds, 1)}
    path = write(args.name, rows, settings=vars(args), seconds=seconds, by_rate=by_rate)
    path.with_suffix(".md").write_text(f"{markdown_table(shown_rates)}\n\n{markdown_table(shown)}\n")
    console.print(f"compiled in {seconds['compile']} s, trained in {seconds['train']} s; wrote {path}", highlight=False)


def judge(warnings, cliff: np.ndarray, fall: np.ndarray, silent: int) -> dict:
    """The quality of warnings, and the recall among cliffs after the updates that cannot raise one."""
    quality = warning_quality(warnings, cliff, fall)
    late = int((cliff & (fall > silent + 1)).sum())
    row = {"runs": len(cliff)} | dataclasses.asdict(quality)
    return row | {"late cliffs": late, "recall of late": quality.hits / late if late else None}


def _text(value) -> str:
    if value is None or value != value:
        return "-"
    if isinstance(value, str | int):
        return str(value)
    return f"{value:.2f}" if value >= 0.01 else f"{value:g}"


if __name__ == "__main__":
    main()
