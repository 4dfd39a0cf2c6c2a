"""How a team does in words: accuracy with its interval, and what its calls do.

Axes: Q problems, B episodes.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.workflows.messages import CORRECT, Addressed, Verdict
from jaxmarl_llm.workflows.text.bound import TextWorkflow
from jaxmarl_llm.workflows.text.coordination import instruction_report
from jaxmarl_llm.workflows.text.rollout import TextEpisodes, TextSample, play_text
from jaxmarl_llm.workflows.text.sampler import AnySampler


@dataclasses.dataclass(frozen=True, eq=False)
class TextEvaluation:
    """How a team did on held-out problems.

    Attributes:
      accuracy: mean score of the final answers, in [0, 1].
      interval: of the accuracy, 95 % (Wilson 1927).
      report: see `episode_report`.
      episodes: as they went.
    """

    accuracy: float
    interval: tuple[float, float]
    report: dict[str, Any]
    episodes: TextEpisodes


def evaluate_text(
    sampler: AnySampler, bound: TextWorkflow, problems: Sequence[Any] | None = None, *, workers: int = 4
) -> TextEvaluation:
    """Plays each problem once, always with the likeliest tokens.

    Args:
      sampler: who answers.
      bound: the workflow at work on its task.
      problems: the task's held-out ones by default.
      workers: threads that score solutions.

    Raises:
      UserError: no problems, or one that is too long.
    """
    chosen: Sequence[Any] = bound.task.held_out if problems is None else problems
    episodes = play_text(sampler, bound, chosen, jax.random.key(0), temperature=0.0, workers=workers)
    accuracy = float(np.mean(episodes.outcome))
    return TextEvaluation(
        accuracy, wilson_interval(accuracy, len(episodes.outcome)), episode_report(bound, episodes), episodes
    )


def wilson_interval(share: float, number: int, *, deviations: float = 1.959964) -> tuple[float, float]:
    """Score interval of a share of independent trials (Wilson 1927).

    Unlike a bootstrap it is no point where all trials succeed or all fail. For scores between 0 and 1 it is too wide.

    Args:
      share: of successes, in [0, 1].
      number: of trials.
      deviations: of the normal distribution, 1.96 for 95 %.

    Returns:
      `(low, high)`.
    """
    square = deviations**2
    middle = (share + square / (2 * number)) / (1 + square / number)
    half = deviations / (1 + square / number) * math.sqrt(share * (1 - share) / number + square / (4 * number**2))
    # Rounding must not put the share itself outside.
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))


def episode_report(bound: TextWorkflow, episodes: TextEpisodes) -> dict[str, Any]:
    """How episodes went, in numbers that JSON can hold.

    Args:
      bound: the workflow.
      episodes: as they went.

    Returns:
      `accuracy`, `any_correct`, `selection_failure` (some solution was right and the answer is not) and
      `generation_failure` (none was): shares of episodes. `calls`, by name: `asked`, replies an episode; `idle`, the
      share of its turns and copies that were not asked; `format_ok`; `own_score`, None without one; `cut_off`, the
      share that came to no end; `tokens`, the mean length; where it addresses others, `instructions`, the mean number
      of those who have a part; and of instructions what `instruction_report` has, under `instruction_...`.
      `verdict_confusion`, with an evaluator: numbers of verdicts by `says_correct` and `is_correct`.
      `prompt_tokens`, `new_tokens` and `seconds` of all.
    """
    success = episodes.outcome >= 1
    by_call: dict[str, list[TextSample]] = {call.name: [] for call in bound.workflow.calls}
    for sample in episodes.samples:
        by_call[sample.call].append(sample)
    turns = Counter(turn.call.name for turn in bound.workflow.turns)
    stop_tokens = bound.tokenizer.stop_tokens
    calls = {}
    for call in bound.workflow.calls:
        samples, most = by_call[call.name], len(success) * turns[call.name] * call.copies
        own = [sample.own_score for sample in samples if sample.own_score is not None]
        calls[call.name] = {
            "asked": len(samples) / len(success),
            "idle": 1 - len(samples) / most,
            "format_ok": _mean([sample.format_ok for sample in samples]),
            "own_score": _mean(own) if own else None,
            "cut_off": _mean([not np.isin(sample.completion[-1:], stop_tokens).any() for sample in samples]),
            "tokens": _mean([len(sample.completion) for sample in samples]),
        }
        if isinstance(call.writes, Addressed):
            calls[call.name]["instructions"] = _mean([len(sample.value or ()) for sample in samples])
    for name, found in instruction_report(bound, episodes).items():
        calls[name] |= {f"instruction_{one}": value for one, value in found.items()}
    report: dict[str, Any] = {
        "accuracy": float(np.mean(episodes.outcome)),
        "any_correct": float(np.mean(episodes.any_correct)),
        "selection_failure": float(np.mean(episodes.any_correct & ~success)),
        "generation_failure": float(np.mean(~episodes.any_correct)),
        "calls": calls,
        "prompt_tokens": sum(len(sample.prompt) for sample in episodes.samples),
        "new_tokens": sum(len(sample.completion) for sample in episodes.samples),
        "seconds": episodes.seconds,
    }
    judges = [call.name for call in bound.workflow.calls if isinstance(call.writes, Verdict)]
    if judges:
        report["verdict_confusion"] = _confusion([sample for name in judges for sample in by_call[name]])
    return report


def _confusion(samples: list[TextSample]) -> list[dict[str, Any]]:
    """Numbers of well-formed verdicts by what they say and by what is true."""
    says = [(sample.value == CORRECT, sample.own_score == 1) for sample in samples if sample.format_ok]
    count = Counter((verdict, verdict == is_right) for verdict, is_right in says)
    return [
        {"says_correct": verdict, "is_correct": truth, "count": count[verdict, truth]}
        for verdict in (True, False)
        for truth in (True, False)
    ]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
