"""How roles are asked in words: templates of the system and the user message, read from YAML.

A file holds workflows by name, in each its calls by name, in each `user`, and where wanted `system`, `blocks` and
`choices`.
"""

import dataclasses
import difflib
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from jaxmarl_llm.arguments import check_kind, check_kinds, elements
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.user_files import file_bytes, parse_yaml
from jaxmarl_llm.workflows.graph import Call, Workflow
from jaxmarl_llm.workflows.instructions import Instructions
from jaxmarl_llm.workflows.messages import Addressed, Choice, Synthesis

SHIPPED = Path(__file__).with_name("formats.yaml")
# By name; brief are prompts as short as they can be, for small models on slow machines.
NAMED = {"plain": SHIPPED, "brief": Path(__file__).with_name("brief.yaml")}
# The choices that the message of a call has itself.
FORM = "form"
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([A-Za-z_][^{}]*)\}")
_ALWAYS = ("problem", "instructions", "number", "count", "menu")
_OF_BLOCK = ("text", "number")


@dataclasses.dataclass(frozen=True)
class RoleFormat:
    """What one call reads, as templates; `{{` and `}}` stand for braces.

    In `user` and `system`: `{problem}`; `{instructions}`, the task's, on how to answer; `{number}`, the asking copy's,
    from 1; `{count}`, of the strategies that it may write, of those whom it instructs, of the solutions that it reads,
    or of its copies; `{menu}`, the instructions that it may write; and `{name of a call}`, what the slots of the graph
    let it read of that call, empty where nothing was written.

    Attributes:
      user: the user's message.
      system: the system message; none where it is empty.
      blocks: name of a call to the template of what each of its copies wrote, of `{text}` and `{number}`; by default
        the label of the slot, the number if the slot is numbered, the text and a line break.
      choices: texts of which the call writes one, and nothing else; `"form"` for those that its message has: the words
        of a verdict, the number of a solution, lines of instructions. Anything where it is empty.

    Raises:
      UserError: no text, an unknown placeholder in a block, or choices that are none.
    """

    user: str
    system: str = ""
    blocks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    choices: tuple[str, ...] | str = ()

    def __post_init__(self):
        check_kinds("a format", str, user=self.user, system=self.system)
        check_kind("blocks of a format", self.blocks, Mapping)
        for name, block in self.blocks.items():
            check_kind(f"the block of '{name}'", block, str)
            for placeholder in placeholders(block):
                if placeholder not in _OF_BLOCK:
                    raise unknown_name(f"placeholder in the block of '{name}'", placeholder, _OF_BLOCK)
        if self.choices != FORM:
            choices = _choices(self.choices)
            if isinstance(self.choices, list) and not choices:
                raise UserError("choices of a format are an empty list: name them, or leave choices out")
            if not all(choices) or len({*choices}) < len(choices):
                raise UserError("choices of a format must be different texts, and none empty")
            object.__setattr__(self, "choices", choices)

    @property
    def placeholders(self) -> Counter[str]:
        """How often each placeholder occurs in both messages."""
        return placeholders(self.user) + placeholders(self.system)

    def messages(self, values: Mapping[str, str]) -> list[dict[str, str]]:
        """The chat messages, of the values of all placeholders."""
        texts = {"system": render(self.system, values).strip(), "user": render(self.user, values).strip()}
        return [{"role": role, "content": text} for role, text in texts.items() if text or role == "user"]

    def check_fits(self, call: Call) -> None:
        """Refuses a format that a call of a graph cannot be asked by.

        Raises:
          UserError: a placeholder or a block that the call has nothing for, or no `{problem}` where it reads it.
        """
        sources = [slot.of for slot in call.slots if slot.of not in _ALWAYS]
        for name in self.placeholders:
            if name not in (*_ALWAYS, *sources):
                raise unknown_name(f"placeholder in the format of call '{call.name}'", name, (*_ALWAYS, *sources))
        for name in self.blocks:
            if not sources:
                raise UserError(f"call '{call.name}' reads no other call: leave its block '{name}' out")
            if name not in sources:
                raise unknown_name(f"block in the format of call '{call.name}', which does not read it,", name, sources)
        if "problem" not in self.placeholders and any(slot.of == "problem" for slot in call.slots):
            raise UserError(
                f"the format of call '{call.name}' has no {{problem}}: put it where the problem shall stand"
            )


def placeholders(template: str) -> Counter[str]:
    """How often each placeholder occurs in a template."""
    return Counter(found[1] for found in _PLACEHOLDER.finditer(template) if found[1])


def render(template: str, values: Mapping[str, str]) -> str:
    """A template with its placeholders filled; what fills them is not read again."""
    return _PLACEHOLDER.sub(lambda found: values[found[1]] if found[1] else found[0][0], template)


