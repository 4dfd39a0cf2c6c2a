"""One network module for a team: which agent uses which set of parameters."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxmarl_llm.networks.team_input import TeamInput


class TeamModule(Protocol):
    """What a `TeamNetwork` needs of the Flax module of one policy; `ActorCritic` and `Coordinator` are such modules.

    Its `__call__(memory, inputs, agent_index)` gives `(memory, logits [T, ..., N, A], value [T, ..., N] or None)` for
    any N; the shapes of its parameters do not depend on N. `memory_shapes(N)` names what it remembers, zeros at the
    start of an episode, with the last two axes of each; it is empty where nothing is remembered.

    Attributes:
      central_critic: the value reads the global state, and is `None` without one.
      action_critic: the values are those of an agent's actions, and `None` without the team's actions.
      joint: what an agent's outputs are depends on what the others observe: rows of a whole team are to be given.
      decoder: logits depend on the actions of the agents before; a joint network, with `sample` as `Coordinator`'s.
    """

    def memory_shapes(self, num_agents: int) -> dict[str, tuple[int, int]]: ...

    @property
    def central_critic(self) -> bool: ...

    @property
    def action_critic(self) -> bool: ...

    @property
    def joint(self) -> bool: ...

    @property
    def decoder(self) -> bool: ...

    @property
    def init(self) -> Any: ...

    @property
    def apply(self) -> Any: ...


@dataclasses.dataclass(frozen=True)
class TeamNetwork:
    """Parameters of P policies, stacked, and the table that says which agent uses which.

    Axes: T time, N agents, P policies, A actions, G global state; `...` any batch axes.

    Attributes:
      module: the network of one policy.
      policy_of_agent: `N` policy indices: `(0, 0)` shared, `(0, 1)` isolated, `(0, 0, 1)` by group.
    """

    module: TeamModule
    policy_of_agent: tuple[int, ...]

    @property
    def num_agents(self) -> int:
        return len(self.policy_of_agent)

    @property
    def num_policies(self) -> int:
        return max(self.policy_of_agent) + 1

    @property
    def recurrent(self) -> bool:
        """Whether anything is remembered from one step to the next."""
        return bool(self.module.memory_shapes(self.num_agents))

    def init(self, key: jax.Array, observation: Any, global_state: jax.Array) -> Any:
        """Parameters with a leading axis P on every leaf.

        Args:
          key: consumed.
          observation: pytree of `[N, ...]`, one example.
          global_state: `[G]`, one example.
        """
        # One agent is enough to know the shapes.
        observation = jax.tree.map(lambda leaf: leaf[None, :1], observation)
        memory = {name: jnp.zeros(shape) for name, shape in self.module.memory_shapes(1).items()}
        off, agent_index = jnp.zeros((1, 1), bool), jnp.zeros((1,), jnp.int32)
        inputs = TeamInput(
            observation=observation,
            global_state=global_state[None],
            reset=off,
            active=~off,
            action=jnp.zeros((1, 1), jnp.int32),
        )

        def init_one(key):
            return self.module.init(key, memory, inputs, agent_index)["params"]

        return jax.vmap(init_one)(jax.random.split(key, self.num_policies))

    def initial_memory(self, batch_shape: tuple[int, ...] = ()) -> Any:
        """Memory at the start of an episode: a dict of `batch_shape + (N, H)`, empty for feed-forward networks.

        With several policies of a joint network, `batch_shape + (N, P, H)`: each policy remembers every agent. What is
        no agent's own, such as the memory tokens of a `Coordinator`, has another number in the place of N.
        """
        policies = (self.num_policies,) if self.module.joint and self.num_policies > 1 else ()
        shapes = self.module.memory_shapes(self.num_agents)
        return {name: jnp.zeros((*batch_shape, rows, *policies, width)) for name, (rows, width) in shapes.items()}

    def apply(
        self, params: Any, memory: Any, inputs: TeamInput, agent_index: jax.Array | None = None
    ) -> tuple[Any, Any, jax.Array | None]:
        """Evaluates T steps of the whole team.

        Args:
          params: as `init` gives.
          memory: as `initial_memory` gives, pytree of `[..., N, H]`.
          inputs: leading axes `[T, ...]`; `action` names all agents of the team, also where N are only some of them.
          agent_index: `[N]` int32, numbers of these agents within their team; `0, 1, ...` by default.

        Returns:
          `(memory, logits [T, ..., N, A], value [T, ..., N])`, `[T, ..., N, A]` for a critic of actions; the value is
          `None` where the critic was left out, and so are the logits of a decoder without actions.
        """
        if agent_index is None:
            agent_index = jnp.arange(self.num_agents)
        if self.num_policies == 1:
            own = jax.tree.map(lambda leaf: leaf[0], params)
            return self.module.apply({"params": own}, memory, inputs, agent_index)
        if self.module.joint:
            return self._apply_joint(params, memory, inputs, agent_index)

        own = jax.tree.map(lambda leaf: leaf[jnp.asarray(self.policy_of_agent)], params)
        time_axis, batch_axis = inputs.reset.ndim - 1, inputs.reset.ndim - 2

        def apply_one(own, memory, inputs, agent_index):
            # Each agent keeps an agent axis of size 1, so the module need not know how it is called.
            memory = jax.tree.map(lambda leaf: jnp.expand_dims(leaf, batch_axis), memory)
            observation = jax.tree.map(lambda leaf: jnp.expand_dims(leaf, time_axis), inputs.observation)
            inputs = inputs.replace(
                observation=observation, reset=inputs.reset[..., None], active=inputs.active[..., None]
            )
            memory, logits, value = self.module.apply({"params": own}, memory, inputs, agent_index[None])
            memory = jax.tree.map(lambda leaf: leaf.take(0, axis=batch_axis), memory)
            return memory, logits.take(0, axis=-2), None if value is None else value.take(0, axis=time_axis)

        has_value = inputs.global_state is not None or not self.module.central_critic
        if self.module.action_critic:
            has_value &= inputs.action is not None
        # A critic is told the state and the actions of all.
        input_axes: Any = dataclasses.replace(
            inputs, observation=time_axis, global_state=None, reset=time_axis, active=time_axis, action=None
        )
        return jax.vmap(
            apply_one,
            in_axes=(0, batch_axis, input_axes, 0),
            out_axes=(batch_axis, time_axis, time_axis if has_value else None),
        )(own, memory, inputs, agent_index)

    def apply_step(self, params: Any, memory: Any, inputs: TeamInput) -> tuple[Any, Any, Any]:
        """`apply` without time axis."""
        memory, logits, value = self.apply(params, memory, jax.tree.map(lambda leaf: leaf[None], inputs))
        return memory, None if logits is None else logits[0], None if value is None else value[0]

    def sample(
        self, params: Any, memory: Any, inputs: TeamInput, choose: Callable
    ) -> tuple[Any, jax.Array, jax.Array, jax.Array | None]:
        """Chooses the team's actions with a decoder, one agent after the other.

        Args:
          params, memory, inputs: as in `apply`, of the whole team.
          choose: see `Coordinator.sample`.

        Returns:
          `(memory, action [T, ..., N] int32, logits, value)`: what `apply` gives for that action, and the action.
        """
        if self.num_policies == 1:
            own = jax.tree.map(lambda leaf: leaf[0], params)
            agent_index = jnp.arange(self.num_agents)
            return self.module.apply({"params": own}, memory, inputs, agent_index, choose, method="sample")
        # Each agent's own decoder reads what the others' decoders chose. Compiled, the passes share their encoder.
        action = jnp.zeros(inputs.active.shape, jnp.int32)
        for agent in range(self.num_agents):
            logits = self.apply(params, memory, dataclasses.replace(inputs, action=action))[1]
            action = action.at[..., agent].set(choose(logits[..., agent, :], agent))
        memory, logits, value = self.apply(params, memory, dataclasses.replace(inputs, action=action))
        return memory, action, logits, value

    def _apply_joint(self, params, memory, inputs, agent_index):
        """Every policy sees the whole team; each agent takes its own policy's outputs."""

        def apply_one(params, memory):
            return self.module.apply({"params": params}, memory, inputs, agent_index)

        memory, logits, value = jax.vmap(apply_one, in_axes=(0, -2), out_axes=(-2, 0, 0))(params, memory)

        def own_rows(leaf, axis):
            rows = [leaf[policy].take(agent, axis=axis) for agent, policy in enumerate(self.policy_of_agent)]
            return jnp.stack(rows, axis=axis)

        of_values = -2 if self.module.action_critic else -1
        logits = None if logits is None else own_rows(logits, -2)
        return memory, logits, None if value is None else own_rows(value, of_values)
