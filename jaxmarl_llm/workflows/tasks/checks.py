"""`check_task`: whether a task keeps its contract, by traced shapes and types alone. Nothing is compiled."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm import user_code
from jaxmarl_llm.arguments import check_kind, check_whole, shown
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows.tasks.base import Problem, Task

_KINDS = {
    "integers": (jnp.integer,),
    "an integer": (jnp.integer,),
    "a boolean": (jnp.bool_,),
    "a number": (jnp.integer, jnp.floating, jnp.bool_),
}


def check_task(task: Task) -> None:
    """Checks that the methods of a task give what they must, before anything is compiled; `bind` does so too.

    Covered: symbols, lengths, and shapes and types of what `draw`, `identity`, `is_held_out`, `teacher`, `hint`,
    `score` and `format_ok` give when they are traced. Whether a score is right, your own tests must tell.

    Args:
      task: what passed once is not traced again.

    Raises:
      UserError: the first fault found: the task's class, the method, what it gave and what it must give.
    """
    check_kind("task", task, Task)
    try:
        hash(task)
    except TypeError as error:
        raise UserError(
            f"task {type(task).__name__} cannot be hashed ({error}): let its settings be numbers, texts and tuples"
        ) from None
    _check(task)


@functools.cache
def _check(task: Task) -> None:
    _check_symbols(task)
    for name in ("max_problem_length", "max_answer_length", "max_hint_length"):
        check_whole(f"{name} of task {type(task).__name__}", _read(task, name), at_least=1)
    key = jax.eval_shape(lambda: jax.random.key(0))
    skill, index = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
    problem = _trace(task, "draw", key)
    if not isinstance(problem, Problem):
        raise _fault(task, "draw", problem, "a Problem")
    _check_array(task, "draw", problem.tokens, "integers", (task.max_problem_length,), what="tokens ", at_most=True)
    _check_array(task, "draw", problem.length, "an integer", what="length ")
    _check_array(task, "identity", _trace(task, "identity", problem), "integers", (None,))
    _check_array(task, "is_held_out", _trace(task, "is_held_out", problem), "a boolean")
    _check_ragged(task, "teacher", (key, problem, skill), task.max_answer_length)
    _check_ragged(task, "hint", (key, problem, skill, index), task.max_hint_length)
    # A completion has room for more than an answer: for `end`, and what else a call gives it.
    written = jax.ShapeDtypeStruct((task.max_answer_length + 2,), jnp.int32), index
    _check_array(task, "score", _trace(task, "score", problem, *written), "a number")
    _check_array(task, "format_ok", _trace(task, "format_ok", *written), "a boolean")


def _check_symbols(task: Task) -> None:
    for name in ("symbols", "answer_symbols"):
        given = _read(task, name)
        if not isinstance(given, tuple) or not given or not all(isinstance(one, str) for one in given):
            raise _fault(task, name, given, "a tuple of names, at least one")
        if len(set(given)) < len(given):
            raise _fault(task, name, given, "names that differ")
    _run(task, "answer_symbols", lambda: task.tokens(task.answer_symbols))


def _check_ragged(task: Task, method: str, arguments: tuple, size: int) -> None:
    given = _trace(task, method, *arguments)
    if not isinstance(given, tuple) or len(given) != 2:
        raise _fault(task, method, given, f"a pair: tokens, integers [{size}], and their length, an integer []")
    _check_array(task, method, given[0], "integers", (size,), what="tokens ")
    _check_array(task, method, given[1], "an integer", what="length ")


def _check_array(
    task: Task,
    method: str,
    given: Any,
    kind: str,
    shape: tuple[int | None, ...] = (),
    *,
    what: str = "",
    at_most: bool = False,
) -> None:
    """Refuses what is no array of a kind and a shape, in which None stands for any size; or at most of that shape."""
    own = getattr(given, "shape", ())
    fits = hasattr(given, "dtype") and len(own) == len(shape)
    for size, most in zip(own, shape, strict=False):
        fits &= most is None or size == most or (at_most and size < most)
    if not fits or not any(jnp.issubdtype(given.dtype, one) for one in _KINDS[kind]):
        sizes = ", ".join("K" if size is None else f"{'at most ' * at_most}{size}" for size in shape)
        raise _fault(task, method, given, f"{kind} [{sizes}]", what)


def _fault(task: Task, method: str, given: Any, wanted: str, what: str = "") -> UserError:
    return UserError(f"task {type(task).__name__}: {method} gives {what}{_described(given)}, but must give {wanted}")


def _described(given: Any) -> str:
    """Arrays as `float32[5]`, tuples of them in brackets, the type of anything else; plain values as they are."""
    if hasattr(given, "dtype"):
        return f"{given.dtype}{list(given.shape)}"
    if isinstance(given, tuple) and any(hasattr(one, "dtype") for one in given):
        return f"({', '.join(map(_described, given))})"
    return (
        shown(given) if given is None or isinstance(given, str | int | float | tuple | list) else type(given).__name__
    )


def _read(task: Task, name: str) -> Any:
    return _run(task, name, lambda: getattr(task, name))


def _trace(task: Task, method: str, *arguments: Any) -> Any:
    return _run(task, f"{method} as traced by jit", lambda: jax.eval_shape(getattr(task, method), *arguments))


def _run(task: Task, method: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        told = str(error) if isinstance(error, UserError) else user_code.describe(error)
        raise UserError(f"task {type(task).__name__}: {method} fails: {told}") from error
