"""The policy-gradient learner: IPPO and MAPPO are settings of it."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.algorithms.categorical import categorical_mode, categorical_sample, masked_logits
from jaxmarl_llm.algorithms.masking import masked_mean
from jaxmarl_llm.algorithms.policy_gradient import rollout as rollouts
from jaxmarl_llm.algorithms.policy_gradient import update as updates
from jaxmarl_llm.algorithms.policy_gradient.state import LearnerState, Samples, StepRecord, Trajectory
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
            optimizer_state=jax.vmap(updates.make_optimizer(self).init)(params),
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
        shaped_weight = self._shaped_weight(steps_done)

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
        metrics |= _episode_metrics(trajectory, record)
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

    def _shaped_weight(self, steps_done):
        horizon = jnp.asarray(self.shaped_reward_horizon, jnp.float32)
        share_left = jnp.clip(1.0 - steps_done / jnp.maximum(horizon, 1.0), 0.0, 1.0)
        return self.shaped_reward_coefficient * jnp.where(horizon > 0, share_left, 1.0)

    def _assess(self, trajectory: Trajectory, last_value, statistics):
        """Advantages and targets of a rollout, the critic's statistics after it, and the explained variance."""
        network = self.network_module
        next_value = rollouts.next_values(trajectory, last_value)
        value = trajectory.value
        if self.normalize_value:
            of_agent = jax.tree.map(lambda leaf: leaf[jnp.asarray(network.policy_of_agent)][None, None], statistics)
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
        alive = trajectory.alive
        variance = masked_mean(jnp.square(target - masked_mean(target, alive)), alive)
        explained = 1.0 - masked_mean(jnp.square(target - value), alive) / (variance + 1e-8)
        if self.normalize_value:
            moments = updates.policy_means(network, jnp.stack([target, jnp.square(target)]), alive)
            statistics = update_value_statistics(
                statistics,
                moments[0],
                moments[1],
                updates.policy_counts(network, alive),
            )
            of_agent = jax.tree.map(lambda leaf: leaf[jnp.asarray(network.policy_of_agent)][None, None], statistics)
            target = normalize_value(of_agent, target)
        samples = Samples(trajectory=trajectory, advantage=advantage, target=target)
        return samples, statistics, explained


def _episode_metrics(trajectory: Trajectory, record: StepRecord) -> dict[str, jax.Array]:
    """Statistics of the episodes that ended in a rollout; not a number where none did."""
    finished = jnp.sum(trajectory.done.astype(jnp.float32))
    agent_return = jnp.sum(record.episode_return, axis=(0, 1)) / finished
    return {
        "episode_return": agent_return.mean(),
        "episode_length": jnp.sum(record.episode_length) / finished,
        "episodes_finished": finished,
        "agent_return": agent_return,
        "agent_shaped_reward": jnp.mean(record.shaped_reward, axis=(0, 1)),
    }
