"""A workflow at work on a task in words: prompts by its formats, lengths checked, replies read.

Axes: C copies of a call.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxmarl_llm.arguments import check_kind, check_whole
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.llm.automata import TokenConstraint
from jaxmarl_llm.workflows.graph import Call, Last, Slot, Until, Workflow
from jaxmarl_llm.workflows.instructions import Instructions
from jaxmarl_llm.workflows.messages import Addressed, Choice
from jaxmarl_llm.workflows.text.choices import automaton_of, check_choices
from jaxmarl_llm.workflows.text.formats import FORM, RoleFormat, constants, formats_of, render
from jaxmarl_llm.workflows.text.replies import Reading, read_reply


@dataclasses.dataclass(frozen=True, eq=False)
class Reply:
    """What one copy of a call wrote.

    Attributes:
      text: without special tokens, those spelled out too, so that a reply cannot end another role's prompt.
      finished: it came to an end, or need not.
      reading: what it says.
    """

    text: str
    finished: bool
    reading: Reading

    @property
    def format_ok(self) -> bool:
        """Whether it came to an end and is in its form."""
        return self.finished and self.reading.format_ok

    @property
    def value(self) -> Any:
        """What it says; None where it came to no end."""
        return self.reading.value if self.finished else None


Board = dict[str, list[Reply | None]]
"""The latest reply of each copy of each call of an episode; None where nothing was written."""


@dataclasses.dataclass(frozen=True, eq=False)
class TextWorkflow:
    """A workflow, the text task it works on and how its roles are asked; see `bind_text`.

    Attributes:
      workflow: the graph.
      task: gives and scores the problems.
      tokenizer: of the model.
      formats: name of a call to format.
      room: name of a call to the most tokens of its replies, with the end.
      max_length: tokens that the model can hold, prompt and reply together.
      require_end: a reply that is cut off for want of room is not in its form and worth nothing.
    """

    workflow: Workflow
    task: Any
    tokenizer: Any
    formats: Mapping[str, RoleFormat]
    room: Mapping[str, int]
    max_length: int
    require_end: bool

    def begin(self) -> Board:
        """The board before the first call."""
        return {call.name: [None] * call.copies for call in self.workflow.calls}

    def is_asked(self, board: Board, call: Call, copy: int) -> bool:
        """Whether there is a part for a copy wherever it reads one of its own."""
        return all(self._parts(board, slot, copy) for slot in call.slots if slot.part)

    def room_of(self, board: Board, call: Call, copy: int) -> int:
        """The most tokens that a copy of a call may write: the call's room, or fewer that it was allotted."""
        room = self.room[call.name]
        for slot in call.slots:
            message = self.workflow.call(slot.of).writes if slot.of in board else None
            if slot.part and isinstance(message, Instructions):
                reply = board[slot.of][copy // message.number]
                allotted = message.allotted_tokens(message.read(reply.text), copy % message.number) if reply else None
                room = min(room, allotted or room)
        return room

    def constraint(self, board: Board, call: Call, room: int) -> TokenConstraint | None:
        """What a copy of a call may write within `room` tokens, where its format has choices."""
        choices = self.formats[call.name].choices
        if not choices:
            return None
        # Listed texts are the same whatever others have written.
        written = self._written(board, call) if choices == FORM else ()
        return TokenConstraint(automaton_of(self.tokenizer, choices, call.writes, written), room)

    def messages(
        self, problem: Any, board: Board, call: Call, copy: int, *, share: float = 1.0
    ) -> list[dict[str, str]]:
        """The chat messages that a copy of a call reads.

        Args:
          problem: the `TextProblem`.
          board: before the call.
          call: of the workflow.
          copy: its number, from 0.
          share: of what others wrote that is put in.
        """
        values = constants(self.workflow, self.task, call, copy + 1) | {"problem": problem.prompt}
        for slot in call.slots:
            if slot.of in board:
                block = block_of(self.formats[call.name], slot)
                texts = [
                    render(block, {"text": text[: int(len(text) * share)], "number": str(number + 1)})
                    for number, text in self._parts(board, slot, copy)
                ]
                values[slot.of] = values.get(slot.of, "") + "".join(texts)
        return self.formats[call.name].messages(values)

    def prompt(self, problem: Any, board: Board, call: Call, copy: int) -> tuple[list[dict[str, str]], list[int]]:
        """The chat messages that a copy of a call reads, and their tokens.

        What others wrote is cut where it would not fit, which can happen only to replies that are longer when read than
        when written.

        Raises:
          UserError: the problem is too long.
        """
        limit = self.max_length - self.room[call.name]
        for share in (1.0, 0.5, 0.0):
            messages = self.messages(problem, board, call, copy, share=share)
            tokens = self.tokenizer.chat_ids(messages)
            if len(tokens) <= limit:
                return messages, tokens
        raise UserError(
            f"problem '{problem.name}' is too long: call '{call.name}' reads {len(tokens)} tokens and may write "
            f"{self.room[call.name]}, but max_length is {self.max_length}: raise it as far as the "
            "model goes, or leave the problem out"
        )

    def reply(self, board: Board, call: Call, text: str, *, ended: bool) -> Reply:
        """What a call's reply says.

        Args:
          board: before it.
          call: who wrote.
          text: of its tokens, without special ones.
          ended: whether it came to an end.
        """
        text = self._plain(text.strip(), self.room[call.name])
        reading = read_reply(call.writes, text, task=self.task, written=self._written(board, call))
        return Reply(text, ended or not self.require_end, reading)

    def satisfied(self, board: Board, until: Until) -> bool:
        """Whether a loop has come to its end."""
        reply = board[until.call][0]
        return reply is not None and reply.finished and until.says in (reply.value, reply.text)

    def answer(self, board: Board) -> Reply | None:
        """The reply that is the final answer; None where there is none."""
        rule = self.workflow.answer
        if isinstance(rule, Last):
            return board[rule.call][0]
        call, choice = self.workflow.call(rule.by), board[rule.by][0]
        assert isinstance(call.writes, Choice)
        return None if choice is None or choice.value is None else board[call.writes.of][choice.value]

    def _written(self, board: Board, call: Call) -> tuple[bool, ...]:
        """Which copies of the call that a call's message is about have written anything."""
        about = getattr(call.writes, "of", None)
        return tuple(reply is not None for reply in board[about]) if about in board else ()

    def _parts(self, board: Board, slot: Slot, copy: int) -> list[tuple[int, str]]:
        """What fills a slot for a copy: numbers of the copies that wrote, and texts."""
        replies, message = board[slot.of], self.workflow.call(slot.of).writes
        if slot.part and isinstance(message, Addressed):
            reply = replies[copy // message.number]
            value = reply.value if reply is not None else None
            return [(copy, value[copy % message.number])] if value and copy % message.number in value else []
        return [
            (number, reply.text)
            for number, reply in enumerate(replies)
            if reply is not None and (number == copy or not slot.own)
        ]

    def _plain(self, text: str, room: int) -> str:
        """A text that, read again, has no special tokens and at most `room` others."""
        for kept in range(room, -1, -1):
            tokens = self.tokenizer.encode(text)
            plain = self.tokenizer.decode(tokens)
            if len(tokens) <= room and plain == self.tokenizer.decode(tokens, skip_special=False):
                return text
            # What is cut off in the middle of a character can have more tokens than before.
            text = self.tokenizer.decode(tokens[:kept]).strip()
        return ""


def block_of(of_call: RoleFormat, slot: Slot) -> str:
    """The template of what each copy wrote that a slot reads."""
    escaped = slot.label.replace("{", "{{").replace("}", "}}")
    default = " ".join(part for part in (escaped, "{number}." if slot.numbered else "", "{text}\n") if part)
    return of_call.blocks.get(slot.of, default)


def bind_text(
    workflow: Workflow,
    task: Any,
    tokenizer: Any,
    formats: str | Path | Mapping[str, RoleFormat] | None = None,
    *,
    max_new_tokens: int | Mapping[str, int],
    max_length: int,
    require_end: bool = True,
) -> TextWorkflow:
    """Puts a workflow to work on a task in words, after checking every length from the definitions.

    Args:
      workflow: the calls.
      task: a `TextTask`.
      tokenizer: a `Tokenizer`, or what has its methods.
      formats: how calls are asked: a YAML file, or name of a call to `RoleFormat`; what ships by default.
      max_new_tokens: the most tokens of a reply, with the end: one number, or by name of a call. A call's own
        `max_new_tokens` goes before the one number.
      max_length: tokens that the model can hold, prompt and reply together.
      require_end: see `TextWorkflow`; False suits models that were never taught to be brief.

    Raises:
      UserError: formats that do not fit, a call without room, choices that it cannot be held to, or a prompt that can
        exceed `max_length`.
    """
    check_kind("workflow", workflow, Workflow)
    check_whole("max_length", max_length, at_least=1)
    room = _room(workflow, max_new_tokens)
    bound = TextWorkflow(workflow, task, tokenizer, formats_of(workflow, formats), room, max_length, require_end)
    problems = [len(tokenizer.encode(problem.prompt)) for problem in (*task.train, *task.held_out)]
    for call in workflow.calls:
        parts = _longest(bound, call, max(problems, default=0))
        total = sum(parts.values())
        if total + room[call.name] > max_length:
            shown = " + ".join(f"{size} {source}" for source, size in parts.items() if size)
            raise UserError(
                f"a prompt can exceed the context: that of call '{call.name}' of workflow '{workflow.name}' has up to "
                f"{total} tokens ({shown}), with {room[call.name]} to write {total + room[call.name]}, but "
                f"max_length is {max_length}: raise it as far as the model goes, allow fewer new tokens, or shorten "
                "the formats"
            )
        if bound.formats[call.name].choices:
            _check_choices(bound, call)
    return bound


def _room(workflow: Workflow, max_new_tokens: int | Mapping[str, int]) -> dict[str, int]:
    if not isinstance(max_new_tokens, Mapping):
        room = {call.name: call.max_new_tokens or max_new_tokens for call in workflow.calls}
    else:
        for name in max_new_tokens:
            if name not in workflow.copies:
                raise unknown_name(f"call of workflow '{workflow.name}' in max_new_tokens", name, workflow.copies)
        room = {call.name: max_new_tokens.get(call.name, call.max_new_tokens) for call in workflow.calls}
    for name, size in room.items():
        if size is None:
            raise UserError(f"max_new_tokens misses call '{name}': give it a number of tokens")
        check_whole(f"max_new_tokens of call '{name}'", size, at_least=1)
    return {name: int(size) for name, size in room.items() if size is not None}


def _check_choices(bound: TextWorkflow, call: Call) -> None:
    # As if all others had written something.
    board: Board = {
        name: [Reply("", True, Reading(None, True))] * copies for name, copies in bound.workflow.copies.items()
    }

    def reads_as(text: str) -> bool:
        return bound.reply(board, call, text, ended=True).format_ok

    copies = bound.workflow.copies.get(getattr(call.writes, "of", ""), 0)
    check_choices(bound.tokenizer, bound.formats[call.name], call, bound.room[call.name], copies, reads_as)


def _longest(bound: TextWorkflow, call: Call, problem: int) -> dict[str, int]:
    """The most tokens of a call's prompt, by what they come from."""
    of_call = bound.formats[call.name]
    times = of_call.placeholders
    # Not empty, so that the spaces around it are counted; the token that it has is let be.
    values = dict.fromkeys(times, "0") | constants(bound.workflow, bound.task, call, call.copies)
    parts = {"fixed": len(bound.tokenizer.chat_ids(of_call.messages(values))), "problem": times["problem"] * problem}
    for slot in call.slots:
        if slot.of in bound.workflow.copies:
            source = bound.workflow.call(slot.of)
            copies = 1 if slot.own or slot.part else source.copies
            block = render(block_of(of_call, slot), {"text": "", "number": str(source.copies)})
            size = copies * (len(bound.tokenizer.encode(block)) + bound.room[slot.of])
            parts[slot.of] = parts.get(slot.of, 0) + times[slot.of] * size
    return parts
