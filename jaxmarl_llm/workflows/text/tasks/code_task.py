"""A task whose answers are Python functions, judged by hidden tests in the sandbox."""

import dataclasses
import re
from collections.abc import Sequence

from jaxmarl_llm.workflows.text.sandbox import Limits, Program, run_many, sandbox_name
from jaxmarl_llm.workflows.text.tasks.base import TextProblem, TextTask

_BLOCK = re.compile(r"```[ \t]*([A-Za-z0-9_+-]*)[ \t]*\r?\n(.*?)(?:\r?\n[ \t]*```|\Z)", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class CodeTarget:
    """How code is judged.

    Attributes:
      tests: Python texts.
      setup: runs before the tests.
      names: functions that are the program's although `setup` defines them.
      before: what an answer continues.
      entry: the function that is asked for; "" where any will do.
      solution: a right answer, where one is known; judging does not need it.
    """

    tests: tuple[str, ...]
    setup: str = ""
    names: tuple[str, ...] = ()
    before: str = ""
    entry: str = ""
    solution: str = ""

    def program(self, answer: str) -> Program:
        """The program that an answer makes, with its tests."""
        defines = not self.entry or re.search(rf"^(async )?def {re.escape(self.entry)}\b", answer, re.MULTILINE)
        if self.before and not defines:
            # The answer is the body alone.
            lines = answer.split("\n")
            indented = lines[0][:1].isspace() or not answer.strip()
            answer = answer if indented else "\n".join("    " + line for line in lines)
        return Program(f"{self.before}\n{answer}" if self.before else answer, self.tests, self.setup, self.names)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodeTask(TextTask):
    """A task whose answers are functions; the target of a problem is a `CodeTarget`.

    Attributes:
      limits: what one answer may use.
      sandbox: a name of `sandbox.SANDBOXES`; "none" runs code without protection.
      partial: whether some tests of all give some of the score.
    """

    limits: Limits = dataclasses.field(default_factory=Limits)
    sandbox: str = "auto"
    partial: bool = False

    @property
    def instructions(self) -> str:
        return "Answer with one Python function in a block that begins with ```python and ends with ```."

    @property
    def needs_host(self) -> bool:
        return True

    def answer(self, completion: str) -> str:
        """The last block that defines a function, else the last block, "" without any."""
        blocks = [body for _, body in _BLOCK.findall(completion)]
        functions = [body for body in blocks if re.search(r"^(async )?def ", body, re.MULTILINE)]
        return (functions or blocks or [""])[-1]

    def format_ok(self, completion: str) -> bool:
        return completion.count("```") >= 2 and "def " in self.answer(completion)

    def score(self, problem: TextProblem, completion: str) -> float:
        return self.score_many([(problem, completion)], workers=1)[0]

    def score_many(self, pairs: Sequence[tuple[TextProblem, str]], *, workers: int | None = None) -> list[float]:
        """As `TextTask.score_many`; the same answer to the same problem runs once.

        Raises:
          UserError: no sandbox can be set up here.
        """
        keys = [(problem.target, self.answer(completion)) for problem, completion in pairs]
        programs = {key: key[0].program(key[1]) for key in keys if key[1].strip()}
        results = run_many([*programs.values()], workers=workers, limits=self.limits, sandbox=self.sandbox)
        scores = {}
        for (key, program), result in zip(programs.items(), results, strict=True):
            share = result.num_passed / len(program.tests) if self.partial else 0.0
            scores[key] = 1.0 if result.status == "passed" else share
        return [scores.get(key, 0.0) for key in keys]

    def sandbox_name(self) -> str:
        """The name of the protection that answers run in, for logs.

        Raises:
          UserError: there is none here.
        """
        return sandbox_name(self.sandbox)
