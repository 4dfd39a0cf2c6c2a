"""The network of an agent's action values."""

import dataclasses
from typing import Any

import jax
from flax import linen as nn

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.networks.actor_critic import ActorCritic
from jaxmarl_llm.networks.build import build_actor_critic
from jaxmarl_llm.networks.coordinator import Coordinator
from jaxmarl_llm.networks.initializers import orthogonal
from jaxmarl_llm.networks.team_input import TeamInput


class QNetwork(ActorCritic):
    """Action values in the place of an actor's logits, and no critic; usable in a `TeamNetwork`.

    Attributes:
      last_action: the network is also told the agent's last action; the observation is then a pair
        `(observation, last action [T, ..., N] int32)`, with -1 before the first action of an episode.
    """

    critic: str = "global_state"
    last_action: bool = False

    @nn.nowrap
    def memory_shapes(self, num_agents: int) -> dict[str, tuple[int, int]]:
        return {"actor": (num_agents, self.memory_size)} if self.memory_size else {}

    @nn.compact
    def __call__(
        self, memory: Any, inputs: TeamInput, agent_index: jax.Array
    ) -> tuple[Any, jax.Array, jax.Array | None]:
        """Evaluates T steps.

        Args:
          memory: dict with `[..., N, H]` float32 under `"actor"`; empty if feed-forward.
          inputs: what the agents see; the global state is not read.
          agent_index: `[N]` int32.

        Returns:
          `(memory, action values [T, ..., N, A], None)`.
        """
        width, *hidden = self.hidden_sizes
        observation = inputs.observation
        if self.last_action:
            observation, last_action = observation
            one_hot = jax.nn.one_hot(last_action, self.num_actions)
            embed = nn.Dense(width, use_bias=False, kernel_init=orthogonal(1.0), name="last_action_input")
            x = self.make_input((width,))(observation) + embed(one_hot)
        else:
            x = self.make_input((width,))(observation)
        if self.agent_id:
            x = x + self._embed_agent("agent", (width,), agent_index, x.ndim)
        branch = self._branch("actor", self.num_actions, tuple(hidden), 1.0)
        new_memory, q = branch(memory.get("actor"), x, inputs.reset)
        return {"actor": new_memory} if self.memory_size else {}, q, None


def build_q_network(
    observation_space, num_actions: int, num_agents: int, *, last_action: bool = False, **settings: Any
) -> QNetwork | Coordinator:
    """Builds the action-value network of one policy.

    Args:
      observation_space: one agent's space, or a pytree of spaces.
      num_actions: A.
      num_agents: N.
      last_action: see `QNetwork`; a coordinator cannot be told it.
      **settings: other settings of `build_actor_critic`, such as `network`.

    Raises:
      UserError: as `build_actor_critic`, and for a coordinator with `last_action`.
    """
    base = build_actor_critic(observation_space, num_actions, num_agents, critic="global_state", **settings)
    if isinstance(base, Coordinator):
        if last_action:
            raise UserError("network 'coordinator' cannot be told the last action: leave last_action out")
        return base.clone(heads=("q",))
    attributes = {field.name: getattr(base, field.name) for field in dataclasses.fields(base) if field.init}
    del attributes["parent"], attributes["name"]
    return QNetwork(**attributes, last_action=last_action)
