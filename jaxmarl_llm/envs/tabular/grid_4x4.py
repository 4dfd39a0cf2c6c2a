"""`grid_4x4`: one agent walks from one corner of a square grid to the opposite one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.envs.base import Environment, EnvState
from jaxmarl_llm.envs.drawing import Canvas, agent_color
from jaxmarl_llm.envs.spaces import Box, Discrete
from jaxmarl_llm.errors import UserError

# Change of (row, column) by action: up, down, left, right.
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
GOAL_COLOR = (250, 208, 84)


@struct.dataclass
class GridState(EnvState):
    """State of `Grid4x4`.

    Attributes:
      position: `[2]` int32, row and column.
    """

    position: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid4x4(Environment[GridState]):
    """One agent on a `size` by `size` grid, from the top left corner to the bottom right one.

    Observation: one-hot cell, `[1, size * size]` float32, row-major.
    Actions: 0 up, 1 down, 2 left, 3 right; a move off the grid leaves the agent where it is.
    Reward: `goal_reward` on the step that reaches the goal, `step_reward` on every other step.
    Termination: the goal is reached.
    State: `position` `[2]` int32; `global_state` is the observation.
    The best return from the start at discount 0.95 with the defaults is `0.95**5 - 0.01 * (1 - 0.95**5) / 0.05
    = 0.728537`. Source: the grid world of textbooks (Sutton and Barto 2018, example 3.5), with one goal.

    Attributes:
      size: cells along a side, at least 2.
      goal_reward, step_reward: see Reward.
    """

    size: int = 4
    goal_reward: float = 1.0
    step_reward: float = -0.01
    max_steps: int = 50

    def __post_init__(self):
        super().__post_init__()
        if self.size < 2:
            raise UserError(f"size must be at least 2, so that start and goal differ, got {self.size}")

    @property
    def num_agents(self):
        return 1

    @property
    def observation_space(self):
        return Box(0.0, 1.0, (self.size**2,))

    @property
    def action_space(self):
        return Discrete(len(MOVES))

    def initial_state(self, key):
        del key
        return GridState(step=jnp.zeros((), jnp.int32), position=jnp.zeros((2,), jnp.int32))

    def transition(self, key, state, action):
        del key
        move = jnp.asarray(MOVES, jnp.int32)[action[0]]
        position = jnp.clip(state.position + move, 0, self.size - 1)
        arrived = (position == self.size - 1).all()
        reward = jnp.where(arrived, self.goal_reward, self.step_reward)
        return state.replace(position=position), reward, arrived, {}

    def observe(self, state):
        cell = state.position[0] * self.size + state.position[1]
        return jax.nn.one_hot(cell, self.size**2, dtype=jnp.float32)[None]

    def render(self, state):
        canvas = Canvas(self.size, self.size, caption=f"step {int(state.step)}")
        canvas.tile((self.size - 1, self.size - 1), GOAL_COLOR)
        canvas.text((self.size - 1, self.size - 1), "goal", size=0.25)
        canvas.circle(tuple(np.asarray(state.position)), agent_color(0))
        return canvas.array()
