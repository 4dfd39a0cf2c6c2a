"""What all learners have in common."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxmarl_llm import mesh
from jaxmarl_llm.algorithms.diagnostics import role_gradient_report
from jaxmarl_llm.algorithms.schedules import SCHEDULES, anneal
from jaxmarl_llm.envs.base import Environment, TimeStep
from jaxmarl_llm.networks.team import TeamNetwork
from jaxmarl_llm.settings import check_choices, check_counts, check_finite, check_numbers


@struct.dataclass(kw_only=True)
class Learner:
    """The common part of a learner's configuration.

    A frozen pytree: the float hyper-parameters are leaves, so learners can be vmapped over them; everything that
    shapes the program is static. All methods are pure.

    Axes: T rollout length, B environments, N agents, A actions, P policies.

    Attributes:
      env: the raw environment (no automatic reset).
      network_module: networks and the sharing table.
      num_envs: B.
      rollout_length: T, steps an environment takes between updates.
      role_gradient_rows: time steps from which the agents' gradients are compared at each update; 0 for no comparison.
      learning_rate_schedule: `"constant"`, `"linear"` or `"cosine"`, down to 0 over `total_steps`.
      learning_rate: Adam's step size.
      adam_epsilon: Adam's epsilon.
      max_grad_norm: largest global gradient norm of a policy (and of a mixer).
      discount: discount factor.
      shaped_reward_coefficient: weight of `info["shaped_reward"]`.
      shaped_reward_horizon: environment steps over which that weight falls to 0; 0 keeps it.
      total_steps: environment steps of the whole run, for the schedules.
    """

    env: Environment = struct.field(pytree_node=False)
    network_module: TeamNetwork = struct.field(pytree_node=False)
    num_envs: int = struct.field(pytree_node=False, default=16)
    rollout_length: int = struct.field(pytree_node=False, default=128)
    role_gradient_rows: int = struct.field(pytree_node=False, default=128)
    learning_rate_schedule: str = struct.field(pytree_node=False, default="linear")
    learning_rate: float = 2.5e-4
    adam_epsilon: float = 1e-5
    max_grad_norm: float = 0.5
    discount: float = 0.99
    shaped_reward_coefficient: float = 1.0
    shaped_reward_horizon: float = 0.0
    total_steps: float = 1e6

    @property
    def steps_per_update(self) -> int:
        """Environment steps of one update."""
        return self.num_envs * self.rollout_length

    @property
    def one_device(self) -> str:
        """Why no more than one device can update; empty where several can, given enough environments."""
        return ""

    def check(self) -> None:
        """Raises `UserError` where a setting is wrong by itself."""
        check_choices(self, learning_rate_schedule=SCHEDULES)
        check_counts(self, "num_envs", "rollout_length")
        check_counts(self, "role_gradient_rows", at_least=0)
        check_numbers(self, "discount")
        check_numbers(self, "total_steps", "max_grad_norm", above=0.0)
        # A clip of 0 or less is none.
        check_finite(self, signed=("shaped_reward_coefficient", "value_clip"))

    def progress(self, update: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """`(steps_done, learning_rate, shaped_weight)` `[]` float32 before the update of that number."""
        steps_done = update.astype(jnp.float32) * self.steps_per_update
        rate = anneal(self.learning_rate, 0.0, steps_done / self.total_steps, schedule=self.learning_rate_schedule)
        horizon = jnp.asarray(self.shaped_reward_horizon, jnp.float32)
        share_done = jnp.where(horizon > 0, steps_done / jnp.maximum(horizon, 1.0), 0.0)
        return steps_done, rate, self.shaped_reward_coefficient * anneal(1.0, 0.0, share_done)

    def make_optimizer(self) -> optax.GradientTransformation:
        """Gradient clipping and Adam, without the learning rate, for one set of parameters."""
        adam = optax.scale_by_adam(eps=self.adam_epsilon)
        # On one flat vector: a few operations, where a dozen small arrays would take a dozen times as many.
        return optax.flatten(optax.chain(optax.clip_by_global_norm(self.max_grad_norm), adam))

    def init(self, key: jax.Array) -> Any:
        """Everything that training changes, at the start. The key is consumed."""
        raise NotImplementedError

    def update(self, state: Any) -> tuple[Any, dict[str, jax.Array]]:
        """One rollout and the learning from it: pure, to be jitted, the state may be donated.

        Args:
          state: from `init` or an earlier `update`.

        Returns:
          The next state, and metrics: float32 scalars, and `[N]` arrays under names that begin with `agent_`.
        """
        raise NotImplementedError

    def initial_memory(self, batch_shape: tuple[int, ...] = ()) -> Any:
        """Memory at the start of an episode for `act`: pytree of `batch_shape + (N, ...)`, empty if feed-forward."""
        return self.network_module.initial_memory(batch_shape)

    def act(
        self, params: Any, timestep: TimeStep, memory: Any, key: jax.Array, greedy: bool = True
    ) -> tuple[jax.Array, Any]:
        """Chooses the team's actions.

        Args:
          params: `state.params`.
          timestep: from the environment; any leading batch axes.
          memory: from `initial_memory` at the start of an episode, else from the last call.
          key: consumed; unused when greedy.
          greedy: take the likeliest or best actions; else sample, or explore with probability `epsilon_final`.

        Returns:
          `(action [..., N] int32, memory)`.
        """
        raise NotImplementedError


def agent_gradient_metrics(gradient: Callable[[jax.Array], Any], num_agents: int) -> dict[str, jax.Array]:
    """What learners log of the gradients of their agents.

    Args:
      gradient: from `[N]` bool, true for one agent, to the gradient of that agent's part of the loss with respect to
        the policies: a pytree with a leading axis P, this device's part of it.
      num_agents: N.

    Returns:
      `agent_gradient_norm`, `agent_gradient_share` (of the sum of norms) and `agent_gradient_cosine` (mean over the
      other agents; 0 without any), all `[N]`.
    """

    def flat(agent):
        # Other policies' gradients are zero.
        return jnp.concatenate([jnp.sum(leaf, axis=0).ravel() for leaf in jax.tree.leaves(gradient(agent))])

    report = role_gradient_report(mesh.sum_over_devices(jax.vmap(flat)(jnp.eye(num_agents, dtype=bool))))
    others = jnp.sum(report.cosine, axis=-1) - jnp.diagonal(report.cosine)
    return {
        "agent_gradient_norm": report.norm,
        "agent_gradient_share": report.mass_share,
        "agent_gradient_cosine": others / max(num_agents - 1, 1),
    }
