"""Who is rewarded for what, given how episodes went.

Axes: T rounds of a call, B episodes, C copies.
"""

import jax
import jax.numpy as jnp

from jaxmarl_llm.algorithms.credit import difference_reward
from jaxmarl_llm.errors import unknown_name
from jaxmarl_llm.workflows.bound import BoundWorkflow
from jaxmarl_llm.workflows.messages import Solution
from jaxmarl_llm.workflows.rollout import CallSamples, Episodes

REWARDS = ("outcome", "own", "mixed", "votes", "solo")


def assign_rewards(
    bound: BoundWorkflow,
    episodes: Episodes,
    kind: str = "outcome",
    *,
    own_weight: jax.typing.ArrayLike = 0.5,
    format_weight: jax.typing.ArrayLike = 0.0,
) -> tuple[jax.Array, ...]:
    """The reward of every completion.

    Args:
      bound: the workflow.
      episodes: as they went.
      kind: `"outcome"`, the score of the final answer for all; `"own"`, a completion's score by itself, and the outcome
        for those without one; `"mixed"`, both, by `own_weight`; `"votes"`, for calls of several solutions the
        difference that a copy's vote makes to their plurality, else the outcome; `"solo"`, for roles other than the
        first that solves, the outcome and `own_weight` times what it gained over the first solutions (CCPO, arXiv
        2603.21563).
      own_weight: share of the own score in `"mixed"`; weight of the gain in `"solo"`.
      format_weight: taken off a completion that is not in its format.

    Returns:
      `[T, B, C]` float32 of each call; it means nothing where nobody was asked.

    Raises:
      UserError: unknown kind.
    """
    if kind not in REWARDS:
        raise unknown_name("reward", kind, REWARDS)
    calls = bound.workflow.calls
    solves = [isinstance(call.writes, Solution) for call in calls]
    rewards = []
    for index, (call, samples) in enumerate(zip(calls, episodes.calls, strict=True)):
        reward = jnp.broadcast_to(episodes.outcome[None, :, None], samples.asked.shape)
        if kind in ("own", "mixed") and samples.own_score is not None:
            share = 1.0 if kind == "own" else own_weight
            reward = (1.0 - share) * reward + share * samples.own_score
        elif kind == "votes" and solves[index] and call.copies > 1:
            reward = vote_difference(samples)
        elif kind == "solo" and any(solves) and call.role != calls[solves.index(True)].role:
            first = episodes.calls[solves.index(True)]
            assert first.own_score is not None
            solo = jnp.mean(first.own_score[0], axis=-1)
            reward = reward + own_weight * (episodes.outcome - solo)[None, :, None]
        rewards.append(reward - format_weight * ~samples.format_ok)
    return tuple(rewards)


def vote_difference(samples: CallSamples) -> jax.Array:
    """What each copy's vote is worth: the score of the plurality's solution less what it would be without that copy.

    Args:
      samples: of a call whose copies write solutions; those not asked have no vote.

    Returns:
      `[T, B, C]` float32; at a tie the first solution wins, and no votes score 0.
    """
    tokens, asked, own_score = samples.completion, samples.asked, samples.own_score
    assert own_score is not None
    same = jnp.all(tokens[..., :, None, :] == tokens[..., None, :, :], axis=-1)

    def score_of(votes):
        support = jnp.sum(same & votes[..., None, :], axis=-1) * votes
        winner = jnp.argmax(support, axis=-1, keepdims=True)
        score = jnp.take_along_axis(jnp.where(votes, own_score, 0.0), winner, axis=-1)
        return score[..., 0]

    copies = asked.shape[-1]
    without = asked[..., None, :] & ~jnp.eye(copies, dtype=bool).reshape((1,) * (asked.ndim - 1) + (copies, copies))
    alternatives = jax.vmap(score_of, in_axes=-2, out_axes=-1)(without)
    return difference_reward(score_of(asked), alternatives)
