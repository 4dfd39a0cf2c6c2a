"""`stack_code`: write a program that maps given inputs to given outputs; hidden cases decide."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.arguments import check_kind, check_whole
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows.ragged import Ragged, assemble, ragged
from jaxmarl_llm.workflows.tasks.base import Problem, Task
from jaxmarl_llm.workflows.tasks.stack_machine import ADD, DROP, GROWS, INSTRUCTIONS, NEEDS, PUSH, run_program
from jaxmarl_llm.workflows.vocabulary import FIRST_SYMBOL

_NUM_CODES = len(INSTRUCTIONS) + 10
_TRIES = 4
# Far beyond what a decoder's context holds; a problem is put together case by case, so that more would take minutes.
_RANGES = {"level": (1, 100), "num_inputs": (1, 10), "num_shown": (1, 100), "num_hidden": (0, 1000)}


@struct.dataclass
class Cases:
    """What a program must do, and one that does.

    Attributes:
      inputs: `[C, I]` int32, the shown cases first, then the hidden ones.
      outputs: `[C]` int32.
      program: `[level]` int32 codes.
    """

    inputs: jax.Array
    outputs: jax.Array
    program: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackCode(Task):
    """Programs for the stack machine of `stack_machine`, from examples such as `34>7;25>7`.

    A problem shows `num_shown` cases, inputs then output; a program passes a case if its result is the output. Invalid
    programs (an unknown instruction, too few values below one, nothing at all) score 0.
    Hints are how a teacher's program begins.

    Attributes:
      level: instructions of the hidden program, at most 100.
      num_inputs: I, numbers on the stack at the start, one digit each, at most 10.
      num_shown, num_hidden: cases in the problem, at most 100, and cases that only scoring sees, at most 1000.
      modulus: values are taken modulo this, 2 to 10, so that each is one digit.
      partial: the score is the share of cases that pass; if not, 1 where all pass.

    Raises:
      UserError: settings out of range.
    """

    num_inputs: int = 2
    num_shown: int = 3
    num_hidden: int = 5
    modulus: int = 10
    partial: bool = False

    def __post_init__(self):
        super().__post_init__()
        for name, (least, most) in _RANGES.items():
            check_whole(name, getattr(self, name), at_least=least, at_most=most)
        check_whole("modulus", self.modulus, at_least=2)
        check_kind("partial", self.partial, bool)
        if self.modulus > 10:
            raise UserError(f"modulus must lie between 2 and 10, so that values are one digit, got {self.modulus}")

    @property
    def symbols(self):
        return (*self.answer_symbols, ">", ";")

    @property
    def answer_symbols(self):
        return (*INSTRUCTIONS, *"0123456789")

    @property
    def max_problem_length(self):
        return self.num_shown * (self.num_inputs + 3) - 1

    @property
    def max_answer_length(self):
        # Two more than the hidden program, for the teacher's surest mistake.
        return self.level + 2

    @property
    def max_hint_length(self):
        return (self.level + 1) // 2

    def draw(self, key):
        program_key, input_key = jax.random.split(key)
        program = self._draw_program(program_key)
        count = self.num_shown + self.num_hidden
        inputs = jax.random.randint(input_key, (count, self.num_inputs), 0, self.modulus)
        outputs, _ = self._run(program, jnp.asarray(self.level), inputs)
        zero = FIRST_SYMBOL + self.symbols.index("0")
        parts: list[Ragged] = []
        for case in range(self.num_shown):
            numbers = (zero + inputs[case], jnp.asarray(self.num_inputs)), ragged(self.tokens(">"))
            parts += [*numbers, (zero + outputs[case][None], jnp.asarray(1)), ragged(self.tokens(";"))]
        tokens, length = assemble(parts[:-1])
        return Problem(tokens=tokens, length=length, target=Cases(inputs=inputs, outputs=outputs, program=program))

    def score(self, problem, completion, length):
        return self._score_program(problem.target, completion - FIRST_SYMBOL, length)

    def teacher(self, key, problem, skill):
        right_key, place_key, code_key = jax.random.split(key, 3)
        right = problem.target.program
        places = jax.random.randint(place_key, (_TRIES,), 0, self.level)
        shift = jax.random.randint(code_key, (_TRIES,), 1, _NUM_CODES)

        @jax.vmap
        def slip(place, shift):
            program = right.at[place].set((right[place] + shift) % _NUM_CODES)
            return program, self._score_program(problem.target, program, jnp.asarray(self.level))

        slips, scores = slip(places, shift)
        # One slip may change nothing; adding one to the result is wrong in every case.
        wrong = jnp.where((scores < 1).any(), slips[(scores < 1).argmax()], right)
        add_one = jnp.asarray([PUSH + 1, ADD], jnp.int32)
        is_right = jax.random.uniform(right_key) < skill
        extra = jnp.where(is_right | (scores < 1).any(), 0, 2)
        program = jnp.where(is_right, right, wrong)
        return assemble([(program + FIRST_SYMBOL, jnp.asarray(self.level)), (add_one + FIRST_SYMBOL, extra)])

    def _run(self, program, length, inputs) -> tuple[jax.Array, jax.Array]:
        def one(case):
            return run_program(program, length, case, modulus=self.modulus)

        return jax.vmap(one)(inputs)

    def _score_program(self, cases: Cases, program: jax.Array, length: jax.Array) -> jax.Array:
        results, ok = self._run(program, length, cases.inputs)
        passes = ok & (results == cases.outputs)
        return passes.mean(dtype=jnp.float32) if self.partial else passes.all().astype(jnp.float32)

    def _draw_program(self, key) -> jax.Array:
        needs, grows = jnp.asarray(NEEDS), jnp.asarray(GROWS)

        def step(depth, key):
            kind_key, digit_key = jax.random.split(key)
            legal = depth >= jnp.maximum(needs, 1 + (jnp.arange(PUSH + 1) == DROP))
            kind = jax.random.categorical(kind_key, jnp.where(legal, 0.0, -jnp.inf)).astype(jnp.int32)
            digit = jax.random.randint(digit_key, (), 0, self.modulus)
            return depth + grows[kind], jnp.where(kind == PUSH, PUSH + digit, kind)

        start = jnp.asarray(self.num_inputs, jnp.int32)
        return jax.lax.scan(step, start, jax.random.split(key, self.level))[1]
