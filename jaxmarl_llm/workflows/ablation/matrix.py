"""What an ablation is: `Ablation`, its presets, its cells. Imports no JAX, so that help is instant."""

import dataclasses
import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxmarl_llm.errors import UserError, plural, unknown_name
from jaxmarl_llm.limits import LARGEST_FLOAT, SMALLEST_FLOAT
from jaxmarl_llm.training.config import Settings

STUDY = ("voting", "eval_opt", "orch_workers", "single")
SHARING = ("shared", "isolated")
WAYS = (*SHARING, "adapters")
# Of the decoders of cells with adapters.
LORA_RANK = 4


@dataclasses.dataclass(frozen=True)
class Matrix:
    """What ablations of all kinds have: the cells, how long each is trained, and how it is judged.

    A kind of ablation is a subclass with a field or property `sizes`, the decoders that the cells are of.
    """

    # The matrix.
    workflows: tuple[str, ...] = STUDY
    """Workflows, by name, or by import path such as mymodule:debate. Where one has a single role, there is nothing to
    share: it gets one cell."""
    sharing: tuple[str, ...] = SHARING
    """shared (SP, one policy for all roles), isolated (IP, one policy a role), adapters (LoRA, one body for all roles
    and a low-rank adapter a role)."""
    tasks: tuple[str, ...] = ("arithmetic",)
    """Tasks, by name: arithmetic, stack_code; or by import path such as mymodule:MyTask."""
    num_seeds: int = 2
    """Seeds of each cell, trained at once in one compiled program. They share the base policy."""
    seed: int = 0
    """The first seed."""

    # What is trained.
    copies: int = 3
    """N: generators of voting, workers of orch_workers, and n of other workflows that have it."""
    rounds: int = 3
    """R: the most rounds of eval_opt, and rounds of other workflows that have them."""
    iterations: int = 30
    """Updates of each cell."""
    num_problems: int = 64
    """Fresh problems of an update."""
    group_size: int = 8
    """Episodes of each problem, which are compared with each other."""
    learning_rate: float = 5e-4
    """Step size of Adam."""
    learner_args: Settings = dataclasses.field(default_factory=dict)
    """Further settings of the learner, such as normalize_by_copies=false role_weighting=equal_mass; added to those
    of the preset."""

    # How it is judged.
    eval_every: int = 2
    """Updates between two evaluations; the base policy and the last update are evaluated always."""
    eval_problems: int = 256
    """Held-out problems of an evaluation, the same ones every time."""
    cliff_window: int = 5
    """Evaluations that are averaged for peak and final accuracy, and to tell a cliff from noise."""
    cliff_drop: float = 0.05
    """The least fall from the peak that counts as a cliff."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """S numbers."""
        return tuple(range(self.seed, self.seed + self.num_seeds))

    @property
    def eval_iterations(self) -> tuple[int, ...]:
        """K numbers: after how many updates the team is evaluated; the first is 0, the base policy."""
        return (*range(0, self.iterations, self.eval_every), self.iterations)

    def workflow_settings(self, workflow: str) -> dict[str, Any]:
        """The settings of a workflow for `make_workflow`: `n` and `rounds`, if it has them."""
        from jaxmarl_llm.workflows import workflow_factory

        known = {"n": self.copies, "rounds": self.rounds}
        return {name: known[name] for name in inspect.signature(workflow_factory(workflow)).parameters if name in known}

    @property
    def choices(self) -> dict[str, Sequence[str]]:
        """Fields that are lists of names to the names that are known."""
        raise NotImplementedError

    def check_own(self) -> None:
        """Raises `UserError` where a setting of this kind alone is wrong."""


@dataclasses.dataclass(frozen=True)
class Ablation(Matrix):
    """Everything that decides an ablation of small decoders; two of one configuration are the same."""

    # The decoders, which are trained from scratch.
    sizes: tuple[str, ...] = ("tiny",)
    """Sizes of the decoder: tiny, small, base, medium (0.05, 0.2, 0.8 and 3 million parameters)."""
    level: int = 2
    """Difficulty of the tasks."""
    pretraining_args: Settings = dataclasses.field(default_factory=dict)
    """Settings of the base policy's supervised pretraining, such as skill=0.5 num_steps=800; added to those of the
    preset."""
    eval_greedy: bool = False
    """Evaluations take the likeliest tokens. If not, tokens are sampled as in training."""

    @property
    def choices(self) -> dict[str, Sequence[str]]:
        """Fields that are lists of names to the names that are known."""
        from jaxmarl_llm.llm.config import PRESETS as SIZES
        from jaxmarl_llm.workflows import task_names, workflow_names

        return {"workflows": workflow_names(), "sharing": WAYS, "tasks": task_names(), "sizes": tuple(SIZES)}

    def check_own(self) -> None:
        """Raises `UserError` where a setting of this kind alone is wrong."""
        check_whole_options(self, "level")
        if "adapters" in self.sharing and "body" in self.learner_args:
            raise UserError(
                "--sharing adapters learns the body jointly: leave body out of --learner-args, or adapters out of "
                "--sharing"
            )


PRESETS = {
    "quick": Ablation(iterations=20, learning_rate=1e-3, learner_args={"reward": "mixed"}),
    "full": Ablation(
        tasks=("arithmetic", "stack_code"),
        sizes=("tiny", "small", "base"),
        num_seeds=5,
        iterations=200,
        eval_every=5,
        eval_problems=512,
        num_problems=128,
    ),
}


MAX_WHOLE = 10_000_000
# Of what is built one by one: more could not be learned, but would take minutes to refuse.
MOST = {"num_seeds": 10_000, "level": 100, "copies": 100, "rounds": 100, "eval_problems": 10_000}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One entry of the matrix.

    Attributes:
      workflow, sharing, task, size: names; `size` is that of the decoder, or the name of a model.
    """

    workflow: str
    sharing: str
    task: str
    size: str

    @property
    def name(self) -> str:
        """Names its files; unique in a matrix."""
        return f"{self.task}-{self.size}-{self.workflow}-{self.sharing}".replace(":", ".")


