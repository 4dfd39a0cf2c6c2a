"""Prioritised level replay: which level of an environment to play next."""

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class LevelScores:
    """What is known about K levels.

    Attributes:
      score: `[K]` float32, learning potential when the level was last played.
      last_played: `[K]` int32, the count of episodes at that time; -1 for a level that was not played yet.
      count: `[]` int32, episodes so far.
    """

    score: jax.Array
    last_played: jax.Array
    count: jax.Array


def init_level_scores(num_levels):
    """K levels of which none was played yet."""
    return LevelScores(
        score=jnp.zeros((num_levels,)),
        last_played=jnp.full((num_levels,), -1, jnp.int32),
        count=jnp.zeros((), jnp.int32),
    )


def level_score(advantage, mask, *, axis=0):
    """Learning potential of an episode, the mean absolute advantage (Jiang et al. 2021, eq. 2: "L1 value loss").

    Args:
      advantage: `[T, ...]` float, generalised advantage estimates.
      mask: `[T, ...]` bool, steps of the episode.
      axis: the axes to average over: time, and the agents' axis where a team shares a level.

    Returns:
      `[...]` float, 0 where the mask is empty.
    """
    total = jnp.sum(jnp.where(mask, jnp.abs(advantage), 0.0), axis=axis)
    return total / jnp.maximum(jnp.sum(mask, axis=axis), 1)


def update_level_scores(scores, level, score, finished):
    """Notes a batch of episodes.

    Args:
      scores: `LevelScores`.
      level: `[B]` int32.
      score: `[B]` float, for example from `level_score`.
      finished: `[B]` bool, the others are ignored.

    Returns:
      The new `LevelScores`. A level that occurs several times gets the mean of its scores.
    """
    num_levels = scores.score.shape[0]
    played = (level[:, None] == jnp.arange(num_levels)[None, :]) & finished[:, None]
    times = jnp.sum(played, axis=0)
    mean = jnp.sum(jnp.where(played, score[:, None], 0.0), axis=0) / jnp.maximum(times, 1)
    count = scores.count + jnp.sum(finished)
    return LevelScores(
        score=jnp.where(times > 0, mean, scores.score),
        last_played=jnp.where(times > 0, count, scores.last_played),
        count=count,
    )


def replay_probabilities(scores, *, temperature=0.1, staleness=0.1):
    """How likely each level is to be replayed (Jiang et al. 2021, eqs. 3 to 5).

    Args:
      scores: `LevelScores`.
      temperature: beta; the score part is proportional to `rank ** (-1 / beta)`, rank 1 for the highest score.
      staleness: rho, the share of the part that is proportional to the episodes since a level was last played.

    Returns:
      `[K]` float32: 0 for levels not played yet, else summing to 1; all zeros before any was.
    """
    seen = scores.last_played >= 0
    order = jnp.argsort(jnp.where(seen, -scores.score, jnp.inf))
    rank = jnp.zeros_like(order).at[order].set(jnp.arange(1, order.shape[0] + 1))
    # Logarithms: rank ** (-1 / beta) falls below the smallest float within a few dozen ranks.
    by_score = _normalize(jnp.where(seen, jnp.exp(-jnp.log(rank.astype(jnp.float32)) / temperature), 0.0))
    age = _normalize(jnp.where(seen, (scores.count - scores.last_played).astype(jnp.float32), 0.0))
    # No level is stale when all were played last: then the score decides alone.
    staleness = jnp.where(jnp.sum(age) > 0, staleness, 0.0)
    return (1.0 - staleness) * by_score + staleness * age


def sample_levels(key, scores, num, *, replay_probability=0.5, temperature=0.1, staleness=0.1):
    """Chooses levels to play next: new ones, or played ones by their priority (Jiang et al. 2021, algorithm 2).

    Args:
      key: consumed.
      scores: `LevelScores`.
      num: B, how many; they are drawn with replacement.
      replay_probability: chance of a played level while there are new ones; before any was played, and once all were,
        there is no choice.
      temperature, staleness: see `replay_probabilities`.

    Returns:
      `[B]` int32.
    """
    replay = replay_probabilities(scores, temperature=temperature, staleness=staleness)
    new = _normalize((scores.last_played < 0).astype(jnp.float32))
    share = jnp.where(jnp.sum(new) > 0, replay_probability, 1.0)
    share = jnp.where(jnp.sum(replay) > 0, share, 0.0)
    probability = share * replay + (1.0 - share) * new
    return jax.random.choice(key, probability.shape[0], (num,), p=probability).astype(jnp.int32)


def _normalize(weight):
    total = jnp.sum(weight)
    return weight / jnp.where(total > 0, total, 1.0)
