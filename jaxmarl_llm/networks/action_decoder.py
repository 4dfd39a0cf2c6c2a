"""The decoder of the multi-agent transformer: one agent after the other, each told what those before it do."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxmarl_llm.networks.attention import AttentionBlock
from jaxmarl_llm.networks.dense import dense
from jaxmarl_llm.networks.initializers import orthogonal

_SQRT2 = math.sqrt(2.0)


class ActionDecoder(nn.Module):
    """An autoregressive policy over the agents of a team (Wen et al. 2022, section 4.2).

    Agent m attends to the pairs (encoding, action) of the agents before it, as the queries of its own encoding; the
    encodings know the whole team's observations already. The joint policy is the product of the agents' conditional
    ones, in the order of the agent axis.

    Attributes:
      num_actions: A.
      num_layers: number of attention layers.
      num_heads: H.
      width: E, of the encodings.
    """

    num_actions: int
    num_layers: int
    num_heads: int
    width: int

    def setup(self):
        self.encode_agent = dense(self.width, orthogonal(_SQRT2))
        self.encode_action = dense(self.width, orthogonal(_SQRT2), use_bias=False)
        self.layers = [AttentionBlock(self.num_heads) for _ in range(self.num_layers)]
        self.norm = nn.LayerNorm()
        self.hidden = dense(self.width, orthogonal(_SQRT2))
        self.head = dense(self.num_actions, orthogonal(0.01))

    def __call__(self, encoding: jax.Array, active: jax.Array, action: jax.Array) -> jax.Array:
        """Logits of every agent given the actions of those before it (teacher forcing).

        Args:
          encoding: `[..., N, E]` float32.
          active: `[..., N]` bool; nobody attends to an inactive agent's action.
          action: `[..., N]` int32.

        Returns:
          `[..., N, A]` float32; agent m's do not depend on the actions of agents m and later.
        """
        return self._logits(encoding, self._pairs(encoding, action), _earlier(active))

    def sample(self, encoding: jax.Array, active: jax.Array, choose: Callable) -> tuple[jax.Array, jax.Array]:
        """Chooses the agents' actions one after the other.

        Args:
          encoding: `[..., N, E]` float32.
          active: `[..., N]` bool.
          choose: function of logits `[..., A]` and an agent's index `[]` int32 (traced) that gives `[...]` int32.

        Returns:
          `(action [..., N] int32, logits [..., N, A])`, the logits that `__call__` gives for this action.
        """
        num_agents = encoding.shape[-2]

        def step(decoder, pairs, inputs):
            index, encoding, may_attend = inputs
            logits = decoder._logits(encoding[..., None, :], pairs, may_attend[..., None, :])[..., 0, :]
            action = choose(logits, index)
            is_own = (jnp.arange(num_agents) == index).reshape((1,) * (encoding.ndim - 1) + (-1, 1))
            pairs = jnp.where(is_own, decoder._pairs(encoding, action)[..., None, :], pairs)
            return pairs, (action, logits)

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False}, out_axes=-1)
        inputs = (jnp.arange(num_agents), jnp.moveaxis(encoding, -2, 0), jnp.moveaxis(_earlier(active), -2, 0))
        _, (action, logits) = scan(self, jnp.zeros_like(encoding), inputs)
        return action, jnp.swapaxes(logits, -1, -2)

    def _pairs(self, encoding, action):
        # A product with one-hot rows: the gradient of a gather would be a scatter.
        return nn.relu(self.encode_agent(encoding) + self.encode_action(jax.nn.one_hot(action, self.num_actions)))

    def _logits(self, encoding, pairs, may_attend):
        x = encoding
        for layer in self.layers:
            x = layer(x, pairs, may_attend)
        return self.head(nn.relu(self.hidden(self.norm(x))))


def _earlier(active):
    """`[..., N, N]` bool, agent m may attend to agent j: j comes before m and is active."""
    num_agents = active.shape[-1]
    before = jnp.tri(num_agents, k=-1, dtype=bool).reshape((1,) * (active.ndim - 1) + (num_agents, num_agents))
    return before & active[..., None, :]
