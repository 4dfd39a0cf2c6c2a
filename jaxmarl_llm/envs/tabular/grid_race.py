"""`grid_race`: two agents run from one corner to the other, and one arrival pays for both."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.envs.base import Environment, EnvState
from jaxmarl_llm.envs.drawing import Canvas, agent_color
from jaxmarl_llm.envs.spaces import Box, Discrete
from jaxmarl_llm.errors import UserError

# Change of (row, column) by action: up, down, left, right, stay.
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1), (0, 0))
GOAL_COLOR = (250, 208, 84)
START_COLOR = (222, 226, 230)


@struct.dataclass
class GridRaceState(EnvState):
    """State of `GridRace`.

    Attributes:
      position: `[2, 2]` int32, row and column of each agent.
    """

    position: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridRace(Environment[GridRaceState]):
    """Two agents on a `size` by `size` grid, both from the top left corner to the bottom right one.

    Observation: `[2, 2 * size * size]` float32, the agent's own cell one-hot (row-major), then the other's.
    Actions: 0 up, 1 down, 2 left, 3 right, 4 stay; a move off the grid leaves the agent where it is.
    Reward: shared, one number a step, by the first rule that holds: `goal_reward` if an agent arrives at the goal,
      `collision_reward` on a collision, `step_reward` otherwise.
    Collision: after the move both agents are in one cell that is not the start, or they have just swapped cells.
      Both stand in the start cell without a collision, since they begin there. Agents do not block each other, so
      two agents that stay in one cell collide again on every step.
    Termination: the first arrival ends the episode for both. Both may arrive on the same step; that is no collision.
    Info: `arrival` `[2]` float32, 1 for an agent that arrived on this step, and `collision` `[]` float32. They tell
      who earned the shared reward: an agent that never moves has no arrival, whatever the team gets.
    State: `position` `[2, 2]` int32; `global_state` is both agents' observations.
    The best return from the start at discount 0.95 with the defaults is 0.728537, as for one agent alone.
    Source: this library's own test of credit assignment; the grid is that of `Grid4x4`.

    Attributes:
      size: cells along a side, at least 2.
      goal_reward, collision_reward, step_reward: see Reward.
    """

    size: int = 4
    goal_reward: float = 1.0
    collision_reward: float = -0.5
    step_reward: float = -0.01
    max_steps: int = 50

    def __post_init__(self):
        super().__post_init__()
        if self.size < 2:
            raise UserError(f"size must be at least 2, so that start and goal differ, got {self.size}")

    @property
    def num_agents(self):
        return 2

    @property
    def observation_space(self):
        return Box(0.0, 1.0, (2 * self.size**2,))

    @property
    def action_space(self):
        return Discrete(len(MOVES))

    def initial_state(self, key):
        del key
        return GridRaceState(step=jnp.zeros((), jnp.int32), position=jnp.zeros((2, 2), jnp.int32))

    def transition(self, key, state, action):
        del key
        old = state.position
        new = jnp.clip(old + jnp.asarray(MOVES, jnp.int32)[action], 0, self.size - 1)
        arrival = (new == self.size - 1).all(axis=-1)
        together = (new[0] == new[1]).all() & (new[0] != 0).any()
        swapped = (new[0] == old[1]).all() & (new[1] == old[0]).all() & (old[0] != old[1]).any()
        collision = (together | swapped) & ~arrival.any()
        reward = jnp.where(collision, self.collision_reward, self.step_reward)
        reward = jnp.where(arrival.any(), self.goal_reward, reward)
        info = {"arrival": arrival.astype(jnp.float32), "collision": collision.astype(jnp.float32)}
        return state.replace(position=new), reward, arrival.any(), info

    def observe(self, state):
        cell = state.position[:, 0] * self.size + state.position[:, 1]
        one_hot = jax.nn.one_hot(cell, self.size**2, dtype=jnp.float32)
        return jnp.concatenate([one_hot, one_hot[::-1]], axis=-1)

    def render(self, state):
        canvas = Canvas(self.size, self.size, caption=f"step {int(state.step)}")
        canvas.tile((0, 0), START_COLOR)
        canvas.tile((self.size - 1, self.size - 1), GOAL_COLOR)
        canvas.text((self.size - 1, self.size - 1), "goal", size=0.25)
        # A little apart, so that both are seen in one cell.
        for i, (row, column) in enumerate(np.asarray(state.position)):
            shift = 0.14 * (2 * i - 1)
            canvas.circle((row + shift, column + shift), agent_color(i), size=0.5)
            canvas.text((row + shift, column + shift), str(i), (255, 255, 255), size=0.28)
        return canvas.array()
