"""What a task is: problems, exact scores, an imperfect teacher, a held-out set.

All methods but `held_out` are pure functions of one problem, for `jax.vmap`. Axes: L tokens of a problem, M tokens of
a completion, H tokens of a hint. A task neither sees nor writes the `end` token: completions reach it without.
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
            something out of range (`tasks.values.check_values`).
        """
        from jaxmarl_llm.workflows.tasks.values import check_values

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
