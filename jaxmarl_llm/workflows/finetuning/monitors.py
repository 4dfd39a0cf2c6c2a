"""What fine-tuning tells of itself, as names and numbers. Axes: R roles, S samples, B episodes."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.algorithms.divergence import kl_estimate
from jaxmarl_llm.llm.distribution import LOWEST
from jaxmarl_llm.workflows.text.rollout import TextEpisodes


def episode_metrics(roles: Sequence[str], episodes: TextEpisodes, reward: np.ndarray | None = None) -> dict[str, Any]:
    """How episodes went.

    Args:
      roles: R names.
      episodes: B of them.
      reward: `[S]`; None leaves it out.

    Returns:
      `accuracy`, the mean outcome; `any_correct`; `selection_failure` and `generation_failure`, the shares of episodes
      that failed with and without a right solution; `messages` an episode. `[R]`, means over messages: `reward`,
      `format_rate`, `own_score`, `length` in tokens; nan for a role without a message, or without an own score.
    """
    outcome, any_correct = np.asarray(episodes.outcome), np.asarray(episodes.any_correct, bool)
    success = outcome >= 1
    metrics: dict[str, Any] = {
        "accuracy": outcome.mean(),
        "any_correct": any_correct.mean(),
        "selection_failure": (any_correct & ~success).mean(),
        "generation_failure": (~any_correct).mean(),
        "messages": len(episodes.samples) / len(outcome),
    }
    role = np.asarray([sample.role for sample in episodes.samples])
    values = {
        "format_rate": [float(sample.format_ok) for sample in episodes.samples],
        "own_score": [np.nan if sample.own_score is None else sample.own_score for sample in episodes.samples],
        "length": [float(len(sample.completion)) for sample in episodes.samples],
    }
    if reward is not None:
        values["reward"] = list(reward)
    for name, of_sample in values.items():
        of_sample = np.asarray(of_sample, np.float32)
        known = ~np.isnan(of_sample)
        metrics[name] = np.asarray([mean_where(of_sample, known & (role == one)) for one in roles])
    return metrics


def mean_where(values: Any, known: Any) -> np.ndarray:
    """Means over the first axis of what is known, `[K, ...]` and bool of the same shape; nan where nothing is."""
    values, known = np.asarray(values), np.asarray(known)
    count = known.sum(0)
    return np.where(count > 0, np.where(known, values, 0.0).sum(0) / np.maximum(count, 1), np.nan)


def message_divergence(old: Sequence[Any], new: Sequence[Any]) -> tuple[float, float]:
    """Divergence of a policy from the one that acted, in nats a message, from what the latter wrote.

    Args:
      old, new: S arrays `[M]` of log-probabilities, under the policy that acted and under the other; None where a
        sample does not count.

    Returns:
      `(d, k3)`: the mean over messages of the sum over tokens of `old - new` (TeamTR, arXiv 2605.15207, algorithm 1),
      which is unbiased and may be negative; and of the estimate that cannot be, see `kl_estimate`. Both are infinite
      where a token has become impossible.
    """
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(old, new, strict=True) if b is not None]
    if not pairs:
        return 0.0, 0.0
    before, after = (np.concatenate([pair[side] for pair in pairs]).astype(np.float32) for side in range(2))
    if after.min(initial=0.0) <= LOWEST:
        return math.inf, math.inf
    # Zeros add nothing, and few lengths are few programs.
    padding = (0, (1 << (len(before) - 1).bit_length()) - len(before))
    sums = _divergences(np.pad(before, padding), np.pad(after, padding))
    k1, k3 = (float(total) / len(pairs) for total in sums)
    return k1, k3


@jax.jit
def _divergences(before: jax.Array, after: jax.Array) -> tuple[jax.Array, jax.Array]:
    k1, k3 = (jnp.sum(kl_estimate(before, after, kind=kind)) for kind in ("k1", "k3"))
    return k1, k3


def episode_log_ratio(samples: Sequence[Any], old: Sequence[Any], new: Sequence[Any], num_episodes: int) -> np.ndarray:
    """`[B]`, sums over an episode's messages of `new - old` log-probabilities; None counts as no change."""
    found = np.zeros(num_episodes)
    for sample, before, after in zip(samples, old, new, strict=True):
        if after is not None:
            found[sample.episode] += float(np.sum(np.asarray(after, np.float64) - np.asarray(before, np.float64)))
    return found


def named(metrics: dict[str, Any], roles: Sequence[str]) -> dict[str, float]:
    """Numbers under names: `[R]` as `name/role`, `[R, R]` as `name/role/other` for different roles.

    Names that begin with `policy_` have an axis P, whose policies are named by number; `policy_loss` is of the roles.
    What is nan was not measured and is left out.
    """
    found: dict[str, float] = {}
    for name, value in metrics.items():
        value = np.asarray(value)
        if value.ndim == 0:
            found[name] = float(value)
        elif value.ndim == 1:
            names = range(len(value)) if name.startswith("policy_") and name != "policy_loss" else roles
            found |= {f"{name}/{one}": float(number) for one, number in zip(names, value, strict=True)}
        else:
            found |= {
                f"{name}/{roles[row]}/{roles[column]}": float(value[row, column])
                for row in range(len(roles))
                for column in range(row + 1, len(roles))
            }
    return {name: value for name, value in found.items() if not np.isnan(value)}
