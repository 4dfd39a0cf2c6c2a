"""What replies in words say: the form of each kind of message, read leniently and judged strictly.

Axes: C copies.
"""

import dataclasses
import functools
import re
from typing import Any

from jaxmarl_llm.workflows.instructions import Instructions
from jaxmarl_llm.workflows.messages import CORRECT, INCORRECT, Choice, Message, Solution, Strategies, Verdict

_VERDICT = re.compile(r"\b(not\s+|in)?correct\b", re.IGNORECASE)
# A verdict by itself.
_YES_OR_NO = {"yes": CORRECT, "no": INCORRECT}
_BOXED = re.compile(r"\\boxed\s*\{\s*(-?\d+)\s*\}")
_INTEGER = re.compile(r"(?<![\w.])-?\d+(?![\w]|\.\d)")
# Of a copy's number; what is longer names none.
_MOST_DIGITS = 100
_STRATEGY = re.compile(r"^[^\w\n]*strategy[ \t]*(\d+)[ \t]*[:.)-][^\w\n]*(\w.*)$", re.IGNORECASE | re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a reply says.

    Attributes:
      value: by the kind of message: a solution's text; `"correct"` or `"incorrect"`; the copy that is chosen, from 0;
        strategies, or the lines of instructions, by their reader's number, from 0. None, or empty, where it says
        nothing of the kind.
      format_ok: whether it is in the form asked for.
    """

    value: Any
    format_ok: bool


@functools.singledispatch
def read_reply(message: Message, text: str, *, task: Any, written: tuple[bool, ...] = ()) -> Reading:
    """Reads a reply; `read_reply.register(YourMessage)` adds a form of your own.

    Args:
      message: what the call writes.
      text: of the reply, without the tokens that end it.
      task: the text task, which knows the form of answers.
      written: `[C]`, which copies of the call that `message` is about have written anything.

    Raises:
      TypeError: a message that nothing was registered for.
    """
    del text, task, written
    raise TypeError(f"{type(message).__name__} cannot be read in words: register it with read_reply.register")


def _whole(digits: str) -> int:
    """A number that a reply writes; -1 for one that is too long to be that of a copy."""
    return int(digits) if len(digits) <= _MOST_DIGITS else -1


@read_reply.register
def _(message: Solution, text: str, *, task: Any, written: tuple[bool, ...] = ()) -> Reading:
    return Reading(text, bool(task.format_ok(text)))


@read_reply.register
def _(message: Verdict, text: str, *, task: Any, written: tuple[bool, ...] = ()) -> Reading:
    found = [INCORRECT if match[1] else CORRECT for match in _VERDICT.finditer(text)]
    verdict = found[-1] if found else _YES_OR_NO.get(text.strip(" .!").lower())
    return Reading(verdict, verdict is not None)


@read_reply.register
def _(message: Choice, text: str, *, task: Any, written: tuple[bool, ...] = ()) -> Reading:
    numbers = _BOXED.findall(text) or _INTEGER.findall(text)
    copy = _whole(numbers[-1]) - 1 if numbers else -1
    chosen = copy if 0 <= copy < len(written) and written[copy] else None
    return Reading(chosen, chosen is not None)


@read_reply.register
def _(message: Strategies, text: str, *, task: Any, written: tuple[bool, ...] = ()) -> Reading:
    lines = [(_whole(number), content.strip()) for number, content in _STRATEGY.findall(text)]
    numbers = [number for number, _ in lines]
    # The first line of a number counts: a model that repeats itself starts over.
    parts = {number - 1: content for number, content in reversed(lines) if 1 <= number <= message.number}
    in_order = numbers == list(range(1, len(numbers) + 1))
    return Reading(parts, bool(numbers) and in_order and len(numbers) <= message.number)


@read_reply.register
def _(message: Instructions, text: str, *, task: Any, written: tuple[bool, ...] = ()) -> Reading:
    orders = message.read(text)
    return Reading(message.parts(orders), bool(orders.actions) and not orders.faults)
