"""Automata over tokens, which decide inside a program what each row of a batch may write next."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.arguments import as_array, check_kind, check_whole
from jaxmarl_llm.errors import UserError

NONE = -1
# The state of a row that may write anything.
FREE = -1
# Of one table of int32, which is 64 MB; there are two.
MOST_ENTRIES = 1 << 24


@struct.dataclass
class TokenAutomaton:
    """States of an answer, with the few tokens that each allows; usable inside `jax.jit`.

    A row starts in state 0. After each token, `advance` gives its state and `allowed` the mask of the next token. In
    state -1 every token is allowed, and leads to it again.

    Attributes:
      tokens: `[S, K]` int32, allowed tokens of each state, -1 for none.
      next_state: `[S, K]` int32, where they lead.
      distance: `[S]` int32, the fewest tokens up to the end, with the one that stops; 0 at the end.
      vocab_size: V.
    """

    tokens: jax.Array
    next_state: jax.Array
    distance: jax.Array
    vocab_size: int = struct.field(pytree_node=False)

    def allowed(self, state: jax.Array, room: jax.Array | None = None) -> jax.Array:
        """Masks `[..., V]` bool of the tokens that may follow in states `[...]` int32.

        Args:
          state: of each row.
          room: `[...]` int32, how many tokens may still be written: only what can come to an end within them is
            allowed, as far as anything can.
        """
        tokens, is_way = self.ways(state, room)
        # An index outside is dropped; a negative one would count from the end.
        tokens = jnp.where(is_way, tokens, self.vocab_size).reshape(-1, self.tokens.shape[1])
        row = jnp.arange(tokens.shape[0])[:, None]
        mask = jnp.zeros((tokens.shape[0], self.vocab_size), bool).at[row, tokens].set(True, mode="drop")
        return mask.reshape(*jnp.shape(state), self.vocab_size) | (state == FREE)[..., None]

    def ways(self, state: jax.Array, room: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
        """As `allowed`, by the few tokens themselves; of no use in state -1.

        Returns:
          `(tokens [..., K] int32, is_allowed [..., K] bool)`.
        """
        at = jnp.maximum(state, 0)
        tokens = self.tokens[at]
        is_way = tokens != NONE
        if room is not None:
            ends = is_way & (self.distance[self.next_state[at]] < room[..., None])
            is_way = jnp.where(jnp.any(ends, axis=-1, keepdims=True), ends, is_way)
        return tokens, is_way

    def advance(self, state: jax.Array, token: jax.Array) -> jax.Array:
        """States `[...]` int32 after tokens `[...]` int32; one that is not allowed changes nothing."""
        at = jnp.maximum(state, 0)
        is_taken = (self.tokens[at] == token[..., None]) & (state != FREE)[..., None]
        # A sum over the one entry that holds, as a token leads to one state.
        moved = jnp.sum(jnp.where(is_taken, self.next_state[at], 0), axis=-1)
        return jnp.where(jnp.any(is_taken, axis=-1), moved, state)

    def along(self, tokens: jax.Array) -> jax.Array:
        """Masks that completions were drawn under, without a limit of room, for the `allowed` of `score`.

        Args:
          tokens: `[B, M]` int32.

        Returns:
          `[B, M, V]` bool.
        """
        return self.allowed(self.states(jnp.zeros(tokens.shape[:-1], jnp.int32), tokens))

    def states(self, start: jax.Array, tokens: jax.Array) -> jax.Array:
        """The states `[..., M]` that rows are in before each of their tokens.

        Args:
          start: `[...]` int32, before the first.
          tokens: `[..., M]` int32.
        """

        def step(state, token):
            return self.advance(state, token), state

        return jnp.moveaxis(jax.lax.scan(step, start, jnp.moveaxis(tokens, -1, 0))[1], 0, -1)

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
            options = {frozenset(tokens[state].tolist()) - {NONE} for state in states}
            if len(options) > 1:
                raise ValueError(
                    f"what may follow after {step} tokens depends on which they were: give the automaton to generate "
                    "as its constraint, or choices of one token each"
                )
            masks[step, list(next(iter(options)))] = True
            after = {int(next_state[state, k]) for state in states for k in np.flatnonzero(tokens[state] != NONE)}
            # An answer that has ended asks for no more tokens.
            states = after - {end} or {end}
        return masks


class TokenConstraint(NamedTuple):
    """What one row may write.

    Attributes:
      automaton: of its answer.
      room: the most tokens of it, with the one that stops it.
    """

    automaton: TokenAutomaton
    room: int


@struct.dataclass
class RowConstraints:
    """What each row of a batch may write; build it with `constrain_rows`.

    Attributes:
      automaton: of all rows.
      start: `[...]` int32, the state that a row starts in; -1 where it may write anything.
      room: `[...]` int32, the most tokens of it, with the one that stops it.
    """

    automaton: TokenAutomaton
    start: jax.Array
    room: jax.Array

    def at(self, rows: np.ndarray) -> "RowConstraints":
        """Those of rows `[...]` int of a batch `[B]`."""
        chosen: Any = [np.asarray(part)[rows] for part in (self.start, self.room)]
        return RowConstraints(self.automaton, *chosen)

    def along(self, tokens: jax.Array) -> jax.Array:
        """Masks `[..., M, V]` bool that completions `[..., M]` int32 are drawn under."""
        return self.automaton.allowed(*self._states(tokens))

    def ways_along(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        """As `along`, by the few tokens themselves, `[..., M, K]` each; of no use in rows that may write anything."""
        return self.automaton.ways(*self._states(tokens))

    def _states(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        """States and room `[..., M]` before each token."""
        step = jnp.arange(tokens.shape[-1]).reshape((1,) * (tokens.ndim - 1) + (-1,))
        return self.automaton.states(self.start, tokens), self.room[..., None] - step


def constrain_rows(rows: Sequence[TokenConstraint | None]) -> RowConstraints | None:
    """The constraints of a batch of rows, each with an automaton of its own or none.

    Tables are padded to powers of two, so that a program serves many of them.

    Args:
      rows: B, None where a row may write anything.

    Returns:
      With `start` and `room` `[B]`; None where no row is constrained.

    Raises:
      UserError: automata of different vocabularies, no room, or tables that are too large.
    """
    automata = list({id(row.automaton): row.automaton for row in rows if row is not None}.values())
    if not automata:
        return None
    sizes = {automaton.vocab_size for automaton in automata}
    if len(sizes) > 1:
        raise UserError(f"constraints of one batch must be of one vocabulary, got {sorted(sizes)} tokens")
    offsets = np.cumsum([0, *(automaton.tokens.shape[0] for automaton in automata)])
    shape = _power_of_two(offsets[-1]), _power_of_two(max(automaton.tokens.shape[1] for automaton in automata))
    check_table(*shape)
    tokens, next_state = np.full(shape, NONE, np.int32), np.zeros(shape, np.int32)
    distance = np.zeros(shape[0], np.int32)
    for automaton, start, stop in zip(automata, offsets, offsets[1:], strict=False):
        width = automaton.tokens.shape[1]
        tokens[start:stop, :width] = automaton.tokens
        next_state[start:stop, :width] = np.asarray(automaton.next_state) + start
        distance[start:stop] = automaton.distance
    first = {id(automaton): int(offset) for automaton, offset in zip(automata, offsets, strict=False)}
    for row in rows:
        if row is not None:
            check_whole("the room of a constraint", row.room, at_least=1)
    start = np.asarray([FREE if row is None else first[id(row.automaton)] for row in rows], np.int32)
    room = np.asarray([0 if row is None else row.room for row in rows], np.int32)
    # NumPy's arrays stay on the host: each device, and each process, takes them as it needs.
    tables: Any = tokens, next_state, distance
    of_rows: Any = start, room
    return RowConstraints(TokenAutomaton(*tables, vocab_size=sizes.pop()), *of_rows)


def check_table(states: int, width: int) -> None:
    """Refuses tables of so many states, and tokens of each, that are too large.

    Raises:
      UserError: how large they are, and may be.
    """
    if states * width > MOST_ENTRIES:
        raise UserError(
            f"the choices have {states:,} states of up to {width:,} tokens, {8 * states * width / 1e6:,.0f} MB of "
            f"tables, and at most {8 * MOST_ENTRIES / 1e6:,.0f} MB are allowed: give fewer or shorter choices"
        )


def rows_of(
    constraint: TokenAutomaton | RowConstraints | None, batch: int, steps: int, vocab_size: int, allowed: Any
) -> RowConstraints | None:
    """The constraint of `generate` and `score` as that of each row.

    Args:
      constraint: of all rows, or of each.
      batch: B.
      steps: M.
      vocab_size: V.
      allowed: the other mask, which cannot go with it.

    Raises:
      UserError: it is something else, or there are both.
      ValueError: one of another vocabulary, or of another number of rows.
    """
    if constraint is None:
        return None
    check_kind("constraint", constraint, TokenAutomaton, RowConstraints)
    if allowed is not None:
        raise UserError("allowed and constraint both say what may be drawn: give one of them")
    if isinstance(constraint, TokenAutomaton):
        constraint = RowConstraints(constraint, jnp.zeros(batch, jnp.int32), jnp.full(batch, steps, jnp.int32))
    if constraint.automaton.vocab_size != vocab_size:
        raise ValueError(
            f"the constraint is of {constraint.automaton.vocab_size} tokens, the decoder of {vocab_size}: give the "
            "automaton the decoder's vocab_size"
        )
    start, room = (as_array(name, getattr(constraint, name), jnp.integer) for name in ("start", "room"))
    if start.shape != (batch,) or room.shape != (batch,):
        raise ValueError(f"start and room of a constraint must have shape [B] = {(batch,)}, got {start.shape}")
    return RowConstraints(jax.tree.map(jnp.asarray, constraint.automaton), start, room)


def _power_of_two(number: int) -> int:
    return 1 << (int(number) - 1).bit_length()
