"""The one exception that means 'the input is wrong': a single line saying what, and what to do."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input from a user. The command line prints its one line and exits with status 2."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Builds the error for a name that does not exist, with the closest valid ones.

    Args:
      kind: what was named, for example `"environment"`.
      name: the name that was given.
      known: all valid names.

    Returns:
      A `UserError`, to be raised by the caller.
    """
    known = sorted(known)
    close = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
    if close:
        return UserError(f"unknown {kind} '{name}': did you mean {' or '.join(close)}?")
    return UserError(f"unknown {kind} '{name}': choose one of {', '.join(known)}")
