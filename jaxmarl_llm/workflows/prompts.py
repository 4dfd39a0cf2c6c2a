"""How the segments of a prompt are filled inside jit, and how long they can become."""

import jax
import jax.numpy as jnp

from jaxmarl_llm.workflows.graph import Call, Slot, Workflow
from jaxmarl_llm.workflows.messages import Addressed, number_ids
from jaxmarl_llm.workflows.ragged import Ragged, ragged, unfinish
from jaxmarl_llm.workflows.tasks.base import Task
from jaxmarl_llm.workflows.transcript import Seat
from jaxmarl_llm.workflows.vocabulary import Vocabulary


def completion_room(call: Call, task: Task) -> int:
    """The most tokens of a call's completion, with its `end`."""
    return call.max_new_tokens or call.writes.max_length(task) + 1


def segment_length(segment: str | Slot, workflow: Workflow, task: Task, vocabulary: Vocabulary) -> tuple[str, int]:
    """The source of a segment (`"fixed"` for a text), and the most tokens that it adds to a prompt."""
    if isinstance(segment, str):
        return "fixed", len(vocabulary.encode(segment))
    label = len(vocabulary.encode(segment.label))
    if segment.of == "problem":
        return segment.of, label + task.max_problem_length
    if segment.of == "number":
        return segment.of, label + 1
    source = workflow.call(segment.of)
    copies = 1 if segment.own or segment.part else source.copies
    return segment.of, copies * (label + segment.numbered + completion_room(source, task))


def fill(seat: Seat, workflow: Workflow, segment: str | Slot) -> tuple[list[Ragged], jax.Array]:
    """The parts of a segment for one copy.

    Args:
      seat: the copy that is to read it.
      workflow: whose calls fill it.
      segment: of the prompt.

    Returns:
      `(parts, there [])`; `there` is false where the copy is not to be asked, for want of a part of its own.
    """
    there = jnp.ones((), bool)
    if isinstance(segment, str):
        return [ragged(seat.vocabulary.encode(segment))], there
    label, label_length = ragged(seat.vocabulary.encode(segment.label))
    if segment.of == "problem":
        problem = seat.transcript.problem
        return [(label, label_length), (problem.tokens, problem.length)], there
    one = jnp.ones((), jnp.int32)
    if segment.of == "number":
        return [(label, label_length), (number_ids(seat.vocabulary, seat.copies)[seat.copy][None], one)], there
    source = workflow.call(segment.of)
    completions = seat.transcript.completions[segment.of]
    parts: list[Ragged] = []
    sources = (seat.copy,) if segment.own else range(source.copies)
    if isinstance(source.writes, Addressed) and segment.part:
        sources = (seat.copy // source.writes.number,)
    for copy in sources:
        content, _ = unfinish(completions.tokens[copy], completions.length[copy], seat.vocabulary.end)
        written = completions.written[copy]
        if segment.part and isinstance(source.writes, Addressed):
            content, there = source.writes.part(seat, *content, seat.copy % source.writes.number)
            written = there
        # A label without its filling would say that something empty was written.
        parts.append((label, label_length * written))
        if segment.numbered:
            parts.append((number_ids(seat.vocabulary, source.copies)[copy][None], one * written))
        parts.append(content)
    return parts, there
