"""What a phase diagram of voting is: where training rises, stays or falls. Imports no JAX, so that help is instant.

Axes: W lanes (a setting and a seed each), K evaluations.
"""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from typing import Any

from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.training.config import Settings
from jaxmarl_llm.workflows.ablation.matrix import SHARING

# What differs from training without a remedy: a step for each copy of a role, and nothing that holds it back. Float
# fields of the learner and `most` of `RollBack` differ within a program, the others make one of their own.
REMEDIES: dict[str, dict[str, Any]] = {
    "none": {},
    "one_step": {"normalize_by_copies": True},
    "equal_mass": {"role_weighting": "equal_mass"},
    "kl_anchor": {"kl_coefficient": 0.1},
    "coherence": {"coherence_strength": 0.5},
    "clip_roles": {"role_max_grad_norm": 0.1},
    "roll_back": {"most": 3},
}
WITHOUT = {"kl_coefficient": 0.0, "coherence_strength": 0.0, "role_max_grad_norm": float("inf"), "most": 0}
OUTCOMES = ("rises", "stays", "falls")


@dataclasses.dataclass(frozen=True)
class Phase:
    """Everything that decides a phase diagram."""

    # The grid.
    copies: tuple[int, ...] = (1, 2, 3, 6)
    """N: generators that answer in parallel. Each is one part of the diagram, which is saved when it is done."""
    learning_rates: tuple[float, ...] = (5e-4, 2e-3, 8e-3)
    """Step sizes of Adam."""
    sharing: tuple[str, ...] = SHARING
    """shared (SP, one policy for both roles), isolated (IP, one policy a role)."""
    remedies: tuple[str, ...] = tuple(REMEDIES)
    """none, one_step (for the mean of all copies), equal_mass, kl_anchor, coherence, clip_roles, roll_back."""
    num_seeds: int = 2
    """Seeds of each point."""
    seed: int = 0
    """The first seed."""

    # What is trained.
    task: str = "arithmetic"
    """arithmetic or stack_code."""
    level: int = 2
    """Difficulty of the task."""
    size: str = "tiny"
    """Size of the decoder: tiny, small, base, medium."""
    iterations: int = 24
    """Updates, a multiple of --eval-every."""
    num_problems: int = 8
    """Fresh problems of an update."""
    group_size: int = 8
    """Episodes of each problem."""
    pretraining_args: Settings = dataclasses.field(default_factory=dict)
    """Settings of the base policy's pretraining, such as skill=0.5."""

    # How it is judged.
    eval_every: int = 2
    """Updates between two evaluations, which are also those that roll_back goes by."""
    eval_problems: int = 128
    """Held-out problems of an evaluation."""
    window: int = 3
    """Evaluations that are averaged for the end."""
    margin: float = 0.05
    """The least change that counts as a rise or a fall."""


@dataclasses.dataclass(frozen=True)
class Lane:
    """One run of a phase diagram: names, the step size and the seed."""

    remedy: str
    sharing: str
    learning_rate: float
    seed: int


def check_phase(config: Phase) -> None:
    """Refuses what cannot be a phase diagram, before anything is built.

    Raises:
      UserError: an unknown name, an empty or repeated list, or a number out of range.
    """
    from jaxmarl_llm.llm.config import PRESETS as SIZES
    from jaxmarl_llm.workflows import task_names

    for option, names in {"sharing": SHARING, "remedies": REMEDIES}.items():
        for name in getattr(config, option):
            if name not in names:
                raise unknown_name(option.removesuffix("ies"), name, names)
    for option, name, names in (("task", config.task, task_names()), ("size", config.size, SIZES)):
        if name not in names:
            raise unknown_name(option, name, names)
    for option in ("copies", "learning_rates", "sharing", "remedies"):
        values = getattr(config, option)
        if not values or len(set(values)) != len(values):
            raise UserError(f"--{option.replace('_', '-')} needs at least one value, and none twice")
    for name in ("num_seeds", "level", "iterations", "num_problems", "eval_every", "eval_problems", "window"):
        if getattr(config, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(config, name)}")
    if min(config.copies) < 1 or min(config.learning_rates) <= 0:
        raise UserError("--copies must be at least 1, and --learning-rates above 0")
    if config.group_size < 2 or config.iterations % config.eval_every:
        raise UserError("--group-size must be at least 2, and --eval-every divide --iterations")
    if not 0 < config.margin < 1:
        raise UserError(f"--margin must lie between 0 and 1, got {config.margin}")


