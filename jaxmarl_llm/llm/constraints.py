"""Masks of allowed tokens for answers of a given form: of certain characters, or one of certain texts."""

import collections
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.arguments import elements
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.tokenizer import Tokenizer

_NONE = -1


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


@struct.dataclass
class TokenAutomaton:
    """States of an answer, with the few tokens that each allows; usable inside `jax.jit`.

    A row starts in state 0. After each token, `advance` gives its state and `allowed` the mask of the next token.

    Attributes:
      tokens: `[S, K]` int32, allowed tokens of each state, -1 for none.
      next_state: `[S, K]` int32, where they lead.
      vocab_size: V.
    """

    tokens: jax.Array
    next_state: jax.Array
    vocab_size: int = struct.field(pytree_node=False)

    def allowed(self, state: jax.Array) -> jax.Array:
        """Masks `[..., V]` bool of the tokens that may follow in states `[...]` int32."""
        tokens = self.tokens[state].reshape(-1, self.tokens.shape[1])
        row = jnp.arange(tokens.shape[0])[:, None]
        # An index outside is dropped; a negative one would count from the end.
        tokens = jnp.where(tokens == _NONE, self.vocab_size, tokens)
        mask = jnp.zeros((tokens.shape[0], self.vocab_size), bool).at[row, tokens].set(True, mode="drop")
        return mask.reshape(*jnp.shape(state), self.vocab_size)

    def advance(self, state: jax.Array, token: jax.Array) -> jax.Array:
        """States `[...]` int32 after tokens `[...]` int32; one that is not allowed changes nothing."""
        is_taken = self.tokens[state] == token[..., None]
        # A sum over the one entry that holds, as a token leads to one state.
        moved = jnp.sum(jnp.where(is_taken, self.next_state[state], 0), axis=-1)
        return jnp.where(jnp.any(is_taken, axis=-1), moved, state)

    def along(self, tokens: jax.Array) -> jax.Array:
        """Masks that completions were drawn under, for the `allowed` of `score`.

        Args:
          tokens: `[B, M]` int32.

        Returns:
          `[B, M, V]` bool.
        """

        def step(state, token):
            return self.advance(state, token), state

        _, state = jax.lax.scan(step, jnp.zeros(tokens.shape[0], jnp.int32), tokens.T)
        return self.allowed(state.T)

    def by_step(self, steps: int) -> np.ndarray:
        """Masks of each step for the `allowed` of `generate`, where they do not depend on the tokens before.

        That is so for choices of `one_token` each: a vote among "1", "2" and "3", or "yes" and "no" where both are
        tokens.

        Args:
          steps: M.

        Returns:
          `[M, V]` bool.

        Raises:
          ValueError: which tokens may follow depends on those before.
        """
        tokens, next_state = np.asarray(self.tokens), np.asarray(self.next_state)
        end = len(tokens) - 1
        masks = np.zeros((steps, self.vocab_size), bool)
        states = {0}
        for step in range(steps):
            options = {frozenset(tokens[state].tolist()) - {_NONE} for state in states}
            if len(options) > 1:
                raise ValueError(
                    f"what may follow after {step} tokens depends on which they were: use allowed() and advance() step "
                    "by step, or choices of one token each"
                )
            masks[step, list(next(iter(options)))] = True
            after = {int(next_state[state, k]) for state in states for k in np.flatnonzero(tokens[state] != _NONE)}
            # An answer that has ended asks for no more tokens.
            states = after - {end} or {end}
        return masks


def choice_automaton(
    tokenizer: Tokenizer, choices: Sequence[str], *, one_token: bool = False, vocab_size: int | None = None
) -> TokenAutomaton:
    """The automaton of one text among several, in any way that tokens can spell it, and a stop token behind.

    Args:
      tokenizer: of the model.
      choices: the texts as they follow the prompt, blanks in front included; K is the most tokens that any beginning of
        them allows, S at most their bytes and two.
      one_token: spell each by one token only, for `by_step`.
      vocab_size: V, of the model; the tokenizer's by default.

    Returns:
      The automaton; its last state is the end.

    Raises:
      UserError: no choices, an empty one, one that the vocabulary cannot spell, or a tokenizer without stop token.
    """
    choices = elements("choices", choices, str)
    texts = [choice.encode() for choice in choices]
    if not texts or not all(texts):
        raise UserError("choices needs at least one text, and none that is empty")
    if not tokenizer.stop_tokens:
        raise UserError(f"{tokenizer.source} has no stop token, which ends a choice")
    spelled = collections.defaultdict(list)
    for token, piece in enumerate(tokenizer.pieces):
        if piece and token not in tokenizer.stop_tokens:
            spelled[piece].append(token)

    # From the ends of the choices backwards, so that every way on is known to lead to one.
    edges: dict[bytes, list[tuple[int, bytes | None]]] = {
        text: [(token, None) for token in tokenizer.stop_tokens] for text in texts
    }
    beginnings = {text[:length] for text in texts for length in ([0] if one_token else range(len(text)))}
    for start in sorted(beginnings, key=len, reverse=True):
        ways = edges.get(start, [])
        ways += [
            (token, end)
            for end in _continuations(texts, start)
            if end in edges
            for token in spelled.get(end[len(start) :], ())
        ]
        if ways:
            edges[start] = ways
    reached = _reached(edges)
    for choice, text in zip(choices, texts, strict=True):
        if text not in reached:
            raise UserError(
                f"no {'token' if one_token else 'tokens'} of the vocabulary can spell the choice {choice!r}"
            )
    return _table(edges, reached, tokenizer.stop_tokens, _size(tokenizer, vocab_size))


def _continuations(texts: Iterable[bytes], start: bytes) -> list[bytes]:
    """What choices begin with and is longer than `start`, each once."""
    longer = {
        text[:length] for text in texts if text.startswith(start) for length in range(len(start) + 1, len(text) + 1)
    }
    return sorted(longer)


def _reached(edges: dict[bytes, list[tuple[int, bytes | None]]]) -> list[bytes]:
    """The states that a way leads to from the empty text, which comes first."""
    reached = {b"": None} if b"" in edges else {}
    waiting = list(reached)
    while waiting:
        for _, end in edges[waiting.pop()]:
            if end is not None and end not in reached:
                reached[end] = None
                waiting.append(end)
    return list(reached)


def _table(
    edges: dict[bytes, list[tuple[int, bytes | None]]], reached: list[bytes], stop_tokens: Sequence[int], size: int
) -> TokenAutomaton:
    number: dict[bytes | None, int] = {state: index for index, state in enumerate(reached)}
    number[None] = len(reached)
    ways = [edges[state] for state in reached]
    ways.append([(token, None) for token in stop_tokens])
    width = max(len(way) for way in ways)
    tokens, next_state = np.full((len(ways), width), _NONE, np.int32), np.zeros((len(ways), width), np.int32)
    for index, way in enumerate(ways):
        tokens[index, : len(way)] = [token for token, _ in way]
        next_state[index, : len(way)] = [number[end] for _, end in way]
    return TokenAutomaton(jnp.asarray(tokens), jnp.asarray(next_state), size)


def _size(tokenizer: Tokenizer, vocab_size: int | None) -> int:
    size = tokenizer.vocab_size if vocab_size is None else vocab_size
    if size < tokenizer.vocab_size:
        raise UserError(f"vocab_size must be at least the tokenizer's {tokenizer.vocab_size}, got {size}")
    return size
