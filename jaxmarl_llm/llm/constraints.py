"""Answers of a given form, as masks or automata of tokens: of certain characters, or one of certain texts."""

import bisect
import collections
import functools
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.arguments import elements
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.automata import NONE, TokenAutomaton, check_table
from jaxmarl_llm.llm.tokenizer import Tokenizer

# The state behind the token that stops an answer.
_END = -1
_Ways = dict[int, list[tuple[int, int]]]


def character_mask(tokenizer: Tokenizer, characters: str, *, vocab_size: int | None = None) -> np.ndarray:
    """Tokens that are written with certain characters alone, and the tokens that stop an answer.

    `generate(allowed=character_mask(tokenizer, "0123456789+-. \\n"))` draws numbers; `score` takes the same mask.

    Args:
      tokenizer: of the model.
      characters: those that may occur.
      vocab_size: V, of the model, whose vocabulary may be padded; the tokenizer's by default.

    Returns:
      `[V]` bool.

    Raises:
      UserError: no token consists of them.
    """
    mask = np.zeros(_size(tokenizer, vocab_size), bool)
    wanted = set(characters)
    for token, piece in enumerate(tokenizer.pieces):
        # Bytes that are no whole character become one that must be wanted too.
        mask[token] = bool(piece) and set(piece.decode(errors="replace")) <= wanted
    if not mask.any():
        raise UserError(f"no token consists of {characters!r} alone")
    mask[list(tokenizer.stop_tokens)] = True
    return mask


class TextAutomaton:
    """Texts as paths of bytes from state 0 to states where one may end.

    Attributes:
      ways: of each state, bytes to the state that they lead to.
      ends: states that a text may end in.
    """

    def __init__(self) -> None:
        self.ways: list[dict[int, int]] = [{}]
        self.ends: set[int] = set()

    def add(self, text: bytes, state: int = 0) -> int:
        """The state behind a text that begins in `state`, along the ways there are as far as they go."""
        for byte in text:
            if byte not in self.ways[state]:
                self.ways[state][byte] = self.new()
            state = self.ways[state][byte]
        return state

    def new(self) -> int:
        """A state without any ways."""
        self.ways.append({})
        return len(self.ways) - 1


def choice_automaton(
    tokenizer: Tokenizer, choices: Sequence[str], *, one_token: bool = False, vocab_size: int | None = None
) -> TokenAutomaton:
    """The automaton of one text among several, in any way that tokens can spell it, and a stop token behind.

    `generate(constraint=choice_automaton(...))` draws such answers; `score` takes the same constraint.

    Args:
      tokenizer: of the model.
      choices: the texts as they follow the prompt, blanks in front included; K is the most tokens that any beginning of
        them allows, S at most their bytes and two.
      one_token: spell each by one token only, for `by_step`.
      vocab_size: V, of the model; the tokenizer's by default.

    Returns:
      The automaton; its last state is the end.

    Raises:
      UserError: no choices, an empty one, one that the vocabulary cannot spell, a tokenizer without stop token, or
        tables that are too large.
    """
    choices = elements("choices", choices, str)
    texts = TextAutomaton()
    if not choices or not all(choices):
        raise UserError("choices needs at least one text, and none that is empty")
    ends = [texts.add(choice.encode()) for choice in choices]
    texts.ends.update(ends)
    ways = _token_ways(tokenizer, texts, one_token=one_token)
    for choice, end in zip(choices, ends, strict=True):
        if end not in ways:
            raise UserError(
                f"no {'token' if one_token else 'tokens'} of the vocabulary can spell the choice {choice!r}"
            )
    return _table(ways, tokenizer, vocab_size)


def text_automaton(tokenizer: Tokenizer, texts: TextAutomaton, *, vocab_size: int | None = None) -> TokenAutomaton:
    """As `choice_automaton`, of the texts of an automaton of bytes.

    Raises:
      UserError: none that the vocabulary can spell, a tokenizer without stop token, or tables that are too large.
    """
    ways = _token_ways(tokenizer, texts)
    if not ways:
        raise UserError("no tokens of the vocabulary can spell any of the texts")
    return _table(ways, tokenizer, vocab_size)


