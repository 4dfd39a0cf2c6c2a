"""The coin game: two agents on a 3x3 torus, a coin in each agent's colour, and the temptation to take the other's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.envs.base import Environment, EnvState
from jaxmarl_llm.envs.drawing import Canvas, agent_color
from jaxmarl_llm.envs.random import random_index
from jaxmarl_llm.envs.spaces import Box, Discrete
from jaxmarl_llm.errors import UserError

_SIDE = 3
_CELLS = _SIDE * _SIDE


@struct.dataclass
class CoinGameState(EnvState):
    """State of `CoinGame`.

    Attributes:
      cell: `[4]` int32 in `0 .. 8`, `3 * row + column` of agent 0, agent 1, coin 0 and coin 1.
    """

    cell: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoinGame(Environment[CoinGameState]):
    """Two agents walk on a 3x3 torus and take coins; taking the other agent's coin hurts that agent.

    A social dilemma: an agent gains by every coin, but loses more by each of its own coins that the other one takes.

    Agents: N = 2. Agent i owns coin i.

    Observation, one agent's: `[36]` uint8, or `[3, 3, 4]` with `grid_observation`: planes (last axis) of this agent,
    the other agent, this agent's coin, the other's coin over rows and columns. So each agent sees itself as the
    first. With `egocentric` the torus is rolled so that the agent stands in the middle.

    Action: 0 column + 1, 1 column - 1, 2 row + 1, 3 row - 1, 4 stay. Moves wrap around. Agents do not block each other.

    Reward: agent i gets `payoff[i][c]` for taking coin c (both agents may take a coin on the same step) and
    `payoff[i][2]` when the other agent takes coin i. A taken coin comes back at a random cell, which may be any.

    Termination: none; the episode is cut after `max_steps`. With `num_inner_steps = k`, agents and coins are also
    placed anew on every k-th step, which then pays no reward; the episode goes on (`info["inner_episode_end"]`).

    Global state: `[36]` float32, agent 0's absolute planes.

    Info: `own_coin`, `other_coin` `[2]` float32, coins taken on this step; with `num_inner_steps` also
    `inner_episode_end` `[]` float32.

    Source: Lerer and Peysakhovich 2017, "Maintaining cooperation in complex social dilemmas using deep reinforcement
    learning", in the 3x3 form of JaxMARL (Rutherford et al. 2024), whose rules, actions and observation these are.

    Attributes:
      num_inner_steps: steps of an inner episode; None for no inner episodes.
      payoff: two rows of three: reward for coin 0, for coin 1, and for losing the own coin.
      shared_reward: both agents get the sum of both rewards (social welfare).
      grid_observation: observation as `[3, 3, 4]`.
      egocentric: observation centred on the agent.
    """

    num_inner_steps: int | None = None
    payoff: tuple[tuple[float, float, float], ...] = ((1.0, 1.0, -2.0), (1.0, 1.0, -2.0))
    shared_reward: bool = False
    grid_observation: bool = False
    egocentric: bool = False

    def __post_init__(self):
        super().__post_init__()
        payoff = np.asarray(self.payoff, float)
        if payoff.shape != (2, 3) or not np.isfinite(payoff).all():
            raise UserError(f"payoff must be two rows of three finite numbers, got {self.payoff}")
        if self.num_inner_steps is not None and self.num_inner_steps < 1:
            raise UserError(f"num_inner_steps must be at least 1, or None for one episode, got {self.num_inner_steps}")
        object.__setattr__(self, "payoff", tuple(tuple(row) for row in payoff.tolist()))

    @property
    def num_agents(self) -> int:
        return 2

    @property
    def observation_space(self) -> Box:
        return Box(0, 1, (_SIDE, _SIDE, 4) if self.grid_observation else (4 * _CELLS,), "uint8")

    @property
    def action_space(self) -> Discrete:
        return Discrete(5)

    def initial_state(self, key):
        return CoinGameState(step=jnp.zeros((), jnp.int32), cell=_random_cells(key))

    def transition(self, key, state, action):
        agent, coin = _move(state.cell[:2], action), state.cell[2:]
        took = agent[:, None] == coin[None, :]  # [agent, coin]
        own = jnp.stack([took[0, 0], took[1, 1]])
        other = jnp.stack([took[0, 1], took[1, 0]])
        payoff = np.asarray(self.payoff, np.float32)
        # Own coin, other's coin, loss of the own coin: the columns of `payoff` as each agent sees them.
        gain_own, gain_other, loss = payoff[[0, 1], [0, 1]], payoff[[0, 1], [1, 0]], payoff[:, 2]
        reward = own * gain_own + other * gain_other + other[::-1] * loss
        info = {"own_coin": own.astype(jnp.float32), "other_coin": other.astype(jnp.float32)}

        # One draw serves the coins that come back and, on a restart, everything: the two are never used together.
        fresh = _random_cells(key)
        coin = jnp.where(jnp.any(took, axis=0), fresh[2:], coin)
        cell = jnp.concatenate([agent, coin])
        if self.num_inner_steps is not None:
            restart = (state.step + 1) % self.num_inner_steps == 0
            cell = jnp.where(restart, fresh, cell)
            reward = jnp.where(restart, 0.0, reward)
            info["inner_episode_end"] = restart.astype(jnp.float32)
        if self.shared_reward:
            reward = jnp.sum(reward)
        return state.replace(cell=cell), reward, False, info

    def observe(self, state):
        seen = jnp.stack([state.cell, state.cell[np.array([1, 0, 3, 2])]])  # [agent, plane]
        if self.egocentric:
            row, column = _row_column(seen)
            row, column = (_wrap(x - x[:, :1] + 1) for x in (row, column))
            seen = _SIDE * row + column
        planes = (seen[:, None, :] == np.arange(_CELLS)[None, :, None]).astype(jnp.uint8)
        return planes.reshape((2, *self.observation_space.shape))

    def global_state(self, state):
        planes = state.cell[None, :] == np.arange(_CELLS)[:, None]
        return planes.reshape(-1).astype(jnp.float32)

    def render(self, state):
        row, column = (np.asarray(x) for x in _row_column(jnp.asarray(state.cell)))
        canvas = Canvas(_SIDE, _SIDE, tile=64, caption=f"step {int(state.step)}")
        together = row[0] == row[1] and column[0] == column[1]
        for i in (0, 1):
            shift = (0.2 if i else -0.2) if together else 0.0
            canvas.circle((row[i], column[i] + shift), agent_color(i), size=0.5 if together else 0.72)
        coins_together = row[2] == row[3] and column[2] == column[3]
        for i in (0, 1):
            shift = (0.2 if i else -0.2) if coins_together else 0.0
            place = (row[2 + i] + 0.28, column[2 + i] + shift)
            canvas.circle(place, (250, 204, 72), size=0.36)
            canvas.circle(place, agent_color(i), size=0.2, outline=None)
        return canvas.array()


def _random_cells(key):
    """`[4]` int32, four independent uniform cells from one draw: the base-9 digits of a number below 9**4."""
    return random_index(key, _CELLS**4) // np.array([1, 9, 81, 729]) % _CELLS


def _row_column(cell):
    row = (cell >= _SIDE).astype(jnp.int32) + (cell >= 2 * _SIDE)
    return row, cell - _SIDE * row


def _wrap(x):
    """`x` modulo 3 for `-3 <= x < 6`."""
    return x + _SIDE * ((x < 0).astype(jnp.int32) - (x >= _SIDE))


def _move(cell, action):
    row, column = _row_column(cell)
    row = _wrap(row + (action == 2) - (action == 3))
    column = _wrap(column + (action == 0) - (action == 1))
    return _SIDE * row + column
