"""Imitation of given messages (behaviour cloning): a start from transcripts, or what an incoming agent learns first."""

import dataclasses
from collections.abc import Iterable, Sequence

import jax
import numpy as np

from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.workflows.finetuning.optimise import optimise
from jaxmarl_llm.workflows.finetuning.replay import Example, with_examples
from jaxmarl_llm.workflows.finetuning.state import FinetuneState
from jaxmarl_llm.workflows.finetuning.trainer import Trainer
from jaxmarl_llm.workflows.text.transcripts import EpisodeRecord


def transcript_examples(trainer: Trainer, records: Iterable[EpisodeRecord]) -> list[Example]:
    """The messages of transcripts as examples; those of frozen roles, or too long for the model, are left out.

    Raises:
      UserError: a role that the workflow has not, or no message that fits.
    """
    tokenizer, limit = trainer.bound.tokenizer, trainer.bound.max_length
    examples = []
    for step in (step for record in records for step in record.steps):
        if step.role not in trainer.roles:
            raise unknown_name(f"role of workflow '{trainer.bound.workflow.name}'", step.role, trainer.roles)
        prompt = np.asarray(tokenizer.chat_ids(list(step.messages)), np.int32)
        completion = np.asarray([*tokenizer.encode(step.reply), tokenizer.stop_tokens[0]], np.int32)
        if len(prompt) + len(completion) <= limit and step.role in trainer.learning_roles:
            examples.append(Example(step.role, prompt, completion))
    if not examples:
        raise UserError(f"the transcripts have no message to learn that fits into {limit} tokens: raise max_length")
    return examples


def imitate(
    trainer: Trainer, state: FinetuneState, examples: Sequence[Example], updates: int, *, messages: int
) -> tuple[FinetuneState, list[float]]:
    """Gradient steps on the negative log-likelihood of examples, each with respect to its role's policy.

    Args:
      trainer: the run.
      state: before.
      examples: at least one.
      updates: number of steps.
      messages: that each step sees, drawn without replacement.

    Returns:
      `(state, losses)`: policies that imitated have one version more; the mean loss of each step.
    """
    key_draw, key = jax.random.split(state.key)
    random = np.random.default_rng(np.asarray(jax.random.key_data(key_draw)))
    adapters, optimizer_state, losses = state.adapters, state.optimizer_state, []
    for _ in range(updates):
        chosen = random.choice(len(examples), min(messages, len(examples)), replace=False)
        batch = with_examples(None, [examples[index] for index in chosen], 1.0)
        which = list(range(len(chosen)))
        adapters, optimizer_state, metrics = optimise(
            trainer,
            adapters,
            optimizer_state,
            batch,
            [(which, which)],
            np.zeros(trainer.num_policies, np.float32),
            trainer.config.learning_rate,
            0.0,
            epochs=1,
        )
        count = np.asarray([sum(batch.samples[number].role == role for number in which) for role in trainer.roles])
        losses.append(float(np.average(metrics["imitation_loss"][count > 0], weights=count[count > 0])))
    roles = {example.role for example in examples}
    policies = {policy for role, policy in zip(trainer.roles, trainer.policy_of_role, strict=True) if role in roles}
    learned = np.asarray([policy in policies and updates > 0 for policy in range(trainer.num_policies)])
    state = dataclasses.replace(
        state,
        adapters=adapters,
        optimizer_state=optimizer_state,
        versions=state.versions + learned.astype(np.int32),
        key=key,
    )
    return state, losses
