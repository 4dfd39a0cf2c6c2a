"""Numbers in text, compared exactly: which one is the answer, and what it is worth.

Written forms of one number are equal: `1,234`, `1234`, `1234.0`, `$1,234` and `1.234e3`; `1/2`, `0.5` and
`\\frac{1}{2}`; `1 1/2` and `1.5`. What follows a number is its unit and does not count: `12 apples`, `12 km/h`.
A percent sign is such a unit: `50%` is 50, neither 0.5 nor 1/2, since answers of this kind of problem name the
percentage. Two numbers where one answer is due are no answer. Nothing is ever evaluated.
"""

import re
from fractions import Fraction

_MOST_DIGITS = 400
_LONGEST = 20_000
_UNSIGNED = (
    r"(?:\\[dt]?frac ?\{ ?[0-9]+ ?\} ?\{ ?[0-9]+ ?\}"
    r"|[0-9]+ [0-9]+ ?/ ?[0-9]+"
    r"|[0-9]+ ?/ ?[0-9]+(?![0-9.])"
    r"|(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![.,]?[0-9])"
    r"|\.[0-9]+(?!\.?[0-9]))"
)
_CURRENCY = r"(?:\\?\$|€|£|¥|USD|EUR)?"
_NUMBER = re.compile(rf"(?<![0-9A-Za-z.,])([-+]? ?{_CURRENCY} ?[-+]?)({_UNSIGNED})")
# A sign after these is an operation: 10-3, (4) - 3.
_BEFORE_OPERATION = re.compile(r"[0-9A-Za-z)\]}]$|[0-9)\]}] $")
_UNIT_POWER = re.compile(r"(?<=[A-Za-z}])\^ ?\{? ?[0-9]+ ?\}?")
_MARK = "####"
_SPACES = re.compile(r"\s+")


def parse_number(text: str) -> Fraction | None:
    """The one number of a text, exactly.

    Args:
      text: a number with or without a sign, a currency, a unit, LaTeX around it, or something and `=` before it.

    Returns:
      The number; None where there is none, more than one, or one of over 400 digits.
    """
    text = _UNIT_POWER.sub("", _plain(text).rpartition("=")[2])
    found = _NUMBER.search(text)
    if found is None or re.search(r"[0-9]", text[: found.start()] + text[found.end() :]):
        return None
    return _value(found)


def extract_answer(completion: str) -> str:
    """The answer in a text, in its simplest form: "1234", "-1/2", "" where there is none.

    The last `\\boxed{}` that is not empty decides; without one the line after the last `####`; without that the last
    number of the text.
    """
    completion = completion[-_LONGEST:]
    marked = _marked(completion)
    if marked is not None:
        value = parse_number(marked)
    else:
        found = list(_NUMBER.finditer(_plain(completion)))
        value = _value(found[-1]) if found else None
    return "" if value is None else str(value)


def same_answer(answer: str, target: str) -> bool:
    """Whether two texts name the same number."""
    value = parse_number(answer)
    return value is not None and value == parse_number(target)


def is_marked(completion: str) -> bool:
    """Whether a text marks a number as its answer, by `\\boxed{}` or `####`."""
    marked = _marked(completion)
    return marked is not None and parse_number(marked) is not None


def is_number(completion: str) -> bool:
    """Whether a text is a number, with a sign where it has one, and nothing else."""
    return _NUMBER.fullmatch(_plain(completion).strip().removesuffix(".")) is not None


def _marked(text: str) -> str | None:
    for part in reversed(text.split("\\boxed{")[1:]):
        content = _braced(part)
        if content.strip():
            return content
    _, mark, after = text.rpartition(_MARK)
    return after.strip().partition("\n")[0] if mark else None


def _braced(text: str) -> str:
    """What stands before the brace that closes an open one; "" where none does."""
    depth = 1
    for place, letter in enumerate(text):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if not depth:
            return text[:place]
    return ""


def _plain(text: str) -> str:
    """A text with one kind of minus, one space where there are several, and without LaTeX's spaces."""
    for old, new in (
        ("\u2212", "-"),
        ("\u2013", "-"),
        ("{,}", ","),
        (r"\,", ""),
        (r"\!", ""),
        (r"\ ", " "),
        ("\u202f", ""),
    ):
        text = text.replace(old, new)
    return _SPACES.sub(" ", text)


def _value(found: re.Match) -> Fraction | None:
    operation = _BEFORE_OPERATION.search(found.string, 0, found.start())
    sign = -1 if found[1].count("-") % 2 and not operation else 1
    digits = re.findall(r"[0-9]+", found[2].replace(",", ""))
    if sum(map(len, digits)) > _MOST_DIGITS:
        return None
    whole = [int(part) for part in digits]
    if "frac" in found[2] or "/" in found[2]:
        *mixed, above, below = whole
        return sign * (Fraction(sum(mixed)) + Fraction(above, below)) if below else None
    text = found[2].replace(",", "").lower()
    if abs(int(text.partition("e")[2] or 0)) > _MOST_DIGITS:
        return None
    return sign * Fraction(text)
