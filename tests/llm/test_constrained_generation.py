"""Rows that may write certain texts only: sampling and scoring against a walk over all spellings in NumPy."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm import (
    Decoder,
    DecoderConfig,
    TokenConstraint,
    automata,
    constrain_rows,
    generate,
    score,
)
from jaxmarl_llm.llm.constraints import TextAutomaton, choice_automaton, text_automaton

B, L, M, V = 11, 7, 5, 17
STOP = (2, 3)


class Pieces:
    """A vocabulary in which texts have several spellings."""

    pieces = (b"", b"", b"", b"stop", b"a", b"b", b"ab", b"ba", b"aba", b"c", b"\xc3", b"\xa9", b"c", b"x")
    stop_tokens = STOP
    vocab_size = len(pieces)
    source = "a test"


CHOICES = {"one": ("ab", "aba", "c"), "two": ("é", "bab")}
AUTOMATA = {name: choice_automaton(Pieces(), texts, vocab_size=V) for name, texts in CHOICES.items()}
# Name of the choices, or None for a row that may write anything, and room.
ROWS = [("one", 5), (None, 0), ("two", 5), ("one", 2), ("two", 3), (None, 0), *[("one", 4)] * 3, ("two", 3), ("two", 4)]
CONSTRAINT = constrain_rows([name and TokenConstraint(AUTOMATA[name], room) for name, room in ROWS])
LENGTH = np.asarray([7, 1, 4, 2, 6, 3, 7, 5, 1, 2, 6])
CONFIG = DecoderConfig(
    vocab_size=V, hidden_size=10, num_layers=1, num_heads=1, num_kv_heads=1, intermediate_size=13, max_length=12
)
DECODER = Decoder(CONFIG)
SETTINGS = {
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 2, "temperature": 1.4},
    "top_p": {"top_p": 0.7, "temperature": 1.3},
}


@pytest.fixture(scope="module")
def params():
    params = jax.jit(DECODER.init)(jax.random.key(1), jnp.zeros((1, 2), jnp.int32))["params"]
    return {**params, "embedding": 3.0 * params["embedding"]}


@pytest.fixture(scope="module")
def prompt():
    return jax.random.randint(jax.random.key(2), (B, L), 0, V)


@functools.cache
def answers(name, room):
    """All token sequences of at most `room` that spell a choice and stop."""
    pieces = [(token, piece) for token, piece in enumerate(Pieces.pieces) if piece and token not in STOP]

    def spellings(text):
        if not text:
            yield ()
        for token, piece in pieces:
            if text.startswith(piece):
                yield from ((token, *rest) for rest in spellings(text[len(piece) :]))

    found = [(*way, stop) for text in CHOICES[name] for way in spellings(text.encode()) for stop in STOP]
    return [way for way in found if len(way) <= room]


def twin(logits, tokens, name, room, *, temperature=1.0, top_k=0, top_p=1.0):
    """Log-probability of each token, from `logits` `[M, V]` before it."""
    found = []
    for step, token in enumerate(tokens):
        allowed = set(range(V))
        if name:
            allowed = {way[step] for way in answers(name, room) if way[:step] == tuple(tokens[:step])}
        masked = np.where([one in allowed for one in range(V)], logits[step].astype(np.float64), -np.inf)
        if top_k:
            masked[masked < np.sort(masked)[-top_k]] = -np.inf
        probs = np.exp((masked - masked.max()) / temperature)
        probs /= probs.sum()
        order = np.argsort(-probs)
        kept = order[: 1 + np.searchsorted(np.cumsum(probs[order]), top_p)] if top_p < 1 else order
        found.append(np.log(probs[token] / probs[kept].sum()) if token in kept else -np.inf)
    return found


@pytest.mark.parametrize(
    "settings",
    [pytest.param(value, id=name, marks=[pytest.mark.wide] * (name == "top_p")) for name, value in SETTINGS.items()],
)
def test_sampling_scoring_and_a_walk_over_all_spellings_agree(settings, params, prompt, key):
    cut = {name: value for name, value in settings.items() if name != "temperature"}

    @jax.jit
    def program(params, constraint, temperature):
        drawn = generate(
            DECODER, params, prompt, LENGTH, key, max_new_tokens=M, constraint=constraint, stop_tokens=STOP,
            temperature=temperature, **cut,
        )  # fmt: skip
        scored = score(
            DECODER, params, prompt, LENGTH, drawn.tokens, drawn.mask, constraint=constraint, temperature=temperature,
            **cut,
        )  # fmt: skip
        return drawn, scored

    drawn, scored = jax.device_get(program(params, CONSTRAINT, settings.get("temperature", 1.0)))
    np.testing.assert_allclose(scored.log_prob, drawn.log_prob, atol=1e-4)
    every = np.zeros((B, L + M), np.int32)
    for row in range(B):
        every[row, : LENGTH[row]] = prompt[row, : LENGTH[row]]
        every[row, LENGTH[row] : LENGTH[row] + M] = drawn.tokens[row]
    logits = np.asarray(jax.jit(DECODER.apply)({"params": params}, every)[0])
    for row, (name, room) in enumerate(ROWS):
        tokens = drawn.tokens[row, : drawn.length[row]].tolist()
        # An answer is always one of the choices, within its room.
        assert not name or tuple(tokens) in answers(name, room)
        expected = twin(logits[row, LENGTH[row] - 1 :], tokens, name, room, **settings)
        np.testing.assert_allclose(drawn.log_prob[row, : len(tokens)], expected, atol=1e-4)


@pytest.mark.wide
def test_every_answer_is_drawn_as_often_as_its_probability(params, prompt):
    rows, room = 4001, 4
    constraint = constrain_rows([TokenConstraint(AUTOMATA["one"], room)] * rows)
    drawn = jax.jit(
        lambda params: generate(
            DECODER, params, prompt[:1], LENGTH[:1], jax.random.key(3), max_new_tokens=M, group=rows,
            constraint=constraint, stop_tokens=STOP,
        )
    )(params)  # fmt: skip
    tokens, log_prob = np.asarray(drawn.tokens), np.asarray(drawn.log_prob).sum(1)
    count = {
        way: (tokens[:, : len(way)] == way).all(1) & (np.asarray(drawn.length) == len(way))
        for way in answers("one", room)
    }
    assert sum(found.sum() for found in count.values()) == rows
    for found in count.values():
        probability = np.exp(log_prob[found][0]) if found.any() else 0.0
        # Five standard deviations, of those that occur at all.
        assert abs(found.mean() - probability) <= 5 * np.sqrt(probability / rows) + 1e-4


def test_one_automaton_for_all_rows_and_greedy(params, prompt, key):
    drawn = jax.jit(
        lambda params: generate(
            DECODER, params, prompt, LENGTH, key, max_new_tokens=M, constraint=AUTOMATA["two"], stop_tokens=STOP,
            temperature=0.0,
        )
    )(params)  # fmt: skip
    assert not np.asarray(drawn.log_prob).any()
    for tokens, length in zip(drawn.tokens.tolist(), drawn.length.tolist(), strict=True):
        assert tuple(tokens[:length]) in answers("two", M)


def test_where_no_text_fits_every_way_is_allowed():
    two, state = AUTOMATA["two"], jnp.zeros(1, jnp.int32)
    assert two.distance[0] == 3
    np.testing.assert_array_equal(two.allowed(state, jnp.asarray([2])), two.allowed(state))
    # "b", "ba" and the first byte of a letter of two; only two of them lead to the end within three tokens.
    assert [int(two.allowed(state, jnp.asarray([room])).sum()) for room in (4, 3)] == [3, 3]
    np.testing.assert_array_equal(two.allowed(state - 1, jnp.asarray([1])), np.ones((1, V), bool))


def test_texts_with_several_ways_on():
    # One line of each number at most, in order: what an automaton of bytes says that a list would be long for.
    texts = TextAutomaton()
    first, second = texts.add(b"a"), texts.add(b"b")
    texts.ways[first][ord("c")] = between = len(texts.ways)
    texts.ways.append({ord("b"): second})
    texts.ends |= {first, second}
    automaton = text_automaton(Pieces(), texts, vocab_size=V)
    tokens, after = np.asarray(automaton.tokens), np.asarray(automaton.next_state)

    def walk(state, written):
        for token, next_state in zip(tokens[state], after[state], strict=True):
            if token in STOP:
                yield written
            elif token >= 0:
                yield from walk(next_state, written + Pieces.pieces[token])

    # Two tokens write "c", and two stop.
    assert sorted(walk(0, b"")) == sorted(itertools.chain([b"a", b"b"] * 2, [b"acb"] * 4))
    assert between and automaton.distance[0] == 2
    with pytest.raises(UserError, match="no tokens of the vocabulary can spell any"):
        nothing = TextAutomaton()
        nothing.ends.add(nothing.add(b"z"))
        text_automaton(Pieces(), nothing)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"constraint": 3}, "constraint must be TokenAutomaton or RowConstraints, got 3"),
        ({"constraint": AUTOMATA["one"], "allowed": jnp.ones(V, bool)}, "give one of them"),
        ({"constraint": choice_automaton(Pieces(), ["a"])}, "the constraint is of 14 tokens, the decoder of 17"),
        ({"constraint": constrain_rows([TokenConstraint(AUTOMATA["one"], 3)])}, r"must have shape \[B\] = \(11,\)"),
    ],
)
def test_constraints_that_do_not_fit_are_refused(settings, said, params, prompt, key):
    with pytest.raises((UserError, ValueError), match=said):
        generate(DECODER, params, prompt, LENGTH, key, max_new_tokens=M, **settings)
    with pytest.raises((UserError, ValueError), match=said):
        tokens = jnp.zeros((B, M), jnp.int32)
        score(DECODER, params, prompt, LENGTH, tokens, tokens == 0, **settings)


def test_batches_that_cannot_be_are_refused(monkeypatch):
    one, other = AUTOMATA["one"], choice_automaton(Pieces(), ["a"])
    assert constrain_rows([None] * 3) is None
    with pytest.raises(UserError, match=r"of one vocabulary, got \[14, 17\] tokens"):
        constrain_rows([TokenConstraint(one, 3), TokenConstraint(other, 3)])
    with pytest.raises(UserError, match="the room of a constraint must be at least 1, got 0"):
        constrain_rows([TokenConstraint(one, 0)])
    monkeypatch.setattr(automata, "MOST_ENTRIES", 10)
    with pytest.raises(UserError, match=r"have 4 states of up to 3 tokens, 0 MB of tables, and at most 0 MB"):
        choice_automaton(Pieces(), ["c", "a"])
