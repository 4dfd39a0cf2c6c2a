"""Problems from JSONL files in the shapes of GSM8K, MBPP and HumanEval, told apart by their keys."""

import ast
import dataclasses
import json
import logging
import os
import pathlib
from collections.abc import Callable
from typing import Any

from jaxmarl_llm.arguments import check_kind, check_whole
from jaxmarl_llm.errors import UserError, plural
from jaxmarl_llm.user_files import TOO_LONG, file_bytes, is_long_number, parse_json
from jaxmarl_llm.workflows.text.tasks.base import MathTask, TextProblem, TextTask, split_held_out
from jaxmarl_llm.workflows.text.tasks.code_task import CodeTarget, CodeTask
from jaxmarl_llm.workflows.text.tasks.math_answers import parse_number, same_answer

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileTask(TextTask):
    """Problems that are given.

    Attributes:
      train_problems: for training.
      held_out_problems: for evaluation.
      num_left_out: malformed lines that were left out.
    """

    train_problems: tuple[TextProblem, ...]
    held_out_problems: tuple[TextProblem, ...]
    num_left_out: int = 0

    @property
    def train(self) -> tuple[TextProblem, ...]:
        return self.train_problems

    @property
    def held_out(self) -> tuple[TextProblem, ...]:
        return self.held_out_problems


