"""What Overcooked's agents see: 26 planes ("dense"), or the same facts as a few integers ("factored").

The 26 planes of a viewer (JaxMARL's, with one agent's teammates in place of the other agent):

======= ===========================================================================================================
channel meaning (0 or 1 unless stated)
======= ===========================================================================================================
0, 1    where the viewer is; where its teammates are
2 - 5   the viewer looks up, down, right, left (1 at its cell)
6 - 9   the same for teammates
10 - 15 pots, empty counters, onion piles, tomato piles (none), plate piles, serving windows
16      onions in a pot that does not cook yet: 0 .. 3
17      tomatoes in a pot: 0
18      3 where a pot cooks or is ready, and where a soup stands or is carried
19      tomatoes in a soup: 0
20      steps until a pot is ready: 0 .. 19
21      soup that is ready: in a pot, on a counter or carried
22 - 24 plates, onions, tomatoes (none) on counters or carried
25      all 1 when fewer than 40 steps are left
======= ===========================================================================================================

Tables with one entry a plane cell are made once; per step each entry is a few comparisons of bytes.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.envs.gridworld.overcooked_boundary import compute_apart
from jaxmarl_llm.envs.gridworld.overcooked_layouts import Kitchen, parse_layout
from jaxmarl_llm.envs.gridworld.overcooked_rules import (
    COUNTERS_PER_WORD,
    EMPTY,
    NUM_POT_STATUS,
    ONION,
    PLATE,
    POT_EMPTY,
    POT_FULL,
    POT_READY,
    SOUP,
    OvercookedState,
)

NUM_CHANNELS = 26
URGENT_STEPS = 40
_NEVER = 1


def factored_sizes(kitchen: Kitchen, num_agents: int) -> tuple[int, ...]:
    """Number of values of each of the F factored entries.

    Order: (place M, direction 4, held 4) of the viewer, then of agents i + 1, i + 2, ... (cyclic); status of each pot
    (24); content of each counter (4: nothing, onion, plate, soup); urgency (2). Places, pots and counters are those of
    `Kitchen`.
    """
    agent = (len(kitchen.floor), 4, 4)
    return agent * num_agents + (NUM_POT_STATUS,) * len(kitchen.pots) + (4,) * len(kitchen.counters) + (2,)


def counter_contents(kitchen: Kitchen, state: OvercookedState) -> list[jax.Array]:
    """C scalars uint32: the item on each counter."""
    return [
        (state.counters[c // COUNTERS_PER_WORD] >> (2 * (c % COUNTERS_PER_WORD))) & 3
        for c in range(len(kitchen.counters))
    ]


def _urgent(state: OvercookedState, max_steps: int) -> jax.Array:
    return max_steps - state.step < URGENT_STEPS


def observe_factored(kitchen: Kitchen, state: OvercookedState, max_steps: int, dtype: str) -> jax.Array:
    """`[N, F]` integers in the order of `factored_sizes`."""
    num_agents = len(state.place)
    agents = [
        [value.astype(dtype) for value in agent] for agent in zip(state.place, state.direction, state.held, strict=True)
    ]
    rest = [*state.pot_status, *counter_contents(kitchen, state), _urgent(state, max_steps)]
    rest = [value.astype(dtype) for value in rest]
    rows = []
    for viewer in range(num_agents):
        order = [agents[(viewer + k) % num_agents] for k in range(num_agents)]
        rows.append(jnp.stack([value for agent in order for value in agent] + rest))
    return jnp.stack(rows)


def observe_global(kitchen: Kitchen, state: OvercookedState, max_steps: int) -> jax.Array:
    """`[G]` float32: one-hot vectors of agent 0's factored entries, so agents keep one order whoever looks."""
    sizes = factored_sizes(kitchen, len(state.place))
    column_entry = np.repeat(np.arange(len(sizes)), sizes)
    column_value = np.concatenate([np.arange(size) for size in sizes])
    values = observe_factored(kitchen, state, max_steps, "int32")[0]
    return (values[column_entry] == jnp.asarray(column_value, jnp.int32)).astype(jnp.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class DenseTables:
    """Static tables, one entry each of the J = height * width * 26 plane cells.

    Codes of an agent at place p: 4 p + direction ("look"), 4 p + held ("hold"). An entry of a mask tells which bits of
    a code matter to the plane cell, and the table beside it what they must be; 0 and 1 (never) where none matter.

    Attributes:
      viewer_mask, viewer: for the viewer's look.
      mate_mask, mate: for a teammate's look.
      hold: the hold of any agent that makes the entry 1 (times `weight`).
      content_mask: `[ceil(C / 4), J]`, for counter byte k: four counters of two bits.
      content: what the bits of the only byte that matters must be.
      weight: uint8, value of an entry where an item is: 3 in channel 18, else 1.
      pot: `[P, 24, J]` uint8, what each pot shows in each status; the first shows the layout's own planes as well.
      urgency: uint8, 1 in channel 25.
    """

    viewer_mask: np.ndarray
    viewer: np.ndarray
    mate_mask: np.ndarray
    mate: np.ndarray
    hold: np.ndarray
    content_mask: np.ndarray
    content: np.ndarray
    weight: np.ndarray
    pot: np.ndarray
    urgency: np.ndarray


@functools.lru_cache(maxsize=128)
def dense_tables(layout: str) -> DenseTables:
    """The tables of a layout given by name or text."""
    kitchen = parse_layout(layout)
    shape = (kitchen.height, kitchen.width, NUM_CHANNELS)
    # Bytes where the codes fit: four times as many fit in a vector register as 32-bit integers.
    dtype = np.uint8 if 4 * len(kitchen.floor) <= np.iinfo(np.uint8).max else np.uint16
    every_bit = np.iinfo(dtype).max

    def table(value=0, *leading, dtype=dtype):
        return np.full((*leading, *shape), value, dtype)

    viewer_mask, viewer, mate_mask, mate = table(), table(_NEVER), table(), table(_NEVER)
    hold = table(every_bit)
    for place, cell in enumerate(kitchen.floor):
        for mask, value, channel in ((viewer_mask, viewer, 0), (mate_mask, mate, 1)):
            mask[(*cell, channel)] = every_bit - 3
            value[(*cell, channel)] = 4 * place
        for direction in range(4):
            for mask, value, channel in ((viewer_mask, viewer, 2 + direction), (mate_mask, mate, 6 + direction)):
                mask[(*cell, channel)] = every_bit
                value[(*cell, channel)] = 4 * place + direction
        for channel, item in ((18, SOUP), (21, SOUP), (22, PLATE), (23, ONION)):
            hold[(*cell, channel)] = 4 * place + item

    content_mask = table(0, -(-len(kitchen.counters) // 4), dtype=np.uint8)
    content = table(_NEVER, dtype=np.uint8)
    for index, cell in enumerate(kitchen.counters):
        byte, slot = divmod(index, 4)
        for channel, item in ((11, EMPTY), (18, SOUP), (21, SOUP), (22, PLATE), (23, ONION)):
            content_mask[(byte, *cell, channel)] = 3 << (2 * slot)
            content[(*cell, channel)] = item << (2 * slot)

    pot = table(0, len(kitchen.pots), NUM_POT_STATUS, dtype=np.uint8)
    for index, cell in enumerate(kitchen.pots):
        for status in range(NUM_POT_STATUS):
            waits = status >= POT_FULL
            pot[(index, status, *cell, 16)] = POT_EMPTY - status if waits else 0
            pot[(index, status, *cell, 18)] = 0 if waits else 3
            pot[(index, status, *cell, 20)] = 0 if waits else status
            pot[(index, status, *cell, 21)] = status == POT_READY
    for channel, symbol in ((10, "P"), (12, "O"), (14, "B"), (15, "X")):
        for cell in kitchen.cells(symbol):
            pot[(0, slice(None), *cell, channel)] = 1
    for cell in set(kitchen.cells("W")) - set(kitchen.counters):
        pot[(0, slice(None), *cell, 11)] = 1

    weight, urgency = table(1, dtype=np.uint8), table(dtype=np.uint8)
    weight[:, :, 18] = 3
    urgency[:, :, 25] = 1

    def flat(array):
        return array.reshape(*array.shape[:-3], -1)

    return DenseTables(
        viewer_mask=flat(viewer_mask),
        viewer=flat(viewer),
        mate_mask=flat(mate_mask),
        mate=flat(mate),
        hold=flat(hold),
        content_mask=flat(content_mask),
        content=flat(content),
        weight=flat(weight),
        pot=flat(pot),
        urgency=flat(urgency),
    )


def observe_dense(kitchen: Kitchen, tables: DenseTables, state: OvercookedState, max_steps: int) -> jax.Array:
    """`[N, height, width, 26]` uint8."""

    def shared(state):
        return _shared_planes(tables, state, max_steps)

    def planes(state, shared_planes):
        return _agent_planes(tables, state) | shared_planes[None, :]

    # Two passes over flat planes: what all agents see alike is computed once, not once a viewer.
    shared_planes = compute_apart(shared, state.step >= 0, state)
    flat = compute_apart(planes, state.step >= 0, state, shared_planes)
    return flat.reshape(len(state.place), kitchen.height, kitchen.width, NUM_CHANNELS)


def _agent_planes(tables: DenseTables, state: OvercookedState) -> jax.Array:
    """`[N, J]` uint8: channels 0 to 9."""
    num_agents, dtype = len(state.place), tables.viewer.dtype
    looks = [(4 * p + d).astype(dtype) for p, d in zip(state.place, state.direction, strict=True)]

    def seen(looks, mask, value):
        return (jnp.stack(looks)[:, None] & jnp.asarray(mask)[None, :]) == jnp.asarray(value)[None, :]

    hit = seen(looks, tables.viewer_mask, tables.viewer)
    for k in range(1, num_agents):
        hit = hit | seen(looks[k:] + looks[:k], tables.mate_mask, tables.mate)
    return hit.astype(jnp.uint8)


def _shared_planes(tables: DenseTables, state: OvercookedState, max_steps: int) -> jax.Array:
    """`[J]` uint8: channels 10 to 25."""
    bits = jnp.zeros(tables.content.shape, jnp.uint8)
    for k, mask in enumerate(tables.content_mask):
        byte = (state.counters[k // 4] >> (8 * (k % 4))).astype(jnp.uint8)
        bits = bits | (byte & mask)
    hit = bits == tables.content
    for place, held in zip(state.place, state.held, strict=True):
        hit = hit | ((4 * place + held).astype(tables.hold.dtype) == tables.hold)
    planes = jnp.where(hit, tables.weight, jnp.uint8(0)) | (
        tables.urgency * _urgent(state, max_steps).astype(jnp.uint8)
    )
    for status, table in zip(state.pot_status, tables.pot, strict=True):
        planes = planes | jnp.asarray(table).at[status].get(mode="promise_in_bounds")
    return planes
