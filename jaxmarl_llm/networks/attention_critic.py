"""A critic in which each agent attends to what the others observe and do."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxmarl_llm.networks.attention import MAPS, masked_attention
from jaxmarl_llm.networks.dense import dense
from jaxmarl_llm.networks.initializers import blockwise_orthogonal, orthogonal
from jaxmarl_llm.networks.recurrent import RecurrentCore
from jaxmarl_llm.networks.team_input import TeamInput, check_team_size

_SQRT2 = math.sqrt(2.0)


class AttentionCritic(nn.Module):
    """Values of an agent's own actions, given the observations and actions of the others (Iqbal and Sha 2019, eq. 5).

    Agent i's query comes from its own observation, keys and values from the pairs (observation, action) of the other
    active agents; `Q_i` never sees agent i's own action, so its row holds the values of all of them at once. The order
    of the others has no influence (without `agent_id`), and no parameter depends on N.

    Axes: T time, N agents, A actions, H memory; `...` any batch axes.

    Attributes:
      make_input: builds the first layer for given widths, see `networks.inputs`.
      num_actions: A.
      width: of the encodings.
      num_heads: attention heads; it divides the width.
      head: `"q"`, or `"value"` for one value an agent, from the observations alone.
      memory_size: H, of a recurrent core over each agent's observations; 0 for none.
      agent_id: tell the encoders the agent's index.
      num_agents: largest team with `agent_id`.
    """

    make_input: Callable[[tuple[int, ...]], nn.Module]
    num_actions: int
    width: int = 64
    num_heads: int = 4
    head: str = "q"
    memory_size: int = 0
    agent_id: bool = False
    num_agents: int = 0

    @nn.compact
    def __call__(self, memory: Any, inputs: TeamInput, agent_index: jax.Array) -> tuple[Any, jax.Array]:
        """Evaluates T steps.

        Args:
          memory: dict of `[..., N, H]` float32, of which `"critic"` is used; empty without recurrent core.
          inputs: observation, reset and active are used, and `action` by a `"q"` head.
          agent_index: `[N]` int32, used with `agent_id`.

        Returns:
          `(memory, q [T, ..., N, A])`, or `(memory, value [T, ..., N])`.

        Raises:
          ValueError: unknown head, heads that do not divide the width, or a `"q"` head without actions.
        """
        if self.head not in ("q", "value"):
            raise ValueError(f"head must be q or value, got {self.head}")
        if self.width % self.num_heads:
            raise ValueError(f"num_heads must divide the width: {self.num_heads} heads, width {self.width}")
        if self.head == "q" and inputs.action is None:
            raise ValueError("a critic of action values needs the team's actions")
        width, num_agents = self.width, inputs.active.shape[-1]
        x = self.make_input((width,))(inputs.observation)
        if self.agent_id:
            check_team_size(num_agents, self.num_agents)
            table = self.param("agent", orthogonal(1.0), (self.num_agents, width))
            x = x + table[agent_index].reshape((1,) * (x.ndim - 2) + x.shape[-2:])
        x = nn.relu(x)
        if self.memory_size:
            after, x = RecurrentCore(self.memory_size, name="recurrent")(memory["critic"], x, inputs.reset)
            memory = {**memory, "critic": after}

        own, shown = jnp.split(_dense(x, (width, width), _SQRT2, "encode"), 2, axis=-1)
        if self.head == "q":
            # A dense layer on observation features and one-hot action, as a sum of two.
            shown = shown + _dense(jax.nn.one_hot(inputs.action, self.num_actions), (width,), _SQRT2, "encode_action")
        own, shown = nn.relu(own), nn.relu(shown)
        query = _dense(own, (width,), 1.0, "query")
        key, value = jnp.split(_dense(shown, (width, width), 1.0, "key_value"), 2, axis=-1)
        others = ~jnp.eye(num_agents, dtype=bool).reshape((1,) * (x.ndim - 2) + (num_agents, num_agents))
        query, key, value = (y.reshape(*y.shape[:-1], self.num_heads, -1) for y in (query, key, nn.leaky_relu(value)))
        seen, weights = masked_attention(query, key, value, others & inputs.active[..., None, :])
        self.sow(MAPS, "weights", weights)

        x = jnp.concatenate([own, seen.reshape(own.shape)], axis=-1)
        x = nn.relu(dense(width, orthogonal(_SQRT2), name="hidden")(x))
        x = dense(self.num_actions if self.head == "q" else 1, orthogonal(1.0), name="out")(x)
        return memory, x if self.head == "q" else x[..., 0]


def _dense(x, features, scale, name):
    kernel_init = blockwise_orthogonal(features, scale)
    return dense(sum(features), kernel_init, use_bias=False, name=name)(x)