def lanes_of(config: Phase, remedies: Sequence[str]) -> list[Lane]:
    """The runs of one number of copies with some of the remedies."""
    seeds = range(config.seed, config.seed + config.num_seeds)
    return [Lane(*one) for one in itertools.product(remedies, config.sharing, config.learning_rates, seeds)]


def programs_of(config: Phase, copies: int) -> list[tuple[dict[str, Any], list[Lane]]]:
    """What shapes each program of a number of copies, and the lanes that it trains."""
    found: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for remedy in config.remedies:
        shape = {name: value for name, value in REMEDIES[remedy].items() if name not in WITHOUT}
        if copies == 1:
            # One copy takes one step in any case.
            shape.pop("normalize_by_copies", None)
        found.setdefault(json.dumps(shape, sort_keys=True), (shape, []))[1].append(remedy)
    return [(shape, lanes_of(config, remedies)) for shape, remedies in found.values()]


def train_copies(config: Phase, copies: int, on_evaluation) -> dict[str, Any]:
    """Trains all lanes of one number of copies.

    Args:
      config: the diagram.
      copies: N, one of its.
      on_evaluation: called with the share of the work that is done, and the mean accuracy.

    Returns:
      For JSON: `copies`, `seconds` by what they were spent on, and `lanes`: each with its names, its `accuracy` [K] and
      how often it `returns` to its best parameters.

    Raises:
      UserError: a task, a size and a number of copies that do not go together.
    """
    import numpy as np

    from jaxmarl_llm import workflows
    from jaxmarl_llm.llm import Decoder
    from jaxmarl_llm.workflows.ablation.lanes import run_lanes

    task = workflows.make_task(config.task, level=config.level)
    # One base policy for all numbers of copies, so that they differ in nothing else.
    teams = [workflows.make_workflow("voting", n=n) for n in config.copies]
    pretraining = workflows.make_pretraining(task, *teams, decoder=config.size, **config.pretraining_args)
    bound = pretraining.bounds[config.copies.index(copies)]
    learner = workflows.WorkflowLearner(
        bound=bound,
        team=workflows.make_team(bound.workflow, Decoder(pretraining.decoder), "isolated"),
        num_problems=config.num_problems,
        group_size=config.group_size,
        normalize_by_copies=False,
        coherence=True,
        clip_roles=True,
        diagnostic_episodes=0,
    )
    learner.check()
    base_params = workflows.base_policy(pretraining)
    problems = task.held_out(config.eval_problems)
    programs = programs_of(config, copies)
    num_lanes = sum(len(lanes) for _, lanes in programs)
    num_evaluations = config.iterations // config.eval_every
    done, found, seconds = 0, [], {"compile": 0.0, "train": 0.0}
    for shape, lanes in programs:
        settings: dict[str, Any] = {
            name: np.asarray([REMEDIES[lane.remedy].get(name, value) for lane in lanes])
            for name, value in WITHOUT.items()
        }
        settings["learning_rate"] = np.asarray([lane.learning_rate for lane in lanes])
        settings["tied"] = np.asarray([workflows.sharing(bound.workflow, lane.sharing) for lane in lanes])

        def report(number, accuracy, done=done, size=len(lanes)):
            on_evaluation((done + size * number / num_evaluations) / num_lanes, accuracy)

        curves = run_lanes(
            workflows.RollBack(learner=learner.replace(**shape)),  # pyright: ignore[reportAttributeAccessIssue]
            base_params,
            [lane.seed for lane in lanes],
            settings,
            problems,
            num_evaluations=num_evaluations,
            eval_every=config.eval_every,
            on_evaluation=report,
        )
        done += len(lanes)
        seconds = {
            "compile": seconds["compile"] + curves.compile_seconds,
            "train": seconds["train"] + curves.train_seconds,
        }
        for index, lane in enumerate(lanes):
            accuracy = [round(float(value), 4) for value in curves.accuracy[:, index]]
            found.append(dataclasses.asdict(lane) | {"accuracy": accuracy, "returns": int(curves.returns[index])})
    return {
        "copies": copies,
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "lanes": found,
    }


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
    import numpy as np

    from jaxmarl_llm.workflows.collapse import find_cliffs

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
