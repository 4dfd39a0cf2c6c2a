"""Options of a command, from a dataclass; mistakes become one line with the closest names."""

import contextlib
import dataclasses
import io
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import tyro

from jaxmarl_llm.errors import UserError, unknown_name

OptionsT = TypeVar("OptionsT")


def option_names(kind: type) -> Iterator[str]:
    """The options that a dataclass becomes, such as `--num-envs`; nested dataclasses are taken as flat."""
    for field in dataclasses.fields(kind):
        annotation: Any = field.type
        inner = getattr(annotation, "__origin__", annotation)
        if dataclasses.is_dataclass(inner):
            yield from option_names(inner)  # pyright: ignore[reportArgumentType]
            continue
        name = field.name.replace("_", "-")
        yield f"--{name}"
        # An annotated flag has no opposite, see `tyro.conf.FlagCreatePairsOff`.
        if annotation is bool:
            yield f"--no-{name}"


def option_value(arguments: Sequence[str], option: str) -> str | None:
    """The value given to an option, before the options are parsed; None where it is absent."""
    for i, argument in enumerate(arguments):
        if argument == option and i + 1 < len(arguments):
            return arguments[i + 1]
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return None


def parse_options(
    kind: type[OptionsT], arguments: Sequence[str], *, program: str, default: Any = None, description: str | None = None
) -> OptionsT:
    """Parses the options of a command; `--help` prints them and leaves the program.

    Args:
      kind: a dataclass, one field an option.
      arguments: what the user typed after the command.
      program: for the first line of the help.
      default: an instance that holds the defaults.
      description: of the command; the dataclass's docstring unless given.

    Raises:
      UserError: an unknown option, or a value that an option does not take.
    """
    known = set(option_names(kind))
    for argument in arguments:
        name = argument.partition("=")[0].replace("_", "-")
        if name.startswith("--") and name not in known | {"--help"}:
            raise unknown_name("option", name, known)
    keywords = {} if default is None else {"default": default}
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(kind, args=list(arguments), prog=program, description=description, **keywords)
    except SystemExit as exit_:
        if not exit_.code:
            raise
        raise UserError(f"{_first_paragraph(errors.getvalue())} (see {program.split(' [')[0]} --help)") from None


def _first_paragraph(box: str) -> str:
    """What is wrong, out of the frame that tyro draws around it."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = []
    for line in text.splitlines()[1:]:
        content = line.strip("│ ")
        # The frame is of dashes where the terminal knows no lines.
        if not content or set(content) <= set("─╰╯-"):
            if lines:
                break
            continue
        lines.append(content)
    return " ".join(lines).rstrip(".") or "the options cannot be read"
