"""Faults in code of the user's own, such as an environment: what went wrong, and where, in one line."""

import os
import sys
import traceback
from pathlib import Path

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
