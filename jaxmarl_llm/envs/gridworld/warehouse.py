"""A warehouse where robots carry requested shelves to goals and bring them back."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.envs.base import Environment, EnvState
from jaxmarl_llm.envs.batching import cond_if_any
from jaxmarl_llm.envs.drawing import Canvas, agent_color
from jaxmarl_llm.envs.gridworld.grid_moves import random_distinct, resolve_moves
from jaxmarl_llm.envs.gridworld.warehouse_map import WarehouseMap, aisle_map, read_map
from jaxmarl_llm.envs.random import index_from_bits
from jaxmarl_llm.envs.spaces import Box, Discrete
from jaxmarl_llm.errors import UserError

_FORWARD, _LEFT, _RIGHT, _TOGGLE = 1, 2, 3, 4
_HEADINGS = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left: clockwise
_NONE, _SHELF, _REQUESTED = 0, 1, 2
_PER_CELL = 7


@struct.dataclass
class WarehouseState(EnvState):
    """State of `Warehouse`.

    Shelves are told apart only by whether they are requested, so no shelf has a number.

    Attributes:
      cell: `[N]` int32, `row * columns + column` of each robot.
      direction: `[N]` int32: 0 up, 1 right, 2 down, 3 left.
      load: `[N]` int32: 0 nothing, 1 a shelf, 2 a requested shelf on the robot.
      delivered: `[N]` bool, the carried shelf has been at a goal since it was lifted.
      shelf: `[rows * columns]` uint8, what stands on each cell: 0 nothing, 1 a shelf, 2 a requested shelf.
    """

    cell: jax.Array
    direction: jax.Array
    load: jax.Array
    delivered: jax.Array
    shelf: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Warehouse(Environment[WarehouseState]):
    """N robots on a map of floor, shelf places and goals.

    Start: a shelf on every shelf place, `request_queue_size` of them requested, robots on distinct random cells
    (also under shelves) with random headings.

    Action: 0 stay, 1 forward, 2 turn left, 3 turn right, 4 lift or put down. One step goes in this order:

    1. Forward moves one cell along the heading. It fails at the rim; for a loaded robot also before a standing shelf
       (an empty robot drives under shelves); and when robots want the same cell, one stays on it, or two would swap
       (`grid_moves.resolve_moves`): then all of them stay.
    2. Turns. They always succeed.
    3. Action 4 lifts the shelf that stands on the robot's cell, when the robot is empty; a loaded robot puts its
       shelf down, on a free shelf place only (any of them). It does nothing elsewhere.
    4. A robot on a goal with a requested shelf delivers it: the request is met, and another shelf, standing or
       carried, that is neither requested nor just delivered becomes requested, uniformly at random. The robot still
       carries the delivered shelf and has to put it back before it can lift another.

    Observation, one robot's: `[8 + 7 K]` float32 in `[0, 1]`, K = `(2 sensor_range + 1) ** 2`: own row and column as
    shares of the map, loaded, heading (4, one-hot), on floor or goal (where nothing can be put down); then for each
    cell of the window around the robot, row by row: a robot there (itself included), its heading (4), a shelf there
    (standing or carried), requested. Cells off the map are zeros.

    Reward: `delivery_reward` to a robot for a delivery, `return_reward` for putting a delivered shelf down, minus
    `collision_penalty` for a move that failed because of another robot. With `shared_reward` everyone gets the sum.

    Termination: none; the episode is cut after `max_steps`.

    Global state: `[8 N + 2 S]` float32, S shelf places: row, column, heading, load, requested load of each robot; a
    shelf and a requested shelf standing on each place.

    Info, `[N]` float32 on this step: `deliveries`, `returns`, `collisions`; `shaped_reward`: `shaping` for lifting a
    requested shelf, its negative for putting one down, `shaping` for a return.

    Source: Papoudakis, Christianos, Schaefer and Albrecht 2021, "Benchmarking multi-agent deep reinforcement
    learning algorithms in cooperative tasks" (the RWARE package, 2.0). Map, actions, requests and the observed
    quantities follow it; there, one of the robots that want the same cell goes first, and coordinates are in cells.

    Attributes:
      num_agents: N.
      shelf_rows, shelf_columns, column_height: size of the map, see `aisle_map`; RWARE's "tiny" by default.
      layout: text of an own map (`.` floor, `x` shelf, `g` goal) instead.
      request_queue_size: how many shelves are requested at any time; None for N.
      sensor_range: how many cells a robot sees in each direction.
      delivery_reward, return_reward, collision_penalty, shaping, shared_reward: see above.
    """

    max_steps: int = 500
    num_agents: int = 2
    shelf_rows: int = 1
    shelf_columns: int = 3
    column_height: int = 8
    layout: str | None = None
    request_queue_size: int | None = None
    sensor_range: int = 1
    delivery_reward: float = 1.0
    return_reward: float = 0.0
    collision_penalty: float = 0.0
    shaping: float = 0.5
    shared_reward: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.num_agents < 1:
            raise UserError(f"num_agents must be at least 1, got {self.num_agents}")
        if self.sensor_range < 1:
            raise UserError(f"sensor_range must be at least 1, got {self.sensor_range}")
        if self.collision_penalty < 0:
            raise UserError(f"collision_penalty is a cost and must not be negative, got {self.collision_penalty}")
        cells, shelves = self._map.rows * self._map.columns, len(self._shelf_cells)
        if self.num_agents > cells:
            raise UserError(f"{self.num_agents} robots do not fit on {cells} cells")
        if self._queue < 1:
            raise UserError(f"request_queue_size must be at least 1, got {self._queue}")
        if self._queue + self._most_deliveries > shelves:
            raise UserError(
                f"request_queue_size must be at most {shelves - self._most_deliveries}, got {self._queue}: the map has "
                f"{shelves} shelves, and up to {self._most_deliveries} of them can be delivered and replaced at once"
            )

    @functools.cached_property
    def _map(self) -> WarehouseMap:
        return read_map(self.layout or aisle_map(self.shelf_rows, self.shelf_columns, self.column_height))

    @property
    def _shelf_cells(self) -> np.ndarray:
        return np.flatnonzero(self._map.is_shelf)

    @property
    def _queue(self) -> int:
        return self.num_agents if self.request_queue_size is None else self.request_queue_size

    @property
    def _most_deliveries(self) -> int:
        return min(self.num_agents, sum(self._map.is_goal))

    @property
    def observation_space(self) -> Box:
        return Box(0.0, 1.0, (8 + _PER_CELL * (2 * self.sensor_range + 1) ** 2,))

    @property
    def action_space(self) -> Discrete:
        return Discrete(5)

    def initial_state(self, key):
        n, size = self.num_agents, self._map.rows * self._map.columns
        bits = jax.random.bits(key, (2 * n + self._queue,), jnp.uint32)
        requested = jnp.asarray(self._shelf_cells)[random_distinct(bits[2 * n :], len(self._shelf_cells))]
        is_requested = jnp.any(requested[:, None] == jnp.arange(size)[None, :], axis=0)
        return WarehouseState(
            step=jnp.zeros((), jnp.int32),
            cell=random_distinct(bits[:n], size),
            direction=index_from_bits(bits[n : 2 * n], 4),
            load=jnp.zeros((n,), jnp.int32),
            delivered=jnp.zeros((n,), bool),
            shelf=(jnp.asarray(self._map.is_shelf, jnp.uint8) + is_requested).astype(jnp.uint8),
        )

    def transition(self, key, state, action):
        is_shelf_place, is_goal = jnp.asarray(self._map.is_shelf), jnp.asarray(self._map.is_goal)
        cell, load = state.cell, state.load

        target = jnp.where(action == _FORWARD, self._cell_ahead(state), cell)
        target = jnp.where((load > _NONE) & (state.shelf[target] > _NONE), cell, target)
        new_cell = resolve_moves(cell, target)
        collided = (target != cell) & (new_cell == cell)
        direction = (state.direction + (action == _RIGHT) - (action == _LEFT)) % 4

        # A robot that lifts or puts down does not move, so `cell` is where it happens.
        under = state.shelf[cell].astype(jnp.int32)
        toggle = action == _TOGGLE
        lifts = toggle & (load == _NONE) & (under > _NONE)
        puts = toggle & (load > _NONE) & (under == _NONE) & is_shelf_place[cell]
        changes = (cell[:, None] == jnp.arange(state.shelf.shape[0])[None, :]) & (lifts | puts)[:, None]
        left_behind = jnp.where(puts, load, _NONE)
        shelf = jnp.where(
            jnp.any(changes, axis=0),
            jnp.sum(jnp.where(changes, left_behind[:, None], 0), axis=0).astype(jnp.uint8),
            state.shelf,
        )
        returns = puts & state.delivered
        shaped = (lifts & (under == _REQUESTED)) * 1.0 - (puts & (load == _REQUESTED)) + returns
        load = jnp.where(lifts, under, jnp.where(puts, _NONE, load))

        delivers = is_goal[new_cell] & (load == _REQUESTED)
        load = jnp.where(delivers, _SHELF, load)
        shelf, load = cond_if_any(
            jnp.any(delivers),
            self._request_more,
            lambda key, shelf, load, delivers: (shelf, load),
            *(key, shelf, load, delivers),
        )

        reward = self.delivery_reward * delivers + self.return_reward * returns - self.collision_penalty * collided
        if self.shared_reward:
            reward = jnp.sum(reward)
        info = {
            "deliveries": delivers,
            "returns": returns,
            "collisions": collided,
            "shaped_reward": self.shaping * shaped,
        }
        state = state.replace(
            cell=new_cell,
            direction=direction,
            load=load,
            delivered=(state.delivered & ~puts) | delivers,
            shelf=shelf,
        )
        return state, reward, False, {name: value.astype(jnp.float32) for name, value in info.items()}

    def _cell_ahead(self, state):
        """`[N]` the next cell along each robot's heading; its own cell at the rim."""
        rows, columns, heading = self._map.rows, self._map.columns, state.direction
        row = state.cell // columns + (heading == 2) - (heading == 0)
        column = state.cell % columns + (heading == 1) - (heading == 3)
        inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
        return jnp.where(inside, row * columns + column, state.cell)

    def _request_more(self, key, shelf, load, delivers):
        """Requests as many further shelves as were delivered, standing or carried ones."""
        candidate = jnp.concatenate([shelf == _SHELF, (load == _SHELF) & ~delivers])
        priority = (jax.random.bits(key, candidate.shape, jnp.uint32) >> 1).astype(jnp.int32)
        _, first = jax.lax.top_k(jnp.where(candidate, priority, -1), self._most_deliveries)
        wanted = jnp.arange(self._most_deliveries) < jnp.sum(delivers)
        chosen = jnp.any((first[:, None] == jnp.arange(candidate.shape[0])[None, :]) & wanted[:, None], axis=0)
        size = shelf.shape[0]
        return (
            jnp.where(chosen[:size], _REQUESTED, shelf).astype(jnp.uint8),
            jnp.where(chosen[size:], _REQUESTED, load),
        )

    def observe(self, state):
        n, r, rows, columns = self.num_agents, self.sensor_range, self._map.rows, self._map.columns
        row, column = state.cell // columns, state.cell % columns
        heading = state.direction[:, None] == jnp.arange(4)[None, :]
        on_floor = ~jnp.asarray(self._map.is_shelf)[state.cell]
        own = [row / max(rows - 1, 1), column / max(columns - 1, 1), state.load > _NONE]
        own = jnp.concatenate([jnp.stack(own, axis=1), heading, on_floor[:, None]], axis=1)

        window_row, window_column = (x.ravel() for x in np.mgrid[-r : r + 1, -r : r + 1])
        see_row, see_column = row[:, None] + window_row[None, :], column[:, None] + window_column[None, :]  # [N, K]
        robot = (see_row[:, :, None] == row[None, None, :]) & (see_column[:, :, None] == column[None, None, :])
        inside = (see_row >= 0) & (see_row < rows) & (see_column >= 0) & (see_column < columns)
        standing = jnp.where(inside, state.shelf[jnp.where(inside, see_row * columns + see_column, 0)], _NONE)
        carried = jnp.max(jnp.where(robot, state.load[None, None, :], _NONE), axis=2)
        shelf = jnp.maximum(standing.astype(jnp.int32), carried)
        headings = jnp.any(robot[..., None] & heading[None, None, :, :], axis=2)
        cells = [
            jnp.any(robot, axis=2)[..., None],
            headings,
            (shelf > _NONE)[..., None],
            (shelf == _REQUESTED)[..., None],
        ]
        cells = jnp.concatenate(cells, axis=2).reshape(n, -1)
        return jnp.concatenate([own, cells], axis=1).astype(jnp.float32)

    def global_state(self, state):
        rows, columns = self._map.rows, self._map.columns
        heading = (state.direction[:, None] == jnp.arange(4)[None, :]).reshape(-1)
        standing = state.shelf[self._shelf_cells]
        parts = [
            (state.cell // columns) / max(rows - 1, 1),
            (state.cell % columns) / max(columns - 1, 1),
            heading,
            *(state.load > _NONE, state.load == _REQUESTED),
            *(standing > _NONE, standing == _REQUESTED),
        ]
        return jnp.concatenate([part.astype(jnp.float32) for part in parts])

    def render(self, state):
        rows, columns = self._map.rows, self._map.columns
        canvas = Canvas(rows, columns, tile=40, caption=f"step {int(state.step)}")
        shelf, colors = np.asarray(state.shelf), {_SHELF: (176, 150, 116), _REQUESTED: (243, 156, 55)}
        for cell in range(rows * columns):
            place = divmod(cell, columns)
            if self._map.is_goal[cell]:
                canvas.tile(place, (176, 216, 172), outline=(120, 176, 116))
            if self._map.is_shelf[cell]:
                canvas.tile(place, (228, 220, 202), outline=(208, 198, 176))
            if shelf[cell]:
                canvas.square(place, colors[int(shelf[cell])], size=0.84, outline=(120, 98, 70))
        for i in range(self.num_agents):
            place, load = divmod(int(state.cell[i]), columns), int(state.load[i])
            if load:
                canvas.square(place, colors[load], size=0.92)
            canvas.circle(place, agent_color(i), size=0.66)
            canvas.arrow(place, _HEADINGS[int(state.direction[i])], size=0.32)
        return canvas.array()
