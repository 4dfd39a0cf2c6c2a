"""From episodes in text to what each completion is to learn: rewards, advantages, the critic's targets.

Axes: S samples in the order of the episodes, T rounds of a call, B episodes, C copies, M tokens.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.algorithms.returns import gae
from jaxmarl_llm.workflows.graph import Workflow
from jaxmarl_llm.workflows.grouping import group_advantages, rounds_of, row_groups
from jaxmarl_llm.workflows.rewards import assign_rewards
from jaxmarl_llm.workflows.rollout import CallSamples, Episodes

_NGRAM = 3


@dataclasses.dataclass(frozen=True)
class _Bound:
    workflow: Workflow


def sample_table(workflow: Workflow, samples: Sequence[Any], num_episodes: int) -> list[np.ndarray]:
    """The number of the sample in each place, of each call.

    Args:
      workflow: whose calls.
      samples: with `call`, `round`, `episode` and `copy`.
      num_episodes: B.

    Returns:
      `[T, B, C]` int of each of `workflow.calls`; -1 where nobody was asked.
    """
    tables = {
        call.name: np.full((rounds, num_episodes, call.copies), -1)
        for call, rounds in zip(workflow.calls, rounds_of(workflow), strict=True)
    }
    for number, sample in enumerate(samples):
        tables[sample.call][sample.round, sample.episode, sample.copy] = number
    return list(tables.values())


def sample_rewards(
    workflow: Workflow,
    episodes: Any,
    kind: str = "outcome",
    *,
    own_weight: float = 0.5,
    format_weight: float = 0.0,
    length_weight: float = 0.0,
    repetition_weight: float = 0.0,
    max_new_tokens: int = 1,
    answer: Callable[[str], str] = str.strip,
) -> np.ndarray:
    """The reward of every sample, see `assign_rewards`, less what regularises it.

    Args:
      workflow: whose episodes.
      episodes: `TextEpisodes`.
      kind, own_weight, format_weight: of `assign_rewards`.
      length_weight: taken off for a completion of `max_new_tokens`, in proportion for shorter ones.
      repetition_weight: taken off in proportion to the share of three tokens in a row that occur again.
      max_new_tokens: the longest completion.
      answer: what counts as a vote in `"votes"`: solutions of one answer are one.

    Returns:
      `[S]` float32.
    """
    samples, outcome = episodes.samples, np.asarray(episodes.outcome, np.float32)
    tables = sample_table(workflow, samples, len(outcome))
    answers: dict[str, int] = {}
    ballot = np.asarray([answers.setdefault(answer(sample.text), len(answers)) for sample in samples], np.int32)
    format_ok = np.asarray([sample.format_ok for sample in samples], bool)
    has_score = [sample.own_score is not None for sample in samples]
    own = np.asarray([sample.own_score or 0.0 for sample in samples], np.float32)

    def call_samples(table):
        asked = table >= 0
        # A call whose samples have no score of their own has none; of one that nobody was asked all are 0.
        scored = not asked.any() or any(has_score[number] for number in table[asked])
        empty = jnp.zeros(table.shape, jnp.int32)
        return CallSamples(
            prompt=empty[..., None],
            prompt_length=empty,
            completion=jnp.asarray(ballot[table][..., None]),
            mask=jnp.asarray(asked[..., None]),
            log_prob=empty[..., None].astype(jnp.float32),
            asked=jnp.asarray(asked),
            format_ok=jnp.asarray(format_ok[table]),
            # Where nobody was asked -1 would take the last sample's.
            own_score=jnp.asarray(np.where(asked, own[table], 0.0)) if scored else None,
        )

    bound: Any = _Bound(workflow)
    no_problem: Any = None
    calls = tuple(map(call_samples, tables))
    played = Episodes(calls, no_problem, jnp.asarray(outcome), jnp.asarray(episodes.any_correct, bool))
    rewards = assign_rewards(bound, played, kind, own_weight=own_weight, format_weight=format_weight)
    found = from_tables(tables, rewards, len(samples))
    length = np.asarray([len(sample.completion) for sample in samples], np.float32)
    repeated = np.asarray([repetition(sample.completion) for sample in samples], np.float32)
    return found - length_weight * length / max_new_tokens - repetition_weight * repeated


def repetition(tokens: np.ndarray) -> float:
    """The share of three tokens in a row that have occurred before in `[M]` tokens; 0 where there are fewer."""
    grams = [tuple(tokens[start : start + _NGRAM]) for start in range(len(tokens) - _NGRAM + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def sample_advantages(
    workflow: Workflow,
    episodes: Any,
    reward: np.ndarray,
    *,
    grouping: str,
    credit: str,
    scale: str,
    clip: float | None = None,
) -> np.ndarray:
    """`[S]` float32, advantages over the group of each sample; see `row_groups` and `group_advantages`.

    Args:
      workflow: whose episodes.
      episodes: `TextEpisodes`.
      reward: `[S]`.
      grouping, credit, scale: of those.
      clip: advantages are clipped to `[-clip, clip]`; None for none.
    """
    tables = sample_table(workflow, episodes.samples, len(episodes.outcome))
    groups, count = row_groups(workflow, episodes.num_problems, episodes.group_size, grouping)
    rows = [jnp.asarray(reward[table]) for table in tables]
    asked = [jnp.asarray(table >= 0) for table in tables]
    found = group_advantages(rows, asked, groups, count, episodes.group_size, credit=credit, scale=scale)
    advantage = from_tables(tables, found, len(reward))
    return advantage if clip is None else np.clip(advantage, -clip, clip)


def value_advantages(
    reward: np.ndarray,
    values: Sequence[np.ndarray],
    roles: Sequence[str],
    *,
    gae_lambda: float,
    clip: float | None = None,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Advantages and targets of the critic, token by token; the reward comes with the last token.

    Args:
      reward: `[S]`.
      values: S arrays `[M]`, of what comes before each token.
      roles: S names; advantages of a role are shifted and scaled to mean 0 and deviation 1.
      gae_lambda: see `gae`.
      clip: as of `sample_advantages`.

    Returns:
      `(advantages, targets)`, S arrays `[M]` each.
    """
    length = np.asarray([len(value) for value in values])
    steps = np.arange(max(length))[:, None]
    inside, last = steps < length[None], steps == length[None] - 1
    value = np.zeros(inside.shape, np.float32)
    for column, one in enumerate(values):
        value[: len(one), column] = one
    after = np.where(inside & ~last, np.concatenate([value[1:], value[:1] * 0]), 0.0)
    token_reward = np.where(last, reward[None], 0.0).astype(np.float32)
    boundary = jnp.asarray(last | ~inside)
    found = gae(
        jnp.asarray(token_reward),
        jnp.asarray(value),
        jnp.asarray(after, jnp.float32),
        boundary,
        boundary,
        discount=1.0,
        gae_lambda=gae_lambda,
    )
    advantage, target = (np.array(part) for part in found)
    of_role = np.asarray(roles)
    for role in set(roles):
        tokens = inside & (of_role == role)[None]
        part = advantage[tokens]
        advantage[tokens] = (part - part.mean()) / (part.std() + 1e-8)
    if clip is not None:
        advantage = np.clip(advantage, -clip, clip)
    columns = [slice(0, count) for count in length]
    return (
        [advantage[part, column] for column, part in enumerate(columns)],
        [target[part, column] for column, part in enumerate(columns)],
    )


def from_tables(tables: Sequence[np.ndarray], values: Sequence[Any], count: int) -> np.ndarray:
    """`[S]` float32 from `[T, B, C]` of each call."""
    found = np.zeros(count, np.float32)
    for table, value in zip(tables, values, strict=True):
        there = table >= 0
        found[table[there]] = np.asarray(value)[there]
    return found
