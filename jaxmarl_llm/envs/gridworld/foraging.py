"""Level-based foraging: agents with levels gather foods that may need several of them."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.envs.base import Environment, EnvState
from jaxmarl_llm.envs.drawing import Canvas, agent_color
from jaxmarl_llm.envs.gridworld.grid_moves import STEP_COLUMN, STEP_ROW, random_distinct, resolve_moves, sort_few
from jaxmarl_llm.envs.random import index_from_bits
from jaxmarl_llm.envs.spaces import Box, Discrete
from jaxmarl_llm.errors import UserError

_LOAD = 5
_FOOD_COLOR = (122, 178, 72)


@struct.dataclass
class ForagingState(EnvState):
    """State of `Foraging`.

    Attributes:
      agent_row, agent_column, agent_level: `[N]` int32.
      food_row, food_column: `[M]` int32; foods are sorted by row, then column.
      food_level: `[M]` int32, 0 once the food is gone.
      food_total: `[]` int32, the sum of all levels at the start.
    """

    agent_row: jax.Array
    agent_column: jax.Array
    agent_level: jax.Array
    food_row: jax.Array
    food_column: jax.Array
    food_level: jax.Array
    food_total: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Foraging(Environment[ForagingState]):
    """N agents with levels gather M foods with levels on an open field of `rows` by `columns` cells.

    Start: foods lie on cells that are not on the rim, no two of them within one cell of each other (diagonals
    included) nor two apart in a row or column, so that an agent never stands beside two foods; agents stand on other
    cells. A crowded field may have no such cell left; the food is then missing from that episode (there is always
    one). Agent levels are uniform in `min_agent_level .. max_agent_level`. Food levels are uniform in
    `min_food_level .. max_food_level`, where None stands for the sum of the three lowest agent levels (of all, with
    fewer agents). With `cooperative`, each food has that highest level: three agents of equal level (or both of
    two) must load it together.

    Observation, one agent's: `[3 M + 3 N]` float32: row, column and level of each food in sight, then the agent's
    own, then those of the other agents in sight; `-1, -1, 0` fills the places of those out of sight. Row and column
    count from the top left cell in sight (cut off at the rim), so that with full sight they are positions. With
    `grid_observation`: `[2 s + 1, 2 s + 1, 3]` float32 centred on the agent, s = `sight`: agent levels, food levels,
    and 1 for a free cell of the field.

    Action: 0 stay, 1 up, 2 down, 3 left, 4 right, 5 load. Moves off the field or onto a food, and loads beside no food
    are masked, and do nothing. Agents that want the same cell stay (`grid_moves.resolve_moves`).

    Load: agents that load beside the same food (not diagonally) on the same step take it when their levels sum to at
    least its level.

    Reward: an agent of level l that took part in taking a food of level f, with levels of the loading agents summing
    to L, gets `l f / L`, divided by the sum of all food levels of the episode with `normalize_reward` (all agents
    and steps then sum to 1); a failed load costs each loading agent `penalty`. With `shared_reward` everyone gets
    the sum over agents.

    Termination: all agents, when all food is gone.

    Global state: `[3 N + 3 M]` float32: row, column, level of agents and of foods, as shares of their highest values;
    zeros for a food that is gone.

    Info: `food_level_taken` `[]` and `failed_loads` `[N]` float32, on this step.

    Source: Christianos, Schaefer and Albrecht 2020, "Shared experience actor-critic for multi-agent reinforcement
    learning", appendix; after Albrecht and Ramamoorthy 2013. Rules and vector observation are those of the package
    `lbforaging` 2.0; differences: agents can neither swap places nor end on one cell, and another agent is in sight
    exactly when its row and column differ by at most `sight`.

    Attributes:
      num_agents: N.
      num_foods: M.
      rows, columns: size of the field, at least 3 each.
      sight: how many rows and columns away an agent sees; None for the whole field.
      min_agent_level, max_agent_level, min_food_level, max_food_level, cooperative: see above.
      normalize_reward, shared_reward: see above.
      penalty: cost of a failed load.
      grid_observation: observation as planes.
    """

    max_steps: int = 50
    num_agents: int = 2
    num_foods: int = 2
    rows: int = 8
    columns: int = 8
    sight: int | None = None
    min_agent_level: int = 1
    max_agent_level: int = 2
    min_food_level: int = 1
    max_food_level: int | None = None
    cooperative: bool = False
    normalize_reward: bool = True
    shared_reward: bool = False
    penalty: float = 0.0
    grid_observation: bool = False

    def __post_init__(self):
        super().__post_init__()
        for name in ("num_agents", "num_foods", "min_agent_level", "min_food_level"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        if min(self.rows, self.columns) < 3:
            raise UserError(f"rows and columns must be at least 3, got {self.rows} by {self.columns}")
        if self.sight is not None and self.sight < 1:
            raise UserError(f"sight must be at least 1, or None for the whole field, got {self.sight}")
        if self.penalty < 0:
            raise UserError(f"penalty is a cost and must not be negative, got {self.penalty}")
        if self.max_agent_level < self.min_agent_level:
            raise UserError(f"max_agent_level {self.max_agent_level} is below min_agent_level {self.min_agent_level}")
        # No two foods in any 2 by 2 block of the inner field.
        room = math.ceil((self.rows - 2) / 2) * math.ceil((self.columns - 2) / 2)
        if self.num_foods > room:
            raise UserError(
                f"a field of {self.rows} by {self.columns} has room for at most {room} foods, got {self.num_foods}: "
                "enlarge it, or lower num_foods"
            )
        if self.num_agents > self.rows * self.columns - self.num_foods:
            raise UserError(f"{self.num_agents} agents do not fit on a field of {self.rows} by {self.columns}")
        highest = min(self.num_agents, 4) * self.max_agent_level
        if self.max_food_level is None:
            lowest = min(self.num_agents, 3) * self.min_agent_level
            if self.min_food_level > lowest:
                raise UserError(
                    f"min_food_level {self.min_food_level} can exceed the highest level, {lowest}: lower it"
                )
        elif self.max_food_level < self.min_food_level:
            raise UserError(f"max_food_level {self.max_food_level} is below min_food_level {self.min_food_level}")
        elif self.max_food_level > highest:
            raise UserError(
                f"max_food_level {self.max_food_level} is out of reach: the {min(self.num_agents, 4)} agents that fit "
                f"around a food have levels that sum to at most {highest}"
            )

    @property
    def observation_space(self) -> Box:
        food_level = self._highest_food_level
        if self.grid_observation:
            side = 2 * self._sight + 1
            return Box(0.0, float(max(food_level, self.max_agent_level)), (side, side, 3))
        high = max(self.rows - 1, self.columns - 1, food_level, self.max_agent_level)
        return Box(-1.0, float(high), (3 * self.num_foods + 3 * self.num_agents,))

    @property
    def action_space(self) -> Discrete:
        return Discrete(6)

    @property
    def _sight(self) -> int:
        return max(self.rows, self.columns) - 1 if self.sight is None else self.sight

    @property
    def _highest_food_level(self) -> int:
        return self.max_food_level or min(self.num_agents, 3) * self.max_agent_level

    def initial_state(self, key):
        n, m = self.num_agents, self.num_foods
        bits = jax.random.bits(key, (2 * n + 2 * m,), jnp.uint32)
        bits_agent, bits_agent_level, bits_food, bits_food_level = jnp.split(bits, [n, 2 * n, 2 * n + m])
        food = self._place_foods(bits_food)
        agent = random_distinct(bits_agent, self.rows * self.columns, taken=food)
        choices = self.max_agent_level - self.min_agent_level + 1
        agent_level = self.min_agent_level + index_from_bits(bits_agent_level, choices)
        if self.max_food_level is None:
            highest = jnp.sum(sort_few(agent_level)[:3])
        else:
            highest = jnp.asarray(self.max_food_level)
        lowest = highest if self.cooperative else jnp.asarray(self.min_food_level)
        food_level = lowest + index_from_bits(bits_food_level, highest - lowest + 1)
        food_level = jnp.where(food < self.rows * self.columns, food_level, 0)
        return ForagingState(
            step=jnp.zeros((), jnp.int32),
            agent_row=agent // self.columns,
            agent_column=agent % self.columns,
            agent_level=agent_level,
            food_row=food // self.columns,
            food_column=food % self.columns,
            food_level=food_level,
            food_total=jnp.sum(food_level),
        )

    def _place_foods(self, bits):
        """`[M]` int32 cells in rising order; `rows * columns` for a food that found no place."""
        row, column = np.divmod(np.arange(self.rows * self.columns), self.columns)
        free = jnp.asarray((row > 0) & (row < self.rows - 1) & (column > 0) & (column < self.columns - 1))

        def place(free, bits):
            rank = jnp.cumsum(free.astype(jnp.int32))
            count = rank[-1]
            wanted = index_from_bits(bits, count) + 1
            # The first cell whose rank reaches `wanted`; past the last cell where no cell is free.
            cell = jnp.where(count > 0, jnp.sum((rank < wanted).astype(jnp.int32)), self.rows * self.columns)
            d_row, d_column = abs(row - cell // self.columns), abs(column - cell % self.columns)
            near = (jnp.maximum(d_row, d_column) <= 1) | (d_row + d_column == 2) & (jnp.minimum(d_row, d_column) == 0)
            return free & ~near, cell

        _, cells = jax.lax.scan(place, free, bits)
        return sort_few(cells)

    def transition(self, key, state, action):
        row, column, level = state.agent_row, state.agent_column, state.agent_level
        want_row = row + (action == 2) - (action == 1)
        want_column = column + (action == 4) - (action == 3)
        free = self._is_free(state, want_row, want_column)
        want_row, want_column = jnp.where(free, want_row, row), jnp.where(free, want_column, column)
        cell = resolve_moves(row * self.columns + column, want_row * self.columns + want_column)

        loading = _beside_food(state) & (action == _LOAD)[:, None]  # [N, M]
        share = level[:, None] * loading
        load = jnp.sum(share, axis=0)
        taken = (load >= state.food_level) & (state.food_level > 0)
        worth = jnp.where(taken, state.food_level / jnp.maximum(load, 1), 0.0)
        if self.normalize_reward:
            worth = worth / state.food_total
        failed = jnp.any(loading & ~taken[None, :], axis=1)
        reward = jnp.sum(share * worth[None, :], axis=1) - self.penalty * failed
        if self.shared_reward:
            reward = jnp.sum(reward)
        info = {
            "food_level_taken": jnp.sum(jnp.where(taken, state.food_level, 0)).astype(jnp.float32),
            "failed_loads": failed.astype(jnp.float32),
        }
        state = state.replace(
            agent_row=cell // self.columns,
            agent_column=cell % self.columns,
            food_level=jnp.where(taken, 0, state.food_level),
        )
        return state, reward, jnp.all(state.food_level == 0), info

    def _is_free(self, state, row, column):
        """Whether cells (arrays of one axis) lie on the field and hold no food."""
        inside = (row >= 0) & (row < self.rows) & (column >= 0) & (column < self.columns)
        food = (row[:, None] == state.food_row[None, :]) & (column[:, None] == state.food_column[None, :])
        return inside & ~jnp.any(food & (state.food_level > 0)[None, :], axis=1)

    def action_mask(self, state):
        move = [
            self._is_free(state, state.agent_row + d_row, state.agent_column + d_column)
            for d_row, d_column in zip(STEP_ROW[1:], STEP_COLUMN[1:], strict=True)
        ]
        stay = jnp.ones((self.num_agents,), bool)
        return jnp.stack([stay, *move, jnp.any(_beside_food(state), axis=1)], axis=1)

    def observe(self, state):
        n, m, sight = self.num_agents, self.num_foods, self._sight
        entity_row = jnp.concatenate([state.food_row, state.agent_row])
        entity_column = jnp.concatenate([state.food_column, state.agent_column])
        level = jnp.concatenate([state.food_level, state.agent_level])
        # [N, M + N], from the agent to each entity.
        d_row = entity_row[None, :] - state.agent_row[:, None]
        d_column = entity_column[None, :] - state.agent_column[:, None]
        if self.grid_observation:
            return self._planes(state, d_row, d_column, level)
        seen = (abs(d_row) <= sight) & (abs(d_column) <= sight) & (level > 0)[None, :]
        row = d_row + jnp.minimum(state.agent_row, sight)[:, None]
        column = d_column + jnp.minimum(state.agent_column, sight)[:, None]
        features = jnp.stack([row, column, jnp.broadcast_to(level, (n, m + n))], axis=-1)
        foods = _pack(seen[:, :m], features[:, :m])
        order = np.array([[i, *(j for j in range(n) if j != i)] for i in range(n)])  # oneself first
        own_index = np.arange(n)[:, None]
        agents = _pack(seen[:, m:][own_index, order], features[:, m:][own_index, order])
        return jnp.concatenate([foods, agents], axis=1).reshape(n, -1).astype(jnp.float32)

    def _planes(self, state, d_row, d_column, level):
        offset = np.arange(-self._sight, self._sight + 1)
        at = (d_row[:, :, None, None] == offset[None, None, :, None]) & (
            d_column[:, :, None, None] == offset[None, None, None, :]
        )
        values = jnp.where(at, level[None, :, None, None], 0)
        foods, agents = jnp.sum(values[:, : self.num_foods], axis=1), jnp.sum(values[:, self.num_foods :], axis=1)
        row, column = state.agent_row[:, None] + offset[None, :], state.agent_column[:, None] + offset[None, :]
        inside = ((row >= 0) & (row < self.rows))[:, :, None] & ((column >= 0) & (column < self.columns))[:, None, :]
        return jnp.stack([agents, foods, inside & (foods + agents == 0)], axis=-1).astype(jnp.float32)

    def global_state(self, state):
        here = state.food_level > 0
        scale_row, scale_column, scale_level = self.rows - 1, self.columns - 1, self._highest_food_level
        parts = [
            state.agent_row / scale_row,
            state.agent_column / scale_column,
            state.agent_level / self.max_agent_level,
            here * state.food_row / scale_row,
            here * state.food_column / scale_column,
            state.food_level / scale_level,
        ]
        return jnp.concatenate(parts).astype(jnp.float32)

    def render(self, state):
        canvas = Canvas(self.rows, self.columns, caption=f"step {int(state.step)}")
        for row, column, level in zip(state.food_row, state.food_column, state.food_level, strict=True):
            if level > 0:
                place = (int(row), int(column))
                canvas.line((place[0] - 0.3, place[1] + 0.03), (place[0] - 0.42, place[1] + 0.1), (104, 76, 46))
                canvas.circle(place, _FOOD_COLOR, size=0.66)
                canvas.text(place, str(int(level)), (255, 255, 255))
        for i in range(self.num_agents):
            place = (int(state.agent_row[i]), int(state.agent_column[i]))
            canvas.square(place, agent_color(i), size=0.7)
            canvas.text(place, str(int(state.agent_level[i])), (255, 255, 255))
        return canvas.array()


def _beside_food(state):
    """`[N, M]` bool: the agent stands beside the food, which is still there."""
    distance = abs(state.agent_row[:, None] - state.food_row[None, :]) + abs(
        state.agent_column[:, None] - state.food_column[None, :]
    )
    return (distance == 1) & (state.food_level > 0)[None, :]


def _pack(seen, features):
    """Moves the rows of `features` `[N, E, 3]` that are `seen` `[N, E]` to the front; `-1, -1, 0` behind them."""
    slots = seen.shape[1]
    rank = jnp.sum(seen[:, None, :] & np.tri(slots, k=-1, dtype=bool)[None], axis=-1)  # seen ones before this one
    to_slot = (rank[:, None, :] == np.arange(slots)[None, :, None]) & seen[:, None, :]  # [N, slot, E]
    packed = jnp.sum(jnp.where(to_slot[..., None], features[:, None], 0), axis=2)
    filled = np.arange(slots)[None, :] < jnp.sum(seen, axis=1)[:, None]
    return jnp.where(filled[..., None], packed, np.array([-1, -1, 0])[None, None, :])
