"""Options of a command, from a dataclass; mistakes become one line with the closest names."""

import contextlib
import io
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import tyro

from jaxmarl_llm.cli.help import Option, help_text, options_of
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.training.config import parse_count

OptionsT = TypeVar("OptionsT")


def option_names(kind: type) -> Iterator[str]:
    """The options that a dataclass becomes, such as `--num-envs` and `--no-plots`."""
    for option in options_of(kind):
        if not option.is_positional:
            yield option.flag
        if option.has_opposite:
            yield f"--no-{option.flag.removeprefix('--')}"


def split_positional(
    kind: type, arguments: Sequence[str], is_one: Callable[[str], bool]
) -> tuple[list[str], list[str]]:
    """Tells what stands by itself from options and their values, whatever the order.

    Args:
      kind: the dataclass of the options.
      arguments: what the user typed.
      is_one: whether an argument stands by itself, even after an option that takes a list.

    Returns:
      `(alone, others)`, each in order.
    """
    many = math.inf
    takes = {option.flag: 0 if option.hint is bool else many if "..." in option.value else 1
             for option in options_of(kind)}  # fmt: skip
    alone, others, room = [], [], 0
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if argument.startswith("-") and not argument[1:2].isdigit():
            name = name.replace("_", "-")
            room = 0 if equals or name == "-h" or name.startswith("--no-") else takes.get(name, 1)
            others.append(argument)
        elif room == 1 or (room == many and not is_one(argument)):
            others.append(argument)
            room = 0 if room == 1 else many
        else:
            alone.append(argument)
    return alone, others


def split_preset(
    kind: type, arguments: Sequence[str], names: Sequence[str], command: str
) -> tuple[str | None, list[str]]:
    """The preset, or the YAML file, that a command was given, and what else.

    Args:
      kind: the dataclass of the options.
      arguments: what the user typed.
      names: of the presets.
      command: for messages.

    Raises:
      UserError: more than one.
    """
    presets, others = split_positional(kind, arguments, lambda name: name in names or name.endswith((".yaml", ".yml")))
    if len(presets) > 1:
        raise UserError(f"{command} takes one preset, got {' and '.join(presets)}: name one, and options with their --")
    return presets[0] if presets else None, others


def _with_plain_values(kind: type, arguments: Sequence[str]) -> list[str]:
    """The arguments with whole numbers such as 1e3 written out.

    Raises:
      UserError: a value that is none of an option's choices, or no whole number; no value where there must be some.
    """
    hints = {option.flag: option.hint for option in options_of(kind) if not _has_parser(option)}
    plain, option, hint = [], "", None
    for i, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            option = name.replace("_", "-")
            hint = hints.get(option)
            if equals:
                plain.append(f"{name}={_plain_value(option, hint, value)}")
                continue
            is_last = i + 1 == len(arguments) or arguments[i + 1].startswith("--")
            if is_last and typing.get_origin(hint) is tuple:
                raise UserError(f"{option} needs a value")
            plain.append(argument)
        else:
            plain.append(_plain_value(option, hint, argument))
    return plain


def _has_parser(option: Option) -> bool:
    return any(isinstance(note, tyro.constructors.PrimitiveConstructorSpec) for note in option.notes)


def _plain_value(option: str, hint: Any, value: str) -> str:
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    choices = [
        choice for kind in kinds if typing.get_origin(kind) is typing.Literal for choice in typing.get_args(kind)
    ]
    takes_counts = int in kinds or tuple[int, ...] in kinds
    if value in choices or (value == "None" and type(None) in kinds) or not (choices or takes_counts):
        return value
    try:
        if takes_counts:
            return str(parse_count(value))
    except ValueError as error:
        if not choices:
            raise UserError(f"{option}: {error}") from None
    raise unknown_name(option.removeprefix("--"), value, choices)


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
    if {"-h", "--help"} & set(arguments):
        print(help_text(kind, program, description, default))
        raise SystemExit(0)
    known = set(option_names(kind))
    for argument in arguments:
        name = argument.partition("=")[0].replace("_", "-")
        if name.startswith("--") and name not in known:
            raise unknown_name("option", name, known)
    arguments = _with_plain_values(kind, arguments)
    keywords = {} if default is None else {"default": default}
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(kind, args=arguments, prog=program, description=description, **keywords)
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