@functools.lru_cache(maxsize=2)
def _spelled(tokenizer: Tokenizer) -> tuple[list[bytes], dict[bytes, list[int]]]:
    """What tokens write, in order, and the tokens that write it."""
    spelled: dict[bytes, list[int]] = {}
    for token, piece in enumerate(tokenizer.pieces):
        if piece and token not in tokenizer.stop_tokens:
            spelled.setdefault(piece, []).append(token)
    return sorted(spelled), spelled


def _token_ways(tokenizer: Tokenizer, texts: TextAutomaton, *, one_token: bool = False) -> _Ways:
    """Tokens of the states that lie on a way from state 0, which comes first, to the end."""
    if not tokenizer.stop_tokens:
        raise UserError(f"{tokenizer.source} has no stop token, which ends a choice")
    pieces, spelled = _spelled(tokenizer)

    def ways_from(start: int) -> list[tuple[int, int]]:
        found = [(token, _END) for token in tokenizer.stop_tokens] if start in texts.ends else []
        waiting = [(start, b"")] if not one_token or start == 0 else []
        while waiting:
            state, written = waiting.pop()
            for byte, after in texts.ways[state].items():
                longer = written + bytes((byte,))
                place = bisect.bisect_left(pieces, longer)
                if place < len(pieces) and pieces[place].startswith(longer):
                    waiting.append((after, longer))
                    if not one_token or after in texts.ends:
                        found += [(token, after) for token in spelled.get(longer, ())]
        return found

    ways = _reached(ways_from)
    distance = _distances(ways)
    return _reached(lambda state: [way for way in ways[state] if way[1] in distance]) if 0 in distance else {}


def _reached(ways_from) -> _Ways:
    """The ways from every state that some lead to from state 0."""
    found: _Ways = {}
    waiting = [0]
    while waiting:
        state = waiting.pop()
        if state not in found:
            found[state] = ways_from(state)
            waiting += [after for _, after in reversed(found[state]) if after != _END]
    return found


def _distances(ways: _Ways) -> dict[int, int]:
    """The fewest tokens from each state to the end, of those that lead to it."""
    before: dict[int, list[int]] = {}
    for state, found in ways.items():
        for _, after in found:
            before.setdefault(after, []).append(state)
    distance, waiting = {_END: 0}, collections.deque([_END])
    while waiting:
        after = waiting.popleft()
        for state in before.get(after, ()):
            if state not in distance:
                distance[state] = distance[after] + 1
                waiting.append(state)
    return distance


def _table(ways: _Ways, tokenizer: Tokenizer, vocab_size: int | None) -> TokenAutomaton:
    size = _size(tokenizer, vocab_size)
    distances = _distances(ways)
    rows = [*ways.values(), [(token, _END) for token in tokenizer.stop_tokens]]
    number = {state: index for index, state in enumerate((*ways, _END))}
    width = max(len(row) for row in rows)
    check_table(len(rows), width)
    tokens, next_state = np.full((len(rows), width), NONE, np.int32), np.zeros((len(rows), width), np.int32)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = [token for token, _ in row]
        next_state[index, : len(row)] = [number[after] for _, after in row]
    distance = np.asarray([distances[state] for state in number], np.int32)
    return TokenAutomaton(*map(jnp.asarray, (tokens, next_state, distance)), vocab_size=size)


def _size(tokenizer: Tokenizer, vocab_size: int | None) -> int:
    size = tokenizer.vocab_size if vocab_size is None else vocab_size
    if size < tokenizer.vocab_size:
        raise UserError(f"vocab_size must be at least the tokenizer's {tokenizer.vocab_size}, got {size}")
    return size
