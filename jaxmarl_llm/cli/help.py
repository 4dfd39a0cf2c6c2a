"""The help of a command, from its dataclass: what a newcomer reads, without the parser's own words."""

import ast
import dataclasses
import inspect
import shutil
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tyro

_INDENT = 26
_NAMES = {int: "N", float: "X", str: "TEXT", Path: "PATH", bool: "True|False"}
_POSITIONAL = tyro.conf.Positional[int].__metadata__[0]  # pyright: ignore[reportAttributeAccessIssue]
_NO_OPPOSITE = tyro.conf.FlagCreatePairsOff[bool].__metadata__[0]  # pyright: ignore[reportAttributeAccessIssue]


@dataclasses.dataclass(frozen=True)
class Option:
    """One field of a command's dataclass.

    Attributes:
      name: of the field.
      hint: its type.
      notes: what the type is annotated with.
      default: its value where it is not given; `dataclasses.MISSING` where it must be.
      text: its meaning.
    """

    name: str
    hint: Any
    notes: tuple[Any, ...]
    default: Any
    text: str

    @property
    def flag(self) -> str:
        """Such as `--num-envs`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def is_positional(self) -> bool:
        """Whether it is given without its name."""
        return _POSITIONAL in self.notes

    @property
    def has_opposite(self) -> bool:
        """Whether it is a yes-or-no option with a `--no-` of its own."""
        return self.hint is bool and _NO_OPPOSITE not in self.notes

    @property
    def value(self) -> str:
        """What it takes, such as `N` or `tanh|relu`; empty for a yes-or-no option."""
        for note in self.notes:
            if getattr(note, "metavar", None):
                return note.metavar
        return "" if self.hint is bool else _value(self.hint)


def _value(hint: Any) -> str:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "|".join(map(str, inner))
    if origin in (typing.Union, types.UnionType):
        return "|".join(_value(one) for one in inner if one is not type(None))
    if origin is tuple:
        return f"{_value(inner[0])} ..."
    return _NAMES.get(hint, "VALUE")


def options_of(kind: type, values: Any = None) -> Iterator[Option]:
    """The options that a dataclass becomes; those of nested dataclasses stand in their place.

    Args:
      kind: the dataclass.
      values: an instance that holds the defaults; those of the fields unless given.
    """
    texts = _texts(kind)
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        plain, *notes = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if values is not None:
            default = getattr(values, field.name)
        if dataclasses.is_dataclass(plain):
            yield from options_of(plain, None if default is dataclasses.MISSING else default)  # pyright: ignore[reportArgumentType]
        else:
            yield Option(field.name, plain, tuple(notes), default, texts.get(field.name, ""))


def _texts(kind: type) -> dict[str, str]:
    """The text below each field, in the source of a dataclass and of those that it is made from."""
    texts: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if dataclasses.is_dataclass(one):
            texts |= _own_texts(one)
    return texts


def _own_texts(kind: type) -> dict[str, str]:
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if is_text and isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            texts[field.target.id] = " ".join(str(below.value.value).split())  # pyright: ignore[reportAttributeAccessIssue]
    return texts


def _shown(option: Option) -> str:
    """The default of an option; nothing where its text says what happens without it."""
    default = option.default
    if default is dataclasses.MISSING or default is None or default in ("", {}, ()) or _NO_OPPOSITE in option.notes:
        return ""
    return f" (default: {written(default)})"


def written(value: Any) -> str:
    """A value as a user would type it."""
    if isinstance(value, bool):
        return ("no", "yes")[value]
    if isinstance(value, dict):
        return " ".join(f"{name}={one}" for name, one in value.items())
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return f"{value:_}" if type(value) is int else str(value)


def help_text(kind: type, program: str, description: str | None, values: Any = None) -> str:
    """The help of a command.

    Args:
      kind: its dataclass.
      program: what is typed, such as `jaxmarl-llm train [PRESET]`.
      description: of the command; the dataclass's docstring unless given.
      values: an instance that holds the defaults.
    """
    width = min(shutil.get_terminal_size().columns, 110)
    options = list(options_of(kind, values))
    given = [option.value if option.default is dataclasses.MISSING else f"[{option.value}]" for option in options
             if option.is_positional]  # fmt: skip
    lines = [" ".join(["usage:", program, *given, "[--option value ...]"]), ""]
    for paragraph in inspect.cleandoc(description or kind.__doc__ or "").split("\n\n"):
        lines += [textwrap.fill(" ".join(paragraph.split()), width), ""]
    for option in options:
        name = option.value if option.is_positional else f"{option.flag} {option.value}".rstrip()
        if option.has_opposite:
            name += f", --no-{option.flag.removeprefix('--')}"
        lines += _entry(name, option.text + _shown(option), width)
    return "\n".join([*lines, *_entry("-h, --help", "Show this text.", width)])


def _entry(name: str, text: str, width: int) -> list[str]:
    indent = " " * _INDENT
    wrapped = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent)
    if len(name) + 4 > _INDENT:
        return [f"  {name}", *wrapped]
    return [f"  {name}".ljust(_INDENT) + wrapped[0].lstrip(), *wrapped[1:]] if wrapped else [f"  {name}"]
