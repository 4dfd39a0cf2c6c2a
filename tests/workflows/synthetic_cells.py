"""Cells that nobody trained: curves of a known shape, with all axes of the learner's metrics."""

import dataclasses

import numpy as np

from jaxmarl_llm.workflows.ablation.loop import ablation_cells
from jaxmarl_llm.workflows.ablation.matrix import Ablation
from jaxmarl_llm.workflows.ablation.results import CellResult

ROLES = {
    "voting": ("generator", "aggregator"),
    "eval_opt": ("generator", "evaluator"),
    "orch_workers": ("orchestrator", "worker", "synthesizer"),
    "single": ("generator",),
}
SMALL = Ablation(num_seeds=2, iterations=29, eval_every=1, cliff_window=3)


def synthetic_cell(config, cell, *, fall=0.0, seed=0):
    """A cell whose accuracy rises from 0.3 by 0.3, and falls by `fall` over its last third."""
    rng = np.random.default_rng(seed)
    roles, num_seeds = ROLES.get(cell.workflow, ("writer", "closer")), config.num_seeds
    time = np.asarray(config.eval_iterations)[:, None] / config.iterations
    accuracy = 0.3 + 0.3 * np.minimum(2 * time, 1.0) - fall * np.clip(3 * time - 2, 0, 1)
    accuracy = accuracy + 0.01 * rng.normal(size=(len(time), num_seeds))
    selection = 0.25 * (1 - accuracy)
    shape = (config.iterations, num_seeds)
    share = np.linspace(1.0, 2.0, len(roles)) / np.linspace(1.0, 2.0, len(roles)).sum()
    noise = np.exp(0.1 * rng.normal(size=(*shape, len(roles))))
    # The signal of a cell that falls rises before it does.
    late = (np.arange(config.iterations) >= config.iterations // 2)[:, None, None]
    cosine = np.broadcast_to(np.where(np.eye(len(roles)), 1.0, -0.2), (*shape, len(roles), len(roles)))
    diagnostics = {
        "total_loss": rng.normal(size=shape),
        "role_gradient_norm": noise,
        "role_gradient_share": share * np.ones((*shape, 1)),
        "role_gradient_cosine": cosine,
        "role_slot_cosine": 0.4 * np.ones((*shape, len(roles))),
        "role_update_kl": 0.03 * noise * (1 + 9 * late * (fall > 0)),
        "role_clip_fraction": 0.1 * noise,
        "role_base_kl": 0.1 * noise,
        "slot_gradient_norm": np.ones((*shape, 4)),
    }
    evaluations = {
        "accuracy": accuracy,
        "selection_failure": selection,
        "generation_failure": 1 - accuracy - selection,
        "verdict_confusion": np.full((len(time), num_seeds, 2, 2), 0.25),
    }
    return CellResult(
        cell=cell,
        roles=roles,
        seeds=config.seeds,
        eval_iterations=config.eval_iterations,
        evaluations={name: np.asarray(value, np.float32) for name, value in evaluations.items()},
        diagnostics={name: np.asarray(value, np.float32) for name, value in diagnostics.items()},
        times={"compile": 1.5, "train": 2.25, "episodes": 512.0, "tokens": 4096.0},
    )


def synthetic_runner(trained, *, fail_at=None):
    """For `run_ablation`: notes what it trains, and may raise in place of one cell."""

    def make_runner(config, cells):
        def run_cell(cell, on_progress):
            if len(trained) == fail_at:
                raise KeyboardInterrupt
            for iteration in range(config.iterations + 1):
                on_progress("training", iteration / config.iterations, 0.5)
            trained.append(cell.name)
            return synthetic_cell(config, cell, seed=len(trained))

        return run_cell

    return make_runner


def synthetic_results(config=SMALL, fall=0.3):
    """All cells of an ablation; `voting` with isolated policies falls."""
    return [
        synthetic_cell(config, cell, seed=index, fall=fall * (cell.workflow == "voting" and cell.sharing == "isolated"))
        for index, cell in enumerate(ablation_cells(config))
    ]


def changed(config=SMALL, **changes):
    return dataclasses.replace(config, **changes)
