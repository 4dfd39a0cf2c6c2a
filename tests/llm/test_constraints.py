import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_tokenizers import byte_level, gguf_fields, sentence_piece_fields, write_folder

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm import Decoder, DecoderConfig, generate
from jaxmarl_llm.llm.constraints import character_mask, choice_automaton
from jaxmarl_llm.llm.tokenizer import Tokenizer

CHOICES = ("The fox", "The dog", "The", "東京")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.from_folder(write_folder(tmp_path_factory.mktemp("folder"), byte_level()))


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    return Tokenizer.from_gguf(gguf_fields(tmp_path_factory.mktemp("a") / "a.gguf", **sentence_piece_fields()))


def test_tokens_of_certain_characters(tokenizer, pieces):
    for used in (tokenizer, pieces):
        mask = character_mask(used, "0123456789 \nà", vocab_size=used.vocab_size + 7)
        assert mask.shape == (used.vocab_size + 7,) and not mask[used.vocab_size :].any()
        for token in range(used.vocab_size):
            written = used.pieces[token]
            inside = any(written == text.encode() for text in _texts_of(written, "0123456789 \nà"))
            assert mask[token] == (inside or token in used.stop_tokens)
        assert mask[used.encode("7")[-1]] and not mask[used.encode("fox")[-1]]
    # The first byte of a character alone is none of it.
    assert not character_mask(tokenizer, "à7")[tokenizer.encode("à")[0]]
    with pytest.raises(UserError, match="no token consists of '☃' alone"):
        character_mask(tokenizer, "☃")
    with pytest.raises(UserError, match="vocab_size must be at least"):
        character_mask(tokenizer, "1", vocab_size=5)


def _texts_of(written, characters):
    text = written.decode(errors="ignore")
    return [text] if text and all(character in characters for character in text) else []


def walk(automaton, tokens=(), state=0, limit=40):
    """All answers that the table allows, up to their stop token."""
    end = automaton.tokens.shape[0] - 1
    for token, after in zip(automaton.tokens[state].tolist(), automaton.next_state[state].tolist(), strict=True):
        if token >= 0 and limit:
            if after == end:
                yield (*tokens, token)
            else:
                yield from walk(automaton, (*tokens, token), after, limit - 1)


@pytest.mark.parametrize("which", ["byte_level", "sentence_piece"])
def test_every_spelling_of_the_choices_and_nothing_else_is_allowed(which, tokenizer, pieces):
    used = tokenizer if which == "byte_level" else pieces
    automaton = choice_automaton(used, CHOICES)
    answers = list(walk(automaton))
    assert len(answers) == len(set(answers))
    written = [b"".join(used.pieces[token] for token in answer[:-1]).decode() for answer in answers]
    assert all(answer[-1] in used.stop_tokens for answer in answers)

    @functools.cache
    def spellings(rest):
        if not rest:
            return 1
        return sum(spellings(rest[len(piece) :]) for piece in used.pieces if piece and rest.startswith(piece))

    assert {choice: written.count(choice) for choice in CHOICES} == {
        choice: spellings(choice.encode()) for choice in CHOICES
    }
    assert set(written) == set(CHOICES)


def test_masks_and_states_inside_a_program(tokenizer):
    vocab_size, batch, steps = tokenizer.vocab_size + 3, 89, 13
    automaton = choice_automaton(tokenizer, CHOICES, vocab_size=vocab_size)
    draw = np.random.default_rng(0)
    noise, logits = draw.gumbel(size=(2, steps, batch, vocab_size)).astype(np.float32)

    @jax.jit
    def program(automaton, noise, logits):
        def step(state, inputs):
            noise, logits = inputs
            mask = automaton.allowed(state)
            token = jnp.argmax(jnp.where(mask, logits + noise, -jnp.inf), axis=-1)
            return automaton.advance(state, token), (token, mask)

        state, (tokens, masks) = jax.lax.scan(step, jnp.zeros(batch, jnp.int32), (noise, logits))
        # One row alone, and a token that is not allowed, which changes nothing.
        alone = automaton.allowed(jnp.int32(0)), automaton.advance(jnp.int32(3), jnp.int32(vocab_size - 1))
        return state, tokens.T, jnp.swapaxes(masks, 0, 1), automaton.along(tokens.T), alone

    state, tokens, masks, along, alone = jax.device_get(program(automaton, noise, logits))
    np.testing.assert_array_equal(masks, along)
    assert masks.any(axis=-1).all() and not masks[..., tokenizer.vocab_size :].any()
    assert np.take_along_axis(masks, tokens[..., None], axis=-1).all()
    assert (state == automaton.tokens.shape[0] - 1).all()
    assert {tokenizer.decode(row) for row in tokens} == set(CHOICES)
    np.testing.assert_array_equal(alone[0], masks[0, 0])
    assert alone[1] == 3


