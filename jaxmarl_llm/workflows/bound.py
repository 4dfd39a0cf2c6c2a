"""A workflow at work on a task: lengths checked, then pure functions of one episode for an executor to vmap.

Axes: C copies of a call, L tokens of its prompt, M tokens of its completion, V tokens of the vocabulary.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.arguments import check_kind, check_number, check_whole, shown
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.workflows.graph import Call, Last, Turn, Until, Workflow
from jaxmarl_llm.workflows.messages import Choice, Strategies
from jaxmarl_llm.workflows.prompts import completion_room, fill, segment_length
from jaxmarl_llm.workflows.ragged import PAD, Ragged, assemble, finish, unfinish
from jaxmarl_llm.workflows.tasks.base import Problem, Task
from jaxmarl_llm.workflows.tasks.checks import check_task
from jaxmarl_llm.workflows.transcript import Completions, Seat, Transcript
from jaxmarl_llm.workflows.vocabulary import Vocabulary


def build_vocabulary(task: Task, *workflows: Workflow) -> Vocabulary:
    """The vocabulary of a task and of all workflows that are to share it.

    Raises:
      UserError: names that no vocabulary can hold, or a task that does not keep its contract, see `check_task`.
    """
    check_task(task)
    names = [*task.symbols, *(name for workflow in workflows for name in workflow.symbols)]
    return Vocabulary(tuple(dict.fromkeys(names)))


@dataclasses.dataclass(frozen=True)
class BoundWorkflow:
    """A workflow, the task it works on and the vocabulary that both are written in; see `bind`.

    Attributes:
      workflow, task, vocabulary: frozen, so that this is a static argument of jit.
    """

    workflow: Workflow
    task: Task
    vocabulary: Vocabulary

    @property
    def max_prompt_length(self) -> int:
        """The longest prompt of any call, in tokens."""
        return max(self.prompt_length(call) for call in self.workflow.calls)

    @property
    def context_length(self) -> int:
        """The longest prompt with its completion, in tokens: what a model's context must hold."""
        return max(self.prompt_length(call) + self.max_new_tokens(call) for call in self.workflow.calls)

    def max_new_tokens(self, call: Call) -> int:
        """M, room for a completion of a call with its `end`."""
        return completion_room(call, self.task)

    def prompt_length(self, call: Call) -> int:
        """L, the most tokens of a call's prompt, from the definition alone."""
        return sum(length for _, length in self.segment_lengths(call))

    def segment_lengths(self, call: Call) -> tuple[tuple[str, int], ...]:
        """What each segment of a call's prompt adds to its length: its source (`"fixed"` for texts), and tokens."""
        return tuple(segment_length(segment, self.workflow, self.task, self.vocabulary) for segment in call.prompt)

    def allowed_tokens(self, call: Call) -> np.ndarray:
        """`[V]` bool, the tokens of a call's format and `end`, for a sampler that is held to them."""
        names = call.writes.allowed(self.task, self.workflow.copies)
        mask = np.zeros(len(self.vocabulary), bool)
        mask[[*self.vocabulary.encode(names), self.vocabulary.end]] = True
        return mask

    def begin(self, problem: Problem) -> Transcript:
        """The transcript before the first call.

        Raises:
          ValueError: a problem of another task, or several.
        """
        if _form(problem) != _problem_form(self.task):
            raise ValueError(
                f"the problem has other arrays than one problem of {shown(self.task)}: draw it by that task, and vmap "
                "over several"
            )
        return Transcript(
            problem=problem,
            completions={
                call.name: Completions(
                    tokens=jnp.full((call.copies, self.max_new_tokens(call)), PAD, jnp.int32),
                    length=jnp.zeros((call.copies,), jnp.int32),
                    written=jnp.zeros((call.copies,), bool),
                )
                for call in self.workflow.calls
            },
        )

    def prompt(self, transcript: Transcript, turn: Turn) -> tuple[jax.Array, jax.Array, jax.Array]:
        """What each copy of a call reads, and whether it is asked at all.

        Args:
          transcript: of one episode.
          turn: one of `workflow.turns`.

        Returns:
          `(tokens [C, L], length [C], asked [C])`. A copy is not asked once its loop is satisfied, or where its part of
          an orchestrator's message is missing.
        """

        size = self.prompt_length(turn.call)

        def one(copy):
            seat = self.seat(transcript, turn.call, copy)
            filled = [fill(seat, self.workflow, segment) for segment in turn.call.prompt]
            tokens, length = assemble([part for parts, _ in filled for part in parts], size)
            return tokens, length, jnp.stack([there for _, there in filled]).all()

        tokens, length, asked = jax.vmap(one)(jnp.arange(turn.call.copies))
        if turn.until is not None:
            asked = asked & ~self.satisfied(transcript, turn.until)
        return tokens, length, asked

    def record(
        self, transcript: Transcript, call: Call, tokens: jax.Array, length: jax.Array, asked: jax.Array
    ) -> Transcript:
        """The transcript after a call.

        Args:
          transcript: of one episode.
          call: who wrote.
          tokens, length: `[C, M]` and `[C]` int32; lengths count `end` where it was written.
          asked: `[C]` bool, from `prompt`; the other copies keep what they wrote before.

        Raises:
          ValueError: shapes that are not the call's.
        """
        old = transcript.completions[call.name]
        shapes, needed = [np.shape(array) for array in (tokens, length, asked)], old.tokens.shape
        if shapes != [needed, needed[:1], needed[:1]]:
            raise ValueError(
                f"call '{call.name}' needs tokens [C, M] = {needed}, length and asked [C], "
                f"got {', '.join(map(str, shapes))}"
            )
        inside = jnp.arange(tokens.shape[1])[None] < length[:, None]
        new = Completions(
            tokens=jnp.where(asked[:, None], jnp.where(inside, tokens, PAD), old.tokens),
            length=jnp.where(asked, length, old.length),
            written=old.written | asked,
        )
        return Transcript(problem=transcript.problem, completions={**transcript.completions, call.name: new})

    def satisfied(self, transcript: Transcript, until: Until) -> jax.Array:
        """`[]` bool, whether a loop has come to its end."""
        completions = transcript.completions[until.call]
        (tokens, length), finished = unfinish(completions.tokens[0], completions.length[0], self.vocabulary.end)
        return finished & (length == 1) & (tokens[0] == self.vocabulary.encode([until.says])[0])

    def answer(self, transcript: Transcript) -> Ragged:
        """The final answer, a completion `(tokens [M], length [])`; empty where there is none."""
        rule = self.workflow.answer
        if isinstance(rule, Last):
            completions = transcript.completions[rule.call]
            return completions.tokens[0], completions.length[0]
        call = self.workflow.call(rule.by)
        message = call.writes
        assert isinstance(message, Choice)
        seat = self.seat(transcript, call)
        choice = transcript.completions[rule.by]
        content, finished = unfinish(choice.tokens[0], choice.length[0], self.vocabulary.end)
        chosen = message.chosen(seat, *content) & finished
        solutions = transcript.completions[message.of]
        return (solutions.tokens * chosen[:, None]).sum(0), (solutions.length * chosen).sum()

    def outcome(self, transcript: Transcript) -> jax.Array:
        """`[]` float32 in [0, 1], the task's score of the final answer."""
        return self.seat(transcript, self.workflow.calls[0]).solution_score(*self.answer(transcript))

    def format_ok(self, transcript: Transcript, call: Call) -> jax.Array:
        """`[C]` bool, whether the latest completions of a call came to an end and are in its format."""

        def one(seat, content, finished):
            return finished & call.writes.format_ok(seat, *content)

        return self._judge(transcript, call, one)

    def own_score(self, transcript: Transcript, call: Call) -> jax.Array:
        """`[C]` float32, how right the latest completions of a call are by themselves; see `Message.own_score`."""

        def one(seat, content, finished):
            return jnp.where(finished, call.writes.own_score(seat, *content), 0.0)

        return self._judge(transcript, call, one)

    def teacher(
        self, transcript: Transcript, call: Call, key: jax.Array, skill: jax.Array | float | Mapping[str, float]
    ) -> tuple[jax.Array, jax.Array]:
        """What imperfect teachers write in place of a call's copies.

        Args:
          transcript: before the call.
          call: of the workflow.
          key: for chance.
          skill: in [0, 1], or role to skill.

        Returns:
          `(tokens [C, M], length [C])`, int32, each with its `end`.

        Raises:
          UserError: a role without a skill, or one that is known to be out of range.
        """
        if isinstance(skill, Mapping):
            if call.role not in skill:
                raise UserError(f"the skills miss the role '{call.role}': give it one between 0 and 1")
            skill = skill[call.role]
        check_number(f"the skill of role '{call.role}'", skill, at_most=1.0)

        def one(copy, key):
            content = call.writes.teacher(self.seat(transcript, call, copy), key, skill)
            return finish(content, self.vocabulary.end, self.max_new_tokens(call))

        return jax.vmap(one)(jnp.arange(call.copies), jax.random.split(key, call.copies))

    def seat(self, transcript: Transcript, call: Call, copy: jax.Array | int = 0) -> Seat:
        """The place of one copy of a call, for the methods of messages."""
        return Seat(self.task, self.vocabulary, transcript, jnp.asarray(copy), call.copies)

    def _judge(self, transcript: Transcript, call: Call, one) -> jax.Array:
        completions = transcript.completions[call.name]

        def copy(number, tokens, length):
            return one(self.seat(transcript, call, number), *unfinish(tokens, length, self.vocabulary.end))

        return jax.vmap(copy)(jnp.arange(call.copies), completions.tokens, completions.length)


