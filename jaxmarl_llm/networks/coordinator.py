"""The transformer coordinator: the agents of a team are tokens that attend to each other."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxmarl_llm.networks.action_decoder import ActionDecoder
from jaxmarl_llm.networks.attention import MAPS, AttentionBlock
from jaxmarl_llm.networks.dense import dense
from jaxmarl_llm.networks.initializers import orthogonal
from jaxmarl_llm.networks.recurrent import RecurrentCore
from jaxmarl_llm.networks.team_input import TeamInput, check_team_size

_SQRT2 = math.sqrt(2.0)
_GAINS = {"policy": 0.01, "value": 1.0, "q": 1.0}


class Head(nn.Module):
    """Norm, hidden layer, output; a value loses its last axis.

    Attributes:
      kind: `"policy"`, `"value"` or `"q"`.
      num_actions: A.
    """

    kind: str
    num_actions: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        outputs = 1 if self.kind == "value" else self.num_actions
        x = nn.relu(dense(x.shape[-1], orthogonal(_SQRT2))(nn.LayerNorm()(x)))
        x = dense(outputs, orthogonal(_GAINS[self.kind]))(x)
        return x[..., 0] if self.kind == "value" else x


class Coordinator(nn.Module):
    """A transformer over the agents (or roles) of a team, for policies, values and action values.

    Every agent is a token; inactive agents are attended to by nobody. No parameter depends on N, so the parameters
    run for a team of any size (with `agent_id`: up to `num_agents`), and without `agent_id` and decoder a permutation
    of the agents permutes the outputs. The agents' observations reach each other: acting is central.

    Axes: T time, N agents, A actions, E width, H memory; `...` any batch axes.

    Attributes:
      make_input: builds the first layer for given widths, see `networks.inputs`; with an `EntityInput` each agent
        attends to the entities that it sees before the agents attend to each other.
      num_actions: A.
      width: E, of a token.
      num_layers: number of attention layers among the agents (and as many in the decoder).
      num_heads: attention heads of a layer; it divides the width.
      memory_size: H, of a recurrent core that each agent's token passes first; 0 for none.
      memory_tokens: R, number of learned tokens beside the agents, a blackboard that they write to in one layer and
        read from in the next (Burtsev et al. 2020), and on the steps to come (Bulatov et al. 2022); it is wiped at the
        first step of an episode, which all agents of a team begin together.
      agent_id: add a learned vector for the agent's index.
      num_agents: largest team with `agent_id`.
      heads: one or two of `"policy"`, `"value"`, `"q"` (a value for each action).
      decoder: the policy goes through the agents one after the other, see `ActionDecoder`.
    """

    make_input: Callable[[tuple[int, ...]], nn.Module]
    num_actions: int
    width: int = 64
    num_layers: int = 1
    num_heads: int = 4
    memory_size: int = 0
    memory_tokens: int = 0
    agent_id: bool = False
    num_agents: int = 0
    heads: tuple[str, ...] = ("policy", "value")
    decoder: bool = False

    @nn.nowrap
    def memory_shapes(self, num_agents: int) -> dict[str, tuple[int, int]]:
        shapes = {"actor": (num_agents, self.memory_size), "blackboard": (self.memory_tokens, self.width)}
        return {name: shape for name, shape in shapes.items() if min(shape) > 0}

    # What a `TeamNetwork` asks: agents see each other, and the values need neither global state nor actions.
    @property
    def joint(self) -> bool:
        return True

    @property
    def central_critic(self) -> bool:
        return False

    @property
    def action_critic(self) -> bool:
        return False

    def setup(self):
        if self.width % self.num_heads:
            raise ValueError(f"num_heads must divide the width: {self.num_heads} heads, width {self.width}")
        if not 1 <= len(self.heads) <= 2 or not set(self.heads) <= set(_GAINS):
            raise ValueError(f"heads must be one or two of {', '.join(_GAINS)}, got {self.heads}")
        self.input = self.make_input((self.width,))
        # Flax makes the parameters of a layer where it is called, so those that are not used cost nothing.
        self.entity_layer = AttentionBlock(self.num_heads)
        self.recurrent = RecurrentCore(self.memory_size)
        self.recall = dense(self.width, orthogonal(1.0))
        self.layers = [AttentionBlock(self.num_heads) for _ in range(self.num_layers)]
        if self.agent_id:
            self.agent = self.param("agent", orthogonal(1.0), (self.num_agents, self.width))
        if self.memory_tokens:
            self.blackboard = self.param("blackboard", orthogonal(1.0), (self.memory_tokens, self.width))
            self.norm_blackboard = nn.LayerNorm()
        self.outputs = {
            kind: Head(kind, self.num_actions) for kind in self.heads if not (self.decoder and kind == "policy")
        }
        if self.decoder:
            self.action_decoder = ActionDecoder(self.num_actions, self.num_layers, self.num_heads, self.width)

    def __call__(
        self, memory: Any, inputs: TeamInput, agent_index: jax.Array
    ) -> tuple[Any, jax.Array | None, jax.Array | None]:
        """Evaluates T steps of the team.

        Args:
          memory: dict of `[..., N, H]` float32 under `"actor"`, with a recurrent core, and of `[..., R, E]` float32
            under `"blackboard"`, with memory tokens.
          inputs: observation, reset and active are used, and with a decoder `action`: each agent's logits are
            conditioned on the actions of those before it, and `None` leaves the policy out.
          agent_index: `[N]` int32, used with `agent_id`.

        Returns:
          `(memory, first, second)`, one result for each of `heads` in order (`None` for a missing second): logits
          `[T, ..., N, A]`, value `[T, ..., N]`, q `[T, ..., N, A]`.
        """
        memory, x = self._encode(memory, inputs, agent_index)
        logits, action = None, inputs.action
        if self.decoder:
            if action is None and self.is_initializing():
                action = jnp.zeros(inputs.active.shape, jnp.int32)
            logits = None if action is None else self.action_decoder(x, inputs.active, action)
        first, second = self._results(x, logits)
        return memory, first, second

    def sample(
        self, memory: Any, inputs: TeamInput, agent_index: jax.Array, choose: Callable
    ) -> tuple[Any, jax.Array, jax.Array | None, jax.Array | None]:
        """Chooses the team's actions with the decoder, one agent after the other.

        Args:
          memory, inputs, agent_index: as above.
          choose: function of logits `[T, ..., A]` and an agent's index (`[]` int32, traced) that gives the agent's
            action `[T, ...]` int32: there the caller applies masks and random numbers, or takes the mode.

        Returns:
          `(memory, action [T, ..., N] int32, first, second)`: what `__call__` gives for that action, and the action.

        Raises:
          ValueError: there is no decoder.
        """
        if not self.decoder:
            raise ValueError("sample needs a Coordinator with decoder=True; without one, sample from its logits")
        memory, x = self._encode(memory, inputs, agent_index)
        action, logits = self.action_decoder.sample(x, inputs.active, choose)
        first, second = self._results(x, logits)
        return memory, action, first, second

    def _results(self, x, logits):
        results = [self.outputs[kind](x) if kind in self.outputs else logits for kind in self.heads]
        return results[0], results[1] if len(results) == 2 else None

    def _encode(self, memory, inputs: TeamInput, agent_index):
        """Memory after the steps, and the agents' tokens `[T, ..., N, E]` after they attended to each other."""
        x = self.input(inputs.observation)
        if isinstance(x, tuple):
            token, entities = x
            everything = jnp.ones((*entities.shape[:-2], 1, entities.shape[-2]), bool)
            x = self.entity_layer(token[..., None, :], entities, everything)[..., 0, :]
        if self.agent_id:
            check_team_size(inputs.active.shape[-1], self.num_agents)
            x = x + self.agent[agent_index].reshape((1,) * (x.ndim - 2) + x.shape[-2:])
        if self.memory_size:
            after, y = self.recurrent(memory["actor"], nn.relu(x), inputs.reset)
            memory, x = {**memory, "actor": after}, x + self.recall(y)
        if not self.memory_tokens:
            return memory, self._attend(x, inputs.active)
        scan = nn.scan(
            Coordinator._step_with_blackboard,
            variable_broadcast="params",
            variable_axes={MAPS: 0},
            split_rngs={"params": False},
        )
        blackboard, x = scan(self, memory["blackboard"], (x, inputs.active, inputs.reset))
        return {**memory, "blackboard": blackboard}, x

    def _step_with_blackboard(self, written, step):
        """One step: `(written [..., R, E], tokens [..., N, E])`, what the next step reads, and the agents' tokens."""
        x, active, reset = step
        num_agents = x.shape[-2]
        written = jnp.where(reset[..., :1, None], 0.0, written)
        blackboard = written + self.blackboard.reshape((1,) * (x.ndim - 2) + self.blackboard.shape)
        present = jnp.concatenate([active, jnp.ones(blackboard.shape[:-1], bool)], axis=-1)
        x = self._attend(jnp.concatenate([x, blackboard], axis=-2), present)
        # Tokens grow from layer to layer, and would from step to step.
        return self.norm_blackboard(x[..., num_agents:, :]), x[..., :num_agents, :]

    def _attend(self, x, present):
        mask = jnp.broadcast_to(present[..., None, :], (*present.shape, present.shape[-1]))
        for layer in self.layers:
            x = layer(x, None, mask)
        return x
