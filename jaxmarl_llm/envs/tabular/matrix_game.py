"""`matrix_game`: one payoff tensor, played once or several times."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.envs.base import Environment, EnvState
from jaxmarl_llm.envs.drawing import Canvas
from jaxmarl_llm.envs.spaces import Box, Discrete
from jaxmarl_llm.errors import UserError, unknown_name

GAMES = ("climbing", "coordination", "penalty", "prisoners_dilemma", "stag_hunt")
OBSERVATIONS = ("constant", "last_action")
PLAYED = (250, 208, 84)


@struct.dataclass
class MatrixGameState(EnvState):
    """State of `MatrixGame`.

    Attributes:
      last_action: `[N]` int32, the actions of the last play; -1 before the first.
    """

    last_action: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatrixGame(Environment[MatrixGameState]):
    """N agents choose at once; a payoff tensor gives the reward.

    Observation: `"constant"`: `[N, 1]` float32 ones. `"last_action"`: `[N, N * A]` float32, the last play's actions
      one-hot, the agent's own first and then the next agents' in turn; zeros before the first play.
    Actions: agent i's index into axis i of the payoff. Where the axes differ in length, A is the longest and the
      mask forbids the rest.
    Reward: the payoff entry: one number for all (a tensor of N axes), or one an agent (N + 1 axes, the last of size N).
    Termination: after `max_steps` plays the game is over for good (`terminated`): no value lies behind the last play.
    State: `last_action` `[N]` int32; `global_state` is all agents' observations.

    Games by name (agent 0 chooses the row; source in brackets):
      climbing: [[11, -30, 0], [-30, 7, 6], [0, 0, 5]], shared (Claus and Boutilier 1998).
      penalty: [[10, 0, k], [0, 2, 0], [k, 0, 10]], shared, k is `penalty` (Claus and Boutilier 1998).
      prisoners_dilemma: 0 cooperates, 1 defects; 3 each, 1 each, or 0 against 5 (Axelrod 1984).
      stag_hunt: 0 hunts the stag, 1 the hare; 4 each, 2 each, or 1 for the lone stag hunter against 3 (Skyrms 2004).
      coordination: two actions, 1 for all if all choose alike, else 0, shared; any number of agents.

    Attributes:
      game: a name from the list above; not used when `payoff` is given.
      payoff: a tensor of your own: nested tuples or lists, or an array. Stored as nested tuples.
      num_agents: N. Together with `payoff` it says whether the last axis is an agent's choice or the agents.
      penalty: k of the penalty game.
      observation: what the agents see, see above.
      max_steps: number of plays.
    """

    game: str = "climbing"
    payoff: tuple | None = None
    num_agents: int = 2
    penalty: float = -100.0
    observation: str = "constant"
    max_steps: int = 1

    def __post_init__(self):
        super().__post_init__()
        if self.game not in GAMES:
            raise unknown_name("game", self.game, GAMES)
        if self.observation not in OBSERVATIONS:
            raise unknown_name("observation", self.observation, OBSERVATIONS)
        if self.num_agents < 1:
            raise UserError(f"num_agents must be at least 1, got {self.num_agents}")
        if self.payoff is None:
            if self.num_agents != 2 and self.game != "coordination":
                raise UserError(
                    f"{self.game} has 2 agents, got num_agents={self.num_agents}: pass a payoff of your own"
                )
            return
        _check_payoff(self.payoff, self.num_agents)
        object.__setattr__(self, "payoff", _nested_tuples(np.asarray(self.payoff, np.float32).tolist()))

    def payoff_tensor(self) -> np.ndarray:
        """`[A_0, ..., A_(N-1), N]` float32, every agent's reward for every joint action."""
        payoff = self._named_payoff() if self.payoff is None else np.asarray(self.payoff, np.float32)
        if payoff.ndim == self.num_agents:
            payoff = np.repeat(payoff[..., None], self.num_agents, axis=-1)
        return payoff

    def _named_payoff(self) -> np.ndarray:
        k = self.penalty
        if self.game == "coordination":
            payoff = np.zeros((2,) * self.num_agents)
            payoff[(0,) * self.num_agents] = payoff[(1,) * self.num_agents] = 1.0
            return payoff.astype(np.float32)
        tables = {
            "climbing": [[11, -30, 0], [-30, 7, 6], [0, 0, 5]],
            "penalty": [[10, 0, k], [0, 2, 0], [k, 0, 10]],
            "prisoners_dilemma": [[[3, 3], [0, 5]], [[5, 0], [1, 1]]],
            "stag_hunt": [[[4, 4], [1, 3]], [[3, 1], [2, 2]]],
        }
        return np.asarray(tables[self.game], np.float32)

    @property
    def observation_space(self):
        size = 1 if self.observation == "constant" else self.num_agents * self.num_actions
        return Box(0.0, 1.0, (size,))

    @property
    def action_space(self):
        return Discrete(max(self.payoff_tensor().shape[:-1]))

    def initial_state(self, key):
        del key
        return MatrixGameState(step=jnp.zeros((), jnp.int32), last_action=jnp.full((self.num_agents,), -1, jnp.int32))

    def transition(self, key, state, action):
        del key
        payoff = self.payoff_tensor()
        sizes = payoff.shape[:-1]
        strides = np.cumprod((1, *sizes[:0:-1]))[::-1].astype(np.int32)
        reward = jnp.asarray(payoff.reshape(-1, self.num_agents))[jnp.dot(action, jnp.asarray(strides))]
        return state.replace(last_action=action), reward, state.step + 1 >= self.max_steps, {}

    def observe(self, state):
        if self.observation == "constant":
            return jnp.ones((self.num_agents, 1), jnp.float32)
        index = np.arange(self.num_agents)
        own_first = (index[:, None] + index[None, :]) % self.num_agents
        one_hot = jax.nn.one_hot(state.last_action[own_first], self.num_actions, dtype=jnp.float32)
        return one_hot.reshape(self.num_agents, self.num_agents * self.num_actions)

    def action_mask(self, state):
        sizes = np.asarray(self.payoff_tensor().shape[:-1])
        return jnp.asarray(np.arange(self.num_actions)[None, :] < sizes[:, None])

    def render(self, state):
        """The payoff table with the last play marked; more than two agents are shown by the last play alone."""
        payoff, last = self.payoff_tensor(), np.asarray(state.last_action)
        caption = f"play {int(state.step)} of {self.max_steps}"
        if self.num_agents != 2:
            canvas = Canvas(1, self.num_agents, tile=64, caption=caption)
            for i, choice in enumerate(last):
                canvas.text((0, i), "-" if choice < 0 else str(choice))
            return canvas.array()
        rows, columns = payoff.shape[:2]
        shared = (payoff == payoff[..., :1]).all()
        canvas = Canvas(rows, columns, tile=72, caption=caption)
        for row in range(rows):
            for column in range(columns):
                if (row, column) == tuple(last):
                    canvas.tile((row, column), PLAYED)
                one, two = (f"{value:g}" for value in payoff[row, column])
                canvas.text((row, column), one if shared else f"{one}, {two}", size=0.24)
        return canvas.array()


def _check_payoff(payoff, num_agents: int) -> None:
    try:
        array = np.asarray(payoff, np.float32)
    except (ValueError, TypeError) as error:
        raise UserError("payoff is not a regular tensor of numbers: give all rows the same length") from error
    shared, general = array.ndim == num_agents, array.ndim == num_agents + 1 and array.shape[-1] == num_agents
    if not (shared or general) or array.size == 0:
        raise UserError(
            f"payoff has shape {array.shape}: for num_agents={num_agents} give {num_agents} axes (shared reward), "
            f"or {num_agents + 1} with the last of size {num_agents} (one reward an agent)"
        )
    if not np.isfinite(array).all():
        raise UserError("payoff holds NaN or infinite entries: give finite numbers")


def _nested_tuples(value):
    return tuple(_nested_tuples(entry) for entry in value) if isinstance(value, list) else value
