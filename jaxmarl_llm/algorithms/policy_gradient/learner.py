"""The policy-gradient learner: IPPO and MAPPO are settings of it."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.algorithms import mesh
from jaxmarl_llm.algorithms.categorical import categorical_mode, categorical_sample, masked_logits
from jaxmarl_llm.algorithms.episodes import episode_metrics, shaped_reward_weight
from jaxmarl_llm.algorithms.policy_gradient import rollout as rollouts
from jaxmarl_llm.algorithms.policy_gradient import update as updates
from jaxmarl_llm.algorithms.policy_gradient.per_policy import policy_counts, policy_means
from jaxmarl_llm.algorithms.policy_gradient.state import LearnerState, Samples, Trajectory
from jaxmarl_llm.algorithms.returns import gae
from jaxmarl_llm.algorithms.schedules import anneal
from jaxmarl_llm.algorithms.value_normalization import (
    denormalize_value,
    init_value_statistics,
    normalize_value,
    update_value_statistics,
)
from jaxmarl_llm.envs.base import Environment, TimeStep
from jaxmarl_llm.networks.team import TeamNetwork


@struct.dataclass
class PolicyGradient:
    """A team of policies trained by policy gradients; build one with `ippo` or `mappo`.

    A frozen pytree: the float hyper-parameters are leaves, so learners can be vmapped over them; everything that
    shapes the program is static. All methods are pure.

    Axes: T rollout length, B environments, N agents, A actions, P policies.

    Attributes:
      env: the raw environment (no automatic reset).
      network_module: networks and the sharing table.
      num_envs: B.
      rollout_length: T, steps an environment takes between updates.
      num_epochs: passes over a rollout.
      num_minibatches: gradient steps a pass.
      learning_rate_schedule: `"constant"`, `"linear"` or `"cosine"`, down to 0 over `total_steps`.
      normalize_advantage: standardise advantages within each minibatch and policy.
      normalize_value: the critic predicts returns in units of their running statistics.
      learning_rate: Adam's step size.
      adam_epsilon: Adam's epsilon.
      max_grad_norm: largest global gradient norm of a policy.
      discount: discount factor.
      gae_lambda: decay of generalised advantage estimation.
      clip_low, clip_high: clip range of the probability ratio below and above 1.
      value_clip: largest useful move of a value from its old prediction, in the critic's units; 0 or less turns it off.
      value_coefficient: weight of the value loss.
      entropy_coefficient, entropy_coefficient_final: weight of the entropy bonus at the start and at `total_steps`.
      shaped_reward_coefficient: weight of `info["shaped_reward"]`.
      shaped_reward_horizon: environment steps over which that weight falls to 0; 0 keeps it.
      total_steps: environment steps of the whole run, for the schedules.
    """

    env: Environment = struct.field(pytree_node=False)
    network_module: TeamNetwork = struct.field(pytree_node=False)
    num_envs: int = struct.field(pytree_node=False)
    rollout_length: int = struct.field(pytree_node=False)
    num_epochs: int = struct.field(pytree_node=False)
    num_minibatches: int = struct.field(pytree_node=False)
    learning_rate_schedule: str = struct.field(pytree_node=False)
    normalize_advantage: bool = struct.field(pytree_node=False)
    normalize_value: bool = struct.field(pytree_node=False)
    learning_rate: float
    adam_epsilon: float
    max_grad_norm: float
    discount: float
    gae_lambda: float
    clip_low: float
    clip_high: float
    value_clip: float
    value_coefficient: float
    entropy_coefficient: float
    entropy_coefficient_final: float
    shaped_reward_coefficient: float
    shaped_reward_horizon: float
    total_steps: float

    @property
    def env_groups(self) -> int:
        """Groups of environments that devices may share; minibatches are drawn within them."""
        recurrent = self.network_module.module.memory_size > 0
        return mesh.env_groups(self.num_envs, 1 if recurrent else self.rollout_length, self.num_minibatches)

    @property
    def steps_per_update(self) -> int:
        """Environment steps of one update, `B * T`."""
        return self.num_envs * self.rollout_length

    def init(self, key: jax.Array) -> LearnerState:
        """Everything that training changes, at the start. The key is consumed."""
        key_params, key_rollout, key = jax.random.split(key, 3)
        network = self.network_module
        rollout = rollouts.init_rollout(self.env, network, key_rollout, self.num_envs)
        first = jax.tree.map(lambda leaf: leaf[0], (rollout.timestep.observation, rollout.env_state))
        params = network.init(key_params, first[0], self.env.global_state(first[1]))
        state = LearnerState(
            params=params,
            optimizer_state=jax.vmap(updates.make_optimizer(self).init)(updates.flatten(params)),
            value_statistics=init_value_statistics((network.num_policies,)),
            rollout=rollout,
            key=key,
            update=jnp.zeros((), jnp.int32),
        )
        # An observation may be a field of the state itself; a buffer that is held twice cannot be donated.
        return jax.tree.map(jnp.copy, state)

    def update(self, state: LearnerState) -> tuple[LearnerState, dict[str, jax.Array]]:
        """One rollout and the learning from it: pure, to be jitted, the state may be donated.

        Args:
          state: from `init` or an earlier `update`.

        Returns:
          The next state, and metrics: float32 scalars, and `[N]` arrays under names that begin with `agent_`.
        """
        key_rollout, key_epochs, key = jax.random.split(state.key, 3)
        steps_done = state.update.astype(jnp.float32) * self.steps_per_update
        progress = steps_done / self.total_steps
        learning_rate = anneal(self.learning_rate, 0.0, progress, schedule=self.learning_rate_schedule)
        entropy_coefficient = anneal(self.entropy_coefficient, self.entropy_coefficient_final, progress)
        shaped_weight = shaped_reward_weight(self.shaped_reward_coefficient, self.shaped_reward_horizon, steps_done)

        memory = state.rollout.memory
        rollout, trajectory, record, last_value = rollouts.collect(
            self.env,
            self.network_module,
            state.params,
            state.rollout,
            key_rollout,
            num_steps=self.rollout_length,
            shaped_weight=shaped_weight,
        )
        samples, value_statistics, explained = self._assess(trajectory, last_value, state.value_statistics)
        params, optimizer_state, metrics = updates.run_epochs(
            self,
            state.params,
            state.optimizer_state,
            memory,
            samples,
            key_epochs,
            learning_rate,
            entropy_coefficient,
        )
        metrics |= episode_metrics(record)
        metrics |= {
            "explained_variance": explained,
            "learning_rate": learning_rate,
            "shaped_reward_weight": shaped_weight,
        }
        state = LearnerState(
            params=params,
            optimizer_state=optimizer_state,
            value_statistics=value_statistics,
            rollout=rollout,
            key=key,
            update=state.update + 1,
        )
        return state, metrics

    def initial_memory(self, batch_shape: tuple[int, ...] = ()) -> Any:
        """Memory at the start of an episode for `act`: pytree of `batch_shape + (N, H)`, empty if feed-forward."""
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
          greedy: take the likeliest action instead of a sample.

        Returns:
          `(action [..., N] int32, memory)`.
        """
        memory, logits, _ = rollouts.evaluate_step(self.network_module, params, memory, timestep, None)
        logits = masked_logits(logits, timestep.action_mask)
        return categorical_mode(logits) if greedy else categorical_sample(key, logits), memory

    def _assess(self, trajectory: Trajectory, last_value, statistics):
        """Advantages and targets of a rollout, the critic's statistics after it, and the explained variance."""
        table = self.network_module.policy_of_agent
        next_value = rollouts.next_values(trajectory, last_value)
        value = trajectory.value
        if self.normalize_value:
            of_agent = self._of_agent(statistics)
            value, next_value = denormalize_value(of_agent, value), denormalize_value(of_agent, next_value)
        advantage, target = gae(
            trajectory.reward,
            value,
            next_value,
            trajectory.terminated,
            trajectory.boundary,
            discount=self.discount,
            gae_lambda=self.gae_lambda,
        )
        alive = trajectory.alive[None]
        explained = _explained_variance(target, value, trajectory.alive)
        if self.normalize_value:
            mean, mean_square = policy_means(table, jnp.stack([target, jnp.square(target)]), alive)
            statistics = update_value_statistics(statistics, mean, mean_square, policy_counts(table, alive)[0])
            target = normalize_value(self._of_agent(statistics), target)
        samples = Samples(trajectory=trajectory, advantage=advantage, target=target)
        return samples, statistics, explained

    def _of_agent(self, statistics):
        """Each agent's critic's statistics, `[1, 1, N]`."""
        table = jnp.asarray(self.network_module.policy_of_agent)
        return jax.tree.map(lambda leaf: leaf[table][None, None], statistics)


def _explained_variance(target, value, alive) -> jax.Array:
    """Share of the targets' variance `[T, B, N]` that the values explain, over all agents alive."""
    one_policy = (0,) * alive.shape[-1]

    def mean(values):
        return policy_means(one_policy, values[None], alive[None])[0, 0]

    return 1.0 - mean(jnp.square(target - value)) / (mean(jnp.square(target - mean(target))) + 1e-8)
