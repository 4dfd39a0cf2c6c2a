"""What a role may write where its format says so: certain texts, or the forms that its message has.

Axes: C copies.
"""

import functools

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.automata import TokenAutomaton
from jaxmarl_llm.llm.constraints import TextAutomaton, choice_automaton, text_automaton
from jaxmarl_llm.workflows.graph import Call
from jaxmarl_llm.workflows.instructions import Instructions
from jaxmarl_llm.workflows.messages import CORRECT, INCORRECT, Choice, Message, Verdict
from jaxmarl_llm.workflows.text.formats import FORM, RoleFormat


@functools.singledispatch
def forms_of(message: Message, written: tuple[bool, ...] = ()) -> TextAutomaton:
    """The texts that are in the form of a message; `forms_of.register(YourMessage)` adds one of your own.

    Args:
      message: what a call writes.
      written: `[C]`, which copies of the call that `message` is about have written anything.

    Raises:
      UserError: a message whose forms are too many to be told apart.
    """
    del written
    raise UserError(f"{type(message).__name__} has no list of forms: write choices: and the texts that are allowed")


@forms_of.register
def _(message: Verdict, written: tuple[bool, ...] = ()) -> TextAutomaton:
    return _texts(CORRECT, INCORRECT)


@forms_of.register
def _(message: Choice, written: tuple[bool, ...] = ()) -> TextAutomaton:
    # Where nothing was written no number is right, and any is as good.
    return _texts(*(str(number + 1) for number, there in enumerate(written) if there or not any(written)))


@forms_of.register
def _(message: Instructions, written: tuple[bool, ...] = ()) -> TextAutomaton:
    """Lines in the order of targets and of kinds, so that none is in conflict, and within the budget."""
    if not all(form.items for form in message.forms):
        raise UserError("instructions with items of any text have no list of forms: give items")
    kinds, lines = message.kinds, []
    for target in range(message.number):
        for form in message.forms:
            for item in form.items:
                line = f"{target + 1}: {form.text.replace('{item}', item)}"
                # Read again, as what one form writes may be read as another that comes before it.
                (action,) = message.read(line).actions
                slot = action.target * len(kinds) + kinds.index(message.forms[action.form].kind)
                lines.append((slot, message.amount(action), line))
    texts = TextAutomaton()
    starts = {(0, 0): 0}
    waiting = [(0, 0)]
    while waiting:
        first, spent = waiting.pop()
        for slot, amount, line in lines:
            if slot < first or spent + amount > message.budget:
                continue
            end = texts.add(line.encode(), starts[first, spent])
            texts.ends.add(end)
            after = slot + 1, spent + amount
            if any(other >= after[0] and after[1] + more <= message.budget for other, more, _ in lines):
                if after not in starts:
                    starts[after] = texts.new()
                    waiting.append(after)
                texts.ways[end][ord("\n")] = starts[after]
    return texts


def _texts(*choices: str) -> TextAutomaton:
    texts = TextAutomaton()
    texts.ends.update(texts.add(choice.encode()) for choice in choices)
    return texts


@functools.lru_cache(maxsize=64)
def automaton_of(
    tokenizer, choices: tuple[str, ...] | str, message: Message, written: tuple[bool, ...]
) -> TokenAutomaton:
    """The automaton of the choices of a format; the same object for the same arguments.

    Args:
      tokenizer: of the model.
      choices: of the format, see `RoleFormat`.
      message: what the call writes.
      written: as of `forms_of`.

    Raises:
      UserError: choices that cannot be spelled, or too many.
    """
    if choices == FORM:
        return text_automaton(tokenizer, forms_of(message, written))
    return choice_automaton(tokenizer, choices)


def check_choices(tokenizer, of_call: RoleFormat, call: Call, room: int, copies: int, reads_as) -> None:
    """Refuses choices that a call cannot be held to.

    Args:
      tokenizer: of the model.
      of_call: the call's format.
      call: of a workflow.
      room: the most tokens of a reply, with its end.
      copies: C, of the call that its message is about.
      reads_as: from a text to whether it is in the call's form.

    Raises:
      UserError: no such tokens, a message without forms, a choice that is not in the form of the message, or no room.
    """
    what = f"choices of call '{call.name}'"
    if not hasattr(tokenizer, "pieces"):
        raise UserError(f"{what} need a tokenizer with pieces, which say what each token writes: use a Tokenizer")
    alone: list = [FORM] if of_call.choices == FORM else [(text,) for text in of_call.choices]
    try:
        *found, _ = [
            automaton_of(tokenizer, choices, call.writes, (True,) * copies) for choices in (*alone, of_call.choices)
        ]
    except UserError as error:
        raise UserError(f"{what}: {error}") from None
    needed = {choices: int(one.distance[0]) for choices, one in zip(alone, found, strict=True)}
    for choices, length in needed.items():
        text = "the shortest" if choices == FORM else f"'{choices[0]}'"
        if length > room:
            raise UserError(f"{what}: {text} takes {length} tokens with its end, and there is room for {room}")
        if choices != FORM and not reads_as(choices[0]):
            kind = type(call.writes).__name__
            raise UserError(f"{what}: {text} is not in the form of a {kind}, which is what the call writes")
