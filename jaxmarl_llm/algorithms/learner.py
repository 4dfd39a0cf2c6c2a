"""What all learners have in common."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxmarl_llm.algorithms.episodes import shaped_reward_weight
from jaxmarl_llm.algorithms.schedules import SCHEDULES, anneal
from jaxmarl_llm.algorithms.settings import check_choices, check_counts, check_numbers
from jaxmarl_llm.envs.base import Environment, TimeStep
from jaxmarl_llm.networks.team import TeamNetwork


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

    def check(self) -> None:
        """Raises `UserError` where a setting is wrong by itself."""
        check_choices({"learning_rate_schedule": (self.learning_rate_schedule, SCHEDULES)})
        check_counts(self, "num_envs", "rollout_length")
        check_counts(self, "role_gradient_rows", at_least=0)
        check_numbers(self, "discount")
        check_numbers(self, "total_steps", "max_grad_norm", above=0.0)

    def progress(self, update: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """`(steps_done, learning_rate, shaped_weight)` `[]` float32 before the update of that number."""
        steps_done = update.astype(jnp.float32) * self.steps_per_update
        rate = anneal(self.learning_rate, 0.0, steps_done / self.total_steps, schedule=self.learning_rate_schedule)
        weight = shaped_reward_weight(self.shaped_reward_coefficient, self.shaped_reward_horizon, steps_done)
        return steps_done, rate, weight

    def make_optimizer(self) -> optax.GradientTransformation:
        """Gradient clipping and Adam, without the learning rate, for one set of parameters."""
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.scale_by_adam(eps=self.adam_epsilon))

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
