"""Small generated files in the shapes of GSM8K and MBPP, that ship with the package."""

import json
import pathlib
import re

from jaxmarl_llm.workflows.text.tasks.arithmetic_words import ArithmeticWords
from jaxmarl_llm.workflows.text.tasks.jsonl import CodeFile, MathFile, load_jsonl
from jaxmarl_llm.workflows.text.tasks.list_functions import ListFunctions

PROBLEMS = pathlib.Path(__file__).parents[1] / "problems"
_NUM_PROBLEMS = 48


def math_examples(working: bool = True) -> MathFile:
    """Word problems with two steps, from a file in the shape of GSM8K; the setting is that of `MathTask`."""
    task = load_jsonl(PROBLEMS / "word_problems.jsonl", working=working)
    assert isinstance(task, MathFile)
    return task


def code_examples(sandbox: str = "auto", partial: bool = False) -> CodeFile:
    """List functions, from a file in the shape of MBPP; the settings are those of `CodeTask`."""
    task = load_jsonl(PROBLEMS / "list_functions.jsonl", sandbox=sandbox, partial=partial)
    assert isinstance(task, CodeFile)
    return task


def write_example_files(folder: pathlib.Path) -> None:
    """Writes the files that ship.

    Args:
      folder: where to.
    """
    words = ArithmeticWords(digits=2, level=2, operations="+-*/", num_train=_NUM_PROBLEMS)
    math = [{"question": problem.prompt, "answer": f"#### {problem.target}"} for problem in words.train]
    code = []
    for number, problem in enumerate(ListFunctions(level=2, num_train=_NUM_PROBLEMS).train):
        text = re.sub(r" For example.*", "", problem.prompt)
        target = problem.target
        code.append({"task_id": number, "text": text, "code": target.solution, "test_list": [*target.tests]})
    for name, records in (("word_problems", math), ("list_functions", code)):
        lines = [json.dumps(record) + "\n" for record in records]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
