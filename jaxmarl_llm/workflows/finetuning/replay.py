"""Messages that are imitated: those of successful episodes, kept for replay, and those of transcripts.

Axes: S samples, M tokens.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxmarl_llm.workflows.finetuning.trainer import Batch
from jaxmarl_llm.workflows.text.rollout import TextEpisodes


@dataclasses.dataclass(frozen=True, eq=False)
class Example:
    """What a role read and wrote.

    Attributes:
      role: who wrote.
      prompt, completion: int32 tokens.
      priority: at least 0; how much it is worth keeping.
    """

    role: str
    prompt: np.ndarray
    completion: np.ndarray
    priority: float = 1.0

    def to_json(self) -> list[Any]:
        """As JSON holds it."""
        return [self.role, self.prompt.tolist(), self.completion.tolist(), self.priority]

    @classmethod
    def from_json(cls, stored: Sequence[Any]) -> "Example":
        """What `to_json` gave."""
        role, prompt, completion, priority = stored
        return cls(role, np.asarray(prompt, np.int32), np.asarray(completion, np.int32), priority)


def remember(
    memory: Sequence[Example], episodes: TextEpisodes, capacity: int, roles: Sequence[str] | None = None
) -> list[Example]:
    """The memory with the messages of successful episodes.

    The priority of a message is the share of its problem's episodes that failed: what is solved always teaches nothing.

    Args:
      memory: so far.
      episodes: new ones.
      capacity: how many of the highest priority stay, newer ones first.
      roles: whose messages; all by default.
    """
    success = np.asarray(episodes.outcome) >= 1
    failed = 1.0 - success.reshape(episodes.num_problems, -1).mean(1)
    new = [
        Example(sample.role, sample.prompt, sample.completion, float(failed[sample.problem]))
        for sample in episodes.samples
        if success[sample.episode] and failed[sample.problem] > 0 and (roles is None or sample.role in roles)
    ]
    return sorted([*new, *memory], key=lambda example: -example.priority)[:capacity]


def draw(memory: Sequence[Example], number: int, random: np.random.Generator) -> list[Example]:
    """Draws different examples with chances in proportion to their priorities."""
    priority = np.asarray([example.priority for example in memory])
    number = min(number, int((priority > 0).sum()))
    if not number:
        return []
    return [memory[index] for index in random.choice(len(memory), number, replace=False, p=priority / priority.sum())]


def with_examples(batch: Batch | None, examples: Sequence[Example], weight: float) -> Batch:
    """A batch with examples at its end, whose negative log-likelihood has a weight.

    Args:
      batch: the samples; None for the examples alone.
      examples: none have a part in the policy's loss.
      weight: of the imitation.
    """
    zeros = [np.zeros(len(example.completion), np.float32) for example in examples]
    nothing = np.zeros(len(examples), np.float32)
    if batch is None:
        empty = np.zeros(0, np.float32)
        batch = Batch([], empty, [], [], [], empty, empty)
    joined = {name: [*getattr(batch, name), *zeros] for name in ("old_log_prob", "base_log_prob", "advantage")}
    joined |= {name: [*getattr(batch, name), *zeros] if getattr(batch, name) else [] for name in ("value", "target")}
    return Batch(
        samples=[*batch.samples, *examples],
        reward=np.concatenate([batch.reward, nothing]),
        weight=np.concatenate([batch.weight, nothing]),
        imitation=np.concatenate([batch.imitation, nothing + np.float32(weight)]),
        **joined,
    )
