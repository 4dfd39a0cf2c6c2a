"""What a task is: problems, exact scores, an imperfect teacher, a held-out set.

All methods but `held_out` are pure functions of one problem, for `jax.vmap`. Axes: L tokens of a problem, M tokens of
a completion, H tokens of a hint, N problems that a task is tried on. A task neither sees nor writes the `end` token:
completions reach it without.
"""

import abc
import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.arguments import check_whole
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.workflows.ragged import Ragged, within
from jaxmarl_llm.workflows.vocabulary import FIRST_SYMBOL

HELD_OUT_SHARE = 8
_HELD_OUT_KEY = 20
_DRAWS = 512
_REDRAWS = 256
# Of the problems that a task is tried on.
_TRIED = 64
_TRIED_KEY = 21
# A score may be a mean in float32, which rounding carries a little beyond its range.
_ROUNDING = 1e-5


@struct.dataclass
class Problem:
    """One problem.

    Attributes:
      tokens: `[L]` int32, right-padded with 0.
      length: `[]` int32.
      target: what scoring and the teacher need, a pytree.
    """

    tokens: jax.Array
    length: jax.Array
    target: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """A task: implement `symbols`, the two lengths, `draw`, `score` and `teacher`.

    Attributes:
      level: difficulty, from 1.

    Raises:
      UserError: a level below 1.
    """

    level: int = 1

    def __post_init__(self):
        check_whole("level", self.level, at_least=1)

    @property
    @abc.abstractmethod
    def symbols(self) -> tuple[str, ...]:
        """Names of the task's tokens; their ids are 2, 3, ... in this order, in every vocabulary."""

    @property
    @abc.abstractmethod
    def max_problem_length(self) -> int:
        """L, the most tokens of a problem."""

    @property
    @abc.abstractmethod
    def max_answer_length(self) -> int:
        """The most tokens of a right solution, all that the teacher writes, without `end`."""

    @abc.abstractmethod
    def draw(self, key: jax.Array) -> Problem:
        """Any problem; `sample` and `held_out` part them."""

    @abc.abstractmethod
    def score(self, problem: Problem, completion: jax.Array, length: jax.Array) -> jax.Array:
        """Exact verification.

        Args:
          problem: of this task.
          completion: `[M]` int32 for any M, any ids of any vocabulary before the length.
          length: `[]` int32, without `end`; may be 0.

        Returns:
          `[]` float32 in [0, 1]; 1 is right.
        """

    @abc.abstractmethod
    def teacher(self, key: jax.Array, problem: Problem, skill: jax.Array | float) -> Ragged:
        """A solution that scores 1 with probability `skill`, and else is plausible and wrong.

        Returns:
          `(completion [max_answer_length], length [])`, int32, without `end`.
        """

    @property
    def answer_symbols(self) -> tuple[str, ...]:
        """Names of the tokens that a solution may have; all symbols if not told."""
        return self.symbols

    def format_ok(self, completion: jax.Array, length: jax.Array) -> jax.Array:
        """`[]` bool, whether a completion looks like a solution: not empty, of answer symbols alone."""
        known = jnp.isin(completion, jnp.asarray(self.tokens(self.answer_symbols)))
        return (length > 0) & (known | ~within(completion, length)).all()

    @property
    def max_hint_length(self) -> int:
        """H, the most tokens of a hint."""
        return (self.max_answer_length + 1) // 2

    def hint(self, key: jax.Array, problem: Problem, skill: jax.Array | float, index: jax.Array | int) -> Ragged:
        """What an orchestrator tells a worker: here, how a teacher's solution begins.

        Args:
          key: for chance.
          problem: of this task.
          skill: probability that the hint is right.
          index: `[]` int32, the worker's number.

        Returns:
          `(tokens [H], length [])`, int32.
        """
        del index
        tokens, length = self.teacher(key, problem, skill)
        length = jnp.minimum(length, self.max_hint_length)
        return jnp.where(within(tokens, length), tokens, 0)[: self.max_hint_length], length

    def tokens(self, names: str | Iterable[str]) -> tuple[int, ...]:
        """Ids of the task's own symbols; of a string, each letter is a name.

        Raises:
          UserError: no such symbol.
        """
        for name in names:
            if name not in self.symbols:
                raise unknown_name("symbol", name, self.symbols)
        return tuple(FIRST_SYMBOL + self.symbols.index(name) for name in names)

    def identity(self, problem: Problem) -> jax.Array:
        """`[K]` int32, what makes a problem the same problem: its tokens."""
        return problem.tokens

    def is_held_out(self, problem: Problem) -> jax.Array:
        """`[]` bool, by a hash of the problem's identity: one in eight."""
        identity = self.identity(problem).astype(jnp.uint32)
        place = jnp.arange(identity.shape[0], dtype=jnp.uint32)
        mixed = _avalanche(identity * np.uint32(0x9E3779B1) + _avalanche(place + np.uint32(1)))
        return _avalanche(mixed.sum(dtype=jnp.uint32)) % HELD_OUT_SHARE == 0

    def sample(self, key: jax.Array) -> Problem:
        """A fresh problem for training, never one of the held-out ones.

        It is one only where 256 draws gave nothing else; `held_out` refuses tasks without problems for training.
        """

        def again(carry):
            key, draw_key = jax.random.split(carry[0])
            return key, self.draw(draw_key), carry[2] + 1

        def goes_on(carry):
            return self.is_held_out(carry[1]) & (carry[2] < _REDRAWS)

        return jax.lax.while_loop(goes_on, again, again((key, None, jnp.zeros((), jnp.int32))))[1]

    def held_out(self, n: int) -> Problem:
        """The first `n` problems of the fixed held-out set, all different; not for use inside jit.

        Args:
          n: how many.

        Returns:
          Problems with a leading axis `[n]`.

        Raises:
          UserError: `n` is below 1, or the task has not that many, or no problem that is not held out, or it gives
            something out of range (`check_values`).
        """
        check_whole("n, the size of a held-out set,", n, at_least=1)
        check_values(self)
        found: dict[bytes, Problem] = {}
        idle = 0
        for batch in range(64 + n):
            keys = jax.random.split(jax.random.fold_in(jax.random.key(_HELD_OUT_KEY), batch), _DRAWS)
            problems, identity, kept = jax.tree.map(np.asarray, _draw_many(self, keys))
            if not batch and kept.all():
                raise UserError(
                    f"all of {_DRAWS} problems of {type(self).__name__} at level {self.level} are held out, and none "
                    "is left for training: give the task more problems"
                )
            before = len(found)
            for row in np.flatnonzero(kept):
                found.setdefault(identity[row].tobytes(), jax.tree.map(lambda leaf, row=row: leaf[row], problems))
            if len(found) >= n:
                return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *list(found.values())[:n])
            idle = idle + 1 if len(found) == before else 0
            if idle == 8:
                break
        raise UserError(
            f"{type(self).__name__} at level {self.level} has about {len(found)} held-out problems, not {n}: "
            "ask for fewer (--eval-problems of ablate, num_problems of evaluate_base), or for a higher level"
        )


def _avalanche(bits: jax.Array) -> jax.Array:
    """Every bit of a uint32 depends on all others afterwards (Appleby's MurmurHash3 finaliser)."""
    bits = (bits ^ (bits >> 16)) * np.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * np.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)


# One for all tasks: a function made in `held_out` would be compiled at every call.
@functools.partial(jax.jit, static_argnums=0)
def _draw_many(task: Task, keys: jax.Array) -> tuple[Problem, jax.Array, jax.Array]:
    """`[n]` problems, what tells them apart, and whether each is held out."""

    def one(key):
        problem = task.draw(key)
        return problem, task.identity(problem), task.is_held_out(problem)

    return jax.vmap(one)(keys)


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
    found = jax.tree.map(np.asarray, _try_out(task, jax.random.split(jax.random.key(_TRIED_KEY), _TRIED)))
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
