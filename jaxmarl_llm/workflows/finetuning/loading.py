"""The team of a configuration: its model loaded, its workflow put to work on its task, its adapters made."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm import DecoderConfig
from jaxmarl_llm.llm.checkpoints import LanguageModel, load_model
from jaxmarl_llm.llm.devices import model_mesh
from jaxmarl_llm.workflows.finetuning.config import FinetuneConfig
from jaxmarl_llm.workflows.finetuning.model import AdaptedModel, adapt
from jaxmarl_llm.workflows.finetuning.trainer import Trainer
from jaxmarl_llm.workflows.graph import Workflow
from jaxmarl_llm.workflows.policies import sharing
from jaxmarl_llm.workflows.text.bound import TextWorkflow


def adapt_team(
    config: FinetuneConfig, decoder: DecoderConfig, body: Mapping[str, Any], workflow: Workflow
) -> tuple[AdaptedModel, tuple[int, ...]]:
    """A model with the adapters of a configuration, and the policy of each role of its workflow.

    Raises:
      UserError: settings that do not fit the model or the workflow.
    """
    table = sharing(workflow, config.sharing)
    model = adapt(
        decoder,
        body,
        max(table) + 1,
        rank=config.lora_rank,
        alpha=config.lora_alpha,
        targets=config.lora_targets,
        trained_layers=config.trained_layers,
        value_head=config.credit == "value",
    )
    return model, table


def make_trainer(
    config: FinetuneConfig, decoder: DecoderConfig, body: Mapping[str, Any], bound: TextWorkflow
) -> Trainer:
    """The team of a configuration on a model that is at hand.

    Args:
      config: the run.
      decoder: of the model, with stacked layers and without adapters.
      body: its parameters.
      bound: the workflow at work on its task.

    Raises:
      UserError: settings that are wrong, or do not fit the model or the workflow.
    """
    config.check()
    config.check_size(sum(turn.call.copies for turn in bound.workflow.turns))
    model, table = adapt_team(config, decoder, body, bound.workflow)
    if not bound.task.train:
        raise UserError("the task has no problems to train on")
    return Trainer(config, model, bound, table)


def load_base(config: FinetuneConfig) -> LanguageModel:
    """The model of a configuration, on its devices.

    Raises:
      UserError: there is none, or it cannot be used.
    """
    mesh = model_mesh(config.num_devices)
    return load_model(config.model, dtype=config.dtype, mesh=mesh, max_length=config.max_length)


def load_trainer(config: FinetuneConfig, model: LanguageModel | None = None) -> Trainer:
    """The team of a configuration: its model is loaded, its workflow put to work on its task.

    Args:
      config: the run.
      model: of `load_base`, where it has been loaded already.

    Raises:
      UserError: bad input.
    """
    from jaxmarl_llm.workflows import make_workflow
    from jaxmarl_llm.workflows.text import bind_text, make_text_task

    config.check()
    workflow = make_workflow(config.workflow, **config.workflow_args)
    task = make_text_task(config.task, **config.task_args)
    for problems, what in ((task.train, "training"), (task.held_out, "evaluation")):
        if not len(problems):
            raise UserError(
                f"task {config.task} has no problem for {what}: add problems, or name a file of held-out ones with "
                "held_out_path in task_args"
            )
    model = model or load_base(config)
    if model.tokenizer is None:
        raise UserError(f"{config.model} has no tokenizer: add its tokenizer.json")
    bound = bind_text(
        workflow,
        task,
        model.tokenizer,
        config.formats or None,
        max_new_tokens=config.max_new_tokens,
        max_length=config.max_length,
        require_end=config.require_end,
    )
    return dataclasses.replace(make_trainer(config, model.config, model.params, bound), base=model)
