"""What an ablation on a language model is: `ModelAblation`, made of a preset of `finetune`. Imports no JAX."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.training.config import Settings
from jaxmarl_llm.user_files import absolute_path
from jaxmarl_llm.workflows.ablation.matrix import SHARING, Cell, Matrix, check_names, check_settings, short_name
from jaxmarl_llm.workflows.finetuning.config import FinetuneConfig, finetune_config

DEFAULT_PRESET = "sums_grpo"
# Fields of `FinetuneConfig` that are those of an ablation, by their names there.
_SAME = ("model", "iterations", "num_problems", "group_size", "learning_rate")
# Those that the place in the matrix decides, or that have another name there, with the option that decides them.
_OWNED = {name: f"--{name.replace('_', '-')}" for name in _SAME} | {
    "workflow": "--workflows",
    "workflow_args": "--copies and --rounds",
    "task": "--tasks",
    "task_args": "--task-args",
    "sharing": "--sharing",
    "seed": "--seed",
    "evaluate_every": "--eval-every",
    "evaluation_problems": "--eval-problems",
}
# Evaluations after that of the model itself, where no option says more.
_EVALUATIONS = 4


@dataclasses.dataclass(frozen=True)
class ModelAblation(Matrix):
    """Everything that decides an ablation on a language model; two of one configuration are the same."""

    sharing: tuple[str, ...] = SHARING
    """shared (SP, one adapter for all roles), isolated (IP, one adapter a role)."""
    tasks: tuple[str, ...] = ("arithmetic_words",)
    """The problems: names of tasks in words, or JSONL files."""
    num_seeds: int = 2
    """Seeds of each cell; each is a fine-tuning run, one after the other."""
    iterations: int = 12
    """Updates of each run."""
    num_problems: int = 8
    """Problems of an update."""
    learner_args: Settings = dataclasses.field(default_factory=dict)
    """Further settings of the runs, such as trust_region=teamtr lora_rank=4 (see finetune --help); added to those of
    the preset."""
    eval_every: int = 3
    """Updates between two evaluations, with the likeliest tokens; the model itself and the last update are evaluated
    always."""
    eval_problems: int = 128
    """Held-out problems of an evaluation, the same ones every time."""
    cliff_window: int = 2
    """Evaluations that are averaged for peak and final accuracy, and to tell a cliff from noise."""

    # The model.
    model: str = "smollm2"
    """The language model: a Hugging Face folder or name, a .gguf file, or smollm2 (the packaged SmolLM2-135M)."""
    task_args: Settings = dataclasses.field(default_factory=dict)
    """Settings of the tasks, such as digits=2 for all of them, or arithmetic_words.digits=2 for one; added to those of
    the preset."""

    @property
    def sizes(self) -> tuple[str, ...]:
        """The model, which has one size."""
        return (self.model,)

    @property
    def choices(self) -> dict[str, Sequence[str]]:
        """Fields that are lists of names to the names that are known."""
        from jaxmarl_llm.workflows import workflow_names

        return {"workflows": workflow_names(), "sharing": SHARING}

    def check_own(self) -> None:
        """Raises `UserError` where a setting of this kind alone is wrong."""
        check_names("--tasks", [short_name(task) for task in self.tasks])
        check_settings("--learner-args", self.learner_args, FinetuneConfig, _OWNED)
        names = [short_name(task) for task in self.tasks]
        for setting in self.task_args:
            task, dot, _ = setting.rpartition(".")
            if dot and task not in names:
                raise unknown_name("task of --task-args", task, names)
        self.finetune_config(Cell(self.workflows[0], self.sharing[0], names[0], short_name(self.model)), self.seed)

    def with_absolute_paths(self) -> "ModelAblation":
        """The same ablation, whose files are found from any working folder."""
        files = {name: self.learner_args[name] for name in ("formats", "warm_start") if name in self.learner_args}
        runs = [FinetuneConfig(model=self.model, task=task, **files).with_absolute_paths() for task in self.tasks]
        task_args = {
            name: absolute_path(value) if name.rpartition(".")[2] == "held_out_path" else value
            for name, value in self.task_args.items()
        }
        return dataclasses.replace(
            self,
            model=runs[0].model,
            tasks=tuple(run.task for run in runs),
            learner_args=self.learner_args | {name: getattr(runs[0], name) for name in files},
            task_args=task_args,
        )

    def settings_of(self, task: str) -> dict[str, Any]:
        """The settings of a task, by its short name: those of all tasks, and its own."""
        own = {name.rpartition(".")[2]: value for name, value in self.task_args.items() if name.startswith(f"{task}.")}
        return {name: value for name, value in self.task_args.items() if "." not in name} | own

    def finetune_config(self, cell: Cell, seed: int) -> FinetuneConfig:
        """The run of a cell and a seed.

        Raises:
          UserError: a setting is wrong, or does not go with others.
        """
        (task,) = (task for task in self.tasks if short_name(task) == cell.task)
        values = {name: getattr(self, name) for name in _SAME} | self.learner_args
        values |= {
            "workflow": cell.workflow,
            "workflow_args": self.workflow_settings(cell.workflow),
            "task": task,
            "task_args": self.settings_of(cell.task),
            "sharing": cell.sharing,
            "seed": seed,
            "evaluate_every": self.eval_every,
            "evaluation_problems": self.eval_problems,
        }
        config = finetune_config(values, "--learner-args")
        config.check()
        return config


def from_preset(preset: FinetuneConfig, model: str) -> ModelAblation:
    """The ablation that a preset of `finetune` becomes: its workflow, against the single agent, on its task.

    Args:
      preset: the settings of all runs.
      model: the language model.

    Raises:
      UserError: it has settings of its workflow that an ablation has no option for.
    """
    known = ModelAblation().workflow_settings(preset.workflow)
    for name in preset.workflow_args:
        if name not in known:
            raise UserError(
                f"the preset sets {name} of {preset.workflow}, which no option of ablate does: leave it out"
            )
    defaults = FinetuneConfig(trust_region=preset.trust_region)
    others = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(preset).items()
        if name not in _OWNED and (value != getattr(defaults, name) or name == "trust_region")
    }
    same = {name: getattr(preset, name) for name in _SAME if name != "model"}
    task = short_name(preset.task)
    return ModelAblation(
        model=model,
        workflows=tuple(dict.fromkeys((preset.workflow, "single"))),
        tasks=(preset.task,),
        task_args={f"{task}.{name}": value for name, value in preset.task_args.items()},
        seed=preset.seed,
        copies=preset.workflow_args.get("n", ModelAblation.copies),
        rounds=preset.workflow_args.get("rounds", ModelAblation.rounds),
        learner_args=others,
        eval_every=max(1, preset.iterations // _EVALUATIONS),
        eval_problems=preset.evaluation_problems,
        **same,
    )


def merge(config: ModelAblation, base: ModelAblation) -> ModelAblation:
    """Adds the settings of the preset to those that were given.

    Args:
      config: what was asked for; its settings are the given ones alone.
      base: of the preset.
    """
    given = config.learner_args
    learner_args = base.learner_args | given
    if "trust_region" in given and given["trust_region"] != base.learner_args.get("trust_region"):
        # That of the other one.
        learner_args = {name: value for name, value in learner_args.items() if name != "credit" or name in given}
    names = [short_name(task) for task in config.tasks]
    task_args = {} if config.task_args == base.task_args else config.task_args
    inherited = {
        name: value
        for name, value in base.task_args.items()
        if name.rpartition(".")[0] in (*names, "") and name.rpartition(".")[2] not in task_args
    }
    return dataclasses.replace(config, learner_args=learner_args, task_args=inherited | task_args)
