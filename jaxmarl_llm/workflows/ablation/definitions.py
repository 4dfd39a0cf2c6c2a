"""What an ablation's own tasks and workflows say, so that a changed one is not taken for what it was."""

from typing import Any

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows import Task, Workflow, make_task, make_workflow
from jaxmarl_llm.workflows.ablation.matrix import Ablation, Matrix, to_json
from jaxmarl_llm.workflows.ablation.sealed import digest
from jaxmarl_llm.workflows.base_policies import describe


def definitions(config: Matrix) -> dict[str, str]:
    """Digests of the user's own tasks and workflows, by name: of their settings, and of the source of their classes.

    Raises:
      UserError: one cannot be made, or is no task or no workflow.
    """
    found: dict[str, Any] = {}
    for name in config.workflows:
        found[name] = make_workflow(name, **config.workflow_settings(name))
        _check_kind(name, found[name], Workflow)
    # Other ablations' tasks are files.
    if isinstance(config, Ablation):
        for name in config.tasks:
            found[name] = make_task(name, level=config.level)
            _check_kind(name, found[name], Task)
    return {name: digest(describe(made)) for name, made in found.items() if ":" in name}


def ablation_digest(config: Matrix) -> str:
    """Tells results of this ablation from those of others."""
    return digest([to_json(config), definitions(config)])


def _check_kind(name: str, made: Any, expected: type) -> None:
    if not isinstance(made, expected):
        raise UserError(f"{name} makes a {type(made).__name__}, not a jaxmarl_llm.workflows.{expected.__name__}")
