"""A tiny random decoder of characters and digits to be written: fine-tuning reaches the best in seconds."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxmarl_llm.llm import Decoder, DecoderConfig
from jaxmarl_llm.workflows import PROBLEM, Call, Last, Slot, Solution, Workflow
from jaxmarl_llm.workflows.finetuning.config import FinetuneConfig
from jaxmarl_llm.workflows.finetuning.loading import make_trainer
from jaxmarl_llm.workflows.text import RoleFormat, bind_text

DIGITS = "0123"


class DigitTokenizer:
    """One token a character: a stop token, a mark before each role's turn, and digits."""

    letters = "#|" + DIGITS
    vocab_size = len(letters) + 1
    stop_tokens = (0,)
    pad_token = 0

    def encode(self, text):
        return [self.letters.index(letter) + 1 for letter in text if letter in self.letters]

    def decode(self, tokens, *, skip_special=True):
        return "".join(self.letters[token - 1] for token in tokens if token)

    def chat_ids(self, messages):
        return self.encode("".join(one["content"] for one in messages))


@dataclasses.dataclass(frozen=True)
class Digit:
    name: str
    prompt: str
    target: str


@dataclasses.dataclass(frozen=True)
class NextDigit:
    """The digit after the one that is shown; what follows it does not matter."""

    instructions: str = ""
    train: tuple[Digit, ...] = tuple(
        Digit(digit, digit, DIGITS[(number + 1) % len(DIGITS)]) for number, digit in enumerate(DIGITS)
    )

    @property
    def held_out(self):
        return self.train

    def answer(self, completion):
        return completion[:1]

    def format_ok(self, completion):
        return self.answer(completion) in tuple(DIGITS)

    def score(self, problem, completion):
        return float(self.answer(completion) == problem.target)


def relay() -> Workflow:
    """A solver, and a finisher that reads what it wrote; each must write the digit."""
    solver = Call("solver", prompt=(PROBLEM, "#"), writes=Solution())
    finisher = Call("finisher", prompt=(PROBLEM, Slot("solver", label="|")), writes=Solution())
    return Workflow("relay", (solver, finisher), answer=Last("finisher"))


FORMATS = {
    "solver": RoleFormat(user="{problem}#"),
    "finisher": RoleFormat(user="{problem}{solver}|", blocks={"solver": "{text}"}),
}


@functools.cache
def body():
    """Of a random decoder of two stacked layers."""
    config = DecoderConfig(
        vocab_size=DigitTokenizer.vocab_size,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        intermediate_size=24,
        max_length=48,
        scan_layers=True,
    )
    init = jax.jit(lambda key: Decoder(config).init(key, jnp.zeros((1, 1), jnp.int32)))
    return config, init(jax.random.key(3))["params"]


def toy_trainer(**settings):
    """A trainer of the relay."""
    defaults = {
        "lora_rank": 4,
        "lora_targets": ("value", "down"),
        "num_problems": 3,
        "group_size": 5,
        "max_new_tokens": 2,
        "max_length": 48,
        "learning_rate": 0.02,
        # One row a micro-batch: few shapes to compile.
        "pack_tokens": 16,
        "iterations": 3,
        "evaluate_every": 2,
        "checkpoint_every": 1,
        "evaluation_problems": 4,
        "reward": "mixed",
    }
    config = FinetuneConfig(**{**defaults, **settings})
    bound = bind_text(
        relay(), NextDigit(), DigitTokenizer(), FORMATS, max_new_tokens=2, max_length=48, require_end=False
    )
    return make_trainer(config, *body(), bound)
