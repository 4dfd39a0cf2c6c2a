"""`two_step`: the cooperative two-step game of the QMIX paper."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.envs.base import Environment, EnvState
from jaxmarl_llm.envs.drawing import Canvas
from jaxmarl_llm.envs.spaces import Box, Discrete
from jaxmarl_llm.errors import UserError

# Shared reward of the second step, by [room, action of agent 0, action of agent 1]; room 0 is 2A, room 1 is 2B.
PAYOFF = (((7.0, 7.0), (7.0, 7.0)), ((0.0, 1.0), (1.0, 8.0)))
STAGES = ("1", "2A", "2B")
HERE = (250, 208, 84)


@struct.dataclass
class TwoStepState(EnvState):
    """State of `TwoStep`.

    Attributes:
      stage: `[]` int32, 0 at the first step, then 1 in 2A and 2 in 2B.
    """

    stage: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoStep(Environment[TwoStepState]):
    """Two agents; the first action of agent 0 alone chooses the matrix game of the second step.

    Observation: `[2, 3]` float32, the stage (1, 2A, 2B) one-hot, the same for both.
    Actions: two. At stage 1, agent 0's action 0 leads to 2A and 1 to 2B; agent 1's action has no effect.
    Reward: shared. 0 at stage 1; 7 in 2A whatever is done; [[0, 1], [1, 8]] in 2B. The best return is 8.
    Termination: after the second step (the stage stays what it was, so the last observation names the room).
    State: `stage` `[]` int32; `global_state` is both agents' observations, `[6]`.
    Source: Rashid et al. 2018, "QMIX", section 5.

    Attributes:
      max_steps: at least 2; the game itself ends after two steps.
    """

    max_steps: int = 2

    def __post_init__(self):
        super().__post_init__()
        if self.max_steps < 2:
            raise UserError(f"max_steps must be at least 2, since the game has two steps, got {self.max_steps}")

    @property
    def num_agents(self):
        return 2

    @property
    def observation_space(self):
        return Box(0.0, 1.0, (3,))

    @property
    def action_space(self):
        return Discrete(2)

    def initial_state(self, key):
        del key
        return TwoStepState(step=jnp.zeros((), jnp.int32), stage=jnp.zeros((), jnp.int32))

    def transition(self, key, state, action):
        del key
        second = state.stage > 0
        room = jnp.maximum(state.stage - 1, 0)
        payoff = jnp.asarray(PAYOFF, jnp.float32)[room, action[0], action[1]]
        stage = jnp.where(second, state.stage, action[0] + 1)
        return state.replace(stage=stage), jnp.where(second, payoff, 0.0), second, {}

    def observe(self, state):
        stage = jax.nn.one_hot(state.stage, 3, dtype=jnp.float32)
        return jnp.broadcast_to(stage[None], (2, 3))

    def render(self, state):
        canvas = Canvas(3, 5, tile=56, caption=f"step {int(state.step)}, stage {STAGES[int(state.stage)]}")
        here = ((1, 0), (0, 1.75), (2, 1.75))[int(state.stage)]
        for name, position in zip(STAGES, ((1, 0), (0, 1.75), (2, 1.75)), strict=True):
            canvas.square(position, HERE if position == here else (255, 255, 255), size=0.8)
            canvas.text(position, name, size=0.3)
        for room, row in ((0, 0), (1, 2)):
            canvas.line((1, 0.45), (row, 1.3))
            (a, b), (c, d) = PAYOFF[room]
            canvas.text((row - 0.16, 3.25), f"{a:g}   {b:g}", size=0.26)
            canvas.text((row + 0.16, 3.25), f"{c:g}   {d:g}", size=0.26)
        return canvas.array()