def test_choices_of_one_token_are_masks_for_generate(tokenizer):
    votes = ("1", "2", "4")
    allowed = choice_automaton(tokenizer, votes, one_token=True).by_step(3)
    assert [sorted(np.flatnonzero(row)) for row in allowed] == [
        sorted(tokenizer.encode("124")), list(tokenizer.stop_tokens), list(tokenizer.stop_tokens),
    ]  # fmt: skip
    config = DecoderConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=6, num_layers=1, num_heads=1, num_kv_heads=1,
        intermediate_size=5, max_length=16,
    )  # fmt: skip
    model = Decoder(config)
    params = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    prompt = jnp.tile(jnp.asarray([tokenizer.encode("What")]), (23, 1))
    length = jnp.full(23, prompt.shape[1])
    drawn = jax.jit(
        lambda key: generate(
            model, params, prompt, length, key, max_new_tokens=3, allowed=jnp.asarray(allowed),
            stop_tokens=tokenizer.stop_tokens, pad_token=tokenizer.pad_token,
        )
    )(jax.random.key(1))  # fmt: skip
    assert {tokenizer.decode(row) for row in drawn.tokens.tolist()} == set(votes)
    assert (drawn.length == 2).all()


def test_answers_that_have_ended_ask_for_nothing(tokenizer):
    one, stop = tokenizer.encode("1")[0], tokenizer.stop_tokens[0]
    masks = choice_automaton(tokenizer, ("1", "111")).by_step(4)
    assert [set(np.flatnonzero(mask)) for mask in masks] == [{one}, {one, stop}, {one}, {stop}]


def test_masks_that_depend_on_earlier_tokens_are_refused(tokenizer):
    with pytest.raises(ValueError, match="after 1 tokens depends on which"):
        choice_automaton(tokenizer, ("The", "1")).by_step(2)
    # Up to where that is so they are given.
    assert choice_automaton(tokenizer, ("The", "1")).by_step(1).sum() == 3
    # One text alone is one choice.
    assert choice_automaton(tokenizer, "The", one_token=True).by_step(1).sum() == 1


@pytest.mark.parametrize(
    ("choices", "settings", "said"),
    [
        ((), {}, "at least one text"),
        (("a", ""), {}, "none that is empty"),
        ((3,), {}, "choices: each must be text, got 3"),
        (("1", "lazy owl"), {"one_token": True}, "no token of the vocabulary can spell the choice 'lazy owl'"),
        (("a",), {"vocab_size": 3}, "vocab_size must be at least"),
    ],
)
def test_choices_that_cannot_be_are_refused(choices, settings, said, tokenizer):
    with pytest.raises(UserError, match=said):
        choice_automaton(tokenizer, choices, **settings)


def test_a_vocabulary_without_all_bytes_or_a_stop_token(tokenizer, tmp_path):
    with pytest.raises(UserError, match="no tokens of the vocabulary can spell the choice 'a\\\\x00'"):
        fields = sentence_piece_fields()
        fields["ggml_tokens"][3] = "<unused>"
        choice_automaton(Tokenizer.from_gguf(gguf_fields(tmp_path / "a.gguf", **fields)), ["a\0", "b"])
    endless = Tokenizer.from_folder(write_folder(tmp_path / "b", byte_level(), template=None, eos_token=None))
    with pytest.raises(UserError, match="has no stop token"):
        choice_automaton(endless, ["a"])
