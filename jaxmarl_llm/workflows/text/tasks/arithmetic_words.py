"""Sums and word problems about small numbers."""

import dataclasses
import random

from jaxmarl_llm.arguments import check_whole
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.workflows.text.tasks.base import MathTask, TextProblem
from jaxmarl_llm.workflows.text.tasks.generated import GeneratedTask

_NAMES = ("Ada", "Ben", "Chen", "Dana", "Emil", "Fatou", "Goro", "Hana", "Ines", "Jamal")
_THINGS = ("apples", "books", "coins", "shells", "stamps", "marbles", "cards", "pencils")
_BEGINNINGS = ("{name} has {number} {things}.", "{name} starts the day with {number} {things}.")
_SENTENCES = {
    "+": ("{name} gets {number} more.", "A friend brings {name} another {number}.", "{name} finds {number} more."),
    "-": ("{name} gives {number} of them away.", "{name} loses {number} of them.", "{number} of them are sold."),
    "*": (
        "Then the number of {things} becomes {number} times as large.",
        "By the evening {name} has {number} times as many {things} as before.",
    ),
    "/": ("{name} puts them into {number} equal boxes and keeps just one of the boxes.",),
}
STYLES = ("bare", "words")
_TRIES = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArithmeticWords(GeneratedTask, MathTask):
    """Arithmetic with whole numbers, as "What is 12 + 7?" or as a story.

    A problem is held out by its numbers and operations, whatever its words.

    Attributes:
      digits: the most digits of a number in the problem, 1 to 3.
      level: operations of a problem, 1 to 4.
      operations: some of "+-*/"; divisions have no remainder.
      style: "bare" or "words"; stories have no negative numbers.

    Raises:
      UserError: another setting.
    """

    digits: int = 2
    level: int = 1
    operations: str = "+-*"
    style: str = "words"

    def __post_init__(self):
        super().__post_init__()
        MathTask.__post_init__(self)
        for name, value, most in (("digits", self.digits, 3), ("level", self.level, 4)):
            check_whole(name, value, at_least=1)
            if value > most:
                raise UserError(f"{name} must be at most {most}, got {value}")
        for operation in self.operations or "?":
            if operation not in _SENTENCES:
                raise unknown_name("operation", operation, _SENTENCES)
        if self.style not in STYLES:
            raise unknown_name("style", self.style, STYLES)

    def draw(self, chance: random.Random) -> tuple[str, TextProblem]:
        for _ in range(_TRIES):
            first = self._number(chance, smallest=self.style == "words")
            steps, value = self._steps(chance, first)
            if len(steps) == self.level:
                break
        else:
            raise UserError(
                f"found no problem of level {self.level} with the operations {self.operations} and numbers of "
                f"{self.digits} digits: allow more operations"
            )
        identity = f"{first}" + "".join(f"{operation}{number}" for operation, number in steps)
        prompt = _sum(first, steps) if self.style == "bare" else _story(chance, first, steps)
        return identity, TextProblem("", prompt, str(value))

    def _number(self, chance: random.Random, smallest: int = 0) -> int:
        return chance.randint(smallest, 10 ** chance.randint(1, self.digits) - 1)

    def _steps(self, chance: random.Random, value: int) -> tuple[list[tuple[str, int]], int]:
        """Operations and numbers, and what they give; fewer than `level` where none is possible."""
        steps = []
        words = self.style == "words"
        for _ in range(self.level):
            operation = chance.choice(self.operations)
            number = self._number(chance, smallest=2 if operation == "*" else words)
            if operation == "-" and words:
                number = min(number, value)
            if operation == "/":
                divisors = [divisor for divisor in range(2, 10**self.digits) if value % divisor == 0]
                number = chance.choice(divisors) if value and divisors else 0
            if not number and (words or operation == "/"):
                break
            steps.append((operation, number))
            value = {"+": value + number, "-": value - number, "*": value * number, "/": value // (number or 1)}[
                operation
            ]
        return steps, value


def _sum(first: int, steps: list[tuple[str, int]]) -> str:
    text = str(first)
    for place, (operation, number) in enumerate(steps):
        text = f"{f'({text})' if place else text} {operation} {number}"
    return f"What is {text}?"


def _story(chance: random.Random, first: int, steps: list[tuple[str, int]]) -> str:
    words = {"name": chance.choice(_NAMES), "things": chance.choice(_THINGS)}
    sentences = [chance.choice(_BEGINNINGS).format(number=first, **words)]
    sentences += [chance.choice(_SENTENCES[operation]).format(number=number, **words) for operation, number in steps]
    sentences.append("How many {things} does {name} have now?".format(**words))
    return " ".join(sentences)
