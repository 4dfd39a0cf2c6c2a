"""What a phase diagram of voting is made of. Imports no JAX, so that help is instant."""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from typing import Any

from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.training.config import Settings
from jaxmarl_llm.workflows.ablation.matrix import SHARING, check_names, check_rates, check_whole_options, check_window

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


@dataclasses.dataclass(frozen=True)
class Phase:
    """Everything that decides a phase diagram."""

    # The grid.
    copies: tuple[int, ...] = (1, 3, 6)
    """N: generators that answer in parallel. Each is one part of the diagram, which is saved when it is done."""
    learning_rates: tuple[float, ...] = (5e-4, 2e-3, 4e-3)
    """Step sizes of Adam."""
    sharing: tuple[str, ...] = SHARING
    """shared (SP, one policy for both roles), isolated (IP, one policy a role)."""
    remedies: tuple[str, ...] = tuple(REMEDIES)
    """none, one_step (for the mean of all copies), equal_mass, kl_anchor, coherence, clip_roles, roll_back."""
    num_seeds: int = 3
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

    named = {"sharing": (config.sharing, SHARING), "remedy": (config.remedies, REMEDIES)}
    named |= {"task": ((config.task,), task_names()), "size": ((config.size,), SIZES)}
    for kind, (chosen, names) in named.items():
        for name in chosen:
            if name not in names:
                raise unknown_name(kind, name, names)
    for option in ("copies", "learning_rates", "sharing", "remedies"):
        check_names(f"--{option.replace('_', '-')}", getattr(config, option))
    whole = ("num_seeds", "level", "iterations", "num_problems", "group_size", "eval_every", "eval_problems", "window")
    check_whole_options(config, *whole, "copies")
    check_rates("--learning-rates", config.learning_rates)
    if not 0 <= config.seed <= 2**32 - config.num_seeds:
        raise UserError(f"--seed must lie between 0 and 2^32 - 1, as must the last seed, got {config.seed}")
    if config.group_size < 2:
        raise UserError(f"--group-size must be at least 2, got {config.group_size}")
    if config.iterations % config.eval_every:
        raise UserError(f"--eval-every {config.eval_every} must divide --iterations {config.iterations}")
    check_window("--window", config.window, config.iterations // config.eval_every)
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
