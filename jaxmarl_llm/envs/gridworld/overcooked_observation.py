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

    Codes of an agent at place p: p itself, 4 p + direction ("look"), 4 p + held ("hold").

    Attributes:
      dtype: of the codes and tables: uint8 if `4 M` fits, else uint16.
      fixed: the layout's own planes.
      weight: 3 in channel 18, else 1: value where a comparison holds.
      viewer_place, viewer_look, mate_place, mate_look, hold: the code that makes the entry 1.
      content_mask: `[ceil(C / 4), J]`, bits of counter byte k (four counters of two bits) that matter to the entry.
      content: what these bits must be; impossible where no counter matters.
      pot: `[P, 4, J]`, all bits where channel 16, 18, 20 or 21 shows that pot, else 0.
      urgency: 1 in channel 25.
    """

    dtype: np.dtype
    fixed: np.ndarray
    weight: np.ndarray
    viewer_place: np.ndarray
    viewer_look: np.ndarray
    mate_place: np.ndarray
    mate_look: np.ndarray
    hold: np.ndarray
    content_mask: np.ndarray
    content: np.ndarray
    pot: np.ndarray
    urgency: np.ndarray


@functools.lru_cache(maxsize=128)
def dense_tables(layout: str) -> DenseTables:
    """The tables of a layout given by name or text."""
    kitchen = parse_layout(layout)
    # The greatest code is kept free: it stands for "no agent makes this entry 1".
    dtype = np.dtype(np.uint8 if 4 * len(kitchen.floor) <= np.iinfo(np.uint8).max else np.uint16)
    everything = np.iinfo(dtype).max
    shape = (kitchen.height, kitchen.width, NUM_CHANNELS)

    def table(value=0, *leading):
        return np.full((*leading, *shape), value, dtype)

    fixed, weight, urgency = table(), table(1), table()
    weight[:, :, 18] = 3
    urgency[:, :, 25] = 1
    for channel, symbol in ((10, "P"), (12, "O"), (14, "B"), (15, "X")):
        for cell in kitchen.cells(symbol):
            fixed[(*cell, channel)] = 1
    for cell in set(kitchen.cells("W")) - set(kitchen.counters):
        fixed[(*cell, 11)] = 1

    viewer_place, viewer_look, mate_place, mate_look, hold = (table(everything) for _ in range(5))
    for place, cell in enumerate(kitchen.floor):
        viewer_place[(*cell, 0)] = mate_place[(*cell, 1)] = place
        for direction in range(4):
            viewer_look[(*cell, 2 + direction)] = mate_look[(*cell, 6 + direction)] = 4 * place + direction
        for channel, item in ((18, SOUP), (21, SOUP), (22, PLATE), (23, ONION)):
            hold[(*cell, channel)] = 4 * place + item

    content_mask, content = table(0, -(-len(kitchen.counters) // 4)), table(_NEVER)
    for index, cell in enumerate(kitchen.counters):
        shift = 2 * (index % 4)
        for channel, item in ((11, EMPTY), (18, SOUP), (21, SOUP), (22, PLATE), (23, ONION)):
            content_mask[(index // 4, *cell, channel)] = 3 << shift
            content[(*cell, channel)] = item << shift

    pot = table(0, len(kitchen.pots), 4)
    for index, cell in enumerate(kitchen.pots):
        for kind, channel in enumerate((16, 18, 20, 21)):
            pot[(index, kind, *cell, channel)] = everything

    def flat(array):
        return array.reshape(*array.shape[:-3], -1)

    return DenseTables(
        dtype=dtype,
        fixed=flat(fixed),
        weight=flat(weight),
        viewer_place=flat(viewer_place),
        viewer_look=flat(viewer_look),
        mate_place=flat(mate_place),
        mate_look=flat(mate_look),
        hold=flat(hold),
        content_mask=flat(content_mask),
        content=flat(content),
        pot=flat(pot),
        urgency=flat(urgency),
    )


def observe_dense(kitchen: Kitchen, tables: DenseTables, state: OvercookedState, max_steps: int) -> jax.Array:
    """`[N, height, width, 26]` uint8."""
    num_agents, dtype = len(state.place), tables.dtype

    def code(value):
        return value.astype(dtype)

    def equal(codes, table):
        """`[N, J]`: N codes against one table."""
        return jnp.stack(codes)[:, None] == jnp.asarray(table)[None, :]

    place = [code(p) for p in state.place]
    look = [code(4 * p + d) for p, d in zip(state.place, state.direction, strict=True)]
    hold = [code(4 * p + h) for p, h in zip(state.place, state.held, strict=True)]
    hit = equal(place, tables.viewer_place) | equal(look, tables.viewer_look)
    for k in range(1, num_agents):
        order = [(viewer + k) % num_agents for viewer in range(num_agents)]
        hit = hit | equal([place[i] for i in order], tables.mate_place)
        hit = hit | equal([look[i] for i in order], tables.mate_look)

    # What does not depend on the viewer.
    shared = jnp.zeros(tables.fixed.shape, bool)
    for value in hold:
        shared = shared | (value == tables.hold)
    bits = jnp.zeros(tables.fixed.shape, dtype)
    for k, mask in enumerate(tables.content_mask):
        byte = code((state.counters[k // 4] >> (8 * (k % 4))) & 0xFF)
        bits = bits | (byte & mask)
    if len(tables.content_mask):
        shared = shared | (bits == tables.content)
    value = tables.fixed | (tables.urgency * code(_urgent(state, max_steps)))
    for status, masks in zip(state.pot_status, tables.pot, strict=True):
        raw = status >= POT_FULL
        shown = (
            jnp.where(raw, POT_EMPTY - status, 0),
            jnp.where(raw, 0, 3),
            jnp.where(raw, 0, status),
            status == POT_READY,
        )
        for number, mask in zip(shown, masks, strict=True):
            value = value | (code(number) & mask)
    hit = hit | shared[None, :]
    planes = jnp.where(hit, jnp.asarray(tables.weight)[None, :], jnp.zeros((), dtype)) | value[None, :]
    return planes.astype(jnp.uint8).reshape(num_agents, kitchen.height, kitchen.width, NUM_CHANNELS)
