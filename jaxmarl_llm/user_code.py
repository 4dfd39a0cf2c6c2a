"""Code of the user's own, such as an environment: how it is imported, and its faults in one line that says where."""

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxmarl_llm.errors import UserError, unknown_name

# Set to anything, it makes the command line print whole tracebacks before its one line.
TRACEBACK_VARIABLE = "JAXMARL_LLM_TRACEBACK"
_PACKAGE = __name__.partition(".")[0]
_LIBRARIES = {
    _PACKAGE,
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax",
    "numpy",
    "tensorboardX",
    "tyro",
    "rich",
    "matplotlib",
}
_LONGEST = 240


def wants_traceback() -> bool:
    """Whether the user has asked for whole tracebacks."""
    return bool(os.environ.get(TRACEBACK_VARIABLE))


def place(error: BaseException) -> str | None:
    """Where an exception passed through code that is neither ours nor a library's, such as `mine.py:12`.

    Args:
      error: was raised below a function of this package; what called that function does not count.

    Returns:
      The innermost such place; None where there is none.
    """
    found, called = None, False
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__")).partition(".")[0]
        called |= module == _PACKAGE
        if called and module not in _LIBRARIES and module not in sys.stdlib_module_names:
            found = frame.f_code.co_filename, line
    if isinstance(error, SyntaxError) and error.filename:
        found = error.filename, error.lineno
    if found is None:
        return None
    path = Path(found[0])
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{found[1]}"


def describe(error: BaseException) -> str:
    """An exception in one line: its type, its message, and its place in the user's code where it has one."""
    message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    message = message if len(message) <= _LONGEST else message[:_LONGEST] + "..."
    where = place(error)
    return type(error).__name__ + (f": {message}" if message else "") + (f" ({where})" if where else "")


def with_advice(line: str) -> str:
    """A line about an exception, and how to see its traceback."""
    return f"{line}; {TRACEBACK_VARIABLE}=1 shows the whole traceback"


def import_factory(path: str, kind: str) -> Callable[..., Any]:
    """Imports what builds something of the user's own.

    Args:
      path: `package.module:Name`; the working folder is searched too.
      kind: of thing, such as environment, for messages.

    Raises:
      UserError: no such module or name, or the module itself fails.
    """
    module_name, _, attribute = path.partition(":")
    if not all(name.isidentifier() for name in (*module_name.split("."), attribute)):
        raise UserError(f"'{path}' is no import path: give one such as mypackage.mymodule:My{kind.title()}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        line = f"cannot import {kind} '{path}': {describe(error)}"
        # What cannot be found needs no traceback.
        raise UserError(line if place(error) is None else with_advice(line)) from error
    if not hasattr(module, attribute):
        names = [name for name in dir(module) if not name.startswith("_")]
        raise unknown_name(f"{kind} in module {module_name}", attribute, names)
    factory = getattr(module, attribute)
    if not callable(factory):
        raise UserError(f"{kind} {path} is {factory!r}: name a class or a function that makes it")
    return factory
