"""`switch_riddle`: a hundred prisoners and a light bulb, for n prisoners."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.envs.base import Environment, EnvState
from jaxmarl_llm.envs.drawing import Canvas, agent_color
from jaxmarl_llm.envs.random import random_index
from jaxmarl_llm.envs.spaces import Discrete, MultiDiscrete
from jaxmarl_llm.errors import UserError

NOTHING, SWITCH, TELL = range(3)
MAX_AGENTS = 32
LIGHT, DARK, ROOM = (250, 208, 84), (70, 74, 88), (255, 255, 255)


@struct.dataclass
class SwitchRiddleState(EnvState):
    """State of `SwitchRiddle`.

    Attributes:
      light: `[]` bool, the bulb is on.
      in_room: `[]` int32, the agent in the room.
      visited: `[]` uint32, bit i is set once agent i has acted in the room.
    """

    light: jax.Array
    in_room: jax.Array
    visited: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwitchRiddle(Environment[SwitchRiddleState]):
    """Each day one random prisoner enters a room with a bulb, and may claim that all have been there.

    Observation: `[N, 2]` int32: whether the agent is in the room, and, for that agent alone, whether the light is on.
    Actions: 0 nothing, 1 switch the light, 2 tell. Only the agent in the room is asked (`active`); what the
      others send is ignored.
    Reward: shared. On "tell" `win_reward` if every agent has been in the room, this step included, else
      `lose_reward`; 0 otherwise.
    Termination: "tell", or the last of `max_steps` days: the number of days is a rule of the riddle, so nothing is
      bootstrapped behind it (`truncated` is set there too).
    State: `light` `[]` bool, `in_room` `[]` int32, `visited` `[]` uint32 with one bit an agent; `global_state` is
      `[2 N + 1]` float32: the room one-hot, who has visited, and the light.
    Source: Foerster et al. 2016, "Learning to Communicate with Deep Multi-Agent Reinforcement Learning", section 6.1;
      rules, rewards and the default limit as in JaxMARL's `switch_riddle`.

    Attributes:
      num_agents: N, 3 to 32. One agent has nothing to learn, and two need no bulb: the second visitor knows.
      light_on: whether the bulb is on at first.
      win_reward, lose_reward: see Reward.
      max_steps: days; None for 4 N - 6.
    """

    num_agents: int = 3
    light_on: bool = False
    win_reward: float = 1.0
    lose_reward: float = -1.0
    max_steps: int = None  # pyright: ignore[reportAssignmentType]

    def __post_init__(self):
        if not 3 <= self.num_agents <= MAX_AGENTS:
            raise UserError(
                f"num_agents must be 3 to {MAX_AGENTS}, got {self.num_agents}: with one or two prisoners there is no "
                "riddle, since a visitor already knows who else came"
            )
        if self.max_steps is None:
            object.__setattr__(self, "max_steps", 4 * self.num_agents - 6)
        super().__post_init__()

    @property
    def observation_space(self):
        return MultiDiscrete((2, 2))

    @property
    def action_space(self):
        return Discrete(3)

    def initial_state(self, key):
        return SwitchRiddleState(
            step=jnp.zeros((), jnp.int32),
            light=jnp.full((), self.light_on, bool),
            in_room=random_index(key, self.num_agents),
            visited=jnp.zeros((), jnp.uint32),
        )

    def transition(self, key, state, action):
        # A sum over a mask, since an indexed read of one entry an environment is a slow gather in a batch.
        choice = jnp.where(self.active(state), action, 0).sum()
        visited = state.visited | (jnp.uint32(1) << state.in_room.astype(jnp.uint32))
        tell, everyone = choice == TELL, visited == np.uint32(2**self.num_agents - 1)
        reward = jnp.where(tell, jnp.where(everyone, self.win_reward, self.lose_reward), 0.0)
        terminated = tell | (state.step + 1 >= self.max_steps)
        state = state.replace(
            light=state.light ^ (choice == SWITCH), in_room=random_index(key, self.num_agents), visited=visited
        )
        return state, reward, terminated, {}

    def observe(self, state):
        here = self.active(state)
        return jnp.stack([here, here & state.light], axis=-1).astype(jnp.int32)

    def active(self, state):
        return jnp.arange(self.num_agents, dtype=jnp.int32) == state.in_room

    def global_state(self, state):
        visited = (state.visited >> jnp.arange(self.num_agents, dtype=jnp.uint32)) & 1
        parts = [self.active(state), visited, state.light[None]]
        return jnp.concatenate([part.astype(jnp.float32) for part in parts])

    def render(self, state):
        """The bulb and the room above; below, the prisoners, those who have visited filled."""
        visited = (int(state.visited) >> np.arange(self.num_agents)) & 1
        canvas = Canvas(2, self.num_agents, caption=f"day {int(state.step)} of {self.max_steps}")
        in_room = int(state.in_room)
        canvas.tile((0, in_room), LIGHT if bool(state.light) else DARK)
        canvas.circle((0, in_room), agent_color(in_room))
        for i in range(self.num_agents):
            canvas.square((1, i), agent_color(i) if visited[i] else ROOM)
            canvas.text((1, i), str(i), (255, 255, 255) if visited[i] else agent_color(i))
        return canvas.array()
