"""A tokenizer of characters, sums as a text task, and scripts that answer prompts."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.llm import Decoder, DecoderConfig, split_adapters
from jaxmarl_llm.workflows.team import make_team
from jaxmarl_llm.workflows.text.sampler import Sampler

SPECIAL = ("<pad>", "<end>", "<user>", "<system>", "<assistant>")
LETTERS = "".join(map(chr, [10, *range(32, 127)]))


class CharacterTokenizer:
    """One token a character; special tokens are recognised."""

    vocab_size = len(SPECIAL) + len(LETTERS)
    stop_tokens = (1,)
    pad_token = 0
    pieces = (*[b""] * len(SPECIAL), *(letter.encode() for letter in LETTERS))
    source = "a toy"

    def encode(self, text):
        pieces = re.split(f"({'|'.join(SPECIAL)})", text)
        return [
            token
            for piece in pieces
            for token in (
                [SPECIAL.index(piece)]
                if piece in SPECIAL
                else [LETTERS.index(letter) + len(SPECIAL) for letter in piece]
            )
        ]

    def decode(self, tokens, *, skip_special=True):
        special = [""] * len(SPECIAL) if skip_special else SPECIAL
        return "".join([*special, *LETTERS][token] for token in tokens)

    def chat_ids(self, messages):
        return self.encode("".join(f"<{one['role']}>{one['content']}<end>" for one in messages) + "<assistant>")


@dataclasses.dataclass(frozen=True)
class Sum:
    name: str
    prompt: str
    target: int


def sums(*pairs):
    return tuple(Sum(f"{a}+{b}", f"{a}+{b}=", a + b) for a, b in pairs)


@dataclasses.dataclass(frozen=True)
class Sums:
    """The answer is the last number."""

    train: tuple[Sum, ...] = sums((1, 2), (3, 4))
    held_out: tuple[Sum, ...] = sums((2, 2), (5, 3), (4, 5))
    instructions: str = "Write the number."

    def answer(self, completion):
        return (re.findall(r"\d+", completion) or [""])[-1]

    def format_ok(self, completion):
        return bool(self.answer(completion))

    def score(self, problem, completion):
        return float(self.answer(completion) == str(problem.target))


def tiny_sampler(workflow, sharing="shared", *, max_length=160, **settings):
    """Random adapters on a random decoder of characters."""
    policies = make_team(workflow, Decoder(_config(max_length)), sharing).num_policies
    config = _config(max_length, lora_rank=3, num_adapters=policies, scan_layers=True)
    team = make_team(workflow, Decoder(config), sharing)
    init = jax.jit(lambda key: team.decoder.init(key, jnp.zeros((1, 1), jnp.int32), adapter=jnp.zeros(1, jnp.int32)))
    body, adapters = split_adapters(init(jax.random.key(0))["params"])
    draw = np.random.default_rng(1)
    adapters = jax.tree.map(lambda leaf: 0.3 * draw.normal(size=leaf.shape).astype(np.float32), adapters)
    return Sampler(team, body, adapters, stop_tokens=CharacterTokenizer.stop_tokens, **settings)


def _config(max_length, **changes):
    sizes = {"hidden_size": 12, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "intermediate_size": 10}
    return DecoderConfig(vocab_size=CharacterTokenizer.vocab_size, max_length=max_length, **sizes, **changes)