def _count_of(workflow: Workflow, call: Call) -> int:
    """What `{count}` stands for."""
    if isinstance(call.writes, Addressed):
        return call.writes.number
    return workflow.copies[call.writes.of] if isinstance(call.writes, Choice | Synthesis) else call.copies


def constants(workflow: Workflow, task: Any, call: Call, number: int) -> dict[str, str]:
    """Values of the placeholders that are known from the definitions.

    Args:
      workflow: the graph.
      task: a `TextTask`.
      call: of the workflow.
      number: of the asking copy, from 1.
    """
    return {
        "instructions": task.instructions,
        "number": str(number),
        "count": str(_count_of(workflow, call)),
        "menu": call.writes.menu if isinstance(call.writes, Instructions) else "",
    }


def load_formats(path: str | Path | None = None) -> dict[str, dict[str, RoleFormat]]:
    """Reads a file of formats.

    Args:
      path: of a YAML file, or the name of one that ships: `"plain"`, the default, or `"brief"`, of short prompts.

    Returns:
      Name of a workflow to name of a call to format.

    Raises:
      UserError: it cannot be read, or holds something else.
    """
    path = SHIPPED if path is None else NAMED.get(str(path), path)
    text = file_bytes(path, "formats")
    try:
        found = parse_yaml(text)
    except ValueError as error:
        raise UserError(f"{path} is no YAML: {error}") from None
    return {
        workflow: {call: _format(f"{path}: {workflow}.{call}", fields) for call, fields in calls.items()}
        for workflow, calls in _mapping(f"{path}", found).items()
        if _mapping(f"{path}: {workflow}", calls)
    }


def show_formats(formats: Mapping[str, Mapping[str, RoleFormat]]) -> str:
    """The YAML text that `load_formats` reads the same formats from."""
    plain = {
        workflow: {
            call: {name: value for name, value in dataclasses.asdict(of_call).items() if value}
            for call, of_call in calls.items()
        }
        for workflow, calls in formats.items()
    }
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)


def formats_of(workflow: Workflow, formats: str | Path | Mapping[str, RoleFormat] | None) -> dict[str, RoleFormat]:
    """The format of each call of a workflow, checked.

    Args:
      workflow: whose calls.
      formats: a file with the workflow's name in it, the one that ships by default; or name of a call to format.

    Raises:
      UserError: a workflow or a call without formats, a call that the workflow has not, or a format that does not fit.
    """
    if formats is None or isinstance(formats, str | Path):
        source = str(formats or "plain")
        known = load_formats(formats)
        if workflow.name not in known:
            names = ", ".join(sorted(known)) or "none"
            others = [name for name in NAMED if name != source and workflow.name in load_formats(name)]
            advice = (
                f"choose the formats {' or '.join(others)}" if others else "give formats, a RoleFormat for each call"
            )
            raise UserError(f"the formats {source} have no workflow '{workflow.name}' ({names}): {advice}")
        formats = known[workflow.name]
    for name in workflow.copies:
        if name in _ALWAYS:
            raise UserError(f"call '{name}' has the name of a placeholder: give it another name")
    for name in formats:
        if name not in workflow.copies:
            raise unknown_name(f"call of workflow '{workflow.name}' in the formats", name, workflow.copies)
    missing = [call.name for call in workflow.calls if call.name not in formats]
    if missing:
        raise UserError(
            f"the formats of workflow '{workflow.name}' miss its call '{missing[0]}': give it a user message"
        )
    for call in workflow.calls:
        check_kind(f"the format of call '{call.name}'", formats[call.name], RoleFormat)
        formats[call.name].check_fits(call)
    return dict(formats)


def _choices(given: Any) -> tuple[str, ...]:
    what = "choices of a format"
    if isinstance(given, str):
        close = ": did you mean form?" if difflib.get_close_matches(given.lower(), [FORM]) else ""
        raise UserError(f"{what} must be a list of texts, or form for those of the message, got '{given}'{close}")
    for one in given if isinstance(given, list | tuple) else ():
        if isinstance(one, bool | int | float):
            # YAML takes the bare words yes and no for truth values.
            text = {True: "yes", False: "no"}[one] if isinstance(one, bool) else f"{one}"
            raise UserError(f'{what}: each must be text, got {one}: quote it, as in ["{text}"]')
    return elements(what, given, str)


def _mapping(where: str, value) -> Mapping:
    if not isinstance(value, Mapping) or not value or not all(isinstance(name, str) for name in value):
        raise UserError(f"{where} must hold names, each with what belongs to it (workflow: call: user: text)")
    return value


def _format(where: str, fields) -> RoleFormat:
    names = [field.name for field in dataclasses.fields(RoleFormat)]
    for name in _mapping(where, fields):
        if name not in names:
            raise unknown_name(f"field of {where}", name, names)
    if "user" not in fields:
        raise UserError(f"{where} has no user message: write user: and a text")
    try:
        return RoleFormat(**fields)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
