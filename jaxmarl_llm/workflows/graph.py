"""Static definitions of workflows: calls of roles, loops, and how the final answer is chosen.

Everything is a frozen, hashable dataclass, checked when it is built.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from jaxmarl_llm.arguments import check_kind, check_kinds, check_whole, elements
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.workflows.messages import Addressed, Choice, Message, Synthesis, Verdict, number_token

# A workflow is unrolled: more calls than this have no use, and more still no place.
_MOST = 10_000


def _check_count(what: str, count: int) -> None:
    check_whole(what, count, at_least=1)
    if count > _MOST:
        raise UserError(f"{what} must be at most {_MOST}, got {count}")


@dataclasses.dataclass(frozen=True)
class Slot:
    """A place in a prompt that is filled during an episode; empty where its source has written nothing.

    Attributes:
      of: `"problem"`, `"number"` (the asking copy's own number, as a token), or the name of a call, whose latest
        completions fill it without their `end`. Inside a loop, a call that comes later, or the asking one itself,
        fills it with what it wrote in the round before.
      label: fixed text before the filling of each copy, left out where that copy has written nothing.
      numbered: puts each copy's number token before what it wrote.
      own: of several copies, only the one with the asking copy's number.
      part: of messages with parts, such as strategies, only the one for the asking copy; a copy without one is not
        asked. Of several copies with n parts each, the first has those of copies 0 to n - 1, the second the next n.
    """

    of: str
    label: str = ""
    numbered: bool = False
    own: bool = False
    part: bool = False

    def __post_init__(self):
        check_kinds("a slot", str, of=self.of, label=self.label)
        check_kinds("a slot", bool, numbered=self.numbered, own=self.own, part=self.part)


PROBLEM = Slot("problem")
NUMBER = Slot("number")
_RESERVED = ("problem", "number")


@dataclasses.dataclass(frozen=True)
class Call:
    """One role asked once, or several copies of it on one prompt at the same time.

    Attributes:
      role: who writes; the sharing table gives each role a policy.
      prompt: fixed texts, read by the vocabulary, and slots.
      writes: the form of what it writes.
      copies: how many write at the same time.
      max_new_tokens: room for a completion with its `end`; what `writes` needs, if not given.
      name: how slots speak of it; the role, if not given.

    Raises:
      UserError: no role, nothing to read, no message, no copies, no room, or a name that slots use already.
    """

    role: str
    _: dataclasses.KW_ONLY
    prompt: tuple[str | Slot, ...]
    writes: Message
    copies: int = 1
    max_new_tokens: int | None = None
    name: str = ""

    def __post_init__(self):
        check_kinds("a call", str, role=self.role, name=self.name)
        if not self.role.strip():
            raise UserError("a call needs a role: say who writes, such as 'solver'")
        object.__setattr__(self, "name", self.name or self.role)
        what = f"call '{self.name}'"
        object.__setattr__(self, "prompt", elements(f"prompt of {what}", self.prompt, str, Slot))
        if not self.prompt:
            raise UserError(f"{what} has nothing to read: give its prompt a text or a slot")
        check_kinds(what, Message, writes=self.writes)
        for source in self.writes.reads:
            check_kind(f"what {what} writes: the name of another call", source, str)
        _check_count(f"copies of {what}", self.copies)
        if self.max_new_tokens is not None:
            check_whole(f"max_new_tokens of {what}", self.max_new_tokens, at_least=1)
        if self.name in _RESERVED:
            raise UserError(f"a call cannot be named '{self.name}', which slots use already: give it another name")

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots of the prompt, in order."""
        return tuple(segment for segment in self.prompt if isinstance(segment, Slot))

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the calls that it reads, by slots or by its message, each once."""
        slots = (slot.of for slot in self.slots if slot.of not in _RESERVED)
        return tuple(dict.fromkeys((*slots, *self.writes.reads)))

    @property
    def may_read_nothing(self) -> bool:
        """Whether a prompt can have no token at all: it has only what calls write, which may be nothing."""
        return not any(
            segment.of in _RESERVED if isinstance(segment, Slot) else segment.split() for segment in self.prompt
        )


@dataclasses.dataclass(frozen=True)
class Until:
    """Satisfied once a call has written one token and nothing else.

    Attributes:
      call: name of a call with one copy.
      says: name of the token.
    """

    call: str
    says: str

    def __post_init__(self):
        check_kinds("Until", str, call=self.call, says=self.says)


@dataclasses.dataclass(frozen=True)
class Loop:
    """Calls that are asked round after round.

    Attributes:
      calls: in order.
      rounds: the most rounds.
      until: ends the loop, within a round too: from then on none of its calls is asked.

    Raises:
      UserError: no calls, no rounds, or `until` waits for a call outside.
    """

    calls: tuple[Call, ...]
    _: dataclasses.KW_ONLY
    rounds: int
    until: Until | None = None

    def __post_init__(self):
        object.__setattr__(self, "calls", elements("calls of a loop", self.calls, Call))
        if not self.calls:
            raise UserError("a loop needs at least one call")
        _check_count("rounds of a loop", self.rounds)
        if self.until is not None:
            check_kinds("a loop", Until, until=self.until)
        copies = {call.name: call.copies for call in self.calls}
        if self.until is not None and self.until.call not in copies:
            raise unknown_name("call that the loop waits for", self.until.call, copies)
        if self.until is not None and copies[self.until.call] > 1:
            raise UserError(
                f"the loop waits for '{self.until.call}', which has {copies[self.until.call]} copies, not one"
            )


@dataclasses.dataclass(frozen=True)
class Last:
    """The final answer is the latest completion of a call with one copy."""

    call: str


@dataclasses.dataclass(frozen=True)
class Selected:
    """The final answer is the solution whose number a call wrote; there is none where it named none.

    Attributes:
      by: name of a call that writes a `Choice`, with one copy.
    """

    by: str


class Turn(NamedTuple):
    """One call in one round, of the workflow with its loops unrolled.

    Attributes:
      call: who is asked.
      round: from 0; 0 outside loops.
      until: what ends the loop that it belongs to.
    """

    call: Call
    round: int
    until: Until | None


@dataclasses.dataclass(frozen=True)
class Workflow:
    """A static graph of calls.

    Attributes:
      name: for messages and files.
      steps: calls and loops, in order.
      answer: how the final answer is chosen.

    Raises:
      UserError: no step, two calls of one name, a slot that no call fills, a cycle outside a loop, an answer, a part or
        a copy of one's own that does not exist, or a message on something else than solutions, or on other copies.
    """

    name: str
    steps: tuple[Call | Loop, ...]
    _: dataclasses.KW_ONLY
    answer: Last | Selected

    def __post_init__(self):
        check_kinds("a workflow", str, name=self.name)
        what = f"workflow '{self.name}'"
        object.__setattr__(self, "steps", elements(f"steps of {what}", self.steps, Call, Loop))
        check_kind(f"answer of {what}", self.answer, Last, Selected)
        if not self.steps:
            raise UserError(f"workflow '{self.name}' needs at least one call")
        for name, count in Counter(call.name for call in self.calls).items():
            if count > 1:
                raise UserError(f"workflow '{self.name}' has {count} calls named '{name}': give each a name of its own")
        self._check_order()
        for call in self.calls:
            for slot in call.slots:
                self._check_slot(call, slot)
            self._check_message(call)
        self._check_answer()

    @property
    def calls(self) -> tuple[Call, ...]:
        """All calls, in order."""
        return tuple(call for _, calls in self._blocks() for call in calls)

    @property
    def roles(self) -> tuple[str, ...]:
        """All roles, in the order of their first call."""
        return tuple(dict.fromkeys(call.role for call in self.calls))

    @property
    def copies(self) -> dict[str, int]:
        """Name of every call to its number of copies."""
        return {call.name: call.copies for call in self.calls}

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Every call of every round, in order."""
        return tuple(
            Turn(call, number, step.until if isinstance(step, Loop) else None)
            for step, calls in self._blocks()
            for number in range(step.rounds if isinstance(step, Loop) else 1)
            for call in calls
        )

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the tokens that the prompts and messages have, each once."""
        names: list[str] = []
        for call in self.calls:
            for segment in call.prompt:
                names += (segment.label if isinstance(segment, Slot) else segment).split()
            for slot in call.slots:
                if slot.numbered or slot.of == "number":
                    copies = call.copies if slot.of == "number" else self.call(slot.of).copies
                    names += map(number_token, range(copies))
            names += call.writes.symbols(self.copies)
        names += [turn.until.says for turn in self.turns if turn.until is not None]
        return tuple(dict.fromkeys(names))

    def call(self, name: str) -> Call:
        """The call of a name.

        Raises:
          UserError: no such call.
        """
        for call in self.calls:
            if call.name == name:
                return call
        raise unknown_name(f"call of workflow '{self.name}'", name, self.copies)

    def _blocks(self) -> Iterator[tuple[Call | Loop, tuple[Call, ...]]]:
        for step in self.steps:
            yield step, step.calls if isinstance(step, Loop) else (step,)

    def _check_order(self) -> None:
        seen: set[str] = set()
        for step, calls in self._blocks():
            if isinstance(step, Loop):
                seen.update(call.name for call in calls)
            for call in calls:
                for source in call.reads:
                    if source not in self.copies:
                        # Outside a loop a call cannot read itself.
                        others = [name for name in self.copies if isinstance(step, Loop) or name != call.name]
                        error = unknown_name("call", source, others) if others else f"there is no call '{source}'"
                        raise UserError(f"workflow '{self.name}': no call fills a slot of '{call.name}': {error}")
                    if source not in seen:
                        raise UserError(
                            f"workflow '{self.name}' has a cycle outside a loop: '{call.name}' reads '{source}', which "
                            "is not written before it; put both into one Loop, or change their order"
                        )
                seen.add(call.name)

    def _check_slot(self, call: Call, slot: Slot) -> None:
        what = f"workflow '{self.name}': a slot of '{call.name}' reads"
        if slot.of in _RESERVED:
            if slot.numbered or slot.own or slot.part:
                raise UserError(f"{what} '{slot.of}', which has no copies: leave out numbered, own and part")
            return
        source = self.call(slot.of)
        if slot.own and source.copies != call.copies:
            raise UserError(
                f"{what} its own copy of '{slot.of}', which has {source.copies} copies and not {call.copies}"
            )
        if slot.part:
            if not isinstance(source.writes, Addressed):
                raise UserError(f"{what} its part of '{slot.of}', which is no message with strategies or instructions")
            parts = source.copies * source.writes.number
            if parts < call.copies:
                raise UserError(
                    f"{what} its part of '{slot.of}', which writes at most {parts} parts for {call.copies} copies"
                )

    def _check_message(self, call: Call) -> None:
        message = call.writes
        if not isinstance(message, Choice | Synthesis | Verdict):
            return
        source = self.call(message.of)
        kind = type(message).__name__
        what = f"workflow '{self.name}': '{call.name}' writes a {kind} of '{message.of}', which"
        if not source.writes.is_solution:
            raise UserError(f"{what} writes {type(source.writes).__name__} and no solution")
        if isinstance(message, Verdict) and source.copies not in (1, call.copies):
            raise UserError(f"{what} has {source.copies} copies: that needs as many copies of '{call.name}'")

    def _check_answer(self) -> None:
        name = self.answer.call if isinstance(self.answer, Last) else self.answer.by
        call = self.call(name)
        if call.copies > 1:
            raise UserError(f"workflow '{self.name}' answers by '{name}', which has {call.copies} copies and not one")
        if isinstance(self.answer, Selected) and not isinstance(call.writes, Choice):
            raise UserError(f"workflow '{self.name}' selects its answer by '{name}', which does not write a Choice")
        if isinstance(self.answer, Last) and not call.writes.is_solution:
            kind = type(call.writes).__name__
            raise UserError(f"workflow '{self.name}' answers by '{name}', which writes {kind} and no solution")
