"""The result of a cell, from the fine-tuning runs of its seeds. Axes: K evaluations, I iterations, S seeds, R roles."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.training.metrics import RunMetrics, read_metrics
from jaxmarl_llm.workflows.ablation.matrix import Cell
from jaxmarl_llm.workflows.ablation.results import CellResult

# What the learner of small decoders calls the same thing.
_NAMES = {"format_rate": "format_ok"}
_EVALUATED = ("accuracy", "any_correct", "selection_failure", "generation_failure")
# Of a role, known without a gradient; all else is a mean over the messages that it learned from.
_OF_PLAY = ("format_rate", "own_score", "length", "reward", "gradient_norm", "learned_messages")


def cell_of_runs(
    cell: Cell, roles: Sequence[str], policies: Sequence[int], seeds: Sequence[int], folders: Sequence[Path]
) -> CellResult:
    """The result of a cell whose runs have ended.

    Args:
      cell: which.
      roles: R names.
      policies: R indices, the policy of each role.
      seeds: S numbers.
      folders: S runs.

    Raises:
      UserError: lines of a run's metrics are lost or damaged.
    """
    for folder in folders:
        _check_lines(folder)
    runs = [read_metrics(folder) for folder in folders]
    lines = [_of_each_update(run.lines["evaluation"]) for run in runs]
    train = [run.lines["train"] for run in runs]
    diagnostics = [_diagnostics(run, roles, policies) for run in runs]
    shapes = {name: curve.shape for of_run in diagnostics for name, curve in of_run.items()}
    return CellResult(
        cell=cell,
        roles=tuple(roles),
        seeds=tuple(seeds),
        eval_iterations=tuple(line["update"] for line in lines[0]),
        evaluations={name: _stack([[line[name][0] for line in of_run] for of_run in lines]) for name in _EVALUATED},
        diagnostics={
            name: _stack([of_run.get(name, np.full(shape, np.nan)) for of_run in diagnostics])
            for name, shape in shapes.items()
        },
        times={
            "train": sum(of_run[-1]["seconds"] for of_run in train),
            "episodes": float(sum(of_run[-1]["env_steps"] for of_run in train)),
            "tokens": float(sum(line["tokens"][0] for of_run in train for line in of_run)),
        },
    )


def _check_lines(folder: Path) -> None:
    run = read_metrics(folder)
    last, every = run.config.get("iterations", 0), run.config.get("evaluate_every", 1)
    needed = {
        "evaluation": ({*range(0, last, every), last}, _EVALUATED),
        "train": ({*range(1, last + 1)}, ("tokens",)),
    }
    for kind, (updates, names) in needed.items():
        lines = run.lines.get(kind, ())
        whole = all(isinstance(line.get(name), list) and len(line[name]) == 1 for line in lines for name in names)
        whole &= kind != "train" or all(isinstance(line.get("seconds"), int | float) for line in lines)
        if not whole or updates != {line["update"] for line in lines}:
            raise UserError(
                f"lines of {folder / 'metrics.jsonl'} are lost or damaged: restore it from a copy, or remove {folder} "
                "and resume the ablation, which then trains that run anew"
            )


def _of_each_update(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first evaluation of each update: that of the base, where a warm start has another one beside it."""
    return [line for number, line in enumerate(lines) if all(one["update"] != line["update"] for one in lines[:number])]


def _stack(by_seed: Sequence[Any]) -> np.ndarray:
    """`[K, S, ...]` of S times `[K, ...]`."""
    return np.stack([np.asarray(of_seed, np.float32) for of_seed in by_seed], axis=1)


def _diagnostics(run: RunMetrics, roles: Sequence[str], policies: Sequence[int]) -> dict[str, np.ndarray]:
    """`[I]` of scalars, `role_*` `[I, R]` and `[I, R, R]`, `policy_*` `[I, P]`; nan where an iteration has none."""
    lines = run.lines["train"]
    # Times are no lists.
    names = dict.fromkeys(name for line in lines for name, value in line.items() if isinstance(value, list))

    def curve(name: str) -> np.ndarray:
        values = [line.get(name, [None])[0] for line in lines]
        return np.asarray([np.nan if value is None else value for value in values], float)

    learned = np.stack([curve(f"learned_messages/{role}") for role in roles], axis=-1)
    found: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(name.partition("/")[0] for name in names):
        if name in names:
            found[name] = curve(name)
        elif name.startswith("policy_") and name != "policy_loss":
            found[name] = np.stack([curve(f"{name}/{policy}") for policy in range(max(policies) + 1)], axis=-1)
        elif not name.startswith("gradient_") or name == "gradient_norm":
            values = np.stack([curve(f"{name}/{role}") for role in roles], axis=-1)
            known = (learned > 0) | (name in _OF_PLAY or name.startswith("instruction_"))
            found[f"role_{_NAMES.get(name, name)}"] = np.where(known, values, np.nan)
    if not run.config.get("kl_coefficient") or run.config.get("trust_region") == "teamtr":
        # Without an anchor it is measured against the acting policy.
        found.pop("role_base_kl", None)
    cosines = {(i, j): curve(f"gradient_cosine/{roles[i]}/{roles[j]}") for j in range(len(roles)) for i in range(j)}
    sequential = run.config.get("trust_region") == "teamtr"
    return found | _gradients(found["role_gradient_norm"], cosines, policies, sequential=sequential)


def _gradients(
    norm: np.ndarray, cosines: Mapping[tuple[int, int], np.ndarray], policies: Sequence[int], *, sequential: bool
) -> dict[str, np.ndarray]:
    """Shares of the gradient mass `[I, R]` and cosines `[I, R, R]`; nan where there is none.

    Shares are those of the norms: an iteration that updates one policy after the other knows no other ones, and
    compares only roles of one policy.

    Args:
      norm: `[I, R]`.
      cosines: pairs of roles to `[I]`.
      policies: R indices, the policy of each role.
      sequential: policies are updated one after the other.
    """
    total, is_there = norm.sum(-1, keepdims=True), norm > 0
    share = np.where(total > 0, norm / np.where(total > 0, total, 1.0), np.nan)
    cosine = np.where(np.eye(norm.shape[1], dtype=bool) & is_there[:, None], 1.0, np.nan)
    for (i, j), curve in cosines.items():
        if policies[i] == policies[j] or not sequential:
            cosine[:, i, j] = cosine[:, j, i] = np.where(is_there[:, i] & is_there[:, j], curve, np.nan)
    return {"role_gradient_share": share, "role_gradient_cosine": cosine}