def _form(tree: Any) -> tuple:
    return jax.tree.structure(tree), [np.shape(leaf) for leaf in jax.tree.leaves(tree)]


@functools.cache
def _problem_form(task: Task) -> tuple:
    return _form(jax.eval_shape(lambda: task.draw(jax.random.key(0))))


def bind(
    workflow: Workflow, task: Task, *, context_length: int | None = None, vocabulary: Vocabulary | None = None
) -> BoundWorkflow:
    """Puts a workflow to work on a task, after checking every length from the definitions alone.

    Args:
      workflow: the calls.
      task: gives the problems.
      context_length: tokens that a model can hold, prompt and completion together; not checked, if not given.
      vocabulary: one that other workflows share, from `build_vocabulary`; if not given, just what this one needs.

    Returns:
      The bound workflow; hashable.

    Raises:
      UserError: a task that does not keep its contract (`check_task`), a completion that its call has no room for, a
        prompt that can exceed the context or be empty, a token that a loop waits for in vain, a separator that is a
        symbol of the task, or a vocabulary that misses a token or puts the task's symbols elsewhere.
    """
    check_kind("workflow", workflow, Workflow)
    check_task(task)
    if context_length is not None:
        check_whole("context_length", context_length, at_least=1)
    if vocabulary is not None:
        check_kind("vocabulary", vocabulary, Vocabulary)
    for turn in workflow.turns:
        if turn.until is not None:
            may_say = workflow.call(turn.until.call).writes.allowed(task, workflow.copies)
            if turn.until.says not in may_say:
                raise unknown_name(f"token that '{turn.until.call}' may write", turn.until.says, may_say)
    bound = BoundWorkflow(workflow, task, build_vocabulary(task, workflow) if vocabulary is None else vocabulary)
    first = bound.vocabulary.encode(workflow.symbols + task.symbols)[len(workflow.symbols) :]
    if first != task.tokens(task.symbols):
        raise UserError("the vocabulary must begin with the task's symbols: build it with build_vocabulary(task, ...)")
    for call in workflow.calls:
        where = f"call '{call.name}' of workflow '{workflow.name}'"
        if call.may_read_nothing:
            raise UserError(
                f"the prompt of {where} can be empty, since a call may write nothing: put a text or the problem into it"
            )
        if isinstance(call.writes, Strategies) and call.writes.separator in task.symbols:
            raise UserError(
                f"{where} puts '{call.writes.separator}' before each strategy, which is a symbol of the task: choose "
                "another separator"
            )
        content, room = call.writes.max_length(task), bound.max_new_tokens(call)
        if content + 1 > room:
            raise UserError(
                f"an answer cannot fit: {where} writes up to {content} tokens and an end, but has max_new_tokens={room}"
            )
        prompt = bound.prompt_length(call)
        if context_length is not None and prompt + room > context_length:
            parts = " + ".join(f"{size} {source}" for source, size in bound.segment_lengths(call))
            raise UserError(
                f"a prompt can exceed the context: that of {where} has up to {prompt} tokens ({parts}), with "
                f"{room} to write {prompt + room}, but the context holds {context_length}"
            )
    return bound
