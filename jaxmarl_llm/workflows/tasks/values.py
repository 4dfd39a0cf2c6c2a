"""`check_values`: whether what a task gives lies in its range, tried on problems that it draws.

Axes: N problems, L tokens of a problem, M of a solution or a hint.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows.tasks.base import Task
from jaxmarl_llm.workflows.vocabulary import FIRST_SYMBOL

_PROBLEMS = 64
_KEY = 21
# A score may be a mean in float32, which rounding carries a little beyond its range.
_ROUNDING = 1e-5


@functools.cache
def check_values(task: Task) -> None:
    """Tries a task on a few problems; `held_out` and `pretrain` do so too.

    Covered: lengths and tokens of what `draw`, `teacher` and `hint` give, and the scores of right and wrong teachers
    and of completions at random. Shapes and types are for `check_task`.

    Args:
      task: what passed once is not tried again.

    Raises:
      UserError: the first fault found: the task's class, the method, what it gave and what it must give.
    """
    found = jax.tree.map(np.asarray, _try_out(task, jax.random.split(jax.random.key(_KEY), _PROBLEMS)))
    for method, least in (("draw", 1), ("teacher", 1), ("hint", 0)):
        tokens, length = found[method]
        size = tokens.shape[-1]
        _refuse(task, method, "length", length[(length < least) | (length > size)], f"{least} to {size}")
        written = tokens[np.arange(size) < length[..., None]]
        last = FIRST_SYMBOL + len(task.symbols) - 1
        outside = written[(written < FIRST_SYMBOL) | (written > last)]
        _refuse(task, method, "token", outside, f"the ids of its symbols, {FIRST_SYMBOL} to {last}")
    scores = found["score"]
    # Written so that nan is out of range.
    fits = (scores >= -_ROUNDING) & (scores <= 1 + _ROUNDING)
    _refuse(task, "score", "", scores[~fits], "a number in [0, 1]")


def _refuse(task: Task, method: str, what: str, wrong: np.ndarray, wanted: str) -> None:
    if wrong.size:
        given = f"{what} {wrong[0]:g}".strip()
        raise UserError(f"task {type(task).__name__}: {method} gives {given}, but must give {wanted}")


@functools.partial(jax.jit, static_argnums=0)
def _try_out(task: Task, keys: jax.Array) -> dict[str, Any]:
    """What a task gives for N problems, by method.

    `(tokens [N, L], length [N])` of `draw`; `(tokens [N, 2, M], length [N, 2])` of `teacher` and `hint`, with skills 0
    and 1; `[N, 3]` scores of these teachers and of chance.
    """
    room = task.max_answer_length + 2

    def one(key):
        draw_key, teacher_key, token_key, length_key = jax.random.split(key, 4)
        problem = task.draw(draw_key)
        skills = jnp.asarray([0.0, 1.0])
        tokens, length = jax.vmap(lambda skill: task.teacher(teacher_key, problem, skill))(skills)
        hint = jax.vmap(lambda skill: task.hint(teacher_key, problem, skill, 0))(skills)
        # Any ids: also those that a vocabulary has beside the task's.
        chance = jax.random.randint(token_key, (1, room), 0, FIRST_SYMBOL + len(task.symbols) + 4)
        chance_length = jax.random.randint(length_key, (1,), 0, room + 1)
        # As a call gives them: padded with 0 to its room.
        padded = jnp.pad(tokens, ((0, 0), (0, 2)))
        completions = jnp.concatenate([padded, chance]), jnp.concatenate([length, chance_length])
        scores = jax.vmap(functools.partial(task.score, problem))(*completions)
        return {
            "draw": (problem.tokens, problem.length),
            "teacher": (tokens, length),
            "hint": hint,
            "score": jnp.asarray(scores, jnp.float32),
        }

    return jax.vmap(one)(keys)
