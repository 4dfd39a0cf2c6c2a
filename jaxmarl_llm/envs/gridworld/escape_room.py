"""The escape room: key and map lie behind doors of two colours, and each agent opens only one colour."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.envs.base import Environment, EnvState
from jaxmarl_llm.envs.drawing import INK, WALL, Canvas, Color
from jaxmarl_llm.envs.gridworld.escape_room_map import EscapeRoomMap, read_map, three_rooms
from jaxmarl_llm.envs.gridworld.grid_moves import random_distinct, resolve_moves
from jaxmarl_llm.envs.random import index_from_bits
from jaxmarl_llm.envs.spaces import Box, Discrete
from jaxmarl_llm.errors import UserError

_KEY, _MAP = 0, 1
_PLANES, _OWN = 9, 8
_SHADES: tuple[tuple[Color, ...], tuple[Color, ...]] = (
    ((214, 69, 65), (236, 132, 96), (160, 40, 70)),
    ((31, 119, 180), (84, 160, 220), (60, 70, 170)),
)


@struct.dataclass
class EscapeRoomState(EnvState):
    """State of `EscapeRoom`.

    Attributes:
      cell: `[N]` int32, `row * columns + column`; `rows * columns + i` for agent i once it has left.
      item_cell: `[2]` int32, where key and map lay at the start.
      holder: `[2]` int32, the agent that holds key and map; -1 while they lie.
      door_open: `[D]` bool.
    """

    cell: jax.Array
    item_cell: jax.Array
    holder: jax.Array
    door_open: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class EscapeRoom(Environment[EscapeRoomState]):
    """N agents leave through an exit that opens once they hold both the key and the map.

    Agents with even numbers are red, the others blue. A closed door lets only agents of its colour in; the first one
    that enters opens it for everyone and for good. Whoever enters the cell of the key or the map takes it; one agent
    may hold both. The exit is a wall until both are held (by anyone, also by those who have left since) and
    opens for moves from the next step on. On the generated map the key lies behind a red door and the map behind a
    blue one, so nobody escapes alone.

    Action: 0 stay, 1 up, 2 down, 3 left, 4 right. Agents that want the same cell stay
    (`grid_moves.resolve_moves`); any number may leave at once. An agent that has left can only stay.

    Observation, one agent's: `[9 K + 8]` float32 in `[0, 1]`: nine planes over K cells, the plane last (wall, closed
    red door, closed blue door, exit, key lying, map lying, oneself, other red agents, other blue agents), then red,
    blue, holds the key, holds the map, someone holds the key, someone holds the map, own row and own column as shares
    of the map. The K cells are the whole map; with `sight = s` the window of `2 s + 1` rows and columns around the
    agent, where cells beyond the map look like walls. With `grid_observation`: `[height, width, 17]`, the last eight
    spread over all cells. Zeros for an agent that has left.

    Reward: `escape_reward` to an agent on leaving, minus `step_cost` on each step that it begins inside. With
    `shared_reward` everyone gets the mean over agents on every step.

    Termination: an agent that has left is terminated and inactive; the episode ends with the last one. With
    `shared_reward` it is inactive only, and all agents terminate together, because its reward goes on.

    Global state: `[5 N + 4 + D]` float32: row, column, left or not of each agent; row and column of key and map; for
    key and map, who holds it (one-hot, N each); which doors are open.

    Info, `[N]` float32 on this step: `doors_opened`, `items_taken`, `escapes`; `shaped_reward`: `door_shaping` for
    opening a door and `item_shaping` for taking an item.

    Source: this package.

    Attributes:
      num_agents: N, at least 2.
      rows, columns: size of the generated map, see `escape_room_map.three_rooms`.
      layout: text of an own map instead, see `escape_room_map.read_map`.
      sight: None for the whole map.
      escape_reward, step_cost, door_shaping, item_shaping, shared_reward, grid_observation: see above.
    """

    max_steps: int = 100
    num_agents: int = 2
    rows: int = 7
    columns: int = 11
    layout: str | None = None
    sight: int | None = None
    escape_reward: float = 1.0
    step_cost: float = 0.01
    door_shaping: float = 0.1
    item_shaping: float = 0.2
    shared_reward: bool = False
    grid_observation: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.num_agents < 2:
            raise UserError(
                f"num_agents must be at least 2, since each opens doors of one colour: got {self.num_agents}"
            )
        if self.sight is not None and self.sight < 1:
            raise UserError(f"sight must be at least 1, or None for the whole map, got {self.sight}")
        if self.step_cost < 0:
            raise UserError(f"step_cost is a cost and must not be negative, got {self.step_cost}")
        if self.num_agents > len(self._map.start):
            raise UserError(f"{self.num_agents} agents do not fit on {len(self._map.start)} start cells: add some")

    @functools.cached_property
    def _map(self) -> EscapeRoomMap:
        return read_map(self.layout or three_rooms(self.rows, self.columns))

    @property
    def _size(self) -> int:
        return self._map.rows * self._map.columns

    @property
    def _color(self) -> np.ndarray:
        return np.arange(self.num_agents) % 2

    @property
    def _view(self) -> tuple[int, int]:
        if self.sight is None:
            return self._map.rows, self._map.columns
        return 2 * self.sight + 1, 2 * self.sight + 1

    @property
    def observation_space(self) -> Box:
        height, width = self._view
        if self.grid_observation:
            return Box(0.0, 1.0, (height, width, _PLANES + _OWN))
        return Box(0.0, 1.0, (_PLANES * height * width + _OWN,))

    @property
    def action_space(self) -> Discrete:
        return Discrete(5)

    def initial_state(self, key):
        bits = jax.random.bits(key, (2 + self.num_agents,), jnp.uint32)
        start, keys, maps = (jnp.asarray(cells) for cells in (self._map.start, self._map.key, self._map.map))
        item_cell = [keys[index_from_bits(bits[0], len(keys))], maps[index_from_bits(bits[1], len(maps))]]
        return EscapeRoomState(
            step=jnp.zeros((), jnp.int32),
            cell=start[random_distinct(bits[2:], len(start))],
            item_cell=jnp.stack(item_cell),
            holder=jnp.full((2,), -1, jnp.int32),
            door_open=jnp.zeros((len(self._map.door),), bool),
        )

    def transition(self, key, state, action):
        size, index = self._size, jnp.arange(self.num_agents)
        door = np.array(self._map.door, np.int32)
        inside_before = state.cell < size
        target, beyond = self._cell_ahead(state, action)
        may_open = self._color[:, None] == np.array(self._map.door_color, np.int32)[None, :]
        shut = jnp.any((target[:, None] == door[None, :]) & ~(may_open | state.door_open[None, :]), axis=1)
        to_exit = jnp.asarray(self._map.exit)[target]
        exit_open = jnp.all(state.holder >= 0)
        blocked = beyond | jnp.asarray(self._map.wall)[target] | shut | (to_exit & ~exit_open) | ~inside_before
        target = jnp.where(blocked, state.cell, target)
        # Everyone leaves to a place of their own, so that nobody collides in the exit.
        leaves = to_exit & ~blocked
        cell = resolve_moves(state.cell, jnp.where(leaves, size + index, target))

        on_door = cell[:, None] == door[None, :]
        opens = jnp.any(on_door & ~state.door_open[None, :], axis=1)
        takes = (cell[:, None] == state.item_cell[None, :]) & (state.holder < 0)[None, :]  # [N, item]
        taker = jnp.sum(jnp.where(takes, index[:, None], 0), axis=0)

        reward = self.escape_reward * leaves - self.step_cost * inside_before
        terminated = cell >= size
        if self.shared_reward:
            reward, terminated = jnp.mean(reward), jnp.all(terminated)
        items = jnp.sum(takes, axis=1)
        info = {
            "doors_opened": opens,
            "items_taken": items,
            "escapes": leaves,
            "shaped_reward": self.door_shaping * opens + self.item_shaping * items,
        }
        state = state.replace(
            cell=cell,
            holder=jnp.where(jnp.any(takes, axis=0), taker, state.holder),
            door_open=state.door_open | jnp.any(on_door, axis=0),
        )
        return state, reward, terminated, {name: value.astype(jnp.float32) for name, value in info.items()}

    def _cell_ahead(self, state, action):
        """`[N]` cell that each agent moves to, and whether it lies beyond the map; then the cell is 0."""
        rows, columns = self._map.rows, self._map.columns
        row = state.cell // columns + (action == 2) - (action == 1)
        column = state.cell % columns + (action == 4) - (action == 3)
        beyond = (row < 0) | (row >= rows) | (column < 0) | (column >= columns)
        return jnp.where(beyond, 0, row * columns + column), beyond

    def active(self, state):
        return state.cell < self._size

    def action_mask(self, state):
        return self.active(state)[:, None] | (np.arange(5) == 0)[None, :]

    def observe(self, state):
        n, rows, columns = self.num_agents, self._map.rows, self._map.columns
        height, width = self._view
        row, column = state.cell // columns, state.cell % columns
        if self.sight is None:
            see = np.arange(self._size)[None, :]  # [1, K]
            still = self._still_planes[None, :-1]
        else:
            window = np.mgrid[-self.sight : self.sight + 1, -self.sight : self.sight + 1].reshape(2, -1)
            see_row, see_column = row[:, None] + window[0][None, :], column[:, None] + window[1][None, :]
            inside = (see_row >= 0) & (see_row < rows) & (see_column >= 0) & (see_column < columns)
            see = jnp.where(inside, see_row * columns + see_column, self._size)  # [N, K]
            still = jnp.asarray(self._still_planes)[see]
        # One comparison a plane and slot fuses into one pass over the planes.
        spots = self._spots(state)
        moving = [see[:, :, None] == spots[:, None, :, slot] for slot in range(spots.shape[2])]
        planes = (functools.reduce(jnp.logical_or, moving) | still).astype(jnp.float32)  # [N, K, plane]

        holds = state.holder[None, :] == jnp.arange(n)[:, None]
        someone = jnp.broadcast_to((state.holder >= 0)[None, :], (n, 2))
        place = jnp.stack([row / (rows - 1), column / (columns - 1)], axis=1)
        own = jnp.concatenate([self._color[:, None] == np.arange(2)[None, :], holds, someone, place], axis=1)
        own = own.astype(jnp.float32)
        if self.grid_observation:
            own = jnp.broadcast_to(own[:, None, :], (n, height * width, _OWN))
            out = jnp.concatenate([planes, own], axis=2).reshape(n, height, width, _PLANES + _OWN)
        else:
            out = jnp.concatenate([planes.reshape(n, -1), own], axis=1)
        return jnp.where(self.active(state).reshape(n, *[1] * (out.ndim - 1)), out, 0.0)

    @property
    def _still_planes(self) -> np.ndarray:
        """`[rows * columns + 1, 9]` bool: walls and exits of each cell; the last row is what lies beyond the map."""
        planes = np.zeros((self._size + 1, _PLANES), bool)
        planes[:, 0] = [*self._map.wall, True]
        planes[:-1, 3] = self._map.exit
        return planes

    def _spots(self, state):
        """`[N, 9, slots]` int32: the cells that are set in each agent's planes by what moves; -1 for none."""
        n, no_spot = self.num_agents, jnp.int32(-1)
        agent = jnp.where(self.active(state), state.cell, -1)
        closed = [jnp.where(state.door_open[d], -1, cell) for d, cell in enumerate(self._map.door)]
        doors = [[cell for cell, of in zip(closed, self._map.door_color, strict=True) if of == c] for c in (0, 1)]
        items = [[jnp.where(state.holder[item] < 0, state.item_cell[item], -1)] for item in (_KEY, _MAP)]
        table = []
        for i in range(n):
            others = [[agent[j] for j in range(n) if j != i and self._color[j] == c] for c in (0, 1)]
            table.append([[], *doors, [], *items, [agent[i]], *others])
        slots = max(len(spots) for planes in table for spots in planes)
        filled = [spots + [no_spot] * (slots - len(spots)) for planes in table for spots in planes]
        return jnp.stack([spot for spots in filled for spot in spots]).astype(jnp.int32).reshape(n, _PLANES, slots)

    def global_state(self, state):
        rows, columns, inside = self._map.rows, self._map.columns, self.active(state)
        holds = state.holder[:, None] == jnp.arange(self.num_agents)[None, :]
        parts = [
            inside * (state.cell // columns) / (rows - 1),
            inside * (state.cell % columns) / (columns - 1),
            ~inside,
            (state.item_cell // columns) / (rows - 1),
            (state.item_cell % columns) / (columns - 1),
            holds.reshape(-1),
            state.door_open,
        ]
        return jnp.concatenate([part.astype(jnp.float32) for part in parts])

    def render(self, state):
        rows, columns = self._map.rows, self._map.columns
        holder, left = np.asarray(state.holder), int(np.sum(np.asarray(state.cell) >= self._size))
        canvas = Canvas(rows, columns, caption=f"step {int(state.step)}   {left} of {self.num_agents} have left")
        for cell in range(self._size):
            place = divmod(cell, columns)
            if self._map.wall[cell]:
                canvas.tile(place, WALL)
            if self._map.exit[cell]:
                canvas.tile(place, (150, 206, 140) if (holder >= 0).all() else (150, 150, 140), outline=INK)
                canvas.text(place, "EXIT", size=0.32)
        for cell, color, is_open in zip(self._map.door, self._map.door_color, np.asarray(state.door_open), strict=True):
            _draw_door(canvas, divmod(cell, columns), _SHADES[color][0], is_open)
        for item, draw in ((_KEY, _draw_key), (_MAP, _draw_map)):
            if holder[item] < 0:
                draw(canvas, divmod(int(state.item_cell[item]), columns), 1.0)
        for i in range(self.num_agents):
            if int(state.cell[i]) >= self._size:
                continue
            row, column = divmod(int(state.cell[i]), columns)
            canvas.circle((row, column), _SHADES[i % 2][i // 2 % 3], size=0.74)
            for item, draw, shift in ((_KEY, _draw_key, -0.22), (_MAP, _draw_map, 0.22)):
                if holder[item] == i:
                    draw(canvas, (row + 0.2, column + shift), 0.6)
        return canvas.array()


def _draw_door(canvas, place, color, is_open):
    row, column = place
    canvas.tile(place, color)
    if is_open:
        canvas.square(place, (244, 240, 230), size=0.8, outline=None)
    else:
        canvas.circle((row, column + 0.25), (250, 220, 120), size=0.16)


def _draw_key(canvas, place, size):
    (row, column), gold = place, (226, 170, 30)
    for start, end in (((0, -0.1), (0, 0.3)), ((0, 0.28), (0.13, 0.28)), ((0, 0.16), (0.1, 0.16))):
        ends = [(row + size * d_row, column + size * d_column) for d_row, d_column in (start, end)]
        canvas.line(*ends, gold, width=0.08 * size)
    canvas.circle((row, column - 0.18 * size), gold, size=0.32 * size)
    canvas.circle((row, column - 0.18 * size), (255, 255, 255), size=0.12 * size)


def _draw_map(canvas, place, size):
    row, column = place
    canvas.square(place, (255, 248, 220), size=0.56 * size)
    for shift in (-0.12, 0.0, 0.12):
        line = [(row + size * shift, column + size * side) for side in (-0.17, 0.17)]
        canvas.line(*line, (190, 120, 70), width=0.04 * size)
