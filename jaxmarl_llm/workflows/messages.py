"""What a call writes: its symbols, its format, its own score, and how an imperfect teacher writes it.

Axes: C copies, M tokens. A message is a frozen description; everything that computes is a pure function of a `Seat`.
"""

import abc
import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxmarl_llm.arguments import check_kind, check_whole
from jaxmarl_llm.workflows.ragged import Ragged, assemble, count_token, ragged, split_part, unfinish, within
from jaxmarl_llm.workflows.tasks.base import Task
from jaxmarl_llm.workflows.transcript import Seat
from jaxmarl_llm.workflows.vocabulary import Vocabulary

CORRECT = "correct"
INCORRECT = "incorrect"


def number_token(copy: int) -> str:
    """Name of the token that stands for a copy, counted from 1 in the name: `<1>`."""
    return f"<{copy + 1}>"


def number_ids(vocabulary: Vocabulary, copies: int) -> jax.Array:
    """`[C]` int32, ids of the tokens that stand for copies."""
    return jnp.asarray(vocabulary.encode(map(number_token, range(copies))), jnp.int32)


class Message(abc.ABC):
    """What one copy of a call writes. Subclass it, as a frozen dataclass, for a form of your own.

    Contents are completions without their `end`.

    Attributes:
      has_own_score: whether there is an `own_score`.
      is_solution: whether a task can score it as a solution of its problem.
    """

    has_own_score: ClassVar[bool] = True
    is_solution: ClassVar[bool] = True

    @property
    def reads(self) -> tuple[str, ...]:
        """Calls whose completions the teacher or the score look at; they come before this one."""
        return ()

    def symbols(self, copies: dict[str, int]) -> tuple[str, ...]:
        """Names of tokens that this message has and the task does not.

        Args:
          copies: name of every call to its number of copies.
        """
        del copies
        return ()

    @abc.abstractmethod
    def allowed(self, task: Task, copies: dict[str, int]) -> tuple[str, ...]:
        """Names of the tokens that a content may have, for a sampler that is held to them."""

    @abc.abstractmethod
    def max_length(self, task: Task) -> int:
        """The most tokens of a content in this form."""

    @abc.abstractmethod
    def format_ok(self, seat: Seat, tokens: jax.Array, length: jax.Array) -> jax.Array:
        """`[]` bool, whether a content `[M]` is in this form."""

    @abc.abstractmethod
    def teacher(self, seat: Seat, key: jax.Array, skill: jax.Array | float) -> Ragged:
        """The content that an imperfect teacher writes; with probability `skill` it does what is right."""

    def own_score(self, seat: Seat, tokens: jax.Array, length: jax.Array) -> jax.Array:
        """`[]` float32 in [0, 1], how right a content is by itself; for messages with `has_own_score`."""
        raise NotImplementedError(f"{type(self).__name__} has no score of its own")


@dataclasses.dataclass(frozen=True)
class Solution(Message):
    """A solution of the problem; scored by the task."""

    def allowed(self, task, copies):
        return task.answer_symbols

    def max_length(self, task):
        return task.max_answer_length

    def format_ok(self, seat, tokens, length):
        return seat.task.format_ok(tokens, length)

    def teacher(self, seat, key, skill):
        return seat.task.teacher(key, seat.transcript.problem, skill)

    def own_score(self, seat, tokens, length):
        return seat.task.score(seat.transcript.problem, tokens, length)


@dataclasses.dataclass(frozen=True)
class Synthesis(Solution):
    """A solution written after reading others; its teacher copies a right one if there is one.

    Where there is none, or with probability `1 - skill`, it copies any; where nothing was written it solves the problem
    itself.

    Attributes:
      of: the call whose solutions it reads.
    """

    of: str

    @property
    def reads(self):
        return (self.of,)

    def teacher(self, seat, key, skill):
        pick_key, own_key = jax.random.split(key)
        completions = seat.transcript.completions[self.of]
        chosen = _pick(seat, self.of, pick_key, skill)
        copied, _ = unfinish(completions.tokens[chosen], completions.length[chosen], seat.vocabulary.end)
        tokens, length = assemble([copied], seat.task.max_answer_length)
        own_tokens, own_length = super().teacher(seat, own_key, skill)
        written = completions.written.any()
        return jnp.where(written, tokens, own_tokens), jnp.where(written, length, own_length)


@dataclasses.dataclass(frozen=True)
class Verdict(Message):
    """`correct` or `incorrect`, on a solution: that of the copy with one's own number, or the only one.

    Attributes:
      of: the call that is judged; it has one copy, or as many as the judge.
    """

    of: str
    is_solution: ClassVar[bool] = False

    @property
    def reads(self):
        return (self.of,)

    def symbols(self, copies):
        return (CORRECT, INCORRECT)

    def allowed(self, task, copies):
        return (CORRECT, INCORRECT)

    def max_length(self, task):
        return 1

    def format_ok(self, seat, tokens, length):
        return (length == 1) & ((tokens[0] == seat.token(CORRECT)) | (tokens[0] == seat.token(INCORRECT)))

    def teacher(self, seat, key, skill):
        says_correct = self._truth(seat) == (jax.random.uniform(key) < skill)
        token = jnp.where(says_correct, seat.token(CORRECT), seat.token(INCORRECT))
        return token[None].astype(jnp.int32), jnp.ones((), jnp.int32)

    def own_score(self, seat, tokens, length):
        agrees = (tokens[0] == seat.token(CORRECT)) == self._truth(seat)
        return (self.format_ok(seat, tokens, length) & agrees).astype(jnp.float32)

    def _truth(self, seat: Seat) -> jax.Array:
        completion, _ = seat.latest(self.of)
        return seat.solution_score(*completion) >= 1


