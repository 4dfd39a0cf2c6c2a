"""Value-decomposition networks: from the agents' values, or their joint action, to one value of the team."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxmarl_llm.networks.dense import dense
from jaxmarl_llm.networks.initializers import blockwise_orthogonal, orthogonal


class QMixer(nn.Module):
    """Monotonic mixer: the state chooses the non-negative weights of a small network (Rashid et al. 2018, eq. 5).

    `Q_tot = elu(q |W_1(s)| + b_1(s)) |w_2(s)| + V(s)`, so that no agent's value can lower the team's, and each agent's
    own best action is its part of the best joint action.

    Attributes:
      num_agents: N.
      embed_dim: width of the mixed layer.
      hidden_dim: width of the hidden layers that make `W_1` and `w_2`.
    """

    num_agents: int
    embed_dim: int = 32
    hidden_dim: int = 64

    @nn.compact
    def __call__(self, q: jax.Array, global_state: jax.Array) -> jax.Array:
        """Mixes.

        Args:
          q: `[..., N]` float32, each agent's value of its own action; 0 for an agent that does not count.
          global_state: `[..., G]` float32.

        Returns:
          `[...]` float32, the team's value.
        """
        # The four functions of the state share one product as their first layer, and stay four networks.
        widths = (self.hidden_dim, self.hidden_dim, self.embed_dim, self.embed_dim)
        first = dense(sum(widths), blockwise_orthogonal(widths, 1.0))(global_state)
        starts = (widths[0], widths[0] + widths[1], sum(widths[:3]))
        to_weight_1, to_weight_2, to_value, bias_1 = jnp.split(first, starts, axis=-1)
        weight_1 = dense(self.num_agents * self.embed_dim, orthogonal(1.0))(nn.relu(to_weight_1))
        weight_1 = jnp.abs(weight_1).reshape(*q.shape, self.embed_dim)
        weight_2 = jnp.abs(dense(self.embed_dim, orthogonal(1.0))(nn.relu(to_weight_2)))
        value = dense(1, orthogonal(1.0))(nn.relu(to_value))[..., 0]
        # Sums as products, since XLA's CPU compiler does not vectorise sums; accelerators would round their factors.
        hidden = nn.elu(jnp.einsum("...n,...ne->...e", q, weight_1, precision="highest") + bias_1)
        return jnp.dot(hidden * weight_2, jnp.ones((self.embed_dim,)), precision="highest") + value


class JointActionValue(nn.Module):
    """Unrestricted value of a joint action: a network on the state and all agents' actions.

    Attributes:
      num_actions: A.
      hidden_sizes: widths of the hidden layers.
    """

    num_actions: int
    hidden_sizes: tuple[int, ...] = (64, 64)

    @nn.compact
    def __call__(self, action: jax.Array, counts: jax.Array, global_state: jax.Array) -> jax.Array:
        """Values joint actions.

        Args:
          action: `[..., N]` int32.
          counts: `[..., N]` bool, false for an agent whose action is ignored.
          global_state: `[..., G]` float32.

        Returns:
          `[...]` float32.
        """
        one_hot = jax.nn.one_hot(jnp.where(counts, action, -1), self.num_actions)
        x = jnp.concatenate([global_state, one_hot.reshape(*action.shape[:-1], -1)], axis=-1)
        for size in self.hidden_sizes:
            x = nn.relu(dense(size, orthogonal(2.0**0.5))(x))
        return dense(1, orthogonal(1.0))(x)[..., 0]
