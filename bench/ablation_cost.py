#!/usr/bin/env python
"""What cells of `jaxmarl-llm ablate full` cost: a few updates and evaluations of one seed, and the time of all of them.

usage: python bench/ablation_cost.py arithmetic-tiny-voting stack_code-base-eval_opt ...

Parameters are random, so no base policy is made. `cell_min` is the projection for a cell: all seeds, updates and
evaluations; compilation comes on top, once for all ways of sharing.
"""

import argparse
import dataclasses
import time

from pairs import compact, console, write

from jaxmarl_llm.benchmark.table import markdown_table
from jaxmarl_llm.training.devices import use_cpu_cores


def measure(name, repeats):
    """Cost of the cell of a name, without its way of sharing."""
    import jax
    import numpy as np

    from jaxmarl_llm.workflows.ablation.loop import ablation_cells
    from jaxmarl_llm.workflows.ablation.matrix import PRESETS
    from jaxmarl_llm.workflows.ablation.runner import CellRunner

    jax.config.update("jax_enable_compilation_cache", False)
    full = PRESETS["full"]
    cells = ablation_cells(dataclasses.replace(full, num_seeds=1))
    cell = next(cell for cell in cells if cell.name == f"{name}-shared")
    runner = CellRunner(dataclasses.replace(full, num_seeds=1), [cell])
    program, team = runner.compile(cell), runner.learner(cell).team
    params = jax.tree.map(lambda leaf: np.asarray(leaf[0]), jax.jit(team.init)(jax.random.key(0)))
    state = program.init(params)

    def timed(function, *arguments):
        start = time.perf_counter()
        found = jax.block_until_ready(function(*arguments))
        return found, time.perf_counter() - start

    updates, evaluations = [], []
    for number in range(repeats + 1):
        evaluations.append(timed(program.evaluate, state.params, number)[1])
        (state, _), seconds = timed(program.update, state, team.policy_of_role)
        updates.append(seconds)
    # The first of each is a warm-up.
    update, evaluation = np.median(updates[1:]), np.median(evaluations[1:])
    whole = full.num_seeds * (full.iterations * update + len(full.eval_iterations) * evaluation)
    return {
        "compile_s": program.compile_seconds,
        "update_s": float(update),
        "evaluation_s": float(evaluation),
        "cell_min": float(whole) / 60,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="+", help="TASK-SIZE-WORKFLOW")
    parser.add_argument("--repeats", type=int, default=3, help="updates, after an uncounted one")
    args = parser.parse_args()
    use_cpu_cores()
    results = []
    for name in args.cells:
        results.append({"cell": name, **measure(name, args.repeats)})
        console.print(f"  {name}: {results[-1]['update_s']:.2f} s an update, {results[-1]['cell_min']:.0f} min a cell")
        # A long measurement that is cut short keeps what it has.
        path = write("ablation_cost", results)
        path.with_suffix(".md").write_text(markdown_table(compact(results)) + "\n")


if __name__ == "__main__":
    main()
