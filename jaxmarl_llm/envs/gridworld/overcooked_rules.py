"""The rules of Overcooked on a packed state: elementwise integer code, so that a batch runs as vector instructions.

Every field is a scalar (or a tuple of scalars), hence under `vmap` one contiguous array over environments, and the
contents of 16 counters share one 32-bit word.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.envs.base import EnvState
from jaxmarl_llm.envs.gridworld import overcooked_layouts as layouts
from jaxmarl_llm.envs.gridworld.overcooked_layouts import Kitchen

UP, DOWN, RIGHT, LEFT, STAY, INTERACT = range(6)

# What a hand or a counter holds: two bits.
EMPTY, ONION, PLATE, SOUP = range(4)

# A pot counts down: 23 empty, 22 and 21 one and two onions, 20 three onions, 19 .. 1 steps left to cook, 0 ready.
POT_EMPTY, POT_FULL, POT_READY = 23, 20, 0
NUM_POT_STATUS = POT_EMPTY + 1

COUNTERS_PER_WORD = 16


@struct.dataclass
class OvercookedState(EnvState):
    """State of one kitchen, N agents, P pots, C counters that can hold something.

    Attributes:
      place: N scalars int32, floor cell of each agent, index into `Kitchen.floor`; all differ.
      direction: N scalars int32, where it looks: 0 up, 1 down, 2 right, 3 left.
      held: N scalars int32, what it holds: 0 nothing, 1 onion, 2 plate, 3 soup on a plate.
      pot_status: P scalars int32, 23 empty, 22 and 21 one and two onions, 20 full, then steps left to cook, 0 ready.
      counters: ceil(C / 16) scalars uint32; bits 2k and 2k + 1 of word w hold the item on counter 16w + k, coded as
        in `held`.
    """

    place: tuple[jax.Array, ...]
    direction: tuple[jax.Array, ...]
    held: tuple[jax.Array, ...]
    pot_status: tuple[jax.Array, ...]
    counters: tuple[jax.Array, ...]


class Events(NamedTuple):
    """What one agent did in one step, each `[]` bool.

    Attributes:
      delivered: handed a soup through the window.
      potted_onion: put an onion into a pot.
      took_plate: took a plate from a pile.
      took_useful_plate: the same while a pot in use lacks a plate and no counter holds one.
      took_soup: filled its plate from a pot.
      dropped: put what it held on a counter.
    """

    delivered: jax.Array
    potted_onion: jax.Array
    took_plate: jax.Array
    took_useful_plate: jax.Array
    took_soup: jax.Array
    dropped: jax.Array


def num_words(kitchen: Kitchen) -> int:
    """Number of 32-bit words for the kitchen's counters."""
    return -(-len(kitchen.counters) // COUNTERS_PER_WORD)


def move(kitchen: Kitchen, state: OvercookedState, action) -> OvercookedState:
    """Turns and moves all agents at once.

    A moving action always turns. The step is taken unless something is in the way, another agent heads for (or stays
    on) the same cell, or two agents would swap cells. With more than two agents, whoever is held up holds up those
    who wanted its cell; agents may rotate in a ring of three or more.

    Args:
      kitchen: the static tables.
      state: before the move.
      action: N scalars int32.
    """
    num_agents = len(state.place)
    target_table = jnp.asarray(kitchen.target.reshape(-1))
    moves = [a < STAY for a in action]
    direction = tuple(jnp.where(m, a, d) for m, a, d in zip(moves, action, state.direction, strict=True))
    place = state.place
    wanted = [
        jnp.where(m, _lookup(target_table, 4 * p + d), p) for m, p, d in zip(moves, place, direction, strict=True)
    ]
    pairs = [(i, j) for i in range(num_agents) for j in range(i)]
    held_up = [jnp.zeros_like(m) for m in moves]
    for i, j in pairs:
        swap = (wanted[i] == place[j]) & (wanted[j] == place[i])
        held_up[i], held_up[j] = held_up[i] | swap, held_up[j] | swap
    # Each round can hold up at least one more agent, or else nothing changes any more.
    for _ in range(max(1, num_agents - 1)):
        wanted = [jnp.where(h, p, w) for h, p, w in zip(held_up, place, wanted, strict=True)]
        for i, j in pairs:
            clash = wanted[i] == wanted[j]
            held_up[i], held_up[j] = held_up[i] | clash, held_up[j] | clash
    wanted = tuple(jnp.where(h, p, w) for h, p, w in zip(held_up, place, wanted, strict=True))
    return state.replace(place=wanted, direction=direction)


def interact(
    kitchen: Kitchen, state: OvercookedState, agent: int, acts: jax.Array, facing: jax.Array
) -> tuple[OvercookedState, Events]:
    """Lets one agent use what it faces.

    Args:
      kitchen: the static tables.
      state: as the agents before it in the order left it.
      agent: its number.
      acts: `[]` bool, whether it interacts at all.
      facing: `[]` int32, an entry of `kitchen.facing`.
    """
    held = state.held[agent]
    kind, index = jnp.where(acts, facing & 7, layouts.NOTHING), facing >> 3

    # Counter: swap hand and counter when exactly one of them is empty.
    is_counter = kind == layouts.COUNTER
    shift = (2 * (index & (COUNTERS_PER_WORD - 1))).astype(jnp.uint32)
    at_word = [is_counter & (index >> 4 == w) for w in range(len(state.counters))]
    content = jnp.zeros((), jnp.uint32)
    for here, word in zip(at_word, state.counters, strict=True):
        content = content | jnp.where(here, (word >> shift) & 3, 0)
    content = content.astype(jnp.int32)
    swaps = is_counter & ((content == EMPTY) != (held == EMPTY))
    exchanged = jnp.where(swaps, held | content, 0)
    bits = exchanged.astype(jnp.uint32) << shift
    counters = tuple(word ^ jnp.where(here, bits, 0) for here, word in zip(at_word, state.counters, strict=True))
    dropped = swaps & (content == EMPTY)

    # Pot: add an onion, or fill a plate with the soup that is ready.
    at_pot = [(kind == layouts.POT) & (index == p) for p in range(len(state.pot_status))]
    add = [here & (s > POT_FULL) & (held == ONION) for here, s in zip(at_pot, state.pot_status, strict=True)]
    take = [here & (s == POT_READY) & (held == PLATE) for here, s in zip(at_pot, state.pot_status, strict=True)]
    pot_status = tuple(
        jnp.where(t, POT_EMPTY, s - a.astype(jnp.int32)) for a, t, s in zip(add, take, state.pot_status, strict=True)
    )
    potted_onion, took_soup = _any(add), _any(take)

    # Piles and window.
    free = held == EMPTY
    took_onion = free & (kind == layouts.ONION_PILE)
    took_plate = free & (kind == layouts.PLATE_PILE)
    delivered = (held == SOUP) & (kind == layouts.WINDOW)

    plates_held = sum((h == PLATE).astype(jnp.int32) for h in state.held)
    pots_in_use = sum((s != POT_EMPTY).astype(jnp.int32) for s in state.pot_status)
    plate_on_counter = _any([(word >> 1) & ~word & 0x55555555 != 0 for word in state.counters])
    took_useful_plate = took_plate & (plates_held < pots_in_use) & ~plate_on_counter

    new_held = held ^ exchanged
    new_held = jnp.where(potted_onion | delivered, EMPTY, new_held)
    new_held = jnp.where(took_onion, ONION, new_held)
    new_held = jnp.where(took_plate, PLATE, new_held)
    new_held = jnp.where(took_soup, SOUP, new_held)

    all_held = (*state.held[:agent], new_held, *state.held[agent + 1 :])
    new_state = state.replace(held=all_held, pot_status=pot_status, counters=counters)
    return new_state, Events(delivered, potted_onion, took_plate, took_useful_plate, took_soup, dropped)


def advance(kitchen: Kitchen, state: OvercookedState, action: jax.Array) -> tuple[OvercookedState, list[Events]]:
    """One step of the game: all move, then interact one after another in agent order, then the full pots cook.

    Args:
      kitchen: the static tables.
      state: before the step.
      action: `[N]` int32: up, down, right, left, stay, interact.

    Returns:
      The state after the step and each agent's events.
    """
    num_agents = len(state.place)
    actions = [action[i] for i in range(num_agents)]
    facing_table = jnp.asarray(kitchen.facing.reshape(-1))
    # An agent that interacts neither moves nor turns, so what it faces is the same before and after the moves.
    facing = [_lookup(facing_table, 4 * p + d) for p, d in zip(state.place, state.direction, strict=True)]
    state = move(kitchen, state, actions)
    events = []
    for agent in range(num_agents):
        state, event = interact(kitchen, state, agent, actions[agent] == INTERACT, facing[agent])
        events.append(event)
    cooks = [(s <= POT_FULL) & (s > POT_READY) for s in state.pot_status]
    cooked = tuple(s - c.astype(jnp.int32) for s, c in zip(state.pot_status, cooks, strict=True))
    return state.replace(pot_status=cooked), events


def _lookup(table, index):
    return table.at[index].get(mode="promise_in_bounds")


def _any(flags):
    total = jnp.zeros((), bool)
    for flag in flags:
        total = total | flag
    return total