@dataclasses.dataclass(frozen=True, kw_only=True)
class MathFile(FileTask, MathTask):
    """Problems of a file whose answers are numbers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodeFile(FileTask, CodeTask):
    """Problems of a file whose answers are functions."""


def load_jsonl(
    path: str | pathlib.Path,
    *,
    held_out_path: str | pathlib.Path | None = None,
    skip_malformed: bool = False,
    num_shown_tests: int = 1,
    sandbox: str = "auto",
    partial: bool = False,
    working: bool = True,
) -> MathFile | CodeFile:
    """Reads problems, one a line.

    GSM8K: `question`, `answer` ending in "#### N". MBPP: `text` or `prompt`, `code`, `test_list`, and optionally
    `test_setup_code`, `test_imports`. HumanEval: `prompt`, `entry_point`, `test`, `canonical_solution`.

    Args:
      path: a file; one in eight of its problems is held out, by a hash of the prompt, if `held_out_path` is not given.
      held_out_path: a file of held-out problems; those of them that `path` has too are left out of training.
      skip_malformed: leaves malformed lines out and says how many, instead of refusing the file.
      num_shown_tests: tests of an MBPP problem that its prompt shows, so that the function's name is known.
      sandbox: where code runs, as for `CodeTask`.
      partial: as for `CodeTask`.
      working: as for `MathTask`.

    Raises:
      UserError: no such file, a malformed line (named by its number), a question with two answers, files of two
        shapes, no problem, a setting of the other kind of problems.
    """
    check_whole("num_shown_tests", num_shown_tests, at_least=0)
    if held_out_path is not None:
        check_kind("held_out_path", held_out_path, str, os.PathLike)
    settings = (skip_malformed, num_shown_tests)
    problems, is_code, num_left_out = _read(pathlib.Path(path), *settings)
    if held_out_path is None:
        train, held_out = split_held_out(problems)
    else:
        held_out, held_out_is_code, more = _read(pathlib.Path(held_out_path), *settings)
        if is_code != held_out_is_code:
            raise UserError(f"{path} has problems of another kind than {held_out_path}: give two files of one kind")
        known = {problem.prompt for problem in held_out}
        train = tuple(problem for problem in problems if problem.prompt not in known)
        num_left_out += more
        if len(train) < len(problems):
            _log.warning("%s: %s left out of training: held out", path, plural(len(problems) - len(train), "problem"))
    parts = {"train_problems": train, "held_out_problems": held_out, "num_left_out": num_left_out}
    if not is_code:
        return MathFile(**parts, working=working)
    if working is not True:
        raise UserError(f"{path} asks for code, which is always written as such: leave working out")
    return CodeFile(**parts, sandbox=sandbox, partial=partial)


def _read(path: pathlib.Path, skip: bool, num_shown: int) -> tuple[tuple[TextProblem, ...], bool, int]:
    """`(problems, whether they ask for code, lines left out)`."""
    lines = file_bytes(path, "problems").split(b"\n")
    problems, shapes, wrong = [], {}, []
    answered: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = _record(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)
            shape = _shape(record)
            problem = _SHAPES[shape](record, f"{path.name}:{number}", num_shown)
            _check_answer(problem, answered, number)
        except ValueError as error:
            message = f"{path}, line {number}: {error}"
            if not skip:
                raise UserError(
                    f"{message}; correct it, or add skip_malformed=true to the settings of the task (--task-args) to "
                    "use the rest"
                ) from None
            wrong.append(message)
            continue
        shapes.setdefault(shape, number)
        problems.append(problem)
    if len(shapes) > 1:
        (first, one), (second, other), *_ = shapes.items()
        raise UserError(
            f"{path} mixes shapes: line {one} is as in {first}, line {other} as in {second}; split the file"
        )
    if wrong:
        _log.warning("%s malformed and left out, first: %s", plural(len(wrong), "line"), wrong[0])
    if not problems:
        raise UserError(f"{path} has no problem{': ' + wrong[0] if wrong else ''}")
    return tuple(problems), "GSM8K" not in shapes, len(wrong)


def _check_answer(problem: TextProblem, answered: dict[str, tuple[int, str]], number: int) -> None:
    """Keeps the answer to a question, and raises `ValueError` where an earlier line has another one."""
    if not isinstance(problem.target, str):
        # Code may be tested in several ways.
        return
    line, answer = answered.setdefault(problem.prompt, (number, problem.target))
    if not same_answer(answer, problem.target):
        raise ValueError(f"the question of line {line} has the answer {problem.target} here, and {answer} there")


def _record(line: bytes) -> dict[str, Any]:
    try:
        record = parse_json(line)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from None
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    return record


def _shape(record: dict[str, Any]) -> str:
    for shape, keys in (("GSM8K", {"question", "answer"}), ("HumanEval", {"prompt", "entry_point", "test"})):
        if keys <= record.keys():
            return shape
    if {"code", "test_list"} <= record.keys() and {"text", "prompt"} & record.keys():
        return "MBPP"
    raise ValueError(
        "needs the keys question, answer (GSM8K), or text, code, test_list (MBPP), "
        "or prompt, entry_point, test (HumanEval)"
    )


def _text(record: dict[str, Any], key: str, default: str | None = None) -> str:
    value = record.get(key, default)
    if not isinstance(value, str) or (default is None and not value.strip()):
        raise ValueError(f"{key} must be text, got {json.dumps(value)[:60]}")
    return _whole(key, value)


def _texts(record: dict[str, Any], key: str) -> list[str]:
    value = record.get(key) or []
    if not isinstance(value, list) or not all(isinstance(text, str) and text.strip() for text in value):
        raise ValueError(f"{key} must be a list of texts, got {json.dumps(value)[:60]}")
    return [_whole(key, text) for text in value]


def _whole(key: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{key} holds half of a character, {text[error.start]!a}") from None
    return text


def _check_python(what: str, text: str) -> None:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = TOO_LONG if is_long_number(error) else getattr(error, "msg", None) or error
        raise ValueError(f"{what} is not Python ({reason})") from None


def _gsm8k(record: dict[str, Any], name: str, num_shown: int) -> TextProblem:
    del num_shown
    _, mark, answer = _text(record, "answer").rpartition("####")
    if not mark or parse_number(answer) is None:
        raise ValueError('answer must end in "#### " and one number')
    return TextProblem(name, _text(record, "question"), answer.strip())


def _mbpp(record: dict[str, Any], name: str, num_shown: int) -> TextProblem:
    tests = _texts(record, "test_list")
    if not tests:
        raise ValueError("test_list has no test")
    setup = "\n".join([*_texts(record, "test_imports"), _text(record, "test_setup_code", "")])
    for test in tests:
        _check_python("a test of test_list", test)
    _check_python("test_setup_code", setup)
    prompt = _text(record, "text" if "text" in record else "prompt")
    if num_shown:
        prompt = "\n".join([prompt, "The function must pass tests such as these:", *tests[:num_shown]])
    return TextProblem(name, prompt, CodeTarget(tuple(tests), setup, solution=_text(record, "code")))


def _humaneval(record: dict[str, Any], name: str, num_shown: int) -> TextProblem:
    del num_shown
    prompt, entry, test = (_text(record, key) for key in ("prompt", "entry_point", "test"))
    if not entry.isidentifier():
        raise ValueError(f"entry_point must be the name of a function, got {entry[:60]!r}")
    # With a body that does nothing the prompt's own helpers are at hand for the test.
    setup = f"{prompt.rstrip()}\n    pass\n"
    _check_python("prompt", setup)
    _check_python("test", test)
    target = CodeTarget(
        (f"{test}\ncheck({entry})\n",),
        setup,
        names=(entry,),
        before=prompt,
        entry=entry,
        solution=_text(record, "canonical_solution", ""),
    )
    words = f"Complete this Python function. Write all of it, with its imports.\n```python\n{prompt.rstrip()}\n```"
    return TextProblem(name, words, target)


_SHAPES: dict[str, Callable[[dict[str, Any], str, int], TextProblem]] = {
    "GSM8K": _gsm8k,
    "MBPP": _mbpp,
    "HumanEval": _humaneval,
}
