"""One agent of a team is replaced: the incoming one learns the outgoing one's part before it joins (TeamTR, sec. 3)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.arguments import check_whole
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows.finetuning.imitation import imitate
from jaxmarl_llm.workflows.finetuning.monitors import message_divergence
from jaxmarl_llm.workflows.finetuning.replay import Example
from jaxmarl_llm.workflows.finetuning.state import FinetuneState, policy_of, with_policy
from jaxmarl_llm.workflows.finetuning.trainer import Trainer


@dataclasses.dataclass(frozen=True, eq=False)
class Swap:
    """What a replacement came to.

    Attributes:
      state: with the incoming adapter.
      losses: of the steps of its distillation.
      shock: divergence of the incoming agent from the outgoing one before and after it, in nats a message (k3).
    """

    state: FinetuneState
    losses: list[float]
    shock: tuple[float, float]


def swap_agent(
    trainer: Trainer,
    state: FinetuneState,
    policy: int,
    adapter: Any,
    contexts: Sequence[Any],
    key: jax.Array,
    *,
    updates: int = 50,
    messages: int = 32,
) -> Swap:
    """Replaces the adapter of a policy.

    The incoming agent imitates what the outgoing one writes: the gradient of the log-likelihood of its samples is that
    of the divergence of the incoming agent from it.

    Args:
      trainer: the run.
      state: before.
      policy: its index.
      adapter: the incoming one, without the axis P.
      contexts: problems on which the outgoing team plays, `group_size` episodes each.
      key: consumed.
      updates: steps of the distillation; 0 swaps directly.
      messages: that each step sees.

    Raises:
      UserError: no such policy, one that is frozen, or one that was not asked for anything.
    """
    check_whole("the policy to replace", policy, at_least=0)
    if policy not in trainer.learning:
        raise UserError(
            f"policy {policy} cannot be replaced: those that learn are {', '.join(map(str, trainer.learning))}"
        )
    episodes = trainer.play(state, contexts, key)
    samples = episodes.samples
    own = trainer.samples_of(samples, policy)
    if not own:
        raise UserError(f"policy {policy} wrote nothing on these problems: give others")
    packs = trainer.pack(samples, own)
    old, _ = trainer.score(state.policy(policy), packs, len(samples))

    def shock(state: FinetuneState) -> float:
        return message_divergence(old, trainer.score(state.policy(policy), packs, len(samples))[0])[1]

    adapters = with_policy(state.adapters, policy, adapter)
    # Moments of the outgoing agent say nothing of the incoming one.
    zeros = jax.tree.map(jnp.zeros_like, policy_of(state.optimizer_state, policy))
    optimizer_state = with_policy(state.optimizer_state, policy, zeros)
    state = dataclasses.replace(
        state, adapters=adapters, optimizer_state=optimizer_state, versions=state.versions.at[policy].add(1)
    )
    before, losses = shock(state), []
    if updates:
        examples = [Example(samples[number].role, samples[number].prompt, samples[number].completion) for number in own]
        state, losses = imitate(trainer, state, examples, updates, messages=messages)
    return Swap(state, losses, (before, shock(state)))
