import dataclasses

import jax.numpy as jnp
import pytest

from jaxmarl_llm import workflows
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows import Problem, Task, check_task
from jaxmarl_llm.workflows.tasks.base import check_values


@dataclasses.dataclass(frozen=True, kw_only=True)
class Echo(Task):
    """Write the problem again: three letters."""

    settings: tuple = ()

    symbols = ("a", "b")  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
    max_problem_length = 3  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
    max_answer_length = 3  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def draw(self, key):
        tokens = jnp.full(3, 2, jnp.int32)
        return Problem(tokens=tokens, length=jnp.asarray(3), target=tokens)

    def score(self, problem, completion, length):
        return (completion[0] == problem.target[0]) & (length == 3)

    def teacher(self, key, problem, skill):
        return problem.target, problem.length


def problem_with(**changes):
    def draw(self, key):
        return dataclasses.replace(Echo.draw(self, key), **changes)

    return {"draw": draw}


def gives(method, value):
    return {method: lambda self, *arguments: value}


def fails(self, problem, completion, length):
    return 1.0 if length == 3 else 0.0


CASES = {
    "symbols as text": ({"symbols": "ab"}, "symbols gives 'ab', but must give a tuple of names, at least one"),
    "symbols twice": ({"symbols": ("a", "b", "a")}, "symbols gives ('a', 'b', 'a'), but must give names that differ"),
    "answer symbols": ({"answer_symbols": ("c",)}, "answer_symbols fails: unknown symbol 'c': choose one of a, b"),
    "half a length": ({"max_problem_length": 1.5}, "max_problem_length of task Wrong must be a whole number, got 1.5"),
    "no hint": ({"max_hint_length": 0}, "max_hint_length of task Wrong must be at least 1, got 0"),
    "no problem": (gives("draw", None), "draw gives None, but must give a Problem"),
    "arrays for a problem": (gives("draw", (jnp.ones(3), 3)), "draw gives (float32[3], int32[]), but must give a Prob"),
    "floats as tokens": (
        problem_with(tokens=jnp.ones(3)),
        "draw gives tokens float32[3], but must give integers [at most 3]",
    ),
    "long problem": (
        problem_with(tokens=jnp.ones(5, jnp.int32)),
        "tokens int32[5], but must give integers [at most 3]",
    ),
    "length with an axis": (problem_with(length=jnp.ones(1, int)), "draw gives length int32[1], but must give an int"),
    "length of None": (problem_with(length=None), "draw gives length None, but must give an integer []"),
    "teacher without length": (gives("teacher", jnp.ones(3, int)), "teacher gives int32[3], but must give a pair"),
    "teacher of three": (
        gives("teacher", (jnp.ones(3, int), 3, 1)),
        "teacher gives (int32[3], int32[], int32[]), but must give a pair: tokens, integers [3], and their length",
    ),
    "short teacher": (gives("teacher", (jnp.ones(2, int), 2)), "tokens int32[2], but must give integers [3]"),
    "score by token": (gives("score", jnp.ones(5)), "score gives float32[5], but must give a number []"),
    "complex score": (gives("score", 1j), "score gives complex64[], but must give a number []"),
    "score of text": (gives("score", "right"), "score as traced by jit fails: TypeError"),
    "score of an if": ({"score": fails}, "score as traced by jit fails: TracerBoolConversionError"),
    "score of one size": (
        {"score": lambda self, problem, completion, length: (completion == problem.target).all()},
        "score as traced by jit fails: TypeError",
    ),
    "number as format": (gives("format_ok", 1), "format_ok gives int32[], but must give a boolean []"),
    "hint": (gives("hint", (jnp.ones(3, int), 3)), "hint gives tokens int32[3], but must give integers [2]"),
    "held out": (gives("is_held_out", 0.5), "is_held_out gives float32[], but must give a boolean []"),
    "identity": (gives("identity", jnp.ones(3)), "identity gives float32[3], but must give integers [K]"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_task_gives_is_told_in_one_line(case):
    changes, message = CASES[case]
    task = type("Wrong", (Echo,), changes)()
    with pytest.raises(UserError) as refused:
        check_task(task)
    line = str(refused.value)
    assert message in line and "task Wrong" in line and "\n" not in line
    with pytest.raises(UserError) as again:
        workflows.bind(workflows.make_workflow("single"), task)
    assert str(again.value) == line


def test_a_python_if_on_what_is_traced_is_placed_in_the_users_code():
    with pytest.raises(UserError, match=r"\(.*test_task_checks\.py:\d+\)$"):
        check_task(type("Wrong", (Echo,), {"score": fails})())


def test_settings_that_cannot_be_hashed():
    with pytest.raises(UserError, match=r"task Echo cannot be hashed \(unhashable type: 'list'\): let its settings be"):
        check_task(Echo(settings=([],)))


def test_good_tasks_pass_and_are_traced_once(monkeypatch):
    traced = []
    monkeypatch.setattr(Echo, "draw", lambda self, key, draw=Echo.draw: traced.append(1) or draw(self, key))
    for _ in range(2):
        check_task(Echo(settings=(1,)))
    assert len(traced) == 1
    for name in workflows.task_names():
        check_task(workflows.make_task(name))


def with_teacher(tokens, length):
    return gives("teacher", (jnp.asarray(tokens), jnp.asarray(length)))


OUT_OF_RANGE = {
    "nan": (gives("score", jnp.asarray(jnp.nan)), "score gives nan, but must give a number in [0, 1]"),
    "below": (gives("score", -2.5), "score gives -2.5, but must give a number in [0, 1]"),
    "two": (gives("score", 2), "score gives 2, but must give a number in [0, 1]"),
    "nan of what is wrong": (
        {"score": lambda self, problem, completion, length: jnp.where(length == 3, 1.0, jnp.nan)},
        "score gives nan",
    ),
    "long problem": (problem_with(length=jnp.asarray(4)), "draw gives length 4, but must give 1 to 3"),
    "empty problem": (problem_with(length=jnp.asarray(0)), "draw gives length 0, but must give 1 to 3"),
    "padding inside": (
        problem_with(tokens=jnp.asarray([2, 0, 3])),
        "draw gives token 0, but must give the ids of its symbols, 2 to 3",
    ),
    "long answer": (with_teacher([2, 2, 2], 50), "teacher gives length 50, but must give 1 to 3"),
    "no answer": (with_teacher([2, 2, 2], 0), "teacher gives length 0, but must give 1 to 3"),
    "unknown token": (with_teacher([2, 9999, 2], 3), "teacher gives token 9999, but must give the ids of its symbols"),
    "negative token": (with_teacher([2, 2, -7], 3), "teacher gives token -7, but must give"),
    "hint": (gives("hint", (jnp.asarray([2, 2]), jnp.asarray(3))), "hint gives length 3, but must give 0 to 2"),
}


@pytest.mark.parametrize("case", OUT_OF_RANGE)
def test_values_out_of_range_are_told_in_one_line(case):
    changes, message = OUT_OF_RANGE[case]
    task = type("Wrong", (Echo,), changes)()
    check_task(task)
    with pytest.raises(UserError) as refused:
        task.held_out(1)
    line = str(refused.value)
    assert line.startswith(f"task Wrong: {message}") and "\n" not in line


def test_padding_behind_the_length_is_the_tasks_own():
    check_values(type("Fine", (Echo,), with_teacher([2, 9999, -7], 1))())
