import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows.ragged import (
    assemble,
    count_token,
    finish,
    last_part,
    ragged,
    same_tokens,
    split_part,
    unfinish,
)
from jaxmarl_llm.workflows.vocabulary import Vocabulary

VOCABULARY = Vocabulary(("3", "+", "<generator>", "dup", "4", "du"))


def test_names_and_ids():
    assert (VOCABULARY.pad, VOCABULARY.end, len(VOCABULARY)) == (0, 1, 8)
    assert VOCABULARY.encode("3+4 <generator>") == (2, 3, 6, 4)
    assert VOCABULARY.encode("3+4<generator>dup4") == (2, 3, 6, 4, 5, 6)
    assert VOCABULARY.encode(("dup", "<end>")) == (5, 1)
    assert VOCABULARY.encode("dudup") == (7, 5)
    assert VOCABULARY.encode("") == ()
    assert VOCABULARY.decode((2, 3, 6, 4, 1, 0, 0)) == "3+4 <generator> <end>"
    assert hash(VOCABULARY) == hash(Vocabulary(VOCABULARY.symbols))


def test_text_reads_back():
    rng = np.random.default_rng(0)
    for _ in range(200):
        ids = tuple(rng.integers(1, len(VOCABULARY), 7).tolist())
        assert VOCABULARY.encode(VOCABULARY.decode(ids)) == ids


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        (("a", "a"), "token 'a' occurs twice"),
        (("<pad>",), "token '<pad>' occurs twice"),
        (("a b",), "a word without blanks, got 'a b'"),
        (("",), "a word without blanks, got ''"),
        (("1", "2", "12"), "token '12' could also be read as 1 2"),
    ],
)
def test_bad_names(symbols, message):
    with pytest.raises(UserError, match=message):
        Vocabulary(symbols)


def test_unknown_tokens():
    with pytest.raises(UserError, match="unknown token '<generatr>': did you mean <generator>"):
        VOCABULARY.encode("3+<generatr>")
    with pytest.raises(UserError, match="unknown token 'dop'"):
        VOCABULARY.encode(["dop"])
    with pytest.raises(ValueError, match="8 is no token: ids run from 0 to 7"):
        VOCABULARY.decode([8])


def pairs(rng, sizes):
    return [(rng.integers(1, 9, size), rng.integers(0, size + 1)) for size in sizes]


def listed(pair):
    tokens, length = map(np.asarray, pair)
    assert (tokens[length:] == 0).all() and tokens.dtype == np.int32
    return tokens[:length].tolist()


@pytest.mark.parametrize(("sizes", "size"), [((2, 3, 7), 13), ((2, 3, 7), None), ((5,), 3), ((1, 1), 1)])
def test_assembly_against_python(sizes, size):
    rng = np.random.default_rng(0)
    batch = [pairs(rng, sizes) for _ in range(11)]
    packed = jax.jit(jax.vmap(lambda parts: assemble(parts, size)))(
        [tuple(map(np.stack, zip(*column, strict=True))) for column in zip(*batch, strict=True)]
    )
    for row, parts in enumerate(batch):
        expected = [int(token) for tokens, length in parts for token in tokens[:length]]
        assert listed((packed[0][row], packed[1][row])) == expected[: size or sum(sizes)]
    assert packed[0].shape == (11, size or sum(sizes))


def test_parts_between_separators():
    tokens, length = jnp.asarray([5, 9, 6, 7, 9, 9, 8, 9, 4]), jnp.asarray(8)
    assert [listed(split_part(tokens, length, 9, number)) for number in range(6)] == [[5], [6, 7], [], [8], [], []]
    assert int(count_token(tokens, length, 9)) == 4
    assert listed(last_part(tokens, jnp.asarray(7), 9)) == [8]
    assert listed(last_part(tokens, jnp.asarray(1), 9)) == [5]


def test_comparison_and_ends():
    @jax.jit
    def compute():
        padded = jnp.asarray([3, 4, 8])
        same = [same_tokens((padded, 2), ragged([3, 4])), same_tokens((padded, 3), ragged([3, 4]))]
        completion = finish((padded, 2), 1, 5)
        others = [(jnp.asarray([3, 1, 4]), 3), (jnp.asarray([1, 1]), 0)]
        return (
            [*same, same_tokens(ragged([3]), ragged([3, 4]))],
            completion,
            [unfinish(*pair, 1) for pair in (completion, *others)],
        )

    same, completion, contents = compute()
    assert [bool(one) for one in same] == [True, False, False]
    assert listed(completion) == [3, 4, 1]
    assert [(listed(content), bool(ended)) for content, ended in contents] == [
        ([3, 4], True),
        ([3, 1, 4], False),
        ([], False),
    ]
