"""Actor and critic of one policy."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxmarl_llm.networks.attention_critic import AttentionCritic
from jaxmarl_llm.networks.dense import dense
from jaxmarl_llm.networks.initializers import blockwise_orthogonal, orthogonal
from jaxmarl_llm.networks.recurrent import RecurrentCore
from jaxmarl_llm.networks.team_input import TeamInput

_SQRT2 = math.sqrt(2.0)
_ACTIVATIONS: dict[str, Callable] = {"tanh": nn.tanh, "relu": nn.relu}


class Branch(nn.Module):
    """From the features of the first layer to a head: nonlinearity, optional memory, hidden layers, output.

    Attributes:
      outputs: width of the head.
      hidden_sizes: widths of the layers after the first one.
      activation: `"tanh"` or `"relu"`.
      memory_size: H of the recurrent core; 0 for none.
      head_scale: gain of the head's initialisation.
    """

    outputs: int
    hidden_sizes: tuple[int, ...]
    activation: str
    memory_size: int
    head_scale: float

    @nn.compact
    def __call__(self, memory, x, reset):
        activation = _ACTIVATIONS[self.activation]
        x = activation(x)
        if self.memory_size:
            memory, x = RecurrentCore(self.memory_size)(memory, x, reset)
        for size in self.hidden_sizes:
            x = activation(dense(size, orthogonal(_SQRT2))(x))
        head = dense(self.outputs, orthogonal(self.head_scale))
        return memory, head(x)


class ActorCritic(nn.Module):
    """A policy head and a value head with separate weights.

    Axes: T time, N agents; `...` any batch axes.

    Attributes:
      make_input: builds the first layer for given widths, see `networks.inputs`.
      num_actions: A.
      num_agents: N of the team; a central critic tells the agents apart by their index.
      agent_id: the actor (and a critic on own observations) is told the agent's index too.
      hidden_sizes: widths of the hidden layers, the first layer included.
      activation: `"tanh"` or `"relu"`.
      memory_size: H, of the recurrent core; 0 for a feed-forward network.
      critic: what the critic reads: `"observation"` (the agent's own), `"global_state"` (with the agent's index) or
        `"attention"` (what the other active agents observe too, see `AttentionCritic`).
      action_critic: the critic, not of own observations alone, is told what the other agents do, and has a value for
        each own action.
    """

    make_input: Callable[[tuple[int, ...]], nn.Module]
    num_actions: int
    num_agents: int
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    memory_size: int = 0
    critic: str = "observation"
    action_critic: bool = False
    agent_id: bool = False

    # What a `TeamNetwork` asks.
    @property
    def joint(self) -> bool:
        return self.critic == "attention"

    @property
    def central_critic(self) -> bool:
        return self.critic == "global_state"

    @property
    def decoder(self) -> bool:
        return False

    @nn.nowrap
    def memory_shapes(self, num_agents: int) -> dict[str, tuple[int, int]]:
        return {name: (num_agents, self.memory_size) for name in ("actor", "critic") if self.memory_size}

    @nn.compact
    def __call__(
        self,
        memory: Any,
        inputs: TeamInput,
        agent_index: jax.Array,
    ) -> tuple[Any, jax.Array, jax.Array | None]:
        """Evaluates T steps.

        Args:
          memory: dict of `[..., N, H]` float32 under `"actor"` and `"critic"`; empty if feed-forward.
          inputs: what the agents see; a `global_state` of `None` leaves a critic that reads it out, an `action` of
            `None` a critic of actions.
          agent_index: `[N]` int32.

        Returns:
          `(memory, logits [T, ..., N, A], value [T, ..., N])`, `[T, ..., N, A]` for a critic of actions; the value is
          `None` where the critic was left out.
        """
        width, *hidden = self.hidden_sizes
        # One product for both branches where both read the observation.
        features = (width, width) if self.critic == "observation" else (width,)
        x = self.make_input(features)(inputs.observation)
        if self.agent_id:
            x = x + self._embed_agent("agent", features, agent_index, x.ndim)
        # `split` and not slices: its gradient is one concatenation.
        actor_x, critic_x = jnp.split(x, 2, axis=-1) if self.critic == "observation" else (x, x)
        actor = self._branch("actor", self.num_actions, tuple(hidden), 0.01)
        actor_memory, logits = actor(memory.get("actor"), actor_x, inputs.reset)
        if self.memory_size:
            memory = {**memory, "actor": actor_memory}
        if (self.central_critic and inputs.global_state is None) or (self.action_critic and inputs.action is None):
            return memory, logits, None
        if self.critic == "attention":
            head, num_heads = "q" if self.action_critic else "value", math.gcd(width, 4)
            team_critic = AttentionCritic(
                self.make_input, self.num_actions, width, num_heads, head, self.memory_size, self.agent_id,
                self.num_agents, name="critic",
            )  # fmt: skip
            memory, value = team_critic(memory, inputs, agent_index)
            return memory, logits, value
        if self.central_critic:
            # The state is the same for all agents: its product is computed once, then told apart by the index.
            first = dense(width, orthogonal(_SQRT2), name="critic_input")
            critic_x = first(inputs.global_state)[..., None, :]
            critic_x = critic_x + self._embed_agent("critic_agent", (width,), agent_index, critic_x.ndim)
            if self.action_critic and inputs.action is not None:
                critic_x = critic_x + self._embed_others(inputs.action, agent_index, width)
        critic = self._branch("critic", self.num_actions if self.action_critic else 1, tuple(hidden), 1.0)
        critic_memory, value = critic(memory.get("critic"), critic_x, inputs.reset)
        if self.memory_size:
            memory = {**memory, "critic": critic_memory}
        return memory, logits, value if self.action_critic else value[..., 0]

    def _branch(self, name: str, outputs: int, hidden: tuple[int, ...], head_scale: float) -> Branch:
        return Branch(outputs, hidden, self.activation, self.memory_size, head_scale, name=name)

    def _embed_agent(self, name: str, features: tuple[int, ...], agent_index: jax.Array, ndim: int) -> jax.Array:
        """`[N, features]` with axes of size 1 in front: the same as a one-hot index appended to the input."""
        table = self.param(name, blockwise_orthogonal(features, 1.0), (self.num_agents, sum(features)))
        rows = table[agent_index]
        return rows.reshape((1,) * (ndim - 2) + rows.shape)

    def _embed_others(self, action: jax.Array, agent_index: jax.Array, width: int) -> jax.Array:
        """`[T, ..., n, width]`: the same as the one-hot actions of the other agents appended to the critic's input."""
        shape = (self.num_agents, self.num_actions, width)
        table = self.param("critic_action", orthogonal(1.0), (math.prod(shape[:2]), width)).reshape(shape)
        one_hot = jax.nn.one_hot(action, self.num_actions)
        each = jnp.einsum("...na,naf->...nf", one_hot, table)
        return jnp.sum(each, axis=-2, keepdims=True) - jnp.take(each, agent_index, axis=-2)
