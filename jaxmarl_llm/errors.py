"""The one exception that means 'the input is wrong', a single line saying what and what to do; advice and wording."""

import difflib
from collections.abc import Iterable

_FEW = 8


class UserError(ValueError):
    """Bad input from a user. The command line prints its one line and exits with status 2.

    What would break the line, such as a line feed in a name, is written as an escape.
    """

    def __init__(self, line: object = ""):
        super().__init__(printable(str(line)))


def printable(text: str) -> str:
    """A text in one line: line feeds and other characters without a glyph become escapes."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


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
    lower, spelled = str(name).lower(), {one.lower(): one for one in known}
    near = [lower] if lower in spelled else difflib.get_close_matches(lower, spelled, n=3, cutoff=0.5)
    close = [spelled[one] for one in near]
    # Of few names all are shown, rather than one that is hardly like what was given.
    is_like = len(known) > _FEW or difflib.get_close_matches(lower, near, cutoff=0.6)
    if close and (is_like or near[0].startswith(lower)):
        return UserError(f"unknown {kind} '{name}': did you mean {' or '.join(close)}?")
    return UserError(f"unknown {kind} '{name}': choose one of {', '.join(known)}")


def nearest_divisors(number: int, wanted: int) -> list[int]:
    """The three divisors of a number that lie nearest to the one that was wanted, sorted."""
    divisors = [divisor for divisor in range(1, number + 1) if number % divisor == 0]
    return sorted(sorted(divisors, key=lambda divisor: abs(divisor - wanted))[:3])


def plural(count: int, noun: str) -> str:
    """A number and its noun: `1 seed`, `2 seeds`, `1,000 environments`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
