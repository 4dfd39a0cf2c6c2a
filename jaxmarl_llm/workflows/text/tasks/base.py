"""What a text task is: problems in words, and scores of answers in words."""

import abc
import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from jaxmarl_llm.arguments import check_kind
from jaxmarl_llm.workflows.text.tasks.math_answers import extract_answer, is_marked, is_number, same_answer

HELD_OUT_SHARE = 8


@dataclasses.dataclass(frozen=True)
class TextProblem:
    """One problem.

    Attributes:
      name: tells it from others, such as a file and a line number.
      prompt: what the roles read.
      target: what scoring needs, and the roles do not see.
    """

    name: str
    prompt: str
    target: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTask(abc.ABC):
    """A task: implement `train`, `held_out`, `instructions`, `answer`, `format_ok` and `score`."""

    @property
    @abc.abstractmethod
    def train(self) -> tuple[TextProblem, ...]:
        """Problems for training, none of them in `held_out`."""

    @property
    @abc.abstractmethod
    def held_out(self) -> tuple[TextProblem, ...]:
        """Problems for evaluation."""

    @property
    @abc.abstractmethod
    def instructions(self) -> str:
        """How to answer, in words for the prompts."""

    @abc.abstractmethod
    def answer(self, completion: str) -> str:
        """The answer in a completion, "" where there is none."""

    @abc.abstractmethod
    def format_ok(self, completion: str) -> bool:
        """Whether a completion is written as the instructions say."""

    @abc.abstractmethod
    def score(self, problem: TextProblem, completion: str) -> float:
        """Exact verification: a number in [0, 1], 1 for a right completion."""

    @property
    def needs_host(self) -> bool:
        """Whether scoring takes time enough to do it in other threads, since it runs code."""
        return False

    def score_many(self, pairs: Sequence[tuple[TextProblem, str]], *, workers: int | None = None) -> list[float]:
        """Scores of problems and their completions.

        Args:
          pairs: `(problem, completion)` each.
          workers: how many at once, where scoring runs code.
        """
        del workers
        return [self.score(problem, completion) for problem, completion in pairs]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MathTask(TextTask):
    """A task whose answers are numbers; the target of a problem is a number as text.

    Attributes:
      working: an answer is boxed at the end of what leads to it; if not, it is the number and nothing else, which is
        what small models can be taught quickly.

    Raises:
      UserError: another setting.
    """

    working: bool = True

    def __post_init__(self):
        check_kind("working", self.working, bool)

    @property
    def instructions(self) -> str:
        if not self.working:
            return "Write only the number."
        return "Think step by step. End with the answer, one number, as \\boxed{number}."

    def answer(self, completion: str) -> str:
        return extract_answer(completion)

    def format_ok(self, completion: str) -> bool:
        return is_marked(completion) if self.working else is_number(completion)

    def score(self, problem: TextProblem, completion: str) -> float:
        return float(same_answer(extract_answer(completion), problem.target))


def split_held_out(
    problems: Iterable[TextProblem],
) -> tuple[tuple[TextProblem, ...], tuple[TextProblem, ...]]:
    """Parts problems for training from held-out ones, one in eight, by a hash of their prompts.

    Returns:
      `(train, held_out)`; problems with one prompt are on one side.
    """
    parts: tuple[list[TextProblem], list[TextProblem]] = ([], [])
    for problem in problems:
        parts[is_held_out(problem.prompt)].append(problem)
    return tuple(parts[0]), tuple(parts[1])


def is_held_out(identity: str) -> bool:
    """Whether a problem of this identity is held out: the same on every machine."""
    digest = hashlib.sha256(identity.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_SHARE == 0
