"""`arithmetic`: the value of an expression, digits as tokens."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.arguments import check_kind, check_whole
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows.ragged import Ragged, assemble, compact, last_part, ragged, same_tokens, within
from jaxmarl_llm.workflows.tasks.base import Problem, Task

PLUS, MINUS, TIMES = range(3)
_LARGEST = 10**8
_MOST_DIGITS = 8
# Expressions are put together operand by operand: more would take minutes to compile.
_MOST_LEVELS = 100


@struct.dataclass
class Expression:
    """An expression of n operands and the order in which it is worked out.

    Operator i stands between operands i and i + 1, and joins all operands from `start[i]` to `end[i]`.

    Attributes:
      operands: `[n]` int32.
      operators: `[n - 1]` int32, 0 plus, 1 minus, 2 times.
      start, end: `[n - 1]` int32.
      order: `[n - 1]` int32, operators from the first worked out to the last: shorter stretches first, then from the
        left.
    """

    operands: jax.Array
    operators: jax.Array
    start: jax.Array
    end: jax.Array
    order: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arithmetic(Task):
    """Expressions like `3+4*7`; the answer is the value in decimal digits, without leading zeros.

    Hints are values of sub-expressions, in the order in which a teacher works them out.

    Attributes:
      level: the expression has `level + 1` operands; at most 100.
      digits: most digits of an operand, drawn uniformly from all numbers up to that.
      operators: any of `+`, `-`, `*`, drawn uniformly; times comes before plus and minus, as usual.
      modulus: values are taken modulo this; None for whole numbers, negative ones with a leading minus.
      brackets: a random order of evaluation, written with brackets, instead of the usual one.
      working: the teacher writes the values of all sub-expressions, separated by `;`, and the answer last; what stands
        after the last `;` is scored in any case.

    Raises:
      UserError: settings out of range, or values that could exceed 10**8.
    """

    digits: int = 1
    operators: str = "+-*"
    modulus: int | None = 10
    brackets: bool = False
    working: bool = False

    def __post_init__(self):
        super().__post_init__()
        check_whole("digits", self.digits, at_least=1, at_most=_MOST_DIGITS)
        check_kind("operators", self.operators, str)
        check_kind("modulus", self.modulus, int, type(None))
        for name in ("brackets", "working"):
            check_kind(name, getattr(self, name), bool)
        if not self.operators or len(set(self.operators)) != len(self.operators) or set(self.operators) - set("+-*"):
            raise UserError(f"operators must be some of + - *, each once, got '{self.operators}'")
        if self.modulus is not None and not 2 <= self.modulus <= 10**4:
            raise UserError(f"modulus must lie between 2 and 10000, got {self.modulus}")
        if self._largest > _LARGEST:
            raise UserError(f"values could exceed {_LARGEST}: lower level or digits, or set a modulus")
        check_whole("level", self.level, at_most=_MOST_LEVELS)

    @property
    def num_operands(self) -> int:
        """n, from the level."""
        return self.level + 1

    @property
    def symbols(self):
        brackets = ("(", ")") if self.brackets else ()
        return (*"0123456789+-*", *brackets, *((";",) if self.working else ()))

    @property
    def answer_symbols(self):
        return (*"0123456789", *(("-",) if self._signed else ()), *((";",) if self.working else ()))

    @property
    def max_problem_length(self):
        brackets = 2 * (self.num_operands - 2) if self.brackets else 0
        return self.num_operands * self.digits + self.num_operands - 1 + brackets

    @property
    def max_answer_length(self):
        values = self.num_operands - 1 if self.working else 1
        return values * self.max_hint_length + values - 1

    @property
    def max_hint_length(self):
        return self._width + self._signed

    @property
    def _largest(self) -> int:
        if self.modulus is not None:
            return self.modulus - 1
        operand = 10**self.digits - 1
        # More factors exceed what is accepted; their product could take minutes.
        return operand ** min(self.num_operands, 9) if "*" in self.operators else operand * self.num_operands

    @property
    def _width(self) -> int:
        return len(str(self._largest))

    @property
    def _signed(self) -> bool:
        return self.modulus is None and "-" in self.operators

    def draw(self, key):
        operand_key, operator_key, order_key = jax.random.split(key, 3)
        count = self.num_operands - 1
        operands = jax.random.randint(operand_key, (count + 1,), 0, 10**self.digits)
        codes = jnp.asarray(["+-*".index(operator) for operator in self.operators], jnp.int32)
        operators = jax.random.choice(operator_key, codes, (count,))
        place = jnp.arange(count, dtype=jnp.int32)
        if self.brackets:
            priority = jax.random.permutation(order_key, place)
        else:
            priority = jnp.where(operators == TIMES, 0, count) + place
        start, end = _stretches(priority)
        order = jnp.argsort((end - start) * (count + 1) + start).astype(jnp.int32)
        expression = Expression(operands=operands, operators=operators, start=start, end=end, order=order)
        tokens, length = self._render(expression)
        return Problem(tokens=tokens, length=length, target=expression)

    def score(self, problem, completion, length):
        answer = last_part(completion, length, *self.tokens(";")) if self.working else (completion, length)
        values = self._values(problem.target, jnp.zeros_like(problem.target.operators))
        return same_tokens(answer, self._number(values[-1])).astype(jnp.float32)

    def format_ok(self, completion, length):
        tokens, size = last_part(completion, length, *self.tokens(";")) if self.working else (completion, length)
        digit = jnp.isin(tokens, jnp.asarray(self.tokens("0123456789")))
        minus = (tokens == self.tokens("-")[0]) & (jnp.arange(tokens.shape[0]) == 0) & self._signed
        is_number = (digit | minus | ~within(tokens, size)).all() & (digit & within(tokens, size)).any()
        return super().format_ok(completion, length) & is_number

    def teacher(self, key, problem, skill):
        values = self._imperfect_values(key, problem.target, skill, -1)
        if not self.working:
            return self._number(values[-1])
        parts = []
        for step in range(self.num_operands - 1):
            parts += [self._number(values[step]), ragged(self.tokens(";"))]
        return assemble(parts[:-1], self.max_answer_length)

    def hint(self, key, problem, skill, index):
        step = jnp.asarray(index) % (self.num_operands - 1)
        return self._number(self._imperfect_values(key, problem.target, skill, step)[step])

    def _imperfect_values(self, key, expression, skill, step) -> jax.Array:
        """`[n - 1]` values, of which that at `step` is right with probability `skill`; an error travels on."""
        right_key, error_key, step_key = jax.random.split(key, 3)
        steps = jnp.arange(self.num_operands - 1)
        right = self._values(expression, jnp.zeros_like(steps))
        if self.modulus is None:
            error = jax.random.choice(error_key, jnp.asarray([-10, -2, -1, 1, 2, 10], jnp.int32))
        else:
            error = jax.random.randint(error_key, (), 1, self.modulus)
        slip = jax.random.randint(step_key, (), 0, steps[step] + 1)
        wrong = self._values(expression, jnp.where(steps == slip, error, 0))
        # A later factor of zero may undo the slip: then the slip is made in the value itself.
        wrong = jnp.where((steps == steps[step]) & (wrong == right), self._reduce(right + error), wrong)
        if self.modulus is None:
            limit = 10**self._width - 1
            wrong = jnp.clip(wrong, -limit if self._signed else 0, limit)
            inward = jnp.where(right > 0, right - 1, right + 1)
            wrong = jnp.where((steps == steps[step]) & (wrong == right), inward, wrong)
        return jnp.where(jax.random.uniform(right_key) < skill, right, wrong)

    def _values(self, expression: Expression, errors: jax.Array) -> jax.Array:
        """`[n - 1]` int32, values of the sub-expressions in their order, with an error added to each."""

        def step(values, operator_and_error):
            operator, error = operator_and_error
            left, right = values[expression.start[operator]], values[operator + 1]
            kind = expression.operators[operator]
            result = jnp.where(kind == PLUS, left + right, jnp.where(kind == MINUS, left - right, left * right))
            result = self._reduce(result + error)
            return values.at[expression.start[operator]].set(result), result

        return jax.lax.scan(step, self._reduce(expression.operands), (expression.order, errors))[1]

    def _reduce(self, value: jax.Array) -> jax.Array:
        return value if self.modulus is None else value % self.modulus

    def _number(self, value: jax.Array) -> Ragged:
        return self._digits(value, self._width, self._signed)

    def _digits(self, value: jax.Array, width: int, signed: bool) -> Ragged:
        powers = 10 ** jnp.arange(width - 1, -1, -1, dtype=jnp.int32)
        size = jnp.abs(value)
        digits = self.tokens("0")[0] + size // powers % 10
        written = (size >= powers) | (powers == 1)
        if not signed:
            return compact(digits, written, width)
        sign = jnp.asarray(self.tokens("-"), jnp.int32)
        return compact(jnp.concatenate([sign, digits]), jnp.concatenate([(value < 0)[None], written]), width + 1)

    def _render(self, expression: Expression) -> Ragged:
        count = self.num_operands - 1
        signs = jnp.asarray(self.tokens("+-*"), jnp.int32)
        # The outermost operator needs no brackets.
        inner = expression.end - expression.start < count
        parts: list[Ragged] = []
        for operand in range(count + 1):
            number = self._digits(expression.operands[operand], self.digits, signed=False)
            if self.brackets:
                opened = (inner & (expression.start == operand)).sum()
                closed = (inner & (expression.end == operand)).sum()
                room = max(count - 1, 1)
                parts += [(jnp.full((room,), self.tokens("(")[0], jnp.int32), opened), number]
                parts += [(jnp.full((room,), self.tokens(")")[0], jnp.int32), closed)]
            else:
                parts.append(number)
            if operand < count:
                parts.append((signs[expression.operators[operand]][None], jnp.ones((), jnp.int32)))
        return assemble(parts, self.max_problem_length)


def _stretches(priority: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The operands that each operator joins, `[n - 1]` each: up to the next operator that is worked out later."""
    count = priority.shape[0]
    place = jnp.arange(count, dtype=jnp.int32)
    later = priority[None, :] > priority[:, None]
    before = later & (place[None, :] < place[:, None])
    after = later & (place[None, :] > place[:, None])
    start = jnp.where(before, place[None, :] + 1, 0).max(-1)
    end = jnp.where(after, place[None, :], count).min(-1)
    return start.astype(jnp.int32), end.astype(jnp.int32)
