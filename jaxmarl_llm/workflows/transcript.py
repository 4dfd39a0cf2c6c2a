"""What has been written so far in one episode, as arrays of fixed shapes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.workflows.ragged import Ragged, unfinish
from jaxmarl_llm.workflows.tasks.base import Problem, Task
from jaxmarl_llm.workflows.vocabulary import Vocabulary


@struct.dataclass
class Completions:
    """The latest completions of one call. Axes: C copies, M tokens.

    Attributes:
      tokens: `[C, M]` int32, right-padded.
      length: `[C]` int32, with `end` where a copy came to an end; 0 where nothing was written.
      written: `[C]` bool.
    """

    tokens: jax.Array
    length: jax.Array
    written: jax.Array


@struct.dataclass
class Transcript:
    """A problem and the latest completions of every call.

    Attributes:
      problem: one problem.
      completions: name of a call to its completions.
    """

    problem: Problem
    completions: dict[str, Completions]


class Seat(NamedTuple):
    """Where one copy of a call sits, and what lies before it.

    Attributes:
      task, vocabulary: of the workflow.
      transcript: of one episode.
      copy: `[]` int32, the copy's number, from 0.
      copies: C, of the call.
    """

    task: Task
    vocabulary: Vocabulary
    transcript: Transcript
    copy: jax.Array
    copies: int

    def latest(self, call: str) -> tuple[Ragged, jax.Array]:
        """What one copy of a call wrote last, with its `end`: the copy of one's own number, or the only one.

        Returns:
          `((tokens [M], length []), written [] bool)`.
        """
        completions = self.transcript.completions[call]
        copy = self.copy if completions.length.shape[0] > 1 else 0
        return (completions.tokens[copy], completions.length[copy]), completions.written[copy]

    def token(self, name: str) -> int:
        """Id of one token."""
        return self.vocabulary.encode([name])[0]

    def solution_score(self, tokens: jax.Array, length: jax.Array) -> jax.Array:
        """`[]` float32, the task's score of a completion; 0 where it came to no end."""
        content, finished = unfinish(tokens, length, self.vocabulary.end)
        return jnp.where(finished, self.task.score(self.transcript.problem, *content), 0.0)

    def solution_scores(self, call: str) -> jax.Array:
        """`[C]` float32, the task's scores of a call's latest completions."""
        completions = self.transcript.completions[call]
        return jax.vmap(self.solution_score)(completions.tokens, completions.length)
