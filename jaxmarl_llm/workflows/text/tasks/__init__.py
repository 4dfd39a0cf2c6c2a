"""Tasks in words: problems, and exact verification of answers; generated, or from a user's files."""

import pathlib
from typing import Any

from jaxmarl_llm.registry import Registry, call_factory
from jaxmarl_llm.workflows.text.tasks.base import MathTask, TextProblem, TextTask
from jaxmarl_llm.workflows.text.tasks.code_task import CodeTarget, CodeTask
from jaxmarl_llm.workflows.text.tasks.jsonl import load_jsonl

_HERE = "jaxmarl_llm.workflows.text.tasks"
_TASKS: Registry[TextTask] = Registry(
    "text task",
    {
        "arithmetic_words": f"{_HERE}.arithmetic_words:ArithmeticWords",
        "list_functions": f"{_HERE}.list_functions:ListFunctions",
        "math_examples": f"{_HERE}.examples:math_examples",
        "code_examples": f"{_HERE}.examples:code_examples",
    },
)
register_text_task = _TASKS.register
text_task_names = _TASKS.names


def names_file(text: str) -> bool:
    """Whether the text that chooses a task is the path of a file."""
    return text.endswith((".jsonl", ".json")) or "/" in text


def make_text_task(name_or_path: str | pathlib.Path, **settings: Any) -> TextTask:
    """Builds a task by its name, or from the problems of a JSONL file.

    Args:
      name_or_path: one of `text_task_names()`, or a path that ends in `.jsonl` or names a folder.
      **settings: those of the task, or of `load_jsonl`.

    Raises:
      UserError: no such name, file or setting.
    """
    text = str(name_or_path)
    if names_file(text) or isinstance(name_or_path, pathlib.Path):
        return call_factory(text, load_jsonl, {"path": text, **settings})
    return _TASKS.make(text, **settings)


__all__ = [
    "CodeTarget",
    "CodeTask",
    "MathTask",
    "TextProblem",
    "TextTask",
    "load_jsonl",
    "make_text_task",
    "names_file",
    "register_text_task",
    "text_task_names",
]
