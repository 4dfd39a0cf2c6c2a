"""Whole episodes written by imperfect teachers, for supervised pretraining."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.workflows.bound import BoundWorkflow
from jaxmarl_llm.workflows.tasks.base import Problem
from jaxmarl_llm.workflows.transcript import Transcript


@struct.dataclass
class Exchange:
    """One turn: what the copies of a call read and wrote. Axes: C copies, L and M tokens.

    Attributes:
      prompt, prompt_length: `[C, L]` and `[C]` int32.
      completion, completion_length: `[C, M]` and `[C]` int32, with `end`.
      asked: `[C]` bool; where false, the others mean nothing.
    """

    prompt: jax.Array
    prompt_length: jax.Array
    completion: jax.Array
    completion_length: jax.Array
    asked: jax.Array


Skill = jax.Array | float | Mapping[str, jax.Array | float]


def teach(
    bound: BoundWorkflow, key: jax.Array, problem: Problem, skill: Skill, advice: Skill | None = None
) -> tuple[tuple[Exchange, ...], Transcript]:
    """Plays one episode with teachers in all roles; pure, for `jax.vmap`.

    Args:
      bound: the workflow and its task.
      key: for chance.
      problem: one problem.
      skill: probability that a teacher does what is right, in [0, 1], or role to skill.
      advice: of the same kind as `skill`; if given, the exchanges hold what teachers of this skill would have written,
        in an episode that goes on with what those of `skill` wrote.

    Returns:
      An exchange for each of `workflow.turns`, and the transcript at the end.
    """
    transcript = bound.begin(problem)
    exchanges = []
    turns = bound.workflow.turns
    for turn, turn_key in zip(turns, jax.random.split(key, len(turns)), strict=True):
        prompt, prompt_length, asked = bound.prompt(transcript, turn)

        def write(skill, transcript=transcript, turn=turn, turn_key=turn_key):
            return bound.teacher(transcript, turn.call, turn_key, skill)

        if advice is None:
            written = advised = write(skill)
        else:
            # Both from one chance: they differ only where the skills do.
            both = jax.vmap(write)(jax.tree.map(lambda *skills: jnp.stack(skills), skill, advice))
            written, advised = ((both[0][index], both[1][index]) for index in range(2))
        tokens, length = written
        transcript = bound.record(transcript, turn.call, tokens, length, asked)
        tokens, length = advised
        exchanges.append(Exchange(prompt, prompt_length, tokens, length, asked))
    return tuple(exchanges), transcript
