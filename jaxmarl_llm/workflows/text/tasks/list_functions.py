"""Functions over lists of whole numbers, described in words and judged by hidden tests."""

import dataclasses
import random
from typing import Any

from jaxmarl_llm.arguments import check_whole
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows.text.tasks.base import TextProblem
from jaxmarl_llm.workflows.text.tasks.code_task import CodeTarget, CodeTask
from jaxmarl_llm.workflows.text.tasks.generated import GeneratedTask

ENTRY = "solve"
_NUM_TESTS = 8
_STEPS = (
    ("keep only the even numbers", "[x for x in numbers if x % 2 == 0]"),
    ("keep only the odd numbers", "[x for x in numbers if x % 2 != 0]"),
    ("keep only the numbers greater than {k}", "[x for x in numbers if x > {k}]"),
    ("keep only the numbers less than {k}", "[x for x in numbers if x < {k}]"),
    ("remove the numbers that are divisible by {k}", "[x for x in numbers if x % {k} != 0]"),
    ("remove repeated numbers and keep the first of each", "list(dict.fromkeys(numbers))"),
    ("multiply each number by {k}", "[x * {k} for x in numbers]"),
    ("add {k} to each number", "[x + {k} for x in numbers]"),
    ("subtract {k} from each number", "[x - {k} for x in numbers]"),
    ("replace each number by its square", "[x * x for x in numbers]"),
    ("replace each number by its absolute value", "[abs(x) for x in numbers]"),
    ("change the sign of each number", "[-x for x in numbers]"),
    ("reverse the order", "numbers[::-1]"),
    ("sort from smallest to largest", "sorted(numbers)"),
    ("sort from largest to smallest", "sorted(numbers, reverse=True)"),
    ("keep only the first {k} numbers", "numbers[:{k}]"),
    ("drop the first {k} numbers", "numbers[{k}:]"),
    ("keep every second number, beginning with the first", "numbers[::2]"),
    (
        "replace each number by the sum of all numbers up to and with it",
        "[sum(numbers[: i + 1]) for i in range(len(numbers))]",
    ),
)
_ENDS = (
    ("the list", "numbers"),
    ("the sum of the numbers", "sum(numbers)"),
    ("the largest number, or 0 if there is none", "max(numbers, default=0)"),
    ("the smallest number, or 0 if there is none", "min(numbers, default=0)"),
    ("how many numbers there are", "len(numbers)"),
    ("how many different numbers there are", "len(set(numbers))"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListFunctions(GeneratedTask, CodeTask):
    """Problems such as: keep only the even numbers, then sort them, and return their sum.

    A problem is held out by its steps, whatever its tests.

    Attributes:
      level: steps of a problem before it returns something, 1 to 5.

    Raises:
      UserError: another level.
    """

    level: int = 2

    def __post_init__(self):
        super().__post_init__()
        check_whole("level", self.level, at_least=1)
        if self.level > 5:
            raise UserError(f"level must be at most 5, got {self.level}")

    def draw(self, chance: random.Random) -> tuple[str, TextProblem]:
        while True:
            steps = [
                tuple(part.replace("{k}", number) for part in step)
                for step in chance.sample(_STEPS, self.level)
                for number in (str(chance.randint(2, 9)),)
            ]
            end = chance.choice(_ENDS)
            lines = [f"def {ENTRY}(numbers):", *(f"    numbers = {code}" for _, code in steps), f"    return {end[1]}"]
            solution = "\n".join(lines) + "\n"
            cases = [_numbers(chance) for _ in range(_NUM_TESTS)] + [[]]
            results = _outputs(solution, cases)
            # Where most lists give the same, too many wrong functions are right.
            if len({repr(result) for result in results}) > _NUM_TESTS // 2:
                break
        words = ", then ".join(text for text, _ in steps)
        prompt = (
            f"Write a Python function `{ENTRY}(numbers)` that takes a list of whole numbers. It must {words}, "
            f"and return {end[0]}. For example, `{ENTRY}({cases[0]})` returns `{results[0]}`."
        )
        tests = tuple(f"assert {ENTRY}({case}) == {out}" for case, out in zip(cases[1:], results[1:], strict=True))
        return "\n".join(lines), TextProblem("", prompt, CodeTarget(tests, entry=ENTRY, solution=solution))


def _numbers(chance: random.Random) -> list[int]:
    return [chance.randint(-20, 20) for _ in range(chance.randint(3, 9))]


def _outputs(solution: str, cases: list[list[int]]) -> list[Any]:
    """What a solution returns; its text is this module's own, and no user's or model's."""
    namespace: dict[str, Any] = {}
    exec(solution, namespace)
    return [namespace[ENTRY](list(case)) for case in cases]