@dataclasses.dataclass(frozen=True)
class Choice(Message):
    """The number of one of several solutions, as one token `<1>`, `<2>`, ...

    Attributes:
      of: the call whose copies wrote the solutions.
    """

    of: str
    is_solution: ClassVar[bool] = False

    @property
    def reads(self):
        return (self.of,)

    def symbols(self, copies):
        return tuple(map(number_token, range(copies[self.of])))

    def allowed(self, task, copies):
        return self.symbols(copies)

    def max_length(self, task):
        return 1

    def chosen(self, seat: Seat, tokens: jax.Array, length: jax.Array) -> jax.Array:
        """`[C]` bool, which copy a content names; all false where it names none that wrote anything."""
        written = seat.transcript.completions[self.of].written
        return (number_ids(seat.vocabulary, written.shape[0]) == tokens[0]) & (length == 1) & written

    def format_ok(self, seat, tokens, length):
        return self.chosen(seat, tokens, length).any()

    def teacher(self, seat, key, skill):
        number = _pick(seat, self.of, key, skill)
        copies = seat.transcript.completions[self.of].length.shape[0]
        return number_ids(seat.vocabulary, copies)[number][None], jnp.ones((), jnp.int32)

    def own_score(self, seat, tokens, length):
        return jnp.where(self.chosen(seat, tokens, length), seat.solution_scores(self.of), 0.0).sum()


class Addressed(Message):
    """A message with parts for numbered readers.

    Attributes:
      number: the most parts.
    """

    number: int

    @abc.abstractmethod
    def part(
        self, seat: Seat, tokens: jax.Array, length: jax.Array, number: jax.Array | int
    ) -> tuple[Ragged, jax.Array]:
        """The part of a reader's number, from 0, and whether there is one."""


@dataclasses.dataclass(frozen=True)
class Strategies(Addressed):
    """Up to `number` hints for workers, each after a separator; the teacher writes all of them.

    A hint is what `Task.hint` says: right with probability `skill`.

    Attributes:
      number: the most hints.
      separator: name of the token before each, not a symbol of the task.

    Raises:
      UserError: `number` is below 1.
    """

    number: int
    separator: str = "<strategy>"
    has_own_score: ClassVar[bool] = False
    is_solution: ClassVar[bool] = False

    def __post_init__(self):
        check_whole("the number of strategies", self.number, at_least=1)
        check_kind("the separator of strategies", self.separator, str)

    def symbols(self, copies):
        return (self.separator,)

    def allowed(self, task, copies):
        return (*task.symbols, self.separator)

    def max_length(self, task):
        return self.number * (1 + task.max_hint_length)

    def part(self, seat, tokens, length, number):
        separator = seat.token(self.separator)
        there = (count_token(tokens, length, separator) > number) & (number < self.number)
        return split_part(tokens, length, separator, number + 1), there

    def format_ok(self, seat, tokens, length):
        separator = seat.token(self.separator)
        inside = within(tokens, length)
        is_separator = inside & (tokens == separator)
        count = is_separator.sum()
        symbol = jnp.isin(tokens, jnp.asarray(seat.vocabulary.encode(seat.task.symbols)))
        # Every hint has something in it: no separator stands before another one, or at the end.
        followed = jnp.append(inside[1:] & ~is_separator[1:], False)
        starts = (length > 0) & (tokens[0] == separator)
        return (
            starts & (count <= self.number) & (symbol | is_separator | ~inside).all() & (followed | ~is_separator).all()
        )

    def teacher(self, seat, key, skill):
        keys = jax.random.split(key, self.number)

        def hint(key, index):
            return seat.task.hint(key, seat.transcript.problem, skill, index)

        tokens, length = jax.vmap(hint)(keys, jnp.arange(self.number))
        separator = ragged([seat.token(self.separator)])
        return assemble([part for index in range(self.number) for part in (separator, (tokens[index], length[index]))])


def _pick(seat: Seat, call: str, key: jax.Array, skill: jax.Array | float) -> jax.Array:
    """`[]` int32, a copy that an imperfect teacher prefers: a right one if there is one and it pays attention."""
    attention_key, copy_key = jax.random.split(key)
    written = seat.transcript.completions[call].written
    right = written & (seat.solution_scores(call) >= 1)
    attentive = right.any() & (jax.random.uniform(attention_key) < skill)
    candidates = jnp.where(attentive, right, written | ~written.any())
    return jax.random.categorical(copy_key, jnp.where(candidates, 0.0, -jnp.inf)).astype(jnp.int32)