def check_ablation(config: Matrix) -> None:
    """Refuses what cannot be an ablation, before anything is built.

    Raises:
      UserError: an unknown name, one that is given twice or none at all; a number out of range; fewer evaluations than
        are averaged.
    """
    for option, names in config.choices.items():
        given = getattr(config, option)
        if not given:
            raise UserError(f"--{option} needs at least one name: choose from {', '.join(names)}")
        for name in given:
            # Import paths are judged when they are imported.
            if name not in names and not (":" in name and option in ("workflows", "tasks")):
                raise unknown_name(option.removesuffix("s"), name, names)
        check_names(f"--{option}", given)
    whole = ("num_seeds", "copies", "rounds", "iterations", "num_problems", "group_size", "eval_every")
    check_whole_options(config, *whole, "eval_problems", "cliff_window")
    if not 0 <= config.seed < 2**32 - config.num_seeds:
        raise UserError(f"--seed must lie between 0 and {2**32 - config.num_seeds - 1}, got {config.seed}")
    check_rates("--learning-rate", [config.learning_rate])
    check_window("--cliff-window", config.cliff_window, len(config.eval_iterations) - 1)
    if not 0 < config.cliff_drop < 1:
        raise UserError(f"--cliff-drop must lie between 0 and 1, got {config.cliff_drop}")
    config.check_own()


def check_whole_options(config: Any, *names: str) -> None:
    """Raises `UserError` where a whole number of a configuration is below 1 or more than any machine could do."""
    for name in names:
        given, most = getattr(config, name), MOST.get(name, MAX_WHOLE)
        for value in given if isinstance(given, tuple) else (given,):
            if not 1 <= value <= most:
                raise UserError(f"--{name.replace('_', '-')} must lie between 1 and {most:,}, got {value}")


def check_rates(option: str, rates: Iterable[float]) -> None:
    """Raises `UserError` where a step size is no number of 32 bits above 0."""
    for rate in rates:
        if not SMALLEST_FLOAT <= rate <= LARGEST_FLOAT:
            raise UserError(f"{option} must be above 0 and finite in 32 bits, got {rate}")


def check_window(option: str, window: int, evaluations: int) -> None:
    """Raises `UserError` where fewer evaluations follow that of the base policy than a window averages."""
    if window > evaluations:
        raise UserError(
            f"{option} {window} is more than the {plural(evaluations, 'evaluation')} after the first: set it to at "
            "most that, or evaluate more often with --eval-every"
        )


def check_names(option: str, given: Sequence[Any]) -> None:
    """Raises `UserError` where a list is empty, or has something twice."""
    if not given:
        raise UserError(f"{option} needs at least one value")
    for value in given:
        if given.count(value) > 1:
            raise UserError(f"{option} has '{value}' twice: give it once")


def check_settings(option: str, given: Iterable[str], kind: type, owned: Mapping[str, str | None]) -> None:
    """Refuses settings that are no fields of a class, or are decided by other options.

    Args:
      option: that they were given to.
      given: their names.
      kind: a dataclass.
      owned: fields that are none of its settings, with the option that decides each, if one does.

    Raises:
      UserError: names the closest settings, or the other option.
    """
    known = [field.name for field in dataclasses.fields(kind) if field.name not in owned]
    for name in given:
        if owned.get(name):
            raise UserError(f"{option} has {name}, which has an option of its own: {owned[name]}")
        if name not in known:
            raise unknown_name(f"setting of {option}", name, known)


def make_cells(config: Any, roles_of: Mapping[str, Sequence[str]]) -> list[Cell]:
    """The cells in the order in which they are trained: those of one base policy lie together.

    Args:
      config: the ablation.
      roles_of: workflow to its roles; a workflow of one role has one cell for all ways of sharing.
    """
    return [
        Cell(workflow, sharing, short_name(task), short_name(size))
        for task in config.tasks
        for size in config.sizes
        for workflow in config.workflows
        for sharing in (config.sharing if len(roles_of[workflow]) > 1 else sorted(config.sharing, key=WAYS.index)[:1])
    ]


def short_name(name_or_path: str) -> str:
    """A name as it is, and of a path the last part, without the ending of a file of problems or of a model."""
    name = name_or_path.rstrip("/").rpartition("/")[2]
    for ending in (".jsonl", ".json", ".gguf"):
        name = name.removesuffix(ending)
    return name


def to_json(config: Matrix) -> dict[str, Any]:
    """The configuration as JSON holds it."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def differences(old: Matrix, new: Matrix) -> list[str]:
    """What differs, as `iterations: 40 -> 80`; of what one kind alone has, None for the other."""
    before, after = to_json(old), to_json(new)
    return [
        f"{name}: {before.get(name)} -> {after.get(name)}"
        for name in before | after
        if before.get(name) != after.get(name)
    ]
